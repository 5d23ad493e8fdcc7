"""Evaluation with noise: metrics of a model over all sites' test rows, at a cost in epsilon that is accounted for.

Test rows are counted in fixed bins; metrics come from the noisy counts alone, with intervals that include the noise.
Bins of a class's probability, or of a number and its error, follow from the schema, and a row is in one bin of each
set. So a site knows what one row can change without trusting anybody.

Two classes: bins of the positive one's probability, by class. Several: the confusion matrix, and for each class bins of
its probability, by whether a row is of it. A number: bins of the error's size, and bins of the number itself.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from silvan import metrics
from silvan.algorithms.evaluation.evaluation import FEDERATED, Evaluation, Row, answer_of
from silvan.algorithms.private.noisy_counts import (
    MAX_DEPTH,
    MAX_STEPS,
    NoisyCounts,
    NoisyTotal,
    Placing,
    Rounds,
    answer_with_noise,
    labelled_rows,
    model_to_count_by,
    too_deep,
)
from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError
from silvan.federation.federation import Federation
from silvan.federation.members import OVERALL
from silvan.federation.message import Agreed, Blob, Derived
from silvan.federation.site import Site, answers
from silvan.forest.forest import Forest
from silvan.privacy.noise.laplace import Noise

_ODDS = np.arange(-11, 12) / 3.0
EDGES = 1.0 / (1.0 + np.exp(-_ODDS))
"""Edges of probability bins: even in log-odds, so that rare classes have bins too; 0.5 is one of them."""

_HALF = int(np.searchsorted(EDGES, 0.5)) + 1  # the first bin above 0.5
N_BINS = len(EDGES) + 1

N_ERRORS = 26
"""Error bins: each reaches 1.2 times as far as the previous one; the last one covers errors beyond the bounds."""

N_VALUES = 16  # bins of a number, evenly between its bounds
_RESAMPLES = 500

Between = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class TallyLayout:
    """The layout of a tally's cells: the sizes of its sets, and the metrics computed from them."""

    sizes: tuple[int, ...]
    n_classes: int
    low: float = 0.0
    width: float = 1.0
    positive: int = 1

    @classmethod
    def of(cls, schema: Schema) -> "TallyLayout":
        """Return the layout for a schema; numbers need bounds."""
        n = schema.n_classes
        if n:
            sizes = (2 * N_BINS,) if n == 2 else (n * n, *(2 * N_BINS,) * n)
            return cls(sizes, n, positive=schema.label.positive_code)
        if schema.label.bounds is None:
            raise FormatError("the number to predict has no bounds")
        low, high = schema.label.bounds
        return cls((N_ERRORS, N_VALUES), 0, float(low), float(high - low))

    @property
    def size(self) -> int:
        """Number of cells."""
        return sum(self.sizes)

    def count(self, scores: np.ndarray, decided: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Count rows by the model's scores and decisions, and by the true label."""
        cells = list(self._cells_of_classes(scores, decided, y) if self.n_classes else self._cells_of_number(scores, y))
        counted = [np.bincount(cell, minlength=size) for cell, size in zip(cells, self.sizes, strict=True)]
        return np.concatenate(counted).astype(np.int64)

    def _cells_of_classes(self, scores: np.ndarray, decided: np.ndarray, y: np.ndarray) -> Iterator[np.ndarray]:
        n = self.n_classes
        bins = np.searchsorted(EDGES, scores, side="right")
        y = y.astype(np.int64)
        if n == 2:
            # a tie is on the side of the model's decision
            found, cells = decided == self.positive, bins[:, self.positive]
            yield 2 * np.where(found, np.maximum(cells, _HALF), np.minimum(cells, _HALF - 1)) + (y == self.positive)
            return
        yield y * n + decided
        for k in range(n):
            yield 2 * bins[:, k] + (y == k)

    def _cells_of_number(self, scores: np.ndarray, y: np.ndarray) -> Iterator[np.ndarray]:
        errors = np.nan_to_num(np.abs(scores[:, 0] - np.clip(y, self.low, self.low + self.width)) / self.width)
        yield np.searchsorted(_error_edges(), errors, side="right")
        places = np.nan_to_num((y - self.low) / self.width * N_VALUES)
        yield np.clip(places, 0, N_VALUES - 1).astype(np.int64)

    def split(self, counts: np.ndarray) -> list[np.ndarray]:
        """Return the counts set by set."""
        return np.split(counts, np.cumsum(self.sizes)[:-1])

    def rows(self, counts: np.ndarray) -> float:
        """Return the number of rows, as estimated from all sets together."""
        return float(counts.sum() / len(self.sizes))

    def metrics(self, counts: np.ndarray) -> dict[str, float]:
        """Return the metrics; NaN if noise left nothing to compute them from."""
        return self._of_classes(counts) if self.n_classes else self._of_number(counts)

    def _of_classes(self, counts: np.ndarray) -> dict[str, float]:
        n, sets = self.n_classes, self.split(counts)
        by_score = [part.reshape(N_BINS, 2) for part in (sets if n == 2 else sets[1:])]
        if n == 2:
            confusion = np.stack([by_score[0][:_HALF].sum(axis=0), by_score[0][_HALF:].sum(axis=0)], axis=1)
        else:
            confusion = sets[0].reshape(n, n)
        evidence = metrics.Evidence([part[::-1].T for part in by_score], confusion)
        return {metric.key: metric.of(evidence) for metric in metrics.main_metrics(n) if metric.noisy}

    def _of_number(self, counts: np.ndarray) -> dict[str, float]:
        errors, values = self.split(counts)
        if errors.sum() <= 0 or values.sum() <= 0:
            return {metric.key: np.nan for metric in metrics.main_metrics(0)}
        edges = np.concatenate([[0.0], _error_edges(), [1.0]])
        squares = (edges[:-1] ** 2 + edges[:-1] * edges[1:] + edges[1:] ** 2) / 3.0  # errors spread evenly in a bin
        error = float((errors * squares).sum() / errors.sum())
        middles = (np.arange(N_VALUES) + 0.5) / N_VALUES
        mean = (values * middles).sum() / values.sum()
        spread = float((values * (middles - mean) ** 2).sum() / values.sum()) - 1.0 / (12 * N_VALUES**2)
        rmse = self.width * np.sqrt(error) if error >= 0 else np.nan
        return {"rmse": float(rmse), "r2": 1.0 - error / spread if spread > 0 and error >= 0 else np.nan}


def _error_edges() -> np.ndarray:
    """Return the boundaries of error bins, as shares of the number's width."""
    edges: np.ndarray = 2.0 ** (np.arange(2 - N_ERRORS, 1) / 4.0)
    return edges


def estimate(
    layout: TallyLayout, counts: np.ndarray, alpha: float, factor: float
) -> tuple[int, dict[str, float], Between]:
    """Return the number of rows, metrics, and 95% intervals of them for other rows and other noise.

    The noise on a count is that of ``factor`` discrete Laplace numbers with quotient ``alpha``.
    """
    counts = counts.astype(np.float64)
    found = {name: _within(name, value) for name, value in layout.metrics(counts).items()}
    n = max(round(layout.rows(counts)), 1)
    shares = [np.maximum(part, 0.0) for part in layout.split(counts)]
    shares = [part / part.sum() if part.sum() > 0 else np.full(len(part), 1.0 / len(part)) for part in shares]
    rng = np.random.default_rng(0)

    def other() -> np.ndarray:
        rows = np.concatenate([rng.multinomial(n, part) for part in shares])
        noise = rng.negative_binomial(factor, 1.0 - alpha, (2, layout.size))
        return rows + noise[0] - noise[1]

    centre = layout.metrics(n * np.concatenate(shares))
    return max(round(layout.rows(counts)), 0), found, _intervals(layout, found, centre, other)


def _intervals(
    layout: TallyLayout, found: dict[str, float], centre: dict[str, float], other: Callable[[], np.ndarray]
) -> Between:
    """Return the range of each metric, from its deviations in resamples."""
    drawn = [layout.metrics(other()) for _ in range(_RESAMPLES)]
    between = {}
    for name, value in found.items():
        moved = np.array([one[name] for one in drawn]) - centre[name]
        moved = moved[np.isfinite(moved)]
        if not np.isfinite(value) or len(moved) < _RESAMPLES // 2:
            continue
        high, low = np.quantile(moved, [0.025, 0.975])
        between[name] = _within(name, float(value - low)), _within(name, float(value - high))
    return between


def _within(name: str, value: float) -> float:
    metric = metrics.BY_KEY[name]
    return float(np.clip(value, metric.low, metric.high))


UNIT = "one row of the test rows, added or removed"


# -- messages
class CountByScoreWithNoise(NoisyTotal, frozen=True, kw_only=True):
    """The number of test rows for each score of a model, by class or by value, with noise."""

    schema: Agreed[Blob]
    model: Derived[Blob]

    def noises(self, schema: Schema) -> tuple[Noise, ...]:
        """Return the noise: one more row is in one cell of every set of cells."""
        return (self.noise(len(TallyLayout.of(schema).sizes)),)


# -- at a site
@answers(CountByScoreWithNoise)
def noisy_tally(site: Site, request: CountByScoreWithNoise) -> NoisyCounts:
    """Count the test rows and add noise."""
    return answer_with_noise(site, request, request.schema, lambda schema: plan_tally(site, request, schema))


def plan_tally(site: Site, request: CountByScoreWithNoise, schema: Schema) -> Callable[[], np.ndarray]:
    """Check the model without reading rows; return a function that counts them exactly, for the site alone.

    If columns are missing that all trees need, no rows are counted.
    """
    forest, layout = model_to_count_by(site, schema, request.model), TallyLayout.of(schema)

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
    """Evaluate a model over all sites together, with noise, and account for its cost."""
    if too_deep(model):
        raise InputError.about(
            "max_depth",
            f"must be set to evaluate with noise: trees have at most {MAX_DEPTH} levels, and {MAX_STEPS:,} together",
        )
    rounds, layout = Rounds(federation, schema, epsilon, placing), TallyLayout.of(schema)
    request = rounds.make(CountByScoreWithNoise, rounds.split_epsilon.rest(), model=federation.blob(model.to_bytes()))
    with federation.counted_apart():
        counts = rounds.total(request, "test rows by score", len(layout.sizes), (layout.size,))
    rows, found, between = estimate(layout, counts, request.noises(schema)[0].alpha, placing.factor)
    row = Row(OVERALL, FEDERATED, rows, found, between=between, epsilon=float(epsilon))
    row = replace(row, positive=schema.label.positive_class)
    account = replace(rounds.account(), unit=UNIT)
    return Evaluation([row], models=(FEDERATED,), guarantee=f"epsilon {epsilon:g}", privacy=account)
