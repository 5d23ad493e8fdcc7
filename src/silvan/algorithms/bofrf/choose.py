"""The choice at each site: the global ensemble or that of its own trees, and, personalised, its own tau (Alg. 8).

The publications choose on test rows, so later metrics on these are too good. The default here chooses on rows that
the trees did not use: validation rows set aside before training, or out-of-bag rows, on which others' trees always
vote and the site's own only if they did not sample the row. After leaf re-estimation all trees have sampled rows of
the site, and vote on the remaining ones. Eq. 3.11 promises that joining makes no site worse off. But weights and tau
follow from all sites' rows, and the site's ensemble of weighted trees may be worse than its local forest. So a site
may also use its local forest unchanged.

A site leaves the agreed ensemble, the global one at the agreed tau, only for a significantly better one: among many
near-equal ensembles, the best on a few rows is best by chance. A single other candidate must be better by two standard
errors, and several by a larger margin that keeps the total error rate the same (Bonferroni).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar, Literal

import numpy as np

from silvan.algorithms.bofrf.weigh import Weighted, choosing_rows, kept_leaves
from silvan.algorithms.evaluation.details import three_digits
from silvan.algorithms.evaluation.score_groups import Answer, in_groups, one_class
from silvan.algorithms.evaluation.score_quality import MetricName, score_quality
from silvan.algorithms.horizontal.merged_forest import equal_site_weights
from silvan.algorithms.keyed_rows import drawn_by_place, learning_rows
from silvan.algorithms.refit_leaves import places_of, read_refitted
from silvan.algorithms.requests import check_metrics, check_owners, forests_of, joined_trees, schema_of
from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError, reject
from silvan.federation.agree import MAX_ROWS
from silvan.federation.describe import FLOOR
from silvan.federation.federation import Federation
from silvan.federation.message import Agreed, Ask, Blob, Derived, Fixed, Reply
from silvan.federation.site import Site, answers
from silvan.forest.forest import Forest, join_forests
from silvan.forest.predict import Tally, abstaining, tally
from silvan.privacy.gate import policy_of
from silvan.tree.sampling import RowSampling

Protocol = Literal["honest", "paper"]
Strategy = Literal["global", "own", "local"]

TAUS = (0.0, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)  # thresholds that a site tries, beside the agreed one
STRATEGIES: tuple[Strategy, ...] = ("global", "own", "local")
_LOCAL = STRATEGIES.index("local")
_LUCK = NormalDist().cdf(-2.0)  # how often chance alone exceeds two standard errors

_MOST_TAUS = len(TAUS) + 1


# -- messages
class Chosen(Reply, frozen=True, kw_only=True):
    """The ensemble a site will use, with the rounded metrics of all candidates and the number of rows behind them."""

    tau: int  # its position in the request's list
    strategy: Strategy
    measure: MetricName  # empty: there were too few rows for a choice, or none
    rows: int
    # (taus, 3), global, own and, in the first line, local; NaN if unused or undisclosed, see ``decide``
    metrics: np.ndarray


class Choose(Ask[Chosen], frozen=True, kw_only=True):
    """The best ensemble on the site's rows."""

    once: ClassVar[bool] = True

    schema: Agreed[Blob]
    forests: Derived[list[Blob]]
    own: Derived[int]  # which of them is the site's
    alphas: Derived[np.ndarray]  # the metric of every tree
    taus: Fixed[list[float]]  # the agreed one first
    protocol: Fixed[Protocol]
    validation: Fixed[float]
    bootstrap: Fixed[RowSampling]
    equal: Fixed[bool] = False  # whether all sites' trees have equal total weight
    refitted: Derived[Blob | None] = None  # the re-estimated trees, if any


