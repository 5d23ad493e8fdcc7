"""Conversion of scikit-learn's forests and trees to ours and back.

scikit-learn is imported where it is used, because its trees take longer to import than the rest of this package.

scikit-learn numbers nodes depth first and compares 32-bit inputs with 64-bit thresholds. Our nodes are in level order,
and the largest 32-bit float not above a threshold splits all 32-bit inputs in the same way. Both compute means in the
same order, so predictions are identical in both directions.
"""

from typing import Any, TypeVar

import numpy as np

from silvan.data.schema import Class, Feature, Label, Schema
from silvan.errors import ExportError, FormatError, InputError
from silvan.forest.arrays import ForestArrays
from silvan.forest.category_set import SET_WORDS, is_category_split
from silvan.forest.node_counts import rows_at_nodes, sum_at_nodes, sums_at_nodes
from silvan.forest.parity import check_means
from silvan.util.user_warnings import warn_user

F = TypeVar("F", bound=ForestArrays)  # the class of forest to make, which checks its arrays

_LARGEST = np.finfo(np.float32).max

_NO_NODE, _NO_FEATURE = -1, -2
"""scikit-learn's values for the children and the feature of a leaf."""


def from_sklearn(model: Any, make: type[F]) -> F:
    """Convert a fitted model.

    ``feature_importances_`` become the gains. Features keep the model's names, or are called x0, x1, ...
    """
    trees = _fitted_trees(model)
    nodes, sizes = _level_order(trees)
    feature = _joined(trees, "feature")[nodes].astype(np.int32)
    inner = feature >= 0
    try:
        return make(
            schema=_schema(model),
            offsets=np.concatenate([[0], np.cumsum(sizes)]),
            feature=np.where(inner, feature, -1),
            threshold=np.where(inner, not_above(_joined(trees, "threshold")[nodes]), 0),
            missing_left=inner & _joined(trees, "missing_go_to_left")[nodes].astype(np.bool_),
            sets=np.zeros((0, SET_WORDS), np.uint64),
            value=_leaf_values(model, _joined(trees, "value")[nodes[~inner], 0]),
            weights=np.ones(len(trees)),
            gain=_gain(model),
        )
    except FormatError as error:
        raise InputError(f"the {type(model).__name__} cannot be converted: {error}") from None


def to_sklearn(forest: ForestArrays, X: np.ndarray | None = None, y: np.ndarray | None = None) -> Any:
    """Return a fitted random forest.

    A forest does not store the rows of its nodes. scikit-learn's statistics (rows, values of inner nodes, impurity) are
    computed from encoded rows ``X`` and ``y`` (class codes or numbers). Without rows, every leaf counts as one, and a
    warning says that only predictions are reliable.
    """
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    _check_expressible(forest)
    classes, names = forest.classes, forest.schema.names
    model = (RandomForestRegressor if classes is None else RandomForestClassifier)(n_estimators=len(forest))
    shared: dict[str, Any] = {"n_features_in_": forest.n_features, "n_outputs_": 1}
    tree_classes: dict[str, Any] = {}
    if classes is not None:
        shared["n_classes_"] = len(classes)
        # the trees of a scikit-learn forest know classes by number
        tree_classes = {"classes_": np.arange(len(classes), dtype=np.float64)}
        model.classes_ = classes
    if names != tuple(f"x{i}" for i in range(len(names))):
        model.feature_names_in_ = np.array(names, np.object_)
    vars(model).update(shared, estimator_=type(model.estimator)())
    model.estimators_ = []
    for tree in _trees(forest, X, y):
        estimator = type(model.estimator)()
        vars(estimator).update(shared, **tree_classes, max_features_=forest.n_features, tree_=tree)
        model.estimators_.append(estimator)
    return model


# -- from scikit-learn


def _fitted_trees(model: Any) -> list[Any]:
    """Return the trees of a fitted model; raise ``InputError`` if it cannot be converted."""
    from sklearn.ensemble import (
        ExtraTreesClassifier,
        ExtraTreesRegressor,
        RandomForestClassifier,
        RandomForestRegressor,
    )
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    forests = (RandomForestClassifier, RandomForestRegressor, ExtraTreesClassifier, ExtraTreesRegressor)
    if not isinstance(model, (*forests, DecisionTreeClassifier, DecisionTreeRegressor)):
        raise InputError(
            "from_sklearn takes a random forest, extra trees or a decision tree of scikit-learn; "
            f"received {type(model).__name__}"
        )
    fitted = "estimators_" if isinstance(model, forests) else "tree_"
    if not hasattr(model, fitted):
        raise InputError(f"the {type(model).__name__} is not fitted; call its fit first")
    if model.n_outputs_ != 1:
        raise InputError(f"the model predicts {model.n_outputs_} outputs at once; silvan's forests predict one")
    return [tree.tree_ for tree in model.estimators_] if isinstance(model, forests) else [model.tree_]


def _joined(trees: list[Any], name: str) -> np.ndarray:
    return np.concatenate([getattr(tree, name) for tree in trees])


