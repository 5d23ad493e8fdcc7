"""Leaf re-estimation: sites' trees are cut back to what other sites' rows reach, with leaf values from those rows.

A site can hide anything in its trees, such as a branch that predicts one class when a trigger is present. Leaf
re-estimation removes it. In a first sum, sites count their rows at the leaves of *other* sites' trees; a branch that
fewer than ``min_leaf`` rows reach is cut off and replaced by its sibling. In a second sum, sites count their rows by
class, or add up their labels, at the remaining leaves, which gives the leaf values. The site's remaining influence is
the choice of its splits.

Each row counts in some trees only, chosen by the site's secret samples: in the i-th tree of every site like in the
site's own i-th tree. So every site still has rows that a tree has not seen. Class counts are requested only for leaves
that, according to the coordinator, at least ``min_leaf`` rows of other sites reach. With secure aggregation both sums
reveal nothing about single sites.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import msgspec
import numpy as np

from silvan.algorithms.keyed_rows import drawn_by_place, learning_rows
from silvan.algorithms.requests import forests_of, own_trees, schema_of
from silvan.data.bins.time_bins import codes_of
from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError, reject
from silvan.federation import wire
from silvan.federation.describe import FLOOR
from silvan.federation.federation import Federation
from silvan.federation.message import Agreed, Blob, Derived, Fixed, SummedReply, Total
from silvan.federation.outgoing import Check
from silvan.federation.part import Part
from silvan.federation.site import Site, answers
from silvan.federation.store import CacheKey, digest
from silvan.forest.curves import hazards
from silvan.forest.forest import Forest, join_forests
from silvan.forest.node_counts import sum_at_nodes
from silvan.forest.predict import abstaining
from silvan.forest.score import labels_at_leaves
from silvan.forest.snap import prune
from silvan.tree.fit import Settings
from silvan.tree.sampling import RowSampling

_BITS = 24  # bits of a label at the usual distance of trees' predictions from the middle
_LABEL_CAP = 1 << 31  # largest label in fixed point: sums over up to 2^31 rows fit 62 bits


# -- messages
class LeafRows(SummedReply, frozen=True, kw_only=True):
    """The number of the site's rows that reach each leaf; leaves of its own trees are not counted."""

    rows: np.ndarray


class CountLeafRows(Total[LeafRows], frozen=True, kw_only=True):
    """The number of rows of other sites that reach each leaf of a site's trees."""

    some_sites: ClassVar[bool] = True  # a cluster's

    schema: Agreed[Blob]
    forests: Derived[list[Blob]]
    owners: Derived[list[str]]  # the site of each forest
    validation: Fixed[float]  # share of training rows that are not counted
    bootstrap: Fixed[RowSampling]


class LeafLabels(SummedReply, frozen=True, kw_only=True):
    """Rows by leaf and class; in regression, rows and the sum of their labels in fixed point.

    None are counted at leaves of the site's own trees.
    """

    counts: np.ndarray


class CountLeafLabels(CountLeafRows, frozen=True, kw_only=True):
    """The number of rows per class of other sites that reach the leaves of a site's pruned trees."""

    reply: ClassVar[type[SummedReply]] = LeafLabels

    few: Derived[np.ndarray]  # nodes that too few rows of other sites reach
    min_leaf: Fixed[int]  # minimum number of rows, which the site's policy checks
    # fixed point for regression; unused for classes
    offset: Derived[float]
    scale: Derived[float]


class RefittedLeaves(msgspec.Struct, frozen=True):
    """The result of leaf re-estimation: nodes that few rows reach, and values of the remaining leaves."""

    few: np.ndarray
    values: np.ndarray


# -- at a site
@answers(CountLeafRows)
def count_rows(site: Site, request: CountLeafRows) -> LeafRows:
    """Count rows at the leaves of others' trees."""
    schema = schema_of(site, request.schema)
    forests = forests_of(site, schema, request.forests)
    part, _ = learning_rows(site, schema, request.validation)
    codes = np.zeros(len(part), np.int64)
    counts = _count(site, request, forests, join_forests(forests), part, codes, np.zeros(0, np.int64), 1)
    return LeafRows(rows=counts[:, 0])


@answers(CountLeafLabels)
def count_labels(site: Site, request: CountLeafLabels) -> LeafLabels:
    """Count rows by class, or add up labels, at the leaves of others' pruned trees."""
    schema = schema_of(site, request.schema)
    forests = forests_of(site, schema, request.forests)
    forest = _cut_back(site, schema, request.forests, request.few)
    part, _ = learning_rows(site, schema, request.validation)
    reject(not (0.0 < request.scale < np.inf and np.isfinite(request.offset)), "the fixed-point scale is invalid")
    counted = counted_labels(forest, part.y, request.offset, request.scale)
    counts = _count(site, request, forests, forest, part, *counted, label_columns(forest))
    return LeafLabels(counts=counts)


