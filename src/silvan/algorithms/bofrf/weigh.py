"""BOFRF: sites exchange their trees, score them on their rows, and weigh them by how they do everywhere.

A tree's confusion matrices are summed over all sites (``total``), so nobody sees how it does at one of them. Its
weight is the Matthews correlation of the sum if that is above tau, and 0 if not. Two rounds; in a third each site
chooses what to use (``personal.py``). For more than two classes R_K takes the place of the correlation, for numbers the
skill 1 - MSE / variance: both are ours, not the publication's.
"""

import math
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import msgspec
import numpy as np
from numba import njit

from silvan import metrics
from silvan.algorithms.bofrf.score_checks import check_reply, check_scores
from silvan.algorithms.bofrf.site_forest import site_forest
from silvan.algorithms.bofrf.tune import Search, tune_settings
from silvan.algorithms.horizontal.merged_forest import equal_say, local_forest
from silvan.algorithms.shared.admission import Refusals, ask_admission
from silvan.algorithms.shared.requests import MAX_NODES, MAX_TREES, forests_of, read_trees, schema_of
from silvan.data.schema import Schema
from silvan.errors import FederationError, FormatError, InputError, RefusedError
from silvan.federation.agreement.agree import MAX_ROWS
from silvan.federation.federation import Federation
from silvan.federation.message import Blob, Course, Reply, Request, Verb
from silvan.federation.part import Part
from silvan.federation.site import Site, answers
from silvan.forest.files.silvan_file import to_bytes
from silvan.forest.forest import Forest, join_forests
from silvan.forest.predict import abstaining
from silvan.forest.score import ERROR_CAP, score_numbers, score_trees
from silvan.tree.draw import siphash
from silvan.tree.fit import Settings

__all__ = ["MAX_NODES", "BringTrees", "OwnTrees", "ScoreTrees", "TreeScores", "Weighted", "read_trees", "weigh"]

MAX_CELLS = 1 << 26
"""Cells of all trees' confusion matrices together: so many fit a message."""

SHARES = 4
"""A site splits rows off by so few different shares: what two of them tell apart are single rows."""

_SHARES = "shares split off"
"""Where a site's store keeps them."""

_VALIDATION = 5  # what a hash is for, beside those in ``draw`` and ``resample``

_ERROR_BITS = 24
"""A squared error as large as half the range of all answers, squared, has so many bits."""