# -- at a site
@answers(Choose)
def choose(site: Site, request: Choose) -> Chosen:
    """Score all candidates on the rows for the choice, and take the best."""
    schema = schema_of(site, request.schema)
    check_owners(site, request.forests, request.own)
    forests = forests_of(site, schema, request.forests)
    _check_request(request, forests)
    trees = _candidates(site, schema, request, forests)
    X, y, seen = _selection_rows(site, schema, request, forests)
    leaves = kept_leaves(site, schema, request.forests, X)  # leaves are not kept any longer, used or not
    if request.refitted is not None:
        leaves = None
    local = request.protocol == "honest"  # the publications have only global and own
    scores = score_candidates(trees, X, request.taus, seen, site.n_jobs, leaves, local=local)
    groups = policy_of(site).score_groups
    return decide(scores, y, schema.n_classes, request.taus, cautious=request.protocol == "honest", groups=groups)


def _candidates(site: Site, schema: Schema, request: Choose, forests: list[Forest]) -> "CandidateTrees":
    """Return the trees to choose from: those of all sites, and the local trees as grown."""
    start, n_own = sum(map(len, forests[: request.own])), len(forests[request.own])
    own, n_all = np.arange(start, start + n_own), sum(map(len, forests))
    sizes, alphas, places = [len(one) for one in forests], request.alphas, places_of(forests)
    apart = request.refitted is not None
    if request.refitted is None:
        forest = joined_trees(site, schema, request.forests)
        skipping = np.where(np.isin(np.arange(n_all), own), places, -1)
    else:
        forest, skipping = read_refitted(site, schema, request.forests, request.refitted), places
    if apart:  # the site's own trees again: the shared ones differ
        forest = join_forests([forest, forests[request.own]])
        alphas, skipping = np.append(alphas, alphas[own]), np.append(skipping, places[own])
        own, sizes = np.arange(n_all, n_all + n_own), [*sizes, n_own]
    voting = np.where(abstaining(forest, site.absent(schema)), 0.0, forest.weights)
    return CandidateTrees(forest, alphas, voting, own, skipping, sizes if request.equal else None, apart)


@dataclass(frozen=True)
class CandidateTrees:
    """The trees of all sites that train together, for the choice of one of them."""

    forest: Forest
    alphas: np.ndarray  # the metric of every tree
    voting: np.ndarray  # 1 for trees that vote at the site, 0 for those that abstain or that it does not use
    own: np.ndarray  # positions of the site's own trees
    skipping: np.ndarray  # the line of rows on which each tree does not vote, -1 for none
    sizes: Sequence[int] | None = None  # number of trees per site, if all sites have the same weight
    apart: bool = False  # whether the site's own trees differ from the shared ones

    def groups(self) -> np.ndarray:
        """Return which trees are in which group, (groups, trees): own ones, others', by site if sites are equal."""
        mine = np.isin(np.arange(len(self.forest)), self.own)
        site = np.zeros(len(self.forest), np.int64)
        if self.sizes is not None:
            site = np.repeat(np.arange(len(self.sizes)), self.sizes)
        others = [~mine & (site == s) for s in range(site.max() + 1)]
        return np.stack([mine, *(trees for trees in others if trees.any())])

    def shares(self, groups: np.ndarray, tau: float) -> np.ndarray:
        """Return the factor on the votes of each group that makes sites equal; otherwise 1."""
        if self.sizes is None:
            return np.ones(len(groups))
        counted = (self.forest.weights > 0) & (self.alphas > tau)
        totals = np.array([self.alphas[trees & counted].sum() for trees in groups])
        return 1.0 / np.where(totals > 0, totals, 1.0)