def _count(
    site: Site,
    request: CountLeafRows,
    forests: Sequence[Forest],
    forest: Forest,
    part: Part,
    codes: np.ndarray,
    amounts: np.ndarray,
    columns: int,
) -> np.ndarray:
    """Count the rows that trees sample here, at the leaves of others' trees that do not abstain."""
    own, places = own_trees(site, request.forests, forests, request.owners), places_of(forests)
    drawn = drawn_by_place(site, part, request.bootstrap, int(own.sum()), int(places.max()) + 1)
    trees = np.flatnonzero(~own & ~abstaining(forest, site.absent(forest.schema)))
    out = np.zeros((len(forest.value), columns), np.int64)
    labels_at_leaves(forest, part.X, codes.astype(np.int64), amounts, trees, drawn, places, out, site.n_jobs)
    return out


def read_refitted(site: Site, schema: Schema, blobs: Sequence[Blob], refitted: Blob) -> Forest:
    """Return the trees of several sites after leaf re-estimation."""
    found = wire.decode(site.blob(refitted.hash), RefittedLeaves)
    pruned = _cut_back(site, schema, blobs, found.few)
    if found.values.shape != pruned.value.shape or found.values.dtype != np.float64:
        raise FormatError("the leaf values are not those of the trees")
    return _with_values(pruned, found.values)


def _cut_back(site: Site, schema: Schema, blobs: Sequence[Blob], few: np.ndarray) -> Forest:
    """Prune branches that few rows reach from the trees of a request; cached, because two rounds need it."""

    def cut() -> Forest:
        forest = join_forests(forests_of(site, schema, blobs))
        if few.shape != forest.feature.shape or few.dtype != np.bool_:
            raise FormatError("the nodes that few rows reach are not those of the trees")
        return prune(forest, few)

    return site.cache.once(
        CacheKey[Forest]("trees cut back", schema.hash, *(blob.hash for blob in blobs), digest(few.tobytes())), cut
    )


# -- both sides
def label_columns(forest: Forest) -> int:
    """Return how many columns the counts of labels at leaves have."""
    if forest.times is not None:
        return 2 * len(forest.times) + 1
    return forest.schema.n_classes or 2


