"""What people see at a Python prompt and in a notebook: names, reprs, and tables with the important columns first."""

import numpy as np
import pytest
from helpers.studies import federate, parts, table

import silvan as sv
from silvan.federation.agreement import Differences


@pytest.fixture(scope="module")
def fed():
    return federate(parts(table(n=300), 2), test=0.3)


@pytest.fixture(scope="module")
def model(fed):
    return sv.HistogramForest(n_estimators=4, max_depth=3).fit(fed)


def test_dir_shows_public_names_only():
    assert "datasets" in dir(sv)
    assert [name for name in dir(sv) if name.startswith("_")] == ["__version__"]


def test_dir_of_a_learner_shows_parameters_and_results(model):
    shown = {name for name in dir(model) if not name.startswith("__")}
    assert {"n_estimators", "fit", "predict", "evaluate", "forest_", "rounds_", "bytes_"} <= shown
    assert not [name for name in shown if name.startswith("_")]
    assert not {"request_plan", "held_to_text", "candidates"} & shown


def test_an_evaluation_in_a_notebook_begins_with_the_answer(fed, model):
    frame = model.evaluate(fed)
    heads = frame._repr_html_().split("</thead>")[0].replace("</th>", "").split("<th style='text-align:left'>")[1:]
    assert [head.split("<")[0] for head in heads[:6]] == ["site", "model", "auc", "gain", "95% CI", "use"]
    assert len(heads) == len(set(heads))


@pytest.mark.filterwarnings("ignore")
def test_differences_read_as_sentences():
    tables = parts(table(n=300), 2)
    tables["site 1"] = tables["site 1"].drop("dose")
    assert "dose" in repr(federate(tables).differences)
    assert "Differences(" not in repr(federate(tables).differences)
    assert repr(Differences()) == "no known differences"


def test_a_ledger_line_reads_as_a_sentence(fed, model):
    line = fed.site(fed.sites[0]).outbox.ledger.lines()[0]
    assert line.describe() in repr(line)
    assert line.hash not in repr(line)


def test_importances_are_ranked_and_still_a_dict(model):
    found = model.forest_.importances()
    assert dict(found) == {name: found[name] for name in model.forest_.schema.names}
    values = [float(line.split()[-1]) for line in repr(found).splitlines()]
    assert values == sorted(values, reverse=True)
    assert "<td" in found._repr_html_()


@pytest.mark.parametrize("classes", [2, 3, 0])
def test_shap_explains_the_copy_for_scikit_learn(classes):
    """The shap package gives a copy with these rows' counts the Shapley values of ``Forest.shap``."""
    shap = pytest.importorskip("shap", reason="shap is not installed: pip install shap")
    X = np.random.default_rng(0).normal(size=(120, 3)).astype(np.float32)
    y = X[:, 0] + 0.5 * X[:, 1]
    y = np.digitize(y, [0.0, 0.7][: classes - 1]) if classes else y
    forest = (
        sv.HistogramForest(n_estimators=3, max_depth=3)
        .fit(sv.federate_rows({"a": (X[:60], y[:60]), "b": (X[60:], y[60:])}))
        .forest_
    )
    theirs = np.asarray(shap.TreeExplainer(forest.to_sklearn(X, y)).shap_values(X[:5], check_additivity=False))
    theirs = theirs[:, :, None] if theirs.ndim == 2 else theirs
    ours = forest.shap(X[:5], background=X).values
    assert np.abs(ours).max() > 0.05
    assert np.allclose(theirs, ours, atol=1e-5)