def score_candidates(
    trees: CandidateTrees,
    X: np.ndarray,
    taus: list[float],
    seen: np.ndarray,
    n_jobs: int | None = None,
    leaves: np.ndarray | None = None,
    *,
    local: bool = False,
) -> dict[tuple[int, int], np.ndarray]:
    """Score rows by every ensemble that a site may choose: by position of tau and of strategy.

    With ``local``, also by the site's unchanged local forest, at the first tau. Trees do not vote on rows that they
    have ``seen``. A lower tau only adds trees, so each tree is walked once for all taus, or not at all if the
    ``leaves`` of the rows were recorded.
    """
    forest, alphas, groups = trees.forest, trees.alphas, trees.groups()

    def votes_of(weights: np.ndarray) -> Tally:
        weights = weights * trees.voting
        return tally(forest, X, weights, n_jobs, votes=False, skip=seen, skipping=trees.skipping, leaves=leaves)

    scores: dict[tuple[int, int], np.ndarray] = {}
    values, weight = np.zeros((len(groups), len(X), forest.n_outputs)), np.zeros((len(groups), len(X)))
    above = np.inf
    for t in sorted(range(len(taus)), key=lambda t: -taus[t]):
        band = np.where((alphas > taus[t]) & (alphas <= above), alphas, 0.0)
        above = taus[t]
        for group, members in enumerate(groups):
            added = votes_of(np.where(members, band, 0.0))
            values[group] += added.values
            weight[group] += added.weight
        shares = trees.shares(groups, taus[t])
        for strategy, used in enumerate((slice(int(trees.apart), None), slice(1))):
            counted = groups[used].any(axis=0) & (forest.weights > 0)
            taken = counted & (alphas > taus[t])
            if not taken.any() and t == 0:
                taken = counted  # the agreed tau is above all: they have equal weights
                alike = taken.astype(np.float64)
                votes = votes_of(alike if trees.sizes is None else equal_site_weights(alike, trees.sizes))
            else:
                joined = (shares[used, None, None] * values[used]).sum(axis=0)
                votes = Tally(joined, joined[:, :0], (shares[used, None] * weight[used]).sum(axis=0))
            if (taken & (trees.voting > 0)).any():
                scores[t, strategy] = votes.means()
    own = np.isin(np.arange(len(forest)), trees.own)
    if local and (own & (trees.voting > 0)).any():
        scores[0, _LOCAL] = votes_of(own.astype(np.float64)).means()
    return scores