def counted_labels(forest: Forest, y: np.ndarray, offset: float, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the column that counts each row, and what is added up besides: labels that are numbers."""
    if forest.times is not None:
        return np.minimum(codes_of(y, forest.times), label_columns(forest) - 1), np.zeros(0, np.int64)
    if forest.schema.n_classes:
        return y, np.zeros(0, np.int64)
    return np.zeros(len(y), np.int64), whole_labels(y, offset, scale)


def places_of(forests: Sequence[Forest]) -> np.ndarray:
    """Return each tree's position among the trees of its site."""
    return np.concatenate([np.arange(len(forest)) for forest in forests])


def _with_values(pruned: Forest, values: np.ndarray) -> Forest:
    """Return pruned trees with new leaf values; a tree with only a leaf left has no weight."""
    weights = np.where(np.diff(pruned.offsets) > 1, pruned.weights, 0.0)
    return replace(pruned, value=values, weights=weights if weights.any() else pruned.weights)


# -- at the coordinator
def refit_leaves(
    federation: Federation,
    schema: Schema,
    trees: Mapping[str, tuple[Forest, Blob]],
    rows: Mapping[str, int],
    settings: Settings,
    validation: float = 0.0,
) -> tuple[Forest, Blob]:
    """Prune the sites' trees and re-estimate their leaves: two rounds over the sites in ``rows``.

    ``settings`` are those of the trees, with numeric class weights. Return the trees, and a blob from which sites can
    reconstruct them.
    """
    class_weight, min_leaf = settings.class_weight, max(FLOOR, settings.min_samples_leaf)
    if isinstance(class_weight, str):
        raise InputError.wrong("class_weight", "numbers by now", class_weight)
    named = federation.blob(schema.to_json().encode())
    forests = {site: forest for site, (forest, _) in trees.items()}
    forest, owners = join_forests(list(forests.values())), list(forests)
    blobs = [blob for _, blob in trees.values()]
    same: dict[str, Any] = {
        "schema": named,
        "forests": blobs,
        "owners": owners,
        "validation": validation,
        "bootstrap": settings.row_sampling,
    }
    most = sum(rows.values())  # upper bound on counts
    own = {site: np.repeat([owner == site for owner in owners], [len(f) for f in forests.values()]) for site in rows}
    counted: LeafRows = federation.total(
        CountLeafRows(**same), over=rows, check=_check_counts(forest, 1, rows, own), most=most
    )
    few = sum_at_nodes(forest, counted.rows[:, None])[:, 0] < min_leaf
    pruned = prune(forest, few)
    offset, scale = (0.0, 1.0) if schema.n_classes else fixed_point(list(forests.values()))
    request = CountLeafLabels(**same, few=few, min_leaf=min_leaf, offset=offset, scale=scale)
    labels: LeafLabels = federation.total(
        request,
        over=rows,
        check=_check_counts(pruned, label_columns(pruned), rows, own),
        most=most if schema.n_classes or pruned.times is not None else None,
    )
    values = _leaf_values(pruned, labels.counts, offset, scale, class_weight)
    return _with_values(pruned, values), federation.blob(wire.encode(RefittedLeaves(few, values)))


def _check_counts(forest: Forest, columns: int, rows: Mapping[str, int], own: Mapping[str, np.ndarray]) -> Check:
    """Return a check of rows, or labels, at the leaves of trees.

    A tree cannot count more rows than exist, nor any at its own site (``own``).
    """
    tree_of = np.repeat(np.arange(len(forest)), np.diff(forest.offsets))[forest.feature < 0]

    def check(site: str, reply: LeafRows | LeafLabels) -> None:
        given = reply.rows[..., None] if isinstance(reply, LeafRows) else reply.counts
        if given.shape != (len(forest.value), columns) or given.dtype != np.int64:
            raise FormatError("it counts at other leaves than those of the trees")
        sums = columns > 1 and not forest.schema.n_classes and forest.times is None
        counts, most = given[:, :1] if sums else given, rows.get(site, sum(rows.values()))
        by_tree = np.zeros(len(forest), np.int64)
        np.add.at(by_tree, tree_of, np.clip(counts, 0, most + 1).sum(axis=1))  # clipped, or sums could overflow
        reject(counts.min(initial=0) < 0 or by_tree.max() > most, "it counts more rows than exist")
        reject(site in own and by_tree[own[site]].any(), "it counts rows at leaves of its trees")
        if sums and (abs(given[:, 1] / _LABEL_CAP) > given[:, 0]).any():
            raise FormatError("the sum of its labels is too large for its rows")

    return check


def _leaf_values(
    forest: Forest, counts: np.ndarray, offset: float, scale: float, class_weight: Sequence[float] | None
) -> np.ndarray:
    """Return class shares or means at leaves; a leaf without rows takes those of its tree, or keeps its value."""
    tree_of = np.repeat(np.arange(len(forest)), np.diff(forest.offsets))[forest.feature < 0]
    by_tree = np.zeros((len(forest), counts.shape[1]), np.int64)
    np.add.at(by_tree, tree_of, counts)
    rows = counts.sum(axis=1) if forest.schema.n_classes or forest.times is not None else counts[:, 0]
    taken = np.where((rows > 0)[:, None], counts, by_tree[tree_of])
    if forest.times is not None:
        return np.where(taken.sum(axis=1, keepdims=True) > 0, hazards(taken), forest.value)
    if not forest.schema.n_classes:
        return np.where(taken[:, :1] > 0, mean_label(taken, offset, scale)[:, None], forest.value)
    weighted = taken if class_weight is None else taken * np.array(class_weight)
    total = weighted.sum(axis=1, keepdims=True)
    return np.asarray(np.where(total > 0, weighted / np.where(total > 0, total, 1), forest.value))


def whole_labels(y: np.ndarray, offset: float, scale: float) -> np.ndarray:
    """Return numbers in fixed point."""
    with np.errstate(over="ignore"):
        labels = np.clip((y - offset) * scale, -_LABEL_CAP, _LABEL_CAP)
    return np.rint(labels).astype(np.int64)


def mean_label(sums: np.ndarray, offset: float, scale: float) -> np.ndarray:
    """Return means from (rows, sum in fixed point); the middle if there are no rows."""
    return np.asarray(sums[:, 1] / np.maximum(sums[:, 0], 1) / scale + offset)


def fixed_point(forests: Sequence[Forest]) -> tuple[float, float]:
    """Choose a middle and a scale from the median of the sites' trees, which one site cannot move far."""
    low = float(np.median([forest.value.min() for forest in forests]))
    high = float(np.median([forest.value.max() for forest in forests]))
    reach = max(abs(high / 2 - low / 2), np.finfo(np.float64).tiny)
    return low / 2 + high / 2, float(2.0 ** np.clip(_BITS - np.frexp(reach)[1], -1000, 1000))
