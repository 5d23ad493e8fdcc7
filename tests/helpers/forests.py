"""Random forests for tests: every shape, split and leaf that the validator allows, likely or not."""

import numpy as np

from silvan.data.schema import Feature, Label, Schema
from silvan.forest.category_set import is_category_split, known_bins
from silvan.forest.forest import Forest

CLASSES = {0: None, 1: ("only",), 2: (0, 5), 3: ("a", "b", "c"), 4: (1.5, 2.5, 3.5, 4.5)}
NUMBERS = Schema.of(["age", "dose", "height"])
MIXED = Schema.of(
    [
        "age",
        Feature("sex", "categorical", categories=("f", "m")),
        Feature("ward", "categorical", categories=tuple(f"w{i}" for i in range(70)), other=True),
        "dose",
        Feature("code", "categorical", categories=tuple(f"c{i}" for i in range(254)), other=True),
        Feature("never", "categorical", categories=()),
    ]
)


def random_forest(
    seed: int,
    *,
    schema: Schema = NUMBERS,
    n_classes: int = 2,
    n_trees: int = 5,
    max_nodes: int = 63,
    equal_weights: bool = True,
    gain: bool = False,
) -> Forest:
    rng = np.random.default_rng(seed)
    schema = Schema(schema.features, Label("label", CLASSES[n_classes]))
    shapes = [_random_shape(rng, max_nodes) for _ in range(n_trees)]
    inner = np.concatenate(shapes)
    feature = np.where(inner, rng.integers(0, len(schema.features), len(inner)), -1)
    category = is_category_split(schema, feature)
    # few distinct thresholds, so that rows often equal them, and the limits of the type
    numbers = np.append(rng.integers(-8, 9, 30) / 4, [0, np.finfo(np.float32).max, -np.finfo(np.float32).max])
    missing_left = inner & (rng.random(len(inner)) < 0.5)
    sets = rng.integers(0, 2**64, (category.sum(), 4), np.uint64) & known_bins(schema)[feature[category]]
    sets[:, 0] = (sets[:, 0] & ~np.uint64(1)) | missing_left[category].astype(np.uint64)
    value = rng.random((int((~inner).sum()), max(n_classes, 1)))
    value[rng.random(len(value)) < 0.3] = 0
    value = value - 0.5 if n_classes == 0 else value / np.maximum(value.sum(axis=1, keepdims=True), 1)
    return Forest(
        schema=schema,
        offsets=np.concatenate([[0], np.cumsum([len(shape) for shape in shapes])]),
        feature=feature,
        threshold=np.where(inner & ~category, rng.choice(numbers, len(inner)), 0),
        missing_left=missing_left,
        sets=sets,
        value=value,
        weights=np.ones(n_trees) if equal_weights else rng.random(n_trees) + np.arange(n_trees),
        gain=rng.random(len(schema.features)) if gain else None,
    )


def _random_shape(rng: np.random.Generator, max_nodes: int) -> np.ndarray:
    """Which nodes of a tree are inner nodes, in level order."""
    inner: list[bool] = []
    to_come, lean = 1, rng.choice([0.4, 0.6, 0.8])
    while to_come:
        splits = bool(rng.random() < lean) and len(inner) + to_come + 2 <= max_nodes
        inner.append(splits)
        to_come += 1 if splits else -1
    return np.array(inner)


def random_rows(forest: Forest, seed: int, n: int = 200) -> np.ndarray:
    """Rows as ``as_matrix`` gives them: codes that exist, and missing values."""
    rng = np.random.default_rng(seed)
    X = (rng.integers(-9, 10, (n, forest.n_features)) / 4).astype(np.float32)
    for f, feature in enumerate(forest.schema.features):
        if feature.categorical:
            X[:, f] = rng.integers(0, feature.n_codes, n) if feature.n_codes else np.nan
    X[rng.random(X.shape) < 0.2] = np.nan
    return X