def _selection_rows(
    site: Site, schema: Schema, request: Choose, forests: list[Forest]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows for the choice, their labels, and the rows in samples: bool (positions, rows).

    Positions are those of trees among their site's trees; without leaf re-estimation, of the site's own trees,
    because no others sampled the rows.
    """
    n_own = len(forests[request.own])
    n_places = n_own if request.refitted is None else max(map(len, forests))
    if request.protocol == "paper":
        part = site.part(schema, test=True)
    else:
        part, held = learning_rows(site, schema, request.validation)
        part = held if request.validation else part
    rows = choosing_rows(len(part))
    if request.protocol == "honest" and not request.validation:
        seen = drawn_by_place(site, part, request.bootstrap, n_own, n_places, rows)
    else:
        seen = np.zeros((n_places, len(rows)), np.bool_)
    return part.take(rows), part.y[rows], seen


def decide(
    scores: dict[tuple[int, int], np.ndarray],
    y: np.ndarray,
    n_classes: int,
    taus: list[float],
    *,
    cautious: bool,
    groups: int = 1,
) -> Chosen:
    """Choose the candidate (tau, strategy) that is furthest ahead of the agreed one, on the rows that both score.

    In a tie a cautious site takes a global one; otherwise it takes its own trees, as published (Eq. 3.11: the global
    ones only if they are better). Next, the tau nearest to the agreed one wins. Metrics of fewer than ``FLOOR`` rows
    reveal more about single rows than about ensembles: they do not leave the site, and a cautious site does not use
    them. Metrics that leave count rows in ``groups`` of this size; then rows of one class, or all but one, are too
    few as well. Only the metrics of the agreed and the chosen candidate leave, because somebody who knows all trees
    could compare the groups of all candidates.
    """
    metrics = np.full((len(taus), len(STRATEGIES)), np.nan)
    agreed = next((at for at in ((0, 0), (0, 1)) if at in scores), min(scores, default=(0, 0)))
    known = {at: ~np.isnan(answer).any(axis=1) for at, answer in scores.items()}
    margin = -NormalDist().inv_cdf(_LUCK / max(len(scores) - 1, 1))
    ahead = {agreed: 0.0}
    measure: MetricName = ""
    other, scored_on = None, np.zeros(0, np.bool_)
    for at in [agreed, *(at for at in scores if at != agreed)]:
        rows = known[at] & known[agreed] if scores else np.zeros(0, np.bool_)
        few = rows.sum() < FLOOR or (groups > 1 and one_class(y[rows], n_classes))
        if not rows.any() or (few and cautious):
            continue
        if other is None or not np.array_equal(rows, scored_on):
            other, scored_on = score_quality(scores[agreed][rows], y[rows], n_classes), rows
        mine = other if at == agreed else score_quality(scores[at][rows], y[rows], n_classes)
        measure = measure or mine.metric
        if mine.metric == measure:
            shown = mine
            if groups > 1:
                answer = Answer(scores[at][rows], scores[at][rows].argmax(axis=1))
                grouped, labels = in_groups(answer, y[rows], n_classes, groups)
                shown = score_quality(grouped.scores, labels, n_classes)
            metrics[at] = np.nan if few else three_digits(shown.value)
            if not cautious or mine.beats(other, margin):
                ahead[at] = mine.merit - other.merit
    own_first = -1 if cautious else 1
    tau, strategy = max(ahead, key=lambda at: (ahead[at], own_first * at[1], -abs(taus[at[0]] - taus[0]), -at[0]))
    if groups > 1:
        told = np.zeros(metrics.shape, np.bool_)
        told[agreed] = told[tau, strategy] = True
        metrics[~told] = np.nan
    n = int(known[agreed].sum()) if scores else 0
    return Chosen(tau=tau, strategy=STRATEGIES[strategy], measure=measure, rows=n, metrics=metrics)


def _check_request(request: Choose, forests: list[Forest]) -> None:
    alphas, taus = request.alphas, request.taus
    if alphas.shape != (sum(map(len, forests)),) or alphas.dtype != np.float64 or not np.isfinite(alphas).all():
        raise FormatError("the weights are not those of the trees")
    reject(alphas.max(initial=0.0) > 1.0, "a weight is more than a correlation or skill can be")
    if not 1 <= len(taus) <= _MOST_TAUS or not all(0.0 <= tau < 1.0 for tau in taus):
        raise FormatError("the thresholds must be at least 0 and below 1")
    reject(any(tau not in TAUS for tau in taus[1:]), "a site tries the agreed threshold, and those that all sites know")


# -- at the coordinator
def choose_all(
    federation: Federation,
    schema: Schema,
    weighted: dict[str, Weighted],
    taus: list[float],
    *,
    protocol: Protocol,
    validation: float,
    bootstrap: RowSampling,
) -> dict[str, Chosen]:
    """Let every site choose its ensemble: one round for all clusters."""
    named = federation.blob(schema.to_json().encode())
    requests = {}
    for one in weighted.values():
        sites = list(one.forests)
        for site in sites:
            if site in federation.active:
                requests[site] = Choose(
                    schema=named,
                    forests=[one.blobs[s] for s in sites],
                    own=sites.index(site),
                    alphas=one.alphas,
                    taus=taus,
                    protocol=protocol,
                    validation=validation,
                    bootstrap=bootstrap,
                    equal=one.equal,
                    refitted=None if one.refitted is None else one.refitted[1],
                )
    offered = len(taus), len(STRATEGIES)

    def check(site: str, reply: Chosen) -> None:
        reject(not 0 <= reply.tau < len(taus) or not 0 <= reply.rows < MAX_ROWS, "its choice was not on offer")
        check_metrics(reply.metrics, offered)

    chosen: dict[str, Chosen] = federation.ask(requests, check=check)
    if protocol == "paper" and not any(reply.rows for reply in chosen.values()):
        raise InputError("protocol='paper' chooses on the test part: set test=0.2 when the federation is made")
    return chosen
