"""ONNX models predict like the forest, in onnxruntime and in onnx's own slow evaluator, or are not written."""

import sys
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.fitted import TASKS, fitted_forest
from helpers.forests import CLASSES, MIXED, NUMBERS, random_forest
from helpers.wrong_copies import FAULTS
from onnx.reference import ReferenceEvaluator

from silvan import ExportError, Schema
from silvan.forest import onnx_file as exchange
from silvan.forest.parity import probing_rows


def answers(path, rows):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, {"X": rows}), strict=True))


@pytest.mark.parametrize("task", TASKS)
def test_fitted_forests(task, tmp_path):
    forest = fitted_forest(task)
    path = tmp_path / "forest.onnx"
    forest.to_onnx(path)
    onnx.checker.check_model(path, full_check=True)
    rows = probing_rows(forest)
    got = answers(path, rows)
    scores = got["variable" if task == "number" else "probabilities"]
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, forest.scores(rows), rtol=0, atol=exchange.tolerance(forest))
    if task != "number":
        # where two classes are nearly equal, rounding decides
        best = np.sort(forest.scores(rows), axis=1)
        clear = best[:, -1] - best[:, -2] > 1e-5
        assert clear.mean() > 0.9
        np.testing.assert_array_equal(got["label"][clear], forest.predict(rows)[clear])


@pytest.mark.parametrize("n_classes", CLASSES)
@pytest.mark.parametrize("schema", [NUMBERS, MIXED], ids=["numbers", "mixed"])
def test_random_forests_pass_their_own_check(schema, n_classes, tmp_path):
    for seed in range(4):
        forest = random_forest(seed, schema=schema, n_classes=n_classes, equal_weights=seed % 2 == 0)
        forest.to_onnx(tmp_path / "forest.onnx")


def test_an_independent_evaluator_agrees(tmp_path):
    forest = random_forest(1, schema=MIXED, n_classes=3, equal_weights=False, max_nodes=31)
    path = tmp_path / "forest.onnx"
    forest.to_onnx(path)
    rows = probing_rows(forest)
    rows = rows[np.random.default_rng(0).choice(len(rows), 150, replace=False)]
    label, scores = ReferenceEvaluator(onnx.load(path)).run(None, {"X": rows})
    np.testing.assert_allclose(scores, forest.scores(rows), rtol=0, atol=exchange.tolerance(forest))
    assert set(label) <= {"a", "b", "c"}


@pytest.mark.parametrize(
    ("classes", "labels"),
    [
        ((0, 5), [0, 5]),
        ((False, True), [0, 1]),
        (("no", "yes"), ["no", "yes"]),
        ((0.5, 1.0), ["0.5", "1.0"]),
        ((1, "x"), ["1", "x"]),
        ((1, 2**80), ["1", str(2**80)]),
    ],
    ids=str,
)
def test_labels(classes, labels, tmp_path):
    forest = random_forest(2, n_classes=2)
    forest = replace(forest, schema=Schema(forest.schema.features, type(forest.schema.label)("label", classes)))
    path = tmp_path / "forest.onnx"
    forest.to_onnx(path)
    got = answers(path, probing_rows(forest))
    assert set(got["label"].tolist()) == set(labels)
    np.testing.assert_array_equal(got["label"], np.array(labels)[got["probabilities"].argmax(axis=1)])


def test_the_model_says_what_its_columns_mean(tmp_path):
    forest = fitted_forest("binary")
    path = tmp_path / "forest.onnx"
    forest.to_onnx(path)
    properties = {p.key: p.value for p in onnx.load(path).metadata_props}
    assert Schema.from_json(properties["silvan.schema"]) == forest.schema
    assert properties["silvan.hash"] == forest.hash


def test_trees_without_weight_are_omitted(tmp_path):
    forest = random_forest(3, n_trees=3)
    forest = replace(forest, weights=np.array([0.0, 1.0, 2.0]))
    path = tmp_path / "forest.onnx"
    forest.to_onnx(path)
    rows = probing_rows(forest)
    got = answers(path, rows)["probabilities"]
    np.testing.assert_allclose(got, forest.scores(rows), rtol=0, atol=exchange.tolerance(forest))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("task", TASKS)
def test_a_wrong_copy_is_not_written(task, fault, tmp_path, monkeypatch):
    forest = fitted_forest(task)
    forest = replace(forest, weights=np.arange(1.0, 1 + len(forest)))
    build = exchange.build
    monkeypatch.setattr(exchange, "build", lambda helper, forest: build(helper, fault(forest)))
    path = tmp_path / "forest.onnx"
    path.write_text("what was there before")
    with pytest.raises(ExportError, match=r"ONNX copy predicts differently for .* nothing was exported"):
        forest.to_onnx(path)
    assert path.read_text() == "what was there before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_wrong_label_is_not_written(tmp_path, monkeypatch):
    forest = random_forest(6)
    build = exchange.build

    def mislabelled(helper, forest):
        model = build(helper, forest)
        model.graph.initializer[0].CopyFrom(helper.make_tensor("classes", 7, [2], [5, 0]))
        return model

    monkeypatch.setattr(exchange, "build", mislabelled)
    with pytest.raises(ExportError, match="most probable class"):
        forest.to_onnx(tmp_path / "forest.onnx")
    assert not list(tmp_path.iterdir())


def test_a_model_refused_by_the_runtime(tmp_path, monkeypatch):
    monkeypatch.setattr(exchange, "serialise", lambda model: b"not a model")
    with pytest.raises(ExportError, match=r"onnxruntime .* refuses the model"):
        random_forest(7).to_onnx(tmp_path / "forest.onnx")


@pytest.mark.parametrize("factor", [1e39, 1e-39])
def test_values_beyond_32_bits(factor, tmp_path):
    forest = random_forest(8, n_classes=0)
    with pytest.raises(ExportError, match="scale the target"):
        replace(forest, value=forest.value * factor).to_onnx(tmp_path / "forest.onnx")
    replace(forest, value=forest.value * 0).to_onnx(tmp_path / "forest.onnx")


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_a_missing_package_is_named(package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ExportError, match=rf"needs {package}, .*'silvan\[export\]'"):
        random_forest(9).to_onnx(tmp_path / "forest.onnx")
