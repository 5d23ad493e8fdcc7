"""Merged forests: every site grows trees on its own rows, and one forest contains them all. This takes one round.

The merged forest has as many trees as a pooled one would. The publication's weighting by the sites' rows has two
readings, and both are here: the number of trees, or the weight of each tree, in proportion to a site's rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from silvan.algorithms.keyed_rows import local_forest
from silvan.algorithms.refit_leaves import refit_leaves
from silvan.algorithms.requests import read_trees, schema_of
from silvan.data.schema import Schema
from silvan.errors import InputError, reject
from silvan.federation.agree import MAX_ROWS
from silvan.federation.federation import Federation
from silvan.federation.message import Agreed, Ask, Blob, Fixed, SignedReply
from silvan.federation.site import Site, answers
from silvan.forest.forest import Forest, join_forests
from silvan.tree.fit import Settings

Weights = Literal["trees", "votes"]


class Trees(SignedReply, frozen=True, kw_only=True):
    """A site's trees, as the bytes of a ``.silvan`` file, and how many rows they were grown on."""

    forest: bytes
    rows: int

    def work(self) -> bytes:
        """Return the trees."""
        return self.forest


class GrowTrees(Ask[Trees], frozen=True, kw_only=True):
    """Local trees: splits and leaf values, no counts."""

    once: ClassVar[bool] = True

    schema: Agreed[Blob]
    settings: Fixed[Settings]
    n_trees: Fixed[int]  # the site grows the first of ``settings``' trees, up to this number
    feature_key: Fixed[np.ndarray]

    @property
    def min_leaf(self) -> int:
        """Minimum number of rows in a leaf, which the site's policy checks."""
        return self.settings.min_samples_leaf


# -- at a site


@answers(GrowTrees)
def grow_trees(site: Site, request: GrowTrees) -> Trees:
    """Grow the site's share of trees."""
    schema = schema_of(site, request.schema)
    forest = local_forest(site, schema, request.settings, request.feature_key, request.n_trees)
    return Trees(forest=forest.bare().to_bytes(), rows=site.n_train)


# -- at the coordinator


@dataclass(frozen=True)
class Influence:
    """How much weight each site has in a merged forest.

    ``weights``: "trees" for numbers of trees in proportion to a site's rows, "votes" for weights in proportion to them,
    None for neither. With ``equal``, all sites' trees have the same total weight. No site gives more than
    ``max_trees``. With ``refit_leaves``, leaves are re-estimated: trees are cut back to what rows of other sites reach,
    and leaf values come from these rows, in two more rounds.
    """

    weights: Weights | None = None
    equal: bool = False
    max_trees: int | None = None
    refit_leaves: bool = False

    def check(self) -> None:
        """Raise ``InputError`` for weights that contradict ``equal``."""
        if self.equal and self.weights is not None:
            raise InputError.about(
                "equal", f"gives every site the same say, and weights={self.weights!r} does not: leave one of them out"
            )

    def trees_by_site(self, n_trees: int, sites: Sequence[str], rows: dict[str, int]) -> dict[str, int]:
        """Return the number of trees from each site."""
        shares = {site: rows[site] if self.weights == "trees" else 1 for site in sites}
        most = n_trees if self.max_trees is None else self.max_trees
        return {site: min(n, most) for site, n in share_out(n_trees, shares).items()}


def fit(
    federation: Federation, schema: Schema, settings: Settings, feature_key: np.ndarray, influence: Influence
) -> "MergedTrees":
    """Request trees from every site and join them."""
    influence.check()
    rows = federation.rows
    n_trees = influence.trees_by_site(settings.n_estimators, federation.active, rows)
    schema_blob = federation.blob(schema.to_json().encode())
    grown_as = replace(settings, vote="soft")  # trees travel without a way to combine them
    requests = {
        site: GrowTrees(
            schema=schema_blob, settings=replace(grown_as, n_estimators=n), n_trees=n, feature_key=feature_key
        )
        for site, n in n_trees.items()
        if n
    }

    def read(site: str, reply: Trees) -> Forest:
        forest = read_trees(reply.forest, schema)
        reject(len(forest) != n_trees[site], "its trees are not as many as requested")
        return forest

    replies: dict[str, Trees] = federation.ask(requests, check=read)
    forests = {site: read(site, reply) for site, reply in replies.items()}
    tree_weights = [rows[site] / sum(rows.values()) if influence.weights == "votes" else 1.0 for site in forests]
    joined = join_forests(list(forests.values()), tree_weights)
    listed = {site: (forest, federation.work(site, replies[site])) for site, forest in forests.items()}
    refitting = influence.refit_leaves and len(federation.active) > 1
    if refitting:
        known = {site: rows.get(site, MAX_ROWS) for site in federation.active}
        known |= {site: reply.rows for site, reply in replies.items() if site in known}
        refitted, _ = refit_leaves(federation, schema, listed, known, settings)
        left = np.where(refitted.weights > 0, joined.weights, 0.0)
        joined = replace(refitted, weights=left if left.any() else joined.weights)
    if influence.equal:
        sizes = [len(forest) for forest in forests.values()]
        joined = replace(joined, weights=equal_site_weights(joined.weights, sizes))
    return MergedTrees(joined, forests, {site: blob for site, (_, blob) in listed.items()}, refitting)


class MergedTrees(NamedTuple):
    """The forest of all trees, each site's trees as signed, and whether leaves were re-estimated."""

    forest: Forest
    forests: dict[str, Forest]
    blobs: dict[str, Blob]
    refitted: bool


def equal_site_weights(weights: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Scale weights so that they sum to 1 for every site with any weight at all."""
    starts = np.cumsum([0, *sizes])
    totals = np.array([weights[a:b].sum() for a, b in pairwise(starts)])
    return np.asarray(weights / np.repeat(np.where(totals > 0, totals, 1.0), sizes))


def limit_trees(settings: Settings, max_trees: int | None, refit_leaves: bool) -> Settings:
    """Return settings with which sites grow only trees that are used, if leaves can be re-estimated."""
    if refit_leaves and settings.signs:
        raise InputError.about(
            "refit_leaves", "makes leaf values anew, in any order: set refit_leaves=False, or leave monotonic_cst out"
        )
    if max_trees is None:
        return settings
    return replace(settings, n_estimators=min(settings.n_estimators, int(max_trees)))


def share_out(n: int, shares: dict[str, int]) -> dict[str, int]:
    """Split an integer in proportion to shares, the largest remainders rounded up; everyone gets some if possible."""
    total = sum(shares.values())
    exact = {name: n * share / total for name, share in shares.items()}
    whole = {name: max(int(x), 1 if shares[name] and n >= len(shares) else 0) for name, x in exact.items()}
    names = list(shares)
    while sum(whole.values()) < n:
        best = max(names, key=lambda name: (exact[name] - whole[name], -names.index(name)))
        whole[best] += 1
    while sum(whole.values()) > n:
        rich = [name for name in names if whole[name] > 1]
        worst = min(rich, key=lambda name: (exact[name] - whole[name], names.index(name)))
        whole[worst] -= 1
    return whole
