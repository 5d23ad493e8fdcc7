"""Small random tables in bins, and the rows of several sites behind one interface."""

from collections.abc import Sequence

import numpy as np

from silvan.data.bins.bins import make_bins
from silvan.data.schema import Feature, Label, Schema
from silvan.tree.gain import Rule
from silvan.tree.grow import Frontier, Plan
from silvan.tree.level import choose_level, sample_level
from silvan.tree.node_rows import Binned
from silvan.tree.objectives import OBJECTIVES, Target
from silvan.tree.rows import TreeRows
from silvan.tree.sampling import Ties
from silvan.tree.split import Splits


def random_table(
    seed: int,
    n_rows: int = 60,
    n_features: int = 5,
    n_classes: int = 2,
    weighted: bool = False,
    missing: float = 0.2,
) -> tuple[np.ndarray, Schema, Target]:
    """Columns of few values, some categorical, some values missing; a target that depends on them."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, rng.integers(1, 9, n_features), (n_rows, n_features)).astype(np.float32)
    y = X[:, : n_features // 2 + 1].sum(axis=1) + rng.integers(0, 4, n_rows)
    X[rng.random(X.shape) < missing] = np.nan
    features = [
        Feature(f"x{f}", "categorical", categories=tuple("abcdefgh")) if f % 3 == 1 else Feature(f"x{f}")
        for f in range(n_features)
    ]
    schema = Schema.of(features, Label("label", tuple(range(n_classes)) or None))
    weight = rng.integers(1, 4, n_rows).astype(float) if weighted else None
    if n_classes:
        return X, schema, OBJECTIVES["gini"].target(y.astype(np.int64) % n_classes, n_classes, weight)
    return X, schema, OBJECTIVES["squared_error"].target(y.astype(np.float64), 0, weight)


def binned(seed: int, **shape) -> tuple[Binned, Target, Schema]:
    """Bins a random table, with enough bins for any rows.

    Trees have all cut points, or some of them.
    """
    X, schema, target = random_table(seed, **shape)
    cuts = [np.arange(0.5, 0.0 if f.categorical else 9.0, dtype=np.float32) for f in schema.features]
    steps = [np.array([1, 1, 4, 1, 2, 1, 1, 3, 1][: len(c)], np.uint8).clip(1, 4) for c in cuts]
    bins = make_bins(schema, cuts, steps, 5) if seed % 2 else make_bins(schema, cuts)
    keys = np.arange(len(X), dtype=np.uint64)
    return Binned(bins.apply(X), target.rows, keys, bins, target.measure.n_stats), target, schema


def take(table: Binned, rows: np.ndarray) -> Binned:
    """Gives the site some of the rows."""
    return Binned(table.codes[rows], table.target[rows], table.row_keys[rows], table.bins, table.n_stats)


class Sites:
    """Rows at several places: histograms are summed, splits are applied everywhere."""

    def __init__(self, parts: Sequence[TreeRows], plan: Plan, rule: Rule, tie_key: np.ndarray) -> None:
        self.parts, self.plan, self.rule, self.tie_key = parts, plan, rule, tie_key
        self.asked = 0

    def find(self, frontier: Frontier) -> Splits:
        self.asked += 1
        features = sample_level(frontier, self.plan)
        hist = sum(part.fill(frontier.node, features, 2) for part in self.parts)
        bins, offsets = self.parts[0].table.bins, self.parts[0].offsets[frontier.node]
        return choose_level(hist, features, bins, self.rule, Ties(self.tie_key, frontier.seed), offsets=offsets)

    def apply(self, nodes: np.ndarray, splits: Splits, needed: np.ndarray) -> None:
        for part in self.parts:
            part.apply(nodes, splits, needed)
