"""AdaBoost with stumps on local rows (thesis, Alg. 2), the base of all federated variants; and AdaBoost.PL (Alg. 3).

A row's weight is multiplied or divided by the same factor sqrt(right / wrong) in each round, so a site can work its
weights out again from the stumps and the summed masses of rows that each got right and wrong. Masses are weights in
fixed point: their sums are exact, in any order, and can be hidden in sums over sites.

AdaBoost.PL merges classifiers of like confidence in one round. Every site runs AdaBoost on its own rows and sorts its
stumps by weight. The stumps of one rank vote together; their vote has the mean of their weights. Where the thesis
compares a sum of votes with 0, the sum is of -1 and +1, so a tie is a vote for neither.
"""

import math
from typing import ClassVar

import numpy as np

from silvan.algorithms.boosting.stumps import (
    Boosting,
    Stumps,
    StumpTable,
    check_stumps,
    check_two_classes,
    find_stump,
    join_stumps,
    stump_table,
)
from silvan.algorithms.requests import schema_of
from silvan.algorithms.shared_bins import pooled_bins
from silvan.data.schema import Schema
from silvan.errors import FormatError
from silvan.federation import wire
from silvan.federation.bound import Agreed, Fixed
from silvan.federation.federation import Federation
from silvan.federation.message import Ask, Blob, SignedReply
from silvan.federation.part import Part
from silvan.federation.site import Site, answers
from silvan.forest.forest import Forest
from silvan.util.threads import thread_count
from silvan.util.user_warnings import warn_user

ONE = 1 << 52  # the mass of all rows together
CHANCE = ONE >> 20  # how much more mass must be right than wrong for a stump to be better than chance
_LEAST = 2.0**-500  # the least weight of a row, so that it never becomes 0


# -- messages
class Boosted(SignedReply, frozen=True, kw_only=True):
    """A site's AdaBoost classifier: its stumps, by rising weight."""

    stumps: Stumps

    def work(self) -> bytes:
        """Return the stumps as a message."""
        return wire.encode(self.stumps)


class BoostStumps(Ask[Boosted], frozen=True, kw_only=True):
    """The stumps of AdaBoost on the site's rows, with their weights."""

    once: ClassVar[bool] = True

    schema: Agreed[Blob]
    settings: Fixed[Boosting]

    @property
    def min_leaf(self) -> int:
        """Minimum number of rows in a leaf, which the site's policy checks."""
        return self.settings.min_samples_leaf


# -- at a site
@answers(BoostStumps)
def boost_stumps(site: Site, request: BoostStumps) -> Boosted:
    """Run AdaBoost on the site's training rows."""
    schema = schema_of(site, request.schema)
    stumps = boost(stump_table(site, schema, request.settings), request.settings)
    return Boosted(stumps=stumps.take(np.argsort(stumps.weight, kind="stable")))


def local_boost(site: Site, schema: Schema, settings: Boosting) -> Forest:
    """Return the local AdaBoost classifier, which a site has without joining."""
    return boost(stump_table(site, schema, settings), settings).forest(schema)


def boost(table: StumpTable, settings: Boosting) -> Stumps:
    """Run AdaBoost (Alg. 2); it stops early at a stump that is always right, or no better than chance.

    Rows of one class cannot teach how classes differ: they give one stump, which votes for that class with weight 0.
    """
    n, one_class = len(table), table.one_class
    found: list[Stumps] = []
    weight = np.full(n, 1.0 / n)
    for _ in range(settings.n_estimators):
        stump, right = find_stump(table, weight, settings)
        masses = weigh(weight, right)
        alpha = 0.0 if one_class else stage_weight(masses, n)
        if alpha == 0.0 and found:
            break
        found.append(stump.weighted(np.array([alpha])))
        if alpha == 0.0 or masses[1] == 0:
            break
        weight = reweigh(weight, right, masses, n)
    return join_stumps(found)


