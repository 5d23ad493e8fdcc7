"""Evaluation with noise: metrics of a model over all sites' test rows, at a cost in epsilon that is accounted for.

Test rows are counted in fixed bins, and metrics come from the noisy counts alone (``noisy_metrics.py``). Bins are of a
class's probability, or of the error and the value of a number: they follow from the schema, and whatever they are, a
row is in one of each set of them. So a site knows what one row can change without trusting anybody.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from silvan.algorithms.evaluation.evaluation import FEDERATED, Evaluation, Row, answer_of
from silvan.algorithms.private.noisy_counts import CountNoisily, NoisyCounts, answer_with_noise, labelled_rows
from silvan.algorithms.private.noisy_metrics import Layout, estimate
from silvan.algorithms.private.noisy_rounds import Placing, Rounds
from silvan.data.schema import Schema
from silvan.errors import FormatError
from silvan.federation.federation import OVERALL, Federation
from silvan.federation.message import Blob
from silvan.federation.site import Site, answers
from silvan.forest.forest import Forest
from silvan.privacy.noise.laplace import Noise

UNIT = "one row of those kept for judging, added or removed"


# -- messages


class CountByScoreWithNoise(CountNoisily, frozen=True, kw_only=True):
    """How many test rows have which score by a model, by class or by value, with noise."""

    schema: Blob
    model: Blob

    def noises(self, schema: Schema) -> tuple[Noise, ...]:
        """Return the noise: one more row is in one cell of every set of cells."""
        return (self.noise(len(Layout.of(schema).sizes)),)

    def describe(self, reply: Any = None) -> str:
        """Describe what is asked for."""
        return f"test rows by what a model makes of them, in public bins, with noise for epsilon {self.epsilon:.4g}"


# -- at a site


@answers(CountByScoreWithNoise)
def noisy_tally(site: Site, request: CountByScoreWithNoise) -> NoisyCounts:
    """Count the test rows and add noise."""
    return answer_with_noise(site, request, request.schema, lambda schema: plan_tally(site, request, schema))


def plan_tally(site: Site, request: CountByScoreWithNoise, schema: Schema) -> Callable[[], np.ndarray]:
    """Check the model without a look at the rows; return what counts them without noise, which never leaves the site.

    Where columns are lacking that all trees need, no rows are counted.
    """
    forest, layout = Forest.from_bytes(site.blob(request.model.hash)), Layout.of(schema)
    if forest.schema != schema:
        raise FormatError("a model of another schema than the rows are encoded by")

    def count() -> np.ndarray:
        rows, absent = labelled_rows(site, schema, test=True), site.absent(schema)
        counts = np.zeros(layout.size, np.int64)
        for piece in rows.pieces():
            answer = answer_of(forest, piece.X, absent, site.n_jobs)
            if not answer.silent:
                counts += layout.count(answer.scores, answer.decided, piece.y)
        return counts

    return count


# -- at the coordinator


def evaluate_with_noise(
    federation: Federation, schema: Schema, model: Forest, epsilon: float, placing: Placing
) -> Evaluation:
    """Evaluate a model over all sites together, with noise, and account for what that costs."""
    rounds, layout = Rounds(federation, schema, epsilon, placing), Layout.of(schema)
    request = CountByScoreWithNoise(
        epsilon=rounds.split_epsilon.rest(),
        sharers=placing.sharers,
        schema=rounds.schema_blob,
        model=federation.blob(model.to_bytes()),
    )
    with federation.counted_apart():
        counts = rounds.total(request, "test rows by score", len(layout.sizes), (layout.size,))
    noise = request.noises(schema)[0]
    rows, found, between = estimate(layout, counts, noise.alpha, placing.factor)
    row = Row(OVERALL, FEDERATED, rows, found, between=between, epsilon=float(epsilon))
    account = replace(rounds.account(), unit=UNIT)
    return Evaluation([row], models=(FEDERATED,), guarantee=f"epsilon {epsilon:g}", privacy=account)