def _level_order(trees: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """List the nodes of all trees in our order, as positions among all of theirs, and count them by tree."""
    counts = np.array([tree.node_count for tree in trees])
    roots = np.cumsum(counts) - counts
    start, tree_of = np.repeat(roots, counts), np.repeat(np.arange(len(trees)), counts)
    left, right = _joined(trees, "children_left"), _joined(trees, "children_right")
    level, levels = roots, []
    while len(level):
        levels.append(level)
        inner = level[left[level] != _NO_NODE]
        level = (np.stack([left[inner], right[inner]], axis=1) + start[inner, None]).reshape(-1)
    nodes = np.concatenate(levels)
    nodes = nodes[np.argsort(tree_of[nodes], kind="stable")]
    return nodes, np.bincount(tree_of[nodes], minlength=len(trees))


def not_above(threshold: np.ndarray) -> np.ndarray:
    """Return the largest finite 32-bit floats that are not above the thresholds.

    Infinity, which in scikit-learn separates missing values from all others, becomes the largest float.
    """
    with np.errstate(over="ignore"):
        near = threshold.astype(np.float32)
        below = np.nextafter(near, np.float32(-np.inf))
    return np.minimum(np.where(near > threshold, below, near), _LARGEST)


def _leaf_values(model: Any, value: np.ndarray) -> np.ndarray:
    if not hasattr(model, "classes_"):
        return value
    # fractions of weighted rows may exceed 0 to 1 by a rounding error; larger excesses are refused later
    near = np.clip(value, 0.0, 1.0)
    return near if np.allclose(near, value, rtol=0.0, atol=1e-9) else value


def _gain(model: Any) -> np.ndarray:
    # NaN if no split of any tree has a gain, negative through rounding errors
    with np.errstate(invalid="ignore"):
        return np.maximum(np.nan_to_num(model.feature_importances_, nan=0.0), 0.0)


def _schema(model: Any) -> Schema:
    names = getattr(model, "feature_names_in_", [f"x{i}" for i in range(model.n_features_in_)])
    label = "label"
    while label in names:
        label += "_"
    return Schema(tuple(Feature(str(name)) for name in names), Label(label, _classes(model)))


def _classes(model: Any) -> tuple[Class, ...] | None:
    if not hasattr(model, "classes_"):
        return None
    classes = model.classes_.tolist()
    for name in classes:
        if not isinstance(name, Class):
            raise InputError(f"a class is of type {type(name).__name__}; classes must be text, numbers or booleans")
    return tuple(classes)


# -- to scikit-learn


def _check_expressible(forest: ForestArrays) -> None:
    check_means(forest, "scikit-learn")
    split_on = forest.feature[is_category_split(forest.schema, forest.feature)]
    if len(split_on):
        names = ", ".join(repr(forest.schema.names[f]) for f in np.unique(split_on))
        raise ExportError(
            f"scikit-learn's trees cannot split by category, as this forest does on {names}; use to_onnx or "
            "to_treelite, or fit on columns that hold numbers only"
        )
    if (forest.weights != forest.weights[0]).any():
        raise ExportError(
            "scikit-learn's forests give all trees the same weight, but the weights here range from "
            f"{forest.weights.min()} to {forest.weights.max()}; use to_onnx or to_treelite"
        )


def _trees(forest: ForestArrays, X: np.ndarray | None, y: np.ndarray | None) -> list[Any]:
    """Return the trees as scikit-learn's ``Tree`` objects."""
    from sklearn.tree._tree import NODE_DTYPE, Tree

    inner = forest.feature >= 0
    rows, value, impurity = _statistics(forest, X, y)
    nodes = np.zeros(len(inner), NODE_DTYPE)
    start = np.repeat(forest.offsets[:-1], np.diff(forest.offsets))
    nodes["left_child"] = np.where(inner, forest.left - start, _NO_NODE)
    nodes["right_child"] = np.where(inner, forest.right - start, _NO_NODE)
    nodes["feature"] = np.where(inner, forest.feature, _NO_FEATURE)
    nodes["threshold"] = np.where(inner, forest.threshold, _NO_FEATURE)
    nodes["missing_go_to_left"] = forest.missing_left
    nodes["n_node_samples"] = nodes["weighted_n_node_samples"] = rows
    nodes["impurity"] = impurity
    trees = []
    for begin, end in zip(forest.offsets[:-1], forest.offsets[1:], strict=True):
        tree = Tree(forest.n_features, np.array([forest.n_outputs], np.intp), 1)
        tree.__setstate__(
            {
                "max_depth": int(forest.depth[begin:end].max()),
                "node_count": int(end - begin),
                "nodes": nodes[begin:end],
                "values": value[begin:end, None, :],
            }
        )
        trees.append(tree)
    return trees


def _statistics(
    forest: ForestArrays, X: np.ndarray | None, y: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows of each node, the mean of the leaf values below it, and its Gini impurity or variance."""
    leaf = forest.feature < 0
    if X is None or y is None:
        warn_user(
            "scikit-learn's copy predicts the same, but a forest does not store the rows of its nodes, so the copy's "
            "importances, Shapley values and plots are meaningless; pass rows, to_sklearn(X, y), to count them"
        )
        rows = sum_at_nodes(forest, np.ones((len(forest.value), 1), np.int64))[:, 0]
        sums = sum_at_nodes(forest, forest.value if forest.classes is not None else _moments(forest.value[:, 0]))
    else:
        rows = rows_at_nodes(forest, X)
        sums = sums_at_nodes(forest, X, np.eye(forest.n_outputs)[y] if forest.classes is not None else _moments(y))
    value = sum_at_nodes(forest, forest.value * rows[leaf, None]) / np.maximum(rows, 1)[:, None]
    value[leaf] = forest.value  # bit for bit
    means = sums / np.maximum(rows, 1)[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        spread = 1.0 - (means**2).sum(axis=1) if forest.classes is not None else means[:, 1] - means[:, 0] ** 2
        return rows, value, np.where(rows > 0, np.maximum(spread, 0.0), 0.0)


def _moments(numbers: np.ndarray) -> np.ndarray:
    """Return distances from the mean, and their squares: squares of the numbers themselves may lose all digits."""
    with np.errstate(over="ignore", invalid="ignore"):
        gap = numbers - numbers.mean()
        return np.stack([gap, gap**2], axis=1)
