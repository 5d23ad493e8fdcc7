"""BOFRF: sites exchange their trees, score them on their rows, and weight them by their performance everywhere.

A tree's confusion matrices are summed over all sites (``total``), so nobody sees its performance at a single site. Its
weight is the Matthews correlation of the sum if that is above tau, and 0 if not. This takes two rounds; in a
third each site chooses what to use (``choose.py``). For more than two classes R_K replaces the correlation, for numbers
the skill 1 - MSE / variance, for times Somers' D, twice the C-index less one: these are ours, not the publication's.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import ClassVar

import numpy as np

from silvan.algorithms.bofrf.site_forest import site_forest
from silvan.algorithms.bofrf.tune import Search, tune_settings
from silvan.algorithms.horizontal.merged_forest import Trees, equal_site_weights
from silvan.algorithms.keyed_rows import learning_rows, local_forest
from silvan.algorithms.refit_leaves import refit_leaves
from silvan.algorithms.requests import MAX_TREES, joined_trees, read_trees, schema_of
from silvan.data.schema import Schema
from silvan.errors import FederationError, FormatError, InputError, RefusedError, reject
from silvan.federation.agree import MAX_ROWS
from silvan.federation.federation import Federation
from silvan.federation.members import OVERALL
from silvan.federation.message import Agreed, Ask, Blob, Derived, Fixed, SummedReply, Total
from silvan.federation.outgoing import Check
from silvan.federation.site import Site, answers
from silvan.federation.store import CacheKey, digest
from silvan.forest.curves import risks
from silvan.forest.forest import Forest, join_forests
from silvan.forest.noted_leaves import Noted, bytes_noted, make_noted
from silvan.forest.predict import abstaining, leaves_of
from silvan.forest.score import ERROR_CAP, score_numbers, score_trees
from silvan.metrics import MCC, OfConfusion, of_confusion
from silvan.survival_metrics import comparable_pairs
from silvan.tree.fit import Settings
from silvan.util.user_warnings import warn_user

MAX_CELLS = 1 << 26  # maximum number of cells in all trees' confusion matrices that fit a message
_ERROR_BITS = 24  # bits of a squared error as large as the square of half the range of all answers
_FINER = 1 << (_ERROR_BITS // 2)
"""Additional bits of labels compared with squared errors, so that both keep the same precision."""


# -- messages
class LocalTrees(Trees, frozen=True, kw_only=True):
    """A site's trees as the bytes of a ``.silvan`` file, without counts; its number of rows; its absent columns."""

    absent: np.ndarray
    pretrained: bool
    settings: Settings


class BringTrees(Ask[LocalTrees], frozen=True, kw_only=True, omit_defaults=True):
    """Local trees, or pretrained ones that the site brings: splits and leaf values, no counts."""

    once: ClassVar[bool] = True

    schema: Agreed[Blob]
    settings: Fixed[Settings]
    feature_key: Fixed[np.ndarray]
    validation: Fixed[float]  # share of the training rows that trees do not use
    oob: Fixed[bool]  # whether the site will choose on out-of-bag rows
    tune: Fixed[Search | None]
    max_trees: Fixed[int | None] = None  # maximum number of trees from a site

    @property
    def min_leaf(self) -> int:
        """Minimum number of rows in a leaf, which the site's policy checks."""
        return self.settings.min_samples_leaf


class TreeScores(SummedReply, frozen=True, kw_only=True):
    """The score of each tree: rows scored, and rows by true and voted class.

    Where a number is predicted: squared error, label and squared label in fixed point.
    """

    rows: np.ndarray
    counts: np.ndarray


class ScoreTrees(Total[TreeScores], frozen=True, kw_only=True):
    """Metrics of each site's trees on the site's training rows, tree by tree."""

    some_sites: ClassVar[bool] = True  # a cluster's

    schema: Agreed[Blob]
    forests: Derived[list[Blob]]
    validation: Fixed[float]
    # fixed point of numbers; unused for classes
    offset: Derived[float]
    scale: Derived[float]