# -- both sides: weights of rows and of stumps
def weigh(weight: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Add up the masses of rows that are right (1), wrong (-1) and undecided (0): int64 (3,)."""
    masses = np.rint(weight * ONE).astype(np.int64)
    return np.array([masses[right == outcome].sum() for outcome in (1, -1, 0)], np.int64)


def _right_and_wrong(masses: np.ndarray, n_rows: int) -> tuple[float, float]:
    """Return the masses right and wrong as floats; if nothing is wrong, that of half a row is taken as wrong."""
    right, wrong = float(masses[0]), float(masses[1])
    return right, wrong or float(masses.sum()) / (2 * n_rows)


def stage_weight(masses: np.ndarray, n_rows: int) -> float:
    """Return the weight alpha of a classifier (line 7 of Alg. 2); 0 if it is no better than chance."""
    right, wrong = _right_and_wrong(masses, n_rows)
    return 0.5 * math.log(right / wrong) if right - wrong > CHANCE else 0.0


def reweigh(weight: np.ndarray, right: np.ndarray, masses: np.ndarray, n_rows: int) -> np.ndarray:
    """Return the weights of rows in the next round (line 9 of Alg. 2), which add up to 1 over all sites."""
    mass_right, mass_wrong = _right_and_wrong(masses, n_rows)
    factor = math.sqrt(mass_right / mass_wrong)  # exp(alpha)
    total = (mass_right / factor + float(masses[1]) * factor + float(masses[2])) / ONE
    return np.maximum(weight * np.array([1.0, 1.0 / factor, factor])[right] / total, _LEAST)


# -- at the coordinator
def ask_stumps(federation: Federation, schema: Schema, settings: Boosting) -> dict[str, Boosted]:
    """Ask every site to run AdaBoost on its own rows, and return the replies by site."""
    check_two_classes(schema)

    def check(site: str, reply: Boosted) -> None:
        check_stumps(reply.stumps, schema, settings.n_estimators)
        if not len(reply.stumps) or (np.diff(reply.stumps.weight) < 0).any():
            raise FormatError("there are no stumps, or they are not in the order of their weights")

    request = BoostStumps(schema=federation.blob(schema.to_json().encode()), settings=settings)
    replies: dict[str, Boosted] = federation.ask(request, check=check)
    for site, reply in replies.items():
        federation.work(site, reply)
    return replies


def pooled_boost(federation: Federation, schema: Schema, settings: Boosting) -> Forest:
    """Run AdaBoost on all sites' training rows in one place: the baseline."""
    check_two_classes(schema)
    sites = [federation.site(name) for name in federation.active]
    rows = Part.joined([site.part(schema) for site in sites])
    bins = pooled_bins(rows, schema, settings.max_bins, staggered=False)
    codes = bins.apply(rows.X, thread_count(sites[0].n_jobs))
    return boost(StumpTable(codes, bins, rows.y.astype(np.int64)), settings).forest(schema)


# -- AdaBoost.PL, which asks sites for nothing else
def fit_pl(federation: Federation, schema: Schema, settings: Boosting) -> Forest:
    """Merge the sites' AdaBoost classifiers."""
    return merge([reply.stumps for reply in ask_stumps(federation, schema, settings).values()], schema)


def merge(sorted_stumps: list[Stumps], schema: Schema) -> Forest:
    """Merge stumps by rank; a site that has fewer than others takes part in the highest ranks.

    A stump of weight 0, which is no better than chance, has no vote, but its weight counts in the mean.
    """
    ranks, weights = [], []
    for below in range(max(map(len, sorted_stumps)), 0, -1):
        rank = join_stumps([stumps.take([len(stumps) - below]) for stumps in sorted_stumps if len(stumps) >= below])
        alpha = rank.weight.sum() / len(sorted_stumps)
        if alpha > 0.0:
            ranks.append(rank.weighted((rank.weight > 0).astype(np.float64)))
            weights.append(alpha)
    if not ranks:
        return nothing_learnt(join_stumps([stumps.take([-1]) for stumps in sorted_stumps]), schema)
    return stage_forest(ranks, weights, schema)


def stage_forest(stages: list[Stumps], weights: list[float], schema: Schema) -> Forest:
    """Return a forest of merged classifiers: the stumps of a stage vote, and the stages vote by their weights."""
    group = np.repeat(np.arange(len(stages)), [len(stumps) for stumps in stages])
    return join_stumps(stages).forest(schema, combine="stages", group=group, say=np.array(weights))


def nothing_learnt(stumps: Stumps, schema: Schema) -> Forest:
    """Warn that no stump is better than chance, and return a forest of one stage in which all vote."""
    warn_user("no stump is better than chance: the model separates nothing")
    return stage_forest([stumps.weighted(np.ones(len(stumps)))], [1.0], schema)
