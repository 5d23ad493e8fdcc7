"""Export of a forest as an ONNX model.

Input ``X`` is float32 (rows, features), categories as codes, NaN for missing. A classifier's outputs are
``label`` and ``probabilities`` (rows, classes), a regressor's is ``variable`` (rows, 1). The trees are one
``TreeEnsembleRegressor`` with one output per class, and ArgMax gives the label: onnxruntime's
``TreeEnsembleClassifier`` answers 1 where the classes are 0 and 5.

ONNX has no categorical split that runs everywhere. But codes are integers, so the codes that go left form
intervals, and a chain of comparisons from low to high sends each interval to its side: all of them point to
the two children of the split. onnxruntime lets many nodes point to one if they do so when their comparison is
true; only the last comparison of a chain has a false branch that leaves it.

Leaf values are 32-bit floats in ONNX, and so are sums over trees. A calibration curve follows the trees as a few
operations on their means.
"""

from pathlib import Path
from typing import Any

import numpy as np

from silvan.errors import ExportError
from silvan.forest.arrays import ForestArrays, not_none
from silvan.forest.category_set import is_category_split, set_bits
from silvan.forest.parity import check_answers, check_means, import_extra, leaf_terms, probing_rows
from silvan.forest.predict import FAR_ODDS, SURE, log_odds
from silvan.util.files import write_whole

_IR, _OPSET, _ML_OPSET = 8, 15, 3
"""Old enough for runtimes of 2022, new enough for all operations used here."""

_LARGEST = np.finfo(np.float32).max


def tolerance(forest: ForestArrays) -> float:
    """Return the largest acceptable difference: the rounding error of a 32-bit sum over all trees.

    For 100 trees with probabilities this is 3.2e-6; observed differences are ten times smaller.
    """
    most = float((len(forest) / 2 + 4) * 2.0**-24 * np.abs(forest.value).max())
    return most if forest.curve is None else most * _steepest(forest)


def _steepest(forest: ForestArrays) -> float:
    """Return a calibration curve's largest amplification of score differences, including its rounding error.

    With more than two classes, scaling to 1 may double a difference.
    """
    scores = np.linspace(0.0, 1.0, 1 << 14)[:, None] * np.ones(forest.n_outputs)
    z = not_none(forest.curve)[:, 0] + not_none(forest.curve)[:, 1] * log_odds(scores)
    shares = 1.0 / (1.0 + np.exp(-np.clip(z, -FAR_ODDS, FAR_ODDS)))
    return 8.0 + 4.0 * float((np.diff(shares, axis=0) / np.diff(scores, axis=0)).max())


def to_onnx(forest: ForestArrays, path: str | Path) -> None:
    """Write a forest as an ONNX model, after checking that onnxruntime predicts the same."""
    check_means(forest, "ONNX", curves=True)
    onnx, runtime = import_extra("onnx"), import_extra("onnxruntime")
    forest = forest.take(forest.weights > 0)
    largest = np.abs(leaf_terms(forest)).max()
    if largest * len(forest) > _LARGEST or 0 < largest < 1e-30:
        raise ExportError(f"ONNX sums leaf values as 32-bit floats, and {largest:.3g} does not fit; scale the target")
    content = serialise(build(onnx.helper, forest))
    rows = probing_rows(forest)
    *labels, scores = _run(runtime, content, rows)
    check_answers(forest, rows, scores, tolerance(forest), "ONNX")
    if labels and (labels[0] != np.array(class_labels(forest))[scores.argmax(axis=1)]).any():
        raise ExportError("the ONNX copy does not return the most probable class; nothing was exported")
    write_whole(path, content)


def serialise(model: Any) -> bytes:
    """Return the bytes of an ONNX model; raise ``ExportError`` if it is too large for the format."""
    try:
        return model.SerializeToString()
    except ValueError as error:
        raise ExportError(f"the forest is too large for ONNX ({error}); export some of its trees") from None


def _run(runtime: Any, content: bytes, rows: np.ndarray) -> list[np.ndarray]:
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        return session.run(None, {"X": rows})
    except Exception as error:  # onnxruntime's exceptions have no common base class
        raise ExportError(f"onnxruntime {runtime.__version__} refuses the model: {error}") from error