# -- at a site
@answers(BringTrees)
def bring_trees(site: Site, request: BringTrees) -> LocalTrees:
    """Grow trees on the training rows, or return those that the site's owner provided."""
    schema = schema_of(site, request.schema)
    part, _ = learning_rows(site, schema, request.validation)
    settings = request.settings
    if site.forest is not None:
        if request.oob:
            raise RefusedError(
                "the site has a pretrained forest, and it is unknown which rows its trees saw: set validation=0.2 to "
                "choose on held-out rows"
            )
        forest = site_forest(site, schema, part, request.min_leaf)
    else:
        if request.tune is not None:
            settings, _ = tune_settings(site, schema, settings, request.tune, request.feature_key, part=part)
        forest = local_forest(site, schema, settings, request.feature_key, settings.n_estimators, part)
    return LocalTrees(
        forest=_first_trees(forest, request.max_trees, site.forest is not None).bare().to_bytes(),
        rows=len(part),
        absent=site.absent(schema),
        pretrained=site.forest is not None,
        settings=settings,
    )


def _first_trees(forest: Forest, most: int | None, pretrained: bool) -> Forest:
    """Take at most this many trees of a site."""
    if most is None or len(forest) <= most:
        return forest
    alive = np.flatnonzero(forest.weights > 0)
    # of grown trees the first ones, whatever their weight: the position tells the site which rows a tree sampled
    taken = alive[:most] if pretrained or alive[0] >= most else np.arange(most)
    return forest.take(taken)


@answers(ScoreTrees)
def score_all(site: Site, request: ScoreTrees) -> TreeScores:
    """Score all trees on the training rows."""
    schema = schema_of(site, request.schema)
    forest = joined_trees(site, schema, request.forests)
    part, held = learning_rows(site, schema, request.validation)
    absent = site.absent(schema)
    # it will choose on these rows, unless validation rows exist
    noted = None if len(held) else note_leaves(site, forest, len(part))
    silent = abstaining(forest, absent)
    rows = np.where(silent, 0, len(part))
    if schema.n_classes:
        if len(forest) * schema.n_classes**2 > MAX_CELLS:
            raise FormatError("the matrices of so many trees and classes do not fit a message")
        counts = score_trees(forest, part.X, part.y, absent, site.n_jobs, noted)
    elif forest.times is not None:
        noted = None
        counts = np.where(silent[:, None], 0, _pairs_by_tree(forest, part.X, part.y, site.n_jobs))
    else:
        reject(not (0.0 < request.scale < np.inf and np.isfinite(request.offset)), "the fixed-point scale is invalid")
        scored = score_numbers(forest, part.X, part.y, request.scale, absent, site.n_jobs, noted)
        label = _label_sums(part.y, request.offset, request.scale)
        counts = np.stack([scored[:, 1], *np.where(silent, 0, label[:, None])], axis=1)
    if noted is not None:
        site.cache[_key(schema, request.forests, part.X[noted.rows])] = noted.leaves
    return TreeScores(rows=rows.astype(np.int64), counts=counts.astype(np.int64))


def _pairs_by_tree(forest: Forest, X: np.ndarray, y: np.ndarray, n_jobs: int | None) -> np.ndarray:
    """Count twice the pairs that each tree ranks right, equal risks once, and all comparable ones: (trees, 3)."""
    risk, leaf = risks(forest.value), forest.leaf
    nodes = leaves_of(forest, X, n_jobs) + forest.offsets[:-1]
    pairs = [comparable_pairs(y, risk[leaf[nodes[:, tree]]]) for tree in range(len(forest))]
    return np.array([(2 * right + equal, 0, every) for right, equal, every in pairs], np.int64)


def _label_sums(y: np.ndarray, offset: float, scale: float) -> np.ndarray:
    """Add up a label and its squares in fixed point, row by row."""
    with np.errstate(over="ignore"):
        gap = (y - offset) * np.sqrt(scale)
        sums = [np.rint(np.clip(x, -ERROR_CAP, ERROR_CAP)).astype(np.int64).sum() for x in (gap * _FINER, gap * gap)]
    return np.array(sums)


# -- both sides
def thresholded(alphas: np.ndarray, base: np.ndarray, tau: float) -> np.ndarray:
    """Return the weights of trees, 0 for those not above tau (Eq. 3.7); if no tree is above tau, equal weights."""
    kept = np.where(alphas > tau, alphas, 0.0) * base
    return kept if kept.any() else base


