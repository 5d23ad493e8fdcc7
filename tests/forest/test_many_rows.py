"""Thousands of rows use another code path than a few: the predictions are the same bit for bit."""

import numpy as np
import polars as pl
import pytest
from helpers.naive_answers import vote_answers

import silvan as sv
from silvan.forest.flow import ROWS_ADDED
from silvan.forest.predict import as_matrix, tally

ROWS = ROWS_ADDED + 1500


def _table(seed: int) -> pl.DataFrame:
    draw = np.random.default_rng(seed)
    numbers = draw.normal(size=(ROWS, 3)).round(2)
    numbers[draw.random((ROWS, 3)) < 0.1] = np.nan
    kinds = draw.choice(["red", "green", "blue", None], ROWS)
    return pl.DataFrame(numbers, schema=["a", "b", "c"]).with_columns(pl.Series("kind", kinds.tolist()))


@pytest.mark.parametrize("columns", [["a", "b", "c"], ["a", "kind", "c"]])
@pytest.mark.parametrize("classes", [0, 2, 3])
@pytest.mark.parametrize("depth", [1, 4, None])
def test_many_rows_equal_a_few_at_a_time(columns: list[str], classes: int, depth: int | None) -> None:
    table = _table(classes).select(columns)
    score = np.nan_to_num(table["a"].to_numpy()) + np.nan_to_num(table["c"].to_numpy())
    y = np.digitize(score, np.linspace(-1, 1, classes - 1)) if classes else score
    kind = sv.ForestClassifier if classes else sv.ForestRegressor
    forest = kind(5, max_depth=depth, random_state=0).fit(table[:600], y[:600]).forest_
    X = as_matrix(forest.schema, table)
    draw = np.random.default_rng(1)
    weights = np.array([1.0, 0.0, 0.3, 0.7, 2.0])
    skip = draw.random((2, ROWS)) < 0.3
    for more in ({}, {"skip": skip, "skipping": np.array([0, -1, 1, -1, 0])}):
        together = tally(forest, X, weights, 1, **more)
        parts = []
        for first in range(0, ROWS, 1000):
            here = slice(first, first + 1000)
            some = {**more, "skip": np.ascontiguousarray(skip[:, here])} if more else {}
            parts.append(tally(forest, X[here], weights, 1, **some))
        for i in range(3):
            assert np.array_equal(together[i], np.concatenate([part[i] for part in parts]))
    means = tally(forest, X, forest.weights, 1).means()
    assert np.allclose(means[:50], vote_answers(forest, X[:50])[0])
