"""Treelite models predict like the forest, or are not handed out."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import treelite
from helpers.fitted import TASKS, fitted_forest
from helpers.forests import CLASSES, MIXED, NUMBERS, random_forest
from helpers.wrong_copies import FAULTS

from silvan import ExportError
from silvan.forest import treelite_model as exchange
from silvan.forest.parity import probing_rows


@pytest.mark.parametrize("task", TASKS)
def test_fitted_forests(task):
    forest = fitted_forest(task)
    model = forest.to_treelite()
    assert model.num_tree == len(forest)
    assert model.num_feature == forest.n_features
    rows = probing_rows(forest)
    got = treelite.gtil.predict(model, rows, nthread=1)
    assert got.shape == (len(rows), 1, forest.n_outputs)
    limit = exchange.TOLERANCE * np.abs(forest.value).max()
    np.testing.assert_allclose(got[:, 0], forest.scores(rows), rtol=0, atol=limit)


@pytest.mark.parametrize("n_classes", CLASSES)
@pytest.mark.parametrize("schema", [NUMBERS, MIXED], ids=["numbers", "mixed"])
def test_random_forests_pass_their_own_check(schema, n_classes):
    for seed in range(4):
        random_forest(seed, schema=schema, n_classes=n_classes, equal_weights=seed % 2 == 0).to_treelite()


def test_it_survives_treelite_s_own_file(tmp_path):
    forest = random_forest(1, schema=MIXED, n_classes=3)
    forest.to_treelite().serialize(tmp_path / "forest.bin")
    rows = probing_rows(forest)
    got = treelite.gtil.predict(treelite.Model.deserialize(tmp_path / "forest.bin"), rows)
    np.testing.assert_allclose(got[:, 0], forest.scores(rows), rtol=0, atol=1e-12)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("task", TASKS)
def test_a_wrong_copy_is_refused(task, fault, monkeypatch):
    forest = fitted_forest(task)
    forest = replace(forest, weights=np.arange(1.0, 1 + len(forest)))
    build = exchange.build
    monkeypatch.setattr(exchange, "build", lambda builder, forest: build(builder, fault(forest)))
    with pytest.raises(ExportError, match=r"treelite copy predicts differently for .* nothing was exported"):
        forest.to_treelite()


def test_a_copy_of_another_shape_is_refused(monkeypatch):
    build = exchange.build
    other = random_forest(6, n_classes=3)
    monkeypatch.setattr(exchange, "build", lambda builder, forest: build(builder, other))
    with pytest.raises(ExportError, match=r"returns \(\d+, 3\) numbers, the forest \(\d+, 2\)"):
        random_forest(6, n_classes=2).to_treelite()


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "treelite", None)
    monkeypatch.delitem(sys.modules, "treelite.model_builder", raising=False)
    with pytest.raises(ExportError, match=r"needs treelite, .*'silvan\[export\]'"):
        random_forest(9).to_treelite()