# -- at the coordinator
@dataclass(frozen=True)
class ExchangeSettings:
    """How sites make their trees, and the weight of each site's trees.

    ``validation`` is the share of training rows that trees do not use; ``oob``, whether a site will choose on
    out-of-bag rows; ``tune``, how it tunes its parameters. With ``equal``, all sites' trees together have the
    same weight. At most ``max_trees`` trees of a site are used. With ``refit_leaves``, trees are cut back to what other
    sites' rows reach, and these rows determine the leaf values. ``weigh_by`` is the metric of a tree's summed confusion
    matrix that is its weight.
    """

    validation: float = 0.0
    oob: bool = False
    tune: Search | None = None
    equal: bool = False
    max_trees: int | None = None
    refit_leaves: bool = False
    weigh_by: OfConfusion = MCC


@dataclass(frozen=True)
class Weighted:
    """The trees of sites that train together, and the metric of each before tau.

    With ``equal``, all sites' trees have the same total weight. ``refitted`` are the trees after leaf re-estimation,
    and the information with which a site computes them from the trees that sites sent.
    """

    members: dict[str, LocalTrees]
    forests: dict[str, Forest]
    blobs: dict[str, Blob]
    together: Forest  # the trees of all, in the order of the sites
    alphas: np.ndarray
    equal: bool = False
    refitted: tuple[Forest, Blob] | None = None

    @property
    def joined(self) -> Forest:
        """All trees, in the order of the sites; after leaf re-estimation, if any."""
        return self.together if self.refitted is None else self.refitted[0]

    @cached_property
    def owners(self) -> np.ndarray:
        """The site that each tree is from."""
        return np.repeat(np.array(list(self.forests)), [len(f) for f in self.forests.values()])

    def ensemble(self, tau: float, site: str | None = None) -> Forest:
        """Return the global ensemble (Eq. 3.9), or the ensemble of the trees that one site sent (Eq. 3.8)."""
        if site is not None:
            forest = self.forests[site]
            weights = thresholded(self.alphas[self.owners == site], forest.weights, tau)
            return replace(forest, weights=weights, combine="vote")
        weights = thresholded(self.alphas, self.joined.weights, tau)
        if self.equal:
            weights = equal_site_weights(weights, [len(forest) for forest in self.forests.values()])
        return replace(self.joined, weights=weights, combine="vote")


def weigh(
    federation: Federation,
    schema: Schema,
    settings: Settings,
    feature_key: np.ndarray,
    clusters: dict[str, list[str]] | None,
    exchange: ExchangeSettings,
) -> dict[str, Weighted]:
    """Collect the sites' trees and weight them (Alg. 5), each cluster separately but in the same rounds."""
    named = federation.blob(schema.to_json().encode())
    request = BringTrees(
        schema=named,
        settings=settings,
        feature_key=feature_key,
        validation=exchange.validation,
        oob=exchange.oob,
        tune=exchange.tune,
        max_trees=exchange.max_trees,
    )
    checked: dict[bytes, Forest] = {}  # trees that were read to check a reply need not be read again

    def check(_: str, reply: LocalTrees) -> None:
        checked[reply.forest] = _check_own(reply, request, schema)

    replies: dict[str, LocalTrees] = federation.ask(request, check=check)
    found = {site: checked.get(reply.forest) for site, reply in replies.items()}
    forests = {site: forest or read_trees(replies[site].forest, schema) for site, forest in found.items()}
    blobs = {site: federation.work(site, reply) for site, reply in replies.items()}
    groups = {"": list(replies)} if clusters is None else clusters
    listed = {name: [site for site in replies if site in sites] for name, sites in groups.items()}
    listed = {name: sites for name, sites in listed.items() if sites}
    weighted = {}
    with federation.one_round():
        for name, sites in listed.items():
            members = {site: replies[site] for site in sites if site not in federation.lost}
            own = {site: forests[site] for site in members}
            together = join_forests(list(own.values()))
            alphas = _alphas(
                federation, schema, named, members, together, blobs, exchange.validation, exchange.weigh_by
            )
            shown = {site: blobs[site] for site in members}
            weighted[name] = Weighted(members, own, shown, together, alphas, exchange.equal)
    if not exchange.refit_leaves:
        return weighted
    for name, one in weighted.items():
        if len(one.members) > 1:  # the trees of a site in a cluster of its own stay as they are
            trees = {site: (forest, one.blobs[site]) for site, forest in one.forests.items()}
            rows = {site: reply.rows for site, reply in one.members.items()}
            refitted = refit_leaves(federation, schema, trees, rows, settings, exchange.validation)
            weighted[name] = replace(one, refitted=refitted)
    return weighted


