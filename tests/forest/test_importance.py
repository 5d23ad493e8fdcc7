import numpy as np
import pytest

import silvan as sv


@pytest.fixture(scope="module", params=["classes", "number"])
def fitted(request):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 4)).astype(np.float32)
    if request.param == "classes":
        y = np.array(["no", "yes"])[(X[:, 1] > 0).astype(int)]
        return sv.ForestClassifier(20, max_features=None).fit(X, y).forest_, X, y
    y = 3.0 * X[:, 1]
    return sv.ForestRegressor(20).fit(X, y).forest_, X, y


def test_shuffling_finds_important_columns(fitted):
    forest, X, y = fitted
    before = X.copy()
    drops = forest.importances(X, y)
    assert list(drops) == ["x0", "x1", "x2", "x3"]
    assert drops["x1"] > 0.3
    assert max(abs(drops[name]) for name in ("x0", "x2", "x3")) < 0.05
    np.testing.assert_array_equal(X, before)
    assert forest.importances(X, y) == drops
    assert max(forest.importances(), key=forest.importances().get) == "x1"


def test_rows_must_match(fitted):
    forest, X, y = fitted
    with pytest.raises(sv.InputError, match="400 rows and y has 399"):
        forest.importances(X, y[:-1])