_FINER = 1 << (_ERROR_BITS // 2)
"""Labels themselves are kept finer, so that as many bits are left of them."""

# -- messages


class OwnTrees(Reply, frozen=True, kw_only=True):
    """A site's trees as the bytes of a ``.silvan`` file, without counts; its rows; the columns that it lacks."""

    forest: bytes
    rows: int
    absent: np.ndarray
    brought: bool
    settings: Settings


class BringTrees(Request, frozen=True, kw_only=True):
    """Trees that the site grows on its own rows or brings: splits and leaf values, no counts."""

    verb: ClassVar[Verb] = "ask"
    reply: ClassVar[type[Reply]] = OwnTrees

    schema: Blob
    settings: Settings
    feature_key: np.ndarray
    validation: float  # share of the training rows that trees do not see
    oob: bool  # whether the site will choose on rows that its trees did not draw
    tune: Search | None

    @property
    def min_leaf(self) -> int:
        """Rows a leaf has at least, for the site's policy to judge."""
        return self.settings.min_samples_leaf

    def said(self, reply: Any = None) -> str:
        """Say what is asked for, or answered."""
        size = "" if reply is None else f" ({len(reply.forest):,} bytes)"
        return (
            f"up to {self.settings.n_estimators:,} trees of the site's own{size}: splits and leaf values, no counts; "
            "how many rows there are, which columns it lacks"
        )

    def course(self) -> Course:
        """Bring trees once."""
        return Course(self.kind())


class TreeScores(Reply, frozen=True, kw_only=True):
    """How each tree does: rows scored, and rows by true and voted class.

    Where a number is predicted: squared error, label and squared label in fixed point.
    """

    rows: np.ndarray
    counts: np.ndarray


class ScoreTrees(Request, frozen=True, kw_only=True):
    """How every site's trees do on the site's training rows, each tree by itself."""

    verb: ClassVar[Verb] = "total"
    reply: ClassVar[type[Reply]] = TreeScores

    schema: Blob
    forests: list[Blob]
    validation: float
    # fixed point of numbers; of no use for classes
    offset: float
    scale: float

    def said(self, reply: Any = None) -> str:
        """Say what is asked for, or answered."""
        trees = "the trees" if reply is None else f"{len(reply.rows):,} trees"
        each = "" if reply is None else f": {' x '.join(f'{n:,}' for n in reply.counts.shape[1:])} numbers a tree"
        return f"how {trees} of {len(self.forests)} sites do on the site's training rows{each}"


# -- at a site


@answers(BringTrees)
def bring_trees(site: Site, request: BringTrees) -> OwnTrees:
    """Grow trees on the rows to learn from, or bring those that the site's owner gave."""
    schema = schema_of(site, request.schema)
    part, _ = learning_rows(site, schema, request.validation)
    settings = request.settings
    if site.forest is not None:
        if request.oob:
            raise RefusedError(
                "the site brings a forest, and nobody knows which rows its trees saw: set validation=0.2, so that the "
                "site chooses on rows that were split off"
            )
        forest = site_forest(site, schema, part, request.min_leaf)
    else:
        if request.tune is not None:
            settings, _ = tune_settings(site, schema, settings, request.tune, request.feature_key, part=part)
        forest = local_forest(site, schema, settings, request.feature_key, settings.n_estimators, part)
    return OwnTrees(
        forest=to_bytes(forest.bare()),
        rows=len(part),
        absent=site.absent(schema),
        brought=site.forest is not None,
        settings=settings,
    )


@answers(ScoreTrees)
def score_all(site: Site, request: ScoreTrees) -> TreeScores:
    """Score all trees on the rows to learn from."""
    schema = schema_of(site, request.schema)
    forest = join_forests(forests_of(site, schema, request.forests))
    part, _ = learning_rows(site, schema, request.validation)
    absent = site.absent(schema)
    silent = abstaining(forest, absent)
    rows = np.where(silent, 0, len(part))
    if schema.n_classes:
        if len(forest) * schema.n_classes**2 > MAX_CELLS:
            raise FormatError("the matrices of so many trees and classes do not fit a message")
        counts = score_trees(forest, part.X, part.y, absent, site.n_jobs)
        here = np.bincount(part.y, minlength=schema.n_classes) * (~silent)[:, None]
        if not np.array_equal(counts.sum(axis=2), here):
            raise FederationError("a matrix does not add up to the rows scored")
    else:
        if not (0.0 < request.scale < np.inf and np.isfinite(request.offset)):
            raise FormatError("the fixed point is not one")
        scored = score_numbers(forest, part.X, part.y, request.scale, absent, site.n_jobs)
        if not np.array_equal(scored[:, 0], rows):
            raise FederationError("the errors are not those of the rows scored")
        label = _label_sums(part.y, request.offset, request.scale)
        counts = np.stack([scored[:, 1], *np.where(silent, 0, label[:, None])], axis=1)
    return TreeScores(rows=rows.astype(np.int64), counts=counts.astype(np.int64))


def _label_sums(y: np.ndarray, offset: float, scale: float) -> np.ndarray:
    """Add up a label and its squares in fixed point, row by row."""
    with np.errstate(over="ignore"):
        gap = (y - offset) * np.sqrt(scale)
        sums = [np.rint(np.clip(x, -ERROR_CAP, ERROR_CAP)).astype(np.int64).sum() for x in (gap * _FINER, gap * gap)]
    return np.array(sums)


def learning_rows(site: Site, schema: Schema, validation: float) -> tuple[Part, Part]:
    """Split a share of the training rows off, by class: rows that no tree and no weight has seen."""
    if not 0.0 <= validation <= 0.5:
        raise FormatError("the share of rows to split off must be between 0 and a half")
    part = site.part(schema)
    held = np.zeros(len(part), np.bool_)
    if validation > 0.0:
        _limit_shares(site, validation)
        drawn = _row_hashes(site.sampling_key, part.row_keys)
        groups = part.y if schema.n_classes else np.zeros(len(part), np.int64)
        carry = 0.5
        for group in np.unique(groups):
            rows = np.flatnonzero(groups == group)
            share = validation * len(rows) + carry
            held[rows[np.argsort(drawn[rows], kind="stable")[: int(share)]]] = True
            carry = share - int(share)  # small classes share what rounding leaves
        if held.all():
            held[:] = False
    kept, split_off = (Part(part.X[rows], part.y[rows], part.row_keys[rows]) for rows in (~held, held))
    return kept, split_off


def _limit_shares(site: Site, share: float) -> None:
    """Refuse to split rows off by ever new shares, also after a restart."""
    known = msgspec.json.decode(site.store.get(_SHARES) or b"[]", type=list[float])
    if share not in known:
        if len(known) >= SHARES:
            raise RefusedError(
                f"the site splits rows off by at most {SHARES} different shares: set validation to one of them"
            )
        site.store.put(_SHARES, msgspec.json.encode([*known, share]))


@njit(nogil=True, cache=True)
def _row_hashes(key: np.ndarray, row_keys: np.ndarray) -> np.ndarray:
    out = np.empty(row_keys.shape[0], np.uint64)
    for i in range(row_keys.shape[0]):
        out[i] = siphash(key, np.uint64(_VALIDATION) << np.uint64(56), row_keys[i])
    return out


# -- both sides


def thresholded(alphas: np.ndarray, base: np.ndarray, tau: float) -> np.ndarray:
    """Give the trees above tau their weights and the others none (Eq. 3.7); if none is above, all count alike."""
    kept = np.where(alphas > tau, alphas, 0.0) * base
    return kept if kept.any() else base


# -- at the coordinator


@dataclass(frozen=True)
class Weighted:
    """The trees of sites that learn together, and what each is worth before tau.

    With ``equal``, the trees of one site have as much say together as those of another. ``refusals`` are the sites' on
    each other's trees, if they were asked for.
    """

    members: dict[str, OwnTrees]
    forests: dict[str, Forest]
    blobs: dict[str, Blob]
    alphas: np.ndarray
    equal: bool = False
    refusals: Refusals | None = None

    @cached_property
    def joined(self) -> Forest:
        """All trees, in the order of the sites."""
        return join_forests(list(self.forests.values()))

    @cached_property
    def owners(self) -> np.ndarray:
        """The site that each tree is from."""
        return np.repeat(np.array(list(self.forests)), [len(f) for f in self.forests.values()])

    def ensemble(self, tau: float, site: str | None = None, user: str | None = None) -> Forest:
        """Give the global ensemble (Eq. 3.9), or the one of a site's own trees (Eq. 3.8).

        ``user``: the global one as this site uses it, without trees that it refuses.
        """
        if site is not None:
            forest = self.forests[site]
            weights = thresholded(self.alphas[self.owners == site], forest.weights, tau)
            return replace(forest, weights=weights, combine="vote")
        weights = thresholded(self.alphas, self._base(user), tau)
        if self.equal:
            weights = equal_say(weights, [len(forest) for forest in self.forests.values()])
        return replace(self.joined, weights=weights, combine="vote")

    def _base(self, user: str | None) -> np.ndarray:
        """Give 1 for the trees that count at all."""
        if self.refusals is None:
            return self.joined.weights
        refused = self.refusals.dropped if user is None else self.refusals.of(user)
        left = np.where(refused, 0.0, self.joined.weights)
        return left if left.any() else self.joined.weights


def weigh(
    federation: Federation,
    schema: Schema,
    settings: Settings,
    feature_key: np.ndarray,
    clusters: dict[str, list[str]] | None = None,
    *,
    validation: float = 0.0,
    oob: bool = False,
    tune: Search | None = None,
    equal: bool = False,
    max_trees: int | None = None,
    admission: bool = False,
) -> dict[str, Weighted]:
    """Have sites bring their trees and weigh them (Alg. 5): for every cluster by itself, in the same two rounds."""
    named = federation.blob(schema.to_json().encode())
    request = BringTrees(
        schema=named, settings=settings, feature_key=feature_key, validation=validation, oob=oob, tune=tune
    )
    brought: dict[str, OwnTrees] = federation.ask(request, check=lambda site, reply: _check_own(reply, request, schema))
    forests = {
        site: _capped(read_trees(reply.forest, schema), max_trees, reply.brought) for site, reply in brought.items()
    }
    blobs = {site: federation.blob(to_bytes(forest)) for site, forest in forests.items()}
    groups = {"": list(brought)} if clusters is None else clusters
    listed = {name: [site for site in brought if site in sites] for name, sites in groups.items()}
    listed = {name: sites for name, sites in listed.items() if sites}
    refusals: dict[str, Refusals] = {}
    if admission:
        looked_at = [{site: (forests[site], blobs[site]) for site in sites} for sites in listed.values()]
        refusals = dict(zip(listed, ask_admission(federation, schema, looked_at), strict=True))
    weighted = {}
    with federation.one_round():
        for name, sites in listed.items():
            members = {site: brought[site] for site in sites if site not in federation.lost}
            mine = {site: forests[site] for site in members}
            kept = refusals[name].among(list(members)) if name in refusals else None
            alphas = _alphas(federation, schema, named, members, mine, blobs, validation)
            weighted[name] = Weighted(members, mine, {site: blobs[site] for site in members}, alphas, equal, kept)
    return weighted


def _capped(forest: Forest, most: int | None, brought: bool) -> Forest:
    """Take so many trees of a site at most."""
    if most is None or len(forest) <= most:
        return forest
    alive = np.flatnonzero(forest.weights > 0)
    # of grown trees the first ones, whatever their say: by its place the site knows which rows a tree drew
    taken = alive[:most] if brought or alive[0] >= most else np.arange(most)
    return forest.take(taken)


def _check_own(reply: OwnTrees, request: BringTrees, schema: Schema) -> None:
    forest = read_trees(reply.forest, schema)
    asked = reply.settings.n_estimators if request.tune is not None else request.settings.n_estimators
    if not reply.brought and len(forest) != asked:
        raise FormatError("its trees are not as many as asked for")
    if not 1 <= reply.rows < MAX_ROWS:
        raise FormatError("it has no rows to learn from")
    if reply.absent.shape != (len(schema.features),) or reply.absent.dtype != np.bool_:
        raise FormatError("the columns that it lacks are not those of the schema")


def _alphas(
    federation: Federation,
    schema: Schema,
    named: Blob,
    members: dict[str, OwnTrees],
    forests: dict[str, Forest],
    blobs: dict[str, Blob],
    validation: float,
) -> np.ndarray:
    """Sum up how trees do at all sites and give what each is worth (Eqs 3.5 and 3.6)."""
    forest = join_forests(list(forests.values()))
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
    replies: TreeScores = federation.total(
        dict.fromkeys(members, request),
        check=check_scores(schema, {s: (silent[s], r.rows) for s, r in members.items()}),
    )
    check_reply(replies, schema, {s: (silent[s], r.rows) for s, r in members.items()}, federation.lost)
    return np.array([_correlation(m) for m in replies.counts]) if k else _skill(replies)


def _correlation(matrix: np.ndarray) -> float:
    """Matthews correlation, or R_K; 0 where it is undefined."""
    value = metrics.mcc(matrix)
    return 0.0 if np.isnan(value) else value


def _skill(replies: TreeScores) -> np.ndarray:
    """Give 1 - MSE / variance of the label, for each tree on the rows that it was scored on."""
    n = np.maximum(replies.rows, 1)
    error, label, square = replies.counts.T / n
    spread = square - (label / _FINER) ** 2
    return np.where(spread > 0, 1.0 - error / np.where(spread > 0, spread, 1.0), 0.0)


def _fixed_point(forest: Forest) -> tuple[float, float]:
    """Choose a middle and a scale of squares by the answers of all trees, which everybody knows."""
    low, high = float(forest.value.min()), float(forest.value.max())
    reach = max(high / 2 - low / 2, np.finfo(np.float64).tiny)
    bits = _ERROR_BITS // 2 - math.frexp(reach)[1]
    return low / 2 + high / 2, 4.0 ** min(max(bits, -500), 500)  # a power of four, whose root is exact


def warn_if_none(weighted: dict[str, Weighted], tau: float) -> None:
    """Say so if there is a cluster in which no tree is above tau."""
    for name, one in weighted.items():
        if not (one.alphas > tau).any():
            where = f" of the cluster of {name!r}" if name else ""
            best = one.alphas.max()
            warnings.warn(
                f"no tree{where} is above tau = {tau:g} (the best is at {best:.2f}): all trees count alike",
                stacklevel=4,
            )
