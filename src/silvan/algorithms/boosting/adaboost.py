"""AdaBoost with stumps on local rows (thesis, Alg. 2), AdaBoost.PL (Alg. 3) and BOPPID (Alg. 4).

Each round multiplies or divides a row's weight by the same factor sqrt(right / wrong), so a site can recompute its
weights from the stumps and the summed masses of rows that each classified correctly and wrongly. Masses are weights in
fixed point: their sums are exact in any order, and secure aggregation can hide them.

AdaBoost.PL merges classifiers of similar confidence in one round. Every site runs AdaBoost on its own rows and sorts
its stumps by weight. The stumps of one rank vote together with the mean of their weights. Where the thesis compares a
sum of votes with 0, votes are -1 and +1, so a tie is a vote for neither class.

BOPPID takes two rounds. Every site runs AdaBoost on its own rows, then tries all classifiers on its rows and picks
those whose error is near that of its own. A picked classifier counts by its site's share of rows, the site's own by a
further factor sigma. The thesis prints line 10 as own error minus the other's <= tau, which admits every worse
classifier; its text says that the difference is less than tau, so we take the absolute difference unless ``printed``.
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
from silvan.algorithms.requests import MAX_TREES, check_owners, schema_of
from silvan.algorithms.shared_bins import pooled_bins
from silvan.data.schema import Schema
from silvan.errors import FormatError, reject
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.message import Agreed, Ask, Blob, Derived, Fixed, Reply, SignedReply
from silvan.federation.part import Part
from silvan.federation.site import Site, answers
from silvan.forest.forest import Forest, join_forests
from silvan.forest.predict import decide
from silvan.util.threads import thread_count
from silvan.util.user_warnings import warn_user

ONE = 1 << 52  # the mass of all rows together
CHANCE = ONE >> 20  # how much more mass must be right than wrong for a stump to be better than chance
_LEAST = 2.0**-500  # minimum weight of a row, so that it never becomes 0


# -- messages
class Boosted(SignedReply, frozen=True, kw_only=True):
    """A site's AdaBoost classifier: its stumps, by increasing weight."""

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
    """Run AdaBoost (Alg. 2); stop early at a stump that is always right, or no better than chance.

    Rows of a single class give one stump, which votes for that class with weight 0.
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
    """Sum the masses of rows classified correctly (1), wrongly (-1) and undecided (0): int64 (3,)."""
    masses = np.rint(weight * ONE).astype(np.int64)
    return np.array([masses[right == outcome].sum() for outcome in (1, -1, 0)], np.int64)


def _right_and_wrong(masses: np.ndarray, n_rows: int) -> tuple[float, float]:
    """Return the masses right and wrong as floats; if nothing is wrong, half a row counts as wrong."""
    right, wrong = float(masses[0]), float(masses[1])
    return right, wrong or float(masses.sum()) / (2 * n_rows)


def stage_weight(masses: np.ndarray, n_rows: int) -> float:
    """Return the weight alpha of a classifier (line 7 of Alg. 2); 0 if it is no better than chance."""
    right, wrong = _right_and_wrong(masses, n_rows)
    return 0.5 * math.log(right / wrong) if right - wrong > CHANCE else 0.0


def reweigh(weight: np.ndarray, right: np.ndarray, masses: np.ndarray, n_rows: int) -> np.ndarray:
    """Return the row weights for the next round (line 9 of Alg. 2), which sum to 1 over all sites."""
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
            raise FormatError("its stumps are missing, or not sorted by weight")

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


# -- AdaBoost.PL, which needs no other requests
def fit_pl(federation: Federation, schema: Schema, settings: Boosting) -> Forest:
    """Merge the sites' AdaBoost classifiers."""
    return merge([reply.stumps for reply in ask_stumps(federation, schema, settings).values()], schema)