def _check_own(reply: LocalTrees, request: BringTrees, schema: Schema) -> Forest:
    """Raise ``FormatError`` unless a site sent what was requested; return its trees."""
    forest = read_trees(reply.forest, schema)
    asked = reply.settings.n_estimators if request.tune is not None else request.settings.n_estimators
    most = len(forest) if request.max_trees is None else request.max_trees
    if len(forest) > most or (not reply.pretrained and len(forest) != min(asked, most)):
        raise FormatError("its trees are not as many as requested")
    reject(not 1 <= reply.rows < MAX_ROWS, "it has no training rows")
    if reply.absent.shape != (len(schema.features),) or reply.absent.dtype != np.bool_:
        raise FormatError("the columns that it lacks are not those of the schema")
    return forest


def _alphas(
    federation: Federation,
    schema: Schema,
    named: Blob,
    members: dict[str, LocalTrees],
    forest: Forest,
    blobs: dict[str, Blob],
    validation: float,
    weigh_by: OfConfusion,
) -> np.ndarray:
    """Sum the trees' scores over all sites and return the metric of each tree (Eqs 3.5 and 3.6)."""
    k = schema.n_classes
    if len(forest) > MAX_TREES or len(forest) * k * k > MAX_CELLS:
        raise InputError(
            f"{len(forest)} trees of all sites and {k} classes are more than can be scored at once; lower n_estimators"
        )
    offset, scale = (0.0, 1.0) if k else _fixed_point(forest)
    silent = {site: abstaining(forest, reply.absent) for site, reply in members.items()}
    request = ScoreTrees(
        schema=named, forests=[blobs[site] for site in members], validation=validation, offset=offset, scale=scale
    )
    expected = {site: (silent[site], reply.rows) for site, reply in members.items()}
    total: TreeScores = federation.total(dict.fromkeys(members, request), check=check_scores(schema, expected))
    check_total(total, schema, expected, federation.lost)
    if schema.label.event is not None:  # Somers' D: 0 for risks by chance, as the other metrics
        worth, _, pairs = total.counts.T
        return np.where(pairs > 0, worth / np.maximum(pairs, 1) - 1.0, 0.0)
    if not k:
        return _skill(total)
    worth = [of_confusion(weigh_by, matrix, schema.label.positive_code) for matrix in total.counts]
    return np.nan_to_num(worth)  # an undefined metric counts as 0


def check_scores(schema: Schema, expected: dict[str, tuple[np.ndarray, int]]) -> Check:
    """Return the check of one site's scores, given which trees abstain at each site and how many rows it has."""

    def check(site: str, reply: TreeScores) -> None:
        if site != OVERALL:  # the sum has a separate check, see ``check_total``
            silent, rows = expected[site]
            _check_counts(reply, schema, np.where(silent, 0, rows), silent[None])

    return check


def check_total(
    total: TreeScores, schema: Schema, expected: dict[str, tuple[np.ndarray, int]], lost: Collection[str]
) -> None:
    """Raise ``FederationError`` for an impossible sum; a lost site may or may not be part of it."""
    left, doubtful = [s for s in expected if s not in lost], [s for s in expected if s in lost]
    found: FormatError | None = None
    for n in range(len(doubtful) + 1):
        for more in combinations(doubtful, n):
            parts = [expected[site] for site in expected if site in left or site in more]
            try:
                _check_counts(
                    total,
                    schema,
                    np.sum([np.where(silent, 0, rows) for silent, rows in parts], axis=0),
                    np.array([silent for silent, _ in parts]),
                )
            except FormatError as error:
                found = found or error
            else:
                return
    raise FederationError(f"the sum over the sites cannot be: {found}; one of them is wrong")


