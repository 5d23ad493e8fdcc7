"""Forests as learners grow them, with missing values and categories, for tests of exports."""

from functools import cache

import numpy as np

from silvan.data.schema import Feature, Label, Schema
from silvan.forest.forest import Forest
from silvan.tree.fit import Settings, fit_forest
from silvan.tree.objectives import OBJECTIVES
from silvan.tree.sampling import SamplingKeys, make_key

TASKS = {"binary": 2, "several": 3, "number": 0}


@cache
def fitted_forest(task: str, n_trees: int = 12) -> Forest:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 5)).astype(np.float32)
    X[:, 1] = rng.integers(0, 3, len(X))
    X[:, 3] = rng.integers(0, 40, len(X))
    signal = X[:, 0] + (X[:, 1] == 1) + np.sin(X[:, 3]) * X[:, 2] + rng.normal(size=len(X)) / 2
    X[rng.random(X.shape) < 0.1] = np.nan
    features = (
        Feature("age"),
        Feature("sex", "categorical", categories=("d", "f", "m")),
        Feature("dose"),
        Feature("ward", "categorical", categories=tuple(f"w{i:02}" for i in range(39)), other=True),
        Feature("height"),
    )
    n_classes = TASKS[task]
    if n_classes:
        codes = np.searchsorted(np.quantile(signal, np.arange(1, n_classes) / n_classes), signal)
        target = OBJECTIVES["gini"].target(codes, n_classes)
        schema = Schema(features, Label("label", ("low", "middle", "high")[:n_classes]))
        settings = Settings(n_estimators=n_trees)
    else:
        target, schema = (
            OBJECTIVES["squared_error"].target(signal.astype(float) * 100, 0),
            Schema(features, Label("label")),
        )
        settings = Settings(n_estimators=n_trees, criterion="squared_error")
    keys = SamplingKeys(make_key(0, "rows"), make_key(0, "features"))
    return fit_forest(X, target, schema, settings, keys, n_jobs=1).forest