def class_labels(forest: ForestArrays) -> list[int] | list[str]:
    """Return the classes' names in ONNX: integers if all are, text if not."""
    names = forest.schema.label.classes or ()
    if all(isinstance(name, int) and -(2**63) <= name < 2**63 for name in names):
        return [int(name) for name in names]
    return [str(name) for name in names]


def build(helper: Any, forest: ForestArrays) -> Any:
    """Return the ONNX model, made with the functions of ``onnx.helper``."""
    ensemble = helper.make_node(
        "TreeEnsembleRegressor",
        ["X"],
        ["variable" if forest.classes is None else "probabilities" if forest.curve is None else "means"],
        domain="ai.onnx.ml",
        n_targets=forest.n_outputs,
        aggregate_function="AVERAGE",
        post_transform="NONE",
        **_nodes(forest),
        **_leaves(forest),
    )
    nodes: list[Any] = [ensemble]
    initial: list[Any] = []  # constants of the operations after the trees
    if forest.curve is not None:
        nodes += _calibration(helper, forest, initial)
    outputs = [helper.make_tensor_value_info(nodes[-1].output[0], _FLOAT, [None, forest.n_outputs])]
    if forest.classes is not None:
        labels = class_labels(forest)
        kind = _INT64 if isinstance(labels[0], int) else _STRING
        initial.append(helper.make_tensor("classes", kind, [len(labels)], labels))
        nodes.append(helper.make_node("ArgMax", ["probabilities"], ["best"], axis=1, keepdims=0))
        nodes.append(helper.make_node("Gather", ["classes", "best"], ["label"]))
        outputs.insert(0, helper.make_tensor_value_info("label", kind, [None]))
    X = helper.make_tensor_value_info("X", _FLOAT, [None, forest.n_features])
    model = helper.make_model(
        helper.make_graph(nodes, "forest", [X], outputs, initial),
        ir_version=_IR,
        opset_imports=[helper.make_opsetid("", _OPSET), helper.make_opsetid("ai.onnx.ml", _ML_OPSET)],
        producer_name="silvan",
    )
    # the meaning of the columns and codes
    helper.set_model_props(model, {"silvan.schema": forest.schema.to_json(), "silvan.hash": forest.hash})
    return model


def _calibration(helper: Any, forest: ForestArrays, initial: list[Any]) -> list[Any]:
    """Return the operations that map means to calibrated probabilities, as ``predict.calibrated`` does."""
    curve = not_none(forest.curve)
    numbers = {
        "least": [SURE],
        "most": [1.0 - SURE],
        "one": [1.0],
        "beyond": [1.0 / (SURE * (1.0 - SURE))],
        "far": [FAR_ODDS],
        "far_below": [-FAR_ODDS],
        "intercepts": curve[:, 0].tolist(),
        "slopes": curve[:, 1].tolist(),
    }
    for name, values in numbers.items():
        shape = [] if len(values) == 1 else [len(values)]
        initial.append(helper.make_tensor(name, _FLOAT, shape, values))
    steps = [
        ("Clip", "means least most", "inner"),
        ("Sub", "one inner", "rest"),
        ("Div", "inner rest", "ratio"),
        ("Log", "ratio", "inner_odds"),
        ("Sub", "means inner", "outside"),
        ("Mul", "outside beyond", "outer_odds"),
        ("Add", "inner_odds outer_odds", "odds"),
        ("Mul", "odds slopes", "sloped"),
        ("Add", "sloped intercepts", "moved"),
        ("Clip", "moved far_below far", "log_odds"),
        ("Sigmoid", "log_odds", "probabilities" if forest.n_outputs == 2 else "shares"),
    ]
    nodes = [helper.make_node(kind, given.split(), [made]) for kind, given, made in steps]
    if forest.n_outputs != 2:
        initial.append(helper.make_tensor("classes_axis", _INT64, [1], [1]))
        nodes.append(helper.make_node("ReduceSum", ["shares", "classes_axis"], ["total"], keepdims=1))
        nodes.append(helper.make_node("Div", ["shares", "total"], ["probabilities"]))
    return nodes


_FLOAT, _INT64, _STRING = 1, 7, 8
"""onnx.TensorProto's numbers of these types."""