def merge(sorted_stumps: list[Stumps], schema: Schema) -> Forest:
    """Merge stumps by rank; a site with fewer stumps takes part in the highest ranks.

    A stump of weight 0 is no better than chance: it has no vote, but its weight counts in the mean.
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
    """Return a forest of merged classifiers: stumps vote within a stage, and stages vote by their weights."""
    group = np.repeat(np.arange(len(stages)), [len(stumps) for stumps in stages])
    return join_stumps(stages).forest(schema, combine="stages", group=group, say=np.array(weights))


def nothing_learnt(stumps: Stumps, schema: Schema) -> Forest:
    """Warn that no stump is better than chance; return a forest of one stage in which all stumps vote."""
    warn_user("no stump is better than chance: the model separates nothing")
    return stage_forest([stumps.weighted(np.ones(len(stumps)))], [1.0], schema)


# -- BOPPID
class Picked(Reply, frozen=True, kw_only=True):
    """The classifiers that the site picked."""

    picked: np.ndarray


class PickModels(Ask[Picked], frozen=True, kw_only=True):
    """The AdaBoost classifiers of other sites that do about as well on the site's rows as the local one."""

    once: ClassVar[bool] = True

    schema: Agreed[Blob]
    models: Derived[list[Blob]]
    own: Derived[int]  # index of the site's own model
    tau: Fixed[float]
    printed: Fixed[bool]


@answers(PickModels)
def pick_models(site: Site, request: PickModels) -> Picked:
    """Evaluate all classifiers on the training rows (lines 3 and 9) and pick (line 10)."""
    schema = schema_of(site, request.schema)
    check_two_classes(schema)
    check_owners(site, request.models, request.own)
    reject(not 0.0 <= request.tau < math.inf, "tau is out of range")
    part = site.part(schema)
    wrong = np.array([_count_wrong(site, schema, blob, part.X, part.y) for blob in request.models])
    worse = (wrong[request.own] - wrong) / len(part)
    picked = worse <= request.tau if request.printed else np.abs(worse) < request.tau
    picked[request.own] = True
    return Picked(picked=picked)


def _count_wrong(site: Site, schema: Schema, blob: Blob, X: np.ndarray, y: np.ndarray) -> int:
    """Count the rows that a classifier gets wrong."""
    stumps = wire.decode(site.blob(blob.hash), Stumps)
    check_stumps(stumps, schema, MAX_TREES)
    reject(not len(stumps), "a classifier has no stumps")
    return int((decide(stumps.forest(schema), X, site.n_jobs) != y).sum())


def fit_boppid(
    federation: Federation, schema: Schema, settings: Boosting, rows: dict[str, int], tau: float, printed: bool
) -> dict[str, Forest]:
    """Return the combined classifier of each site."""
    boosted = ask_stumps(federation, schema, settings)
    sites, stumps = list(boosted), {site: reply.stumps for site, reply in boosted.items()}
    named = federation.blob(schema.to_json().encode())
    models = [federation.work(site, reply) for site, reply in boosted.items()]
    requests = {
        site: PickModels(schema=named, models=models, own=own, tau=float(tau), printed=printed)
        for own, site in enumerate(sites)
        if site in federation.active
    }

    def check(site: str, reply: Picked) -> None:
        if reply.picked.shape != (len(sites),) or reply.picked.dtype != np.bool_ or not reply.picked[sites.index(site)]:
            raise FormatError("its choice must be among the classifiers and include its own")

    replies: dict[str, Picked] = federation.ask(requests, check=check)
    built = {}
    for site, reply in replies.items():
        picked = [name for name, is_in in zip(sites, reply.picked, strict=True) if is_in]
        built[site] = integrate(site, {name: stumps[name] for name in picked}, rows, schema)
    return built


def integrate(own: str, picked: dict[str, Stumps], rows: dict[str, int], schema: Schema) -> Forest:
    """Join classifiers (the output of Alg. 4) with weights alpha * sigma * lambda, or equal weights if all are 0."""
    all_rows = sum(rows[site] for site in picked)
    factors = {site: rows[site] / all_rows for site in picked}  # lambda
    factors[own] *= sigma(rows[own], [rows[site] for site in picked])
    voting = {site: stumps for site, stumps in picked.items() if stumps.weight.any()}
    if not voting:
        return picked[own].forest(schema)
    return join_forests([stumps.forest(schema) for stumps in voting.values()], [factors[site] for site in voting])


def sigma(own: int, rows: list[int]) -> float:
    """Return the factor of a site's own classifier (line 19), from its rows and those of all picked sites.

    lambda / max(lambda)^2 * ceil(max(lambda)^2 / min(lambda)), in whole numbers as far as the ceiling: a rounded
    quotient could reach the next whole number.
    """
    total, most, least = sum(rows), max(rows), min(rows)
    return own * total / most**2 * -(-(most**2) // (total * least))
