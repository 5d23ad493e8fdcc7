"""The weights of trees from sums and trees of sites in one forest, by the performance of both at all sites together.

Which of the two is better differs by data set, and one site's rows are too few to tell. So each site scores its
training rows with either forest, each row by out-of-bag trees, and reports the lead of the second; these gaps are
summed over sites. Both forests keep some weight: a mean gap of 0.01 in AUC changes their ratio by a factor of e.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from silvan.algorithms.evaluation.candidates import SentModel, check_candidates, model_of, sent_model
from silvan.algorithms.evaluation.out_of_bag import Scored, score_unseen
from silvan.algorithms.evaluation.score_groups import Answer, hides_one_class, in_groups
from silvan.algorithms.evaluation.score_quality import score_quality
from silvan.algorithms.keyed_rows import RowSamples
from silvan.algorithms.requests import schema_of
from silvan.data.schema import Schema
from silvan.errors import FormatError, reject
from silvan.federation.describe import FLOOR
from silvan.federation.federation import Federation
from silvan.federation.members import OVERALL
from silvan.federation.message import Agreed, Blob, Derived, SummedReply, Total
from silvan.federation.outgoing import Check
from silvan.federation.site import Site, answers
from silvan.forest.forest import Forest, join_forests
from silvan.privacy.gate import policy_of

REFITTED = 1.5
"""Relative weight of trees with re-estimated leaves if both halves are equally good: their scores spread less."""

_SCALE = 0.01  # a forest with this mean lead gets e times the weight
_STEPS = 1000  # gaps are summed in thousandths
_DIGITS = 6
"""Decimals of a forest's share: exponentials differ in their last digits between processors, and forests must not."""

_MOST = 100  # the limit on one site's gap, in thousandths, either way: no site decides for all
MOST_GAP = _MOST / _STEPS  # the same as a number


# -- messages
class HalvesGap(SummedReply, frozen=True, kw_only=True):
    """Whether the site has metrics, 1 or 0, and the lead of the second forest in thousandths plus 100."""

    gap: np.ndarray


class CompareHalves(Total[HalvesGap], frozen=True, kw_only=True):
    """The gain of the sites' trees over trees from sums, on the site's training rows."""

    schema: Agreed[Blob]
    models: Derived[list[SentModel]]  # both forests, and the samples of their trees


# -- at a site
@answers(CompareHalves)
def compare_halves(site: Site, request: CompareHalves) -> HalvesGap:
    """Compare both forests on training rows, each row scored by out-of-bag trees; zeros if there are too few rows."""
    schema, models = schema_of(site, request.schema), request.models
    reject(len(models) != 2, "two forests are compared")
    check_candidates(site, models)
    reject(any(model.draws is None for model in models), "only forests with known row samples are compared")
    scored = [score_unseen(site, schema, model_of(site, schema, model.model), model.draws) for model in models]
    ratings = [] if None in scored else rate_scores(site, [one for one in scored if one is not None], schema.n_classes)
    if not ratings or np.isnan(ratings).any():
        return HalvesGap(gap=np.zeros(2, np.int64))
    first, second = (round(rating * _STEPS) for rating in ratings)
    return HalvesGap(gap=np.array([1, _MOST + np.clip(second - first, -_MOST, _MOST)], np.int64))


def rate_scores(site: Site, scored: Sequence[Scored], n_classes: int) -> list[float]:
    """Return the metric of scores, on rows that all forests score; empty if they are too few to disclose."""
    known = np.all([~np.isnan(one.scores).any(axis=1) for one in scored], axis=0)
    y = scored[0].y[known]
    if len(y) < FLOOR or not policy_of(site).allows_metrics(len(y)):
        return []
    scores = [one.scores[known] for one in scored]
    decided = [answer.argmax(axis=1) for answer in scores]
    alike = same_spread(scores) if n_classes else scores
    return [_rating(site, Answer(*one), y, n_classes) for one in zip(alike, decided, strict=True)]


def same_spread(scores: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return scores with their ranks, column by column, and the values of all forests' scores on average.

    AUCs stay the same. But grouped rows get labels by the confidence of a forest, and a wider spread of scores alone
    would make a forest look better.
    """
    values = np.mean([np.sort(one, axis=0) for one in scores], axis=0)
    found = []
    for one in scores:
        spread = np.empty_like(one)
        for c, column in enumerate(one.T):
            _, place, n = np.unique(column, return_inverse=True, return_counts=True)
            spread[:, c] = (np.add.reduceat(values[:, c], np.cumsum(n) - n) / n)[place]
        found.append(spread)
    return found


def _rating(site: Site, answer: Answer, y: np.ndarray, n_classes: int) -> float:
    """Return the AUC, the C-index, or the explained share of a number's variance, of rows in groups: 0 to 1.

    NaN if all rows have one class, or the site's policy withholds the metric.
    """
    policy = policy_of(site)
    grouped, labels = in_groups(answer, y, n_classes, policy.score_groups)
    if hides_one_class(policy, labels, n_classes):
        return np.nan
    quality = score_quality(grouped.scores, labels, n_classes, by_pairs=True)
    if quality.metric in ("auc", "c_index"):
        return quality.value
    variance = 0.0 if n_classes else float(np.var(labels))
    return float(np.clip(1.0 + quality.merit / variance, 0.0, 1.0)) if variance > 0 else np.nan


# -- at the coordinator
class Compared(NamedTuple):
    """Mean lead of the sites' trees over those from sums, and the number of sites."""

    gap: float = 0.0
    sites: int = 0

    def share(self, alike: float) -> float:
        """Return the weight of the sites' trees; ``alike`` is their relative weight without a gap."""
        odds = alike * float(np.exp(self.gap / _SCALE))
        return round(odds / (1.0 + odds), _DIGITS)


def compare(federation: Federation, schema: Schema, halves: Sequence[Forest], draws: Sequence[RowSamples]) -> Compared:
    """Ask all sites for the lead of the second of two forests: one round."""
    known = {forest.hash: one for forest, one in zip(halves, draws, strict=True)}
    models = [sent_model(federation, forest, known) for forest in halves]
    request = CompareHalves(schema=federation.blob(schema.to_json().encode()), models=models)
    n = len(federation.active)
    total: HalvesGap = federation.total(request, check=check_gap(n), most=2 * _MOST * n)
    sites, gaps = (int(number) for number in total.gap)
    return Compared((gaps / sites - _MOST) / _STEPS, sites) if sites else Compared()


def check_gap(n_sites: int) -> Check:
    """Return a check of a site's reply, or of the sum."""

    def check(site: str, reply: HalvesGap) -> None:
        reject(reply.gap.shape != (2,) or reply.gap.dtype != np.int64, "its metrics are not the ones requested")
        sites, gap = reply.gap
        if not 0 <= sites <= (n_sites if site == OVERALL else 1) or not 0 <= gap <= 2 * _MOST * sites:
            raise FormatError("its metrics are impossible")

    return check


def join_halves(halves: Sequence[Forest], share: float) -> Forest:
    """Return the forest of both, in which the second has a share of the weight."""
    first, second = halves
    return join_forests([first, second], [2.0 * (1.0 - share), 2.0 * share * len(first) / float(second.weights.sum())])