def _leaves(forest: ForestArrays) -> dict[str, Any]:
    """List the leaf values, one entry per leaf and output."""
    is_leaf = forest.feature < 0
    tree, place = _places(forest)
    value = leaf_terms(forest).astype(np.float32)
    return {
        "target_treeids": np.repeat(tree[is_leaf], forest.n_outputs).tolist(),
        "target_nodeids": np.repeat(place[is_leaf], forest.n_outputs).tolist(),
        "target_ids": np.tile(np.arange(forest.n_outputs), len(value)).tolist(),
        "target_weights": value.ravel().tolist(),
    }


def _nodes(forest: ForestArrays) -> dict[str, Any]:
    """List the nodes: ours in their order, then the additional ones of the chains in their tree."""
    tree, place = _places(forest)
    start = forest.offsets[:-1][tree]
    inner = forest.feature >= 0
    true, false = (np.where(inner, child - start, 0) for child in (forest.left, forest.right))
    threshold, missing_true = forest.threshold.copy(), forest.missing_left.astype(np.int64)

    node, below, side = _chains(forest)
    first = np.diff(node, prepend=-1) > 0
    last = np.append(first[1:], True)[: len(node)]
    # the first comparison takes the place of the split, the others follow all nodes of the tree
    extra = node[~first]
    begin = np.searchsorted(extra, forest.offsets[:-1])[tree[extra]]
    chain_place = place[node]
    chain_place[~first] = np.diff(forest.offsets)[tree[extra]] + np.arange(len(extra)) - begin
    chain_true = np.where(side, true[node], false[node])
    chain_false = np.where(side, false[node], true[node])
    chain_false[~last] = chain_place[1:][~last[:-1]]
    at = node[first]
    threshold[at], true[at], false[at] = below[first], chain_true[first], chain_false[first]
    # codes below the first count as missing too, so the first comparison is true where missing values go
    missing_true[at] = 1

    order = np.argsort(np.concatenate([tree, tree[extra]]), kind="stable")

    def joined(ours: np.ndarray, added: np.ndarray) -> np.ndarray:
        return np.concatenate([ours, added])[order]

    return {
        "nodes_treeids": joined(tree, tree[extra]).tolist(),
        "nodes_nodeids": joined(place, chain_place[~first]).tolist(),
        "nodes_featureids": np.maximum(joined(forest.feature, forest.feature[extra]), 0).tolist(),
        "nodes_modes": np.where(joined(inner, inner[extra]), "BRANCH_LEQ", "LEAF").tolist(),
        "nodes_values": joined(threshold, below[~first]).tolist(),
        "nodes_truenodeids": joined(true, chain_true[~first]).tolist(),
        "nodes_falsenodeids": joined(false, chain_false[~first]).tolist(),
        "nodes_missing_value_tracks_true": joined(missing_true, np.zeros_like(extra)).tolist(),
    }


def _places(forest: ForestArrays) -> tuple[np.ndarray, np.ndarray]:
    """Return every node's tree and its position in that tree."""
    sizes = np.diff(forest.offsets)
    tree = np.repeat(np.arange(len(forest)), sizes)
    return tree, np.arange(len(tree)) - forest.offsets[:-1][tree]


def _chains(forest: ForestArrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Convert splits by category to comparisons from low to high.

    Returns the node of each comparison, the number that it compares with, and whether values up to this number go left.
    The last comparison of a node sends everything else the other way.
    """
    nodes = np.flatnonzero(is_category_split(forest.schema, forest.feature))
    n_codes = np.array([f.n_codes for f in forest.schema.features])[forest.feature[nodes]]
    left = set_bits(forest.sets)
    # bins beyond the last code, and one more, go where the missing values go
    left = np.hstack([left, left[:, :1]])
    left = np.where(np.arange(left.shape[1]) > n_codes[:, None], left[:, :1], left)
    turns = left[:, 1:] != left[:, :-1]
    split, code = np.nonzero(turns)
    below = np.nextafter(code.astype(np.float32), np.float32(-np.inf))
    below[code == 0] = -np.finfo(np.float32).tiny  # some runtimes treat smaller numbers as zero
    # if everything goes one way, a single comparison that is always true
    constant = np.flatnonzero(~turns.any(axis=1))
    split, side = np.append(split, constant), np.append(left[split, code], left[constant, 0])
    below = np.append(below, np.full(len(constant), _LARGEST))
    order = np.argsort(split, kind="stable")
    return nodes[split[order]], below[order], side[order]