def _check_counts(scores: TreeScores, schema: Schema, rows: np.ndarray, silent: np.ndarray) -> None:
    """Raise ``FormatError`` if scores do not add up to the rows, or their labels are not the same for all trees.

    ``silent`` (sites, trees) says at which sites a tree abstains: these rows are not among its scores.
    """
    k = schema.n_classes
    shape = (len(rows), k, k) if k else (len(rows), 3)
    reject(scores.counts.shape != shape or scores.rows.shape != rows.shape, "scores of other trees than requested")
    reject(scores.counts.dtype != np.int64 or scores.rows.dtype != np.int64, "scores of another type")
    reject(not np.array_equal(scores.rows, rows), "scores of more or fewer rows than there are")
    if k:
        margins = scores.counts.sum(axis=2)
        if scores.counts.min() < 0 or scores.counts.max() > MAX_ROWS or not np.array_equal(margins.sum(axis=1), rows):
            raise FormatError("a matrix does not add up to the rows scored")
    else:
        margins = scores.counts[:, 1:]
        reject((scores.counts[:, [0, 2]] < 0).any(), "a squared error or label is negative")
    _, group = np.unique(silent, axis=1, return_inverse=True)
    _, first = np.unique(group, return_index=True)
    reject(not np.array_equal(margins, margins[first[group.reshape(-1)]]), "trees were scored on different labels")


def _skill(total: TreeScores) -> np.ndarray:
    """Return 1 - MSE / variance of the label, for each tree on the rows that it was scored on."""
    n = np.maximum(total.rows, 1)
    error, label, square = total.counts.T / n
    spread = square - (label / _FINER) ** 2
    return np.where(spread > 0, 1.0 - error / np.where(spread > 0, spread, 1.0), 0.0)


def _fixed_point(forest: Forest) -> tuple[float, float]:
    """Choose a centre and a scale of squares by the answers of all trees, which everybody knows."""
    low, high = float(forest.value.min()), float(forest.value.max())
    reach = max(high / 2 - low / 2, np.finfo(np.float64).tiny)
    bits = _ERROR_BITS // 2 - math.frexp(reach)[1]
    return low / 2 + high / 2, 4.0 ** min(max(bits, -500), 500)  # a power of four, whose root is exact


def warn_if_none(weighted: dict[str, Weighted], tau: float) -> None:
    """Warn about each cluster in which no tree is above tau."""
    for name, one in weighted.items():
        if not (one.alphas > tau).any():
            where = f" of the cluster of {name!r}" if name else ""
            best = one.alphas.max()
            warn_user(f"no tree{where} is above tau = {tau:g} (the best is at {best:.2f}): all trees count alike")


# -- leaves that a site records while it scores trees, and needs again when it chooses among their ensembles

# They stay in the site's memory until it has chosen, by trees and rows. If they are gone, as after a restart, rows
# go down the trees again, with the same reply.

_MOST_ROWS = 1 << 13
"""Maximum number of rows for a site's choice: more would distinguish only nearly equal ensembles."""

_MOST_BYTES = 1 << 24  # memory for leaves; those of further trees are not recorded
_SHARE = 8  # divisor of the memory limit that the owner sets: the part that leaves may take


def choosing_rows(n: int) -> np.ndarray:
    """Return which of ``n`` rows a site chooses on: all, or evenly spaced ones if there are very many."""
    return np.arange(n) if n <= _MOST_ROWS else np.linspace(0, n - 1, _MOST_ROWS).astype(np.int64)


def note_leaves(site: Site, forest: Forest, n: int) -> Noted | None:
    """Return memory for the leaves of the rows for the choice, out of ``n``; None if they take too much."""
    rows = choosing_rows(n)
    size, room = bytes_noted(forest, len(rows)), _MOST_BYTES
    if site.memory is not None:
        room = min(room, site.memory // _SHARE)
    return None if size is None or size > room or not n else make_noted(forest, rows)


def kept_leaves(site: Site, schema: Schema, blobs: Sequence[Blob], X: np.ndarray) -> np.ndarray | None:
    """Return the leaves of rows; None if these trees were not scored on these rows. The records are then dropped."""
    kept = {key: site.cache.pop(key) for key in list(site.cache) if key[0] == "leaves"}
    return kept.get(_key(schema, blobs, X))


def _key(schema: Schema, blobs: Sequence[Blob], X: np.ndarray) -> CacheKey[np.ndarray]:
    return CacheKey[np.ndarray](
        "leaves", schema.hash, digest(np.ascontiguousarray(X).tobytes()), *(blob.hash for blob in blobs), most=1
    )
