"""Cross-validation of forests: all folds share one binned table, and their trees grow side by side.

A fold is a set of rows that its trees do not see. Cut points do not depend on labels, so all folds may share them.
"""

from dataclasses import dataclass

import numpy as np

from silvan import metrics
from silvan.algorithms.keyed_rows import folds_of
from silvan.data.bins.bins import find_bins
from silvan.data.schema import Schema
from silvan.federation.describe import FLOOR
from silvan.federation.part import Part
from silvan.forest.predict import tally
from silvan.tree.draw import rows_of_trees
from silvan.tree.fit import Settings, assemble
from silvan.tree.grow import Frontier, grow
from silvan.tree.node_rows import Binned
from silvan.tree.objectives import Measure
from silvan.tree.rows import TreeRows
from silvan.tree.split import Splits

ROWS_AT_ONCE = 1 << 21
"""About how many rows a batch of trees that grow side by side has."""


@dataclass(frozen=True)
class Folds:
    """A table binned once, every row in a fold."""

    part: Part
    table: Binned
    measure: Measure
    schema: Schema
    of_row: np.ndarray
    n: int
    keys: tuple[np.ndarray, np.ndarray]  # of rows, of features

    @classmethod
    def of(
        cls,
        part: Part,
        schema: Schema,
        settings: Settings,
        n: int,
        keys: tuple[np.ndarray, np.ndarray],
        threads: int,
    ) -> "Folds":
        """Bin the rows and divide them into folds, by class."""
        target = settings.target(schema, part.y)
        bins, codes = find_bins(part.X, schema, settings.max_bins, threads, FLOOR, staggered=True)
        table = Binned(codes, target.rows, part.row_keys, bins, target.measure.n_stats)
        groups = part.y if schema.n_classes else np.zeros(len(part), np.int64)
        return cls(part, table, target.measure, schema, folds_of(keys[0], part.row_keys, groups, n), n, keys)

    def add_trees(self, settings: Settings, first: int, last: int, total: np.ndarray, weight: np.ndarray) -> None:
        """Grow these trees on all folds but one, for each fold, and add up their scores of its rows.

        ``total`` is (rows, outputs), ``weight`` (rows,).
        """
        at_once = max(4, ROWS_AT_ONCE // len(self.table))
        n_folds, n_trees = max(1, at_once // (last - first)), min(last - first, at_once)
        for k in range(0, self.n, n_folds):
            for t in range(first, last, n_trees):
                self._add_some(
                    settings, range(k, min(k + n_folds, self.n)), range(t, min(t + n_trees, last)), total, weight
                )

    def _add_some(self, settings: Settings, folds: range, trees: range, total: np.ndarray, weight: np.ndarray) -> None:
        row_key, feature_key = self.keys
        drawn = rows_of_trees(row_key, self.table.row_keys, trees.start, len(trees), settings.row_draw)
        numbers = np.tile(np.arange(trees.start, trees.stop), len(folds))
        rows = TreeRows(self.table, np.concatenate([drawn & (self.of_row != k) for k in folds]), numbers)
        rule, plan = settings.rule(self.measure), settings.plan(len(self.schema.features))

        def find(frontier: Frontier) -> Splits:
            return rows.find(frontier, plan, rule, feature_key)

        grown = grow(numbers, feature_key, plan, rule, find, rows.apply)
        forest = assemble([(grown, self.table.bins.cut(grown.feature, grown.bin))], self.schema, self.measure)
        for i, k in enumerate(folds):
            held = np.flatnonzero(self.of_row == k)
            weights = np.zeros(len(forest))
            own = slice(i * len(trees), (i + 1) * len(trees))
            weights[own] = forest.weights[own]
            votes = tally(forest, self.part.X[held], weights, 1, votes=False)
            total[held] += votes.values
            weight[held] += votes.weight

    def scores(self, answer: np.ndarray) -> np.ndarray:
        """Return a figure for each fold: the AUC, averaged over the classes that have one there, or the RMSE."""
        if self.schema.n_classes:
            answer = answer.round(12)  # equal scores are equal in whatever order trees were added up
        figures = np.full(self.n, np.nan)
        for k in range(self.n):
            held = self.of_row == k
            y, scores = self.part.y[held], answer[held]
            if not self.schema.n_classes:
                figures[k] = metrics.regression(scores[:, 0], y)["rmse"]
                continue
            each = np.array([metrics.roc_auc(*t) for t in metrics.count_scores(scores, y, exact=True)])
            if not np.isnan(each).all():
                figures[k] = np.nanmean(each)
        return figures
