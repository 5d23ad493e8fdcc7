"""Rows at nodes, compared with a walk row by row."""

import numpy as np
import pytest
from helpers.forests import MIXED, NUMBERS, random_forest, random_rows

from silvan.forest.node_counts import rows_at_nodes


def naive_paths(forest, X):
    """The nodes that each row passes in each tree."""
    paths = []
    sets = iter(forest.sets)
    chosen = {}
    for node, feature in enumerate(forest.feature):
        if feature >= 0 and forest.schema.features[feature].categorical:
            chosen[node] = next(sets)
    for start in forest.offsets[:-1]:
        for row in X:
            node, path = start, []
            while True:
                path.append(int(node))
                feature = forest.feature[node]
                if feature < 0:
                    break
                x = row[feature]
                if node in chosen:
                    code = 0 if np.isnan(x) else int(x) + 1
                    left = bool(int(chosen[node][code >> 6]) >> (code & 63) & 1)
                else:
                    left = bool(forest.missing_left[node]) if np.isnan(x) else bool(x <= forest.threshold[node])
                node = forest.left[node] if left else forest.right[node]
            paths.append(path)
    return paths


@pytest.mark.parametrize("schema", [NUMBERS, MIXED], ids=["numbers", "mixed"])
def test_counts_equal_a_row_by_row_walk(schema):
    forest = random_forest(1, schema=schema, n_trees=6, max_nodes=21)
    X = random_rows(forest, 2, n=100)
    paths = naive_paths(forest, X)
    counts = np.bincount(np.concatenate(paths), minlength=len(forest.feature))
    np.testing.assert_array_equal(rows_at_nodes(forest, X, n_jobs=1), counts)
