"""The positive class of two can be chosen: metrics follow it, forests do not, and every table names it."""

import json

import numpy as np
import polars as pl
import pytest
from helpers.runs import silvan, write_study
from helpers.studies import parts, table
from sklearn.metrics import average_precision_score, brier_score_loss, f1_score, precision_score, recall_score

import silvan as sv
from silvan import metrics
from silvan.algorithms.evaluation.details import Floors, detail_of
from silvan.algorithms.evaluation.evaluate import EvaluateModels
from silvan.algorithms.private.noisy_evaluation import TallyLayout
from silvan.errors import FederationError, InputError
from silvan.privacy.terms import StudyText
from silvan.study.run_folder import Run

TABLES = parts(table(), 3)
AT = 0.37


def federation(**settings):
    return sv.federate_rows(TABLES, **{"test": 0.4, "n_jobs": 1, **settings})


def forest(fed, **settings):
    return sv.HistogramForest(**{"n_estimators": 8, "max_depth": 4, **settings}).fit(fed)


# -- what follows it, and what does not
def test_metrics_of_the_other_class_equal_those_with_swapped_classes():
    """All metrics, main and further, exactly: nothing depends on the position of the second class."""
    rng = np.random.default_rng(0)
    y, score = rng.integers(0, 2, 400), rng.random(400)
    score = np.clip(score + 0.3 * y, 0.0, 1.0)
    proba = np.stack([1.0 - score, score], axis=1)
    votes, back = (score > AT).astype(np.int64), proba[:, ::-1]
    expected = metrics.classification(back, 1 - y, 1 - votes)
    assert metrics.classification(proba, y, votes, positive=0) == pytest.approx(expected)
    assert metrics.classification(proba, y, votes) != pytest.approx(expected)
    one = detail_of(proba, votes, y, 2, Floors(), AT, positive=0)
    other = detail_of(back, 1 - votes, 1 - y, 2, Floors(), AT)
    assert one.by_name(2) == pytest.approx(other.by_name(2), nan_ok=True)
    assert np.array_equal(one.groups[0], other.groups[0])
    assert np.array_equal(one.at_threshold, other.at_threshold[::-1, ::-1])


@pytest.mark.parametrize("positive", ["no", "yes", None])
def test_evaluate_agrees_with_scikit_learn(positive):
    fed = federation(positive=positive)
    model = forest(fed, threshold=AT)
    chosen, code = positive or "yes", 0 if positive == "no" else 1
    frame = model.evaluate(fed).filter(model="federated")
    assert set(frame["positive"]) == {chosen}
    for site in fed.sites:
        rows = fed.site(site).part(fed.schema, test=True)
        score = sv.Forest.from_bytes(model.forest_.to_bytes())
        score = np.asarray(metrics_of(score, rows))[:, code]
        truth, found, line = rows.y == code, score >= AT, frame.filter(site=site).to_dicts()[0]
        expected = {
            "sensitivity": recall_score(truth, found),
            "specificity": recall_score(~truth, ~found),
            "precision": precision_score(truth, found),
            "f1": f1_score(truth, found),
            "brier": brier_score_loss(truth, score),
            "pr_auc": average_precision_score(truth, score),
        }
        assert {name: line[name] for name in expected} == pytest.approx(expected, abs=6e-4)


def metrics_of(forest, rows):
    from silvan.forest.predict import scores

    return scores(forest, rows.X)


def test_forests_probabilities_and_auc_do_not_depend_on_it():
    default, other = forest(federation()), forest(fed := federation(positive="no"))
    assert default.forest_.hash == other.forest_.hash
    rows = table(n=50, seed=3).drop("label")
    assert np.array_equal(default.predict_proba(rows), other.predict_proba(rows))
    assert list(other.classes_) == ["no", "yes"]
    lines = [m.evaluate(f)["auc"].to_numpy() for m, f in ((default, federation()), (other, fed))]
    assert np.allclose(*lines, atol=2e-3)  # over all sites scores are on a grid


@pytest.mark.parametrize("kind", [sv.HistogramForest, sv.MergedForest, sv.AutoForest, sv.BOFRF])
def test_a_chosen_threshold_is_for_the_positive_class(kind):
    """Sites find most rows of the class at the threshold chosen for it; predictions use the threshold."""
    fed = federation(positive="no")
    settings = {} if kind is sv.BOFRF else {"threshold": "youden"}
    model = kind(n_estimators=8, max_depth=4, **settings).fit(fed)
    frame = model.evaluate(fed).filter(pl.col("model") == "federated", pl.col("site") != "all")
    assert (frame["sensitivity"] + frame["specificity"]).mean() > 1.2
    if model.threshold_ is not None:
        rows = table(n=80, seed=5).drop("label")
        shares = model.predict_proba(rows)[:, 0]
        assert np.array_equal(model.predict(rows) == "no", shares >= model.threshold_)


def test_noisy_counts_use_the_positive_class():
    rng = np.random.default_rng(1)
    y, score = rng.integers(0, 2, 300), rng.random(300)
    proba = np.stack([1.0 - score, score], axis=1)
    schema = sv.Schema.of(["x"], sv.Label("y", ("no", "yes"), positive="no"))
    default = TallyLayout.of(sv.Schema.of(["x"], sv.Label("y", ("no", "yes"))))
    layout, votes = TallyLayout.of(schema), (score > 0.5).astype(np.int64)
    expected = default.metrics(default.count(proba[:, ::-1], 1 - votes, 1 - y))
    assert layout.metrics(layout.count(proba, votes, y)) == pytest.approx(expected)


def test_partial_dependence_uses_the_positive_class():
    means = {}
    for positive in ("no", "yes"):
        fed = federation(positive=positive)
        means[positive] = forest(fed).partial_dependence(fed, "dose")[positive].to_numpy()
    assert np.allclose(means["no"] + means["yes"], 1.0, atol=2e-3)


def test_a_model_file_stores_the_positive_class(tmp_path):
    model = forest(federation(positive="no"))
    model.save(tmp_path / "model.silvan")
    loaded = sv.Forest.load(tmp_path / "model.silvan")
    assert loaded.schema.label.positive_class == "no"
    again = sv.federate_rows(TABLES, schema=loaded.schema, test=0.4)
    assert set(forest(again).evaluate(again)["positive"]) == {"no"}


def test_parties_follow_the_schema():
    frame = table(n=200).with_row_index("id")
    schema = sv.Schema.of(["age", "dose", "noise"], sv.Label("label", ("no", "yes"), positive="no"))
    lines = {}
    for names in ("coded", "shown"):
        for given in (schema, sv.Schema.of(schema.features, sv.Label("label", ("no", "yes")))):
            tables = {"a": frame.select("id", "age", "label"), "b": frame.select("id", "dose", "noise")}
            fed = sv.federate_columns(tables, id="id", label="label", test=0.4, schema=given, names=names)
            at = 0.4 if given is schema else 0.6
            model = sv.VerticalForest(n_estimators=5, max_depth=3, threshold=at).fit(fed)
            line = model.evaluate(fed).filter(model="federated").to_dicts()[0]
            lines[names, given is schema] = line
            shares = model.predict_proba(fed).sort("id")
            assert np.array_equal(
                model.predict(fed).sort("id")["prediction"] == "no",
                (shares["no"] >= 0.4) if given is schema else ~(shares["yes"] >= 0.6),
            )
        chosen, default = lines[names, True], lines[names, False]
        assert chosen["brier"] == pytest.approx(default["brier"])
        assert chosen["accuracy"] == pytest.approx(default["accuracy"])
        assert chosen["f1"] != pytest.approx(default["f1"])
    assert lines["coded", True]["f1"] == lines["shown", True]["f1"]


# -- where it is named
def test_comparisons_name_it():
    fed = federation(positive="no", test=0.5)
    found = sv.compare(fed, {"merged": sv.MergedForest(n_estimators=4, max_depth=3)}, repeats=1)
    assert "Positive class: no." in str(found)
    assert set(found.frame["positive"]) == {"no"}


@pytest.mark.parametrize("given", ['positive = "no"', ""])
def test_every_table_of_a_run_names_it(tmp_path, given):
    """Chosen or not: readers of a sensitivity must not have to guess its class."""
    named = "no" if given else "yes"
    tables = dict(zip(("north", "east", "south"), parts(table(n=300), 3).values(), strict=True))
    path = write_study(tmp_path, tables, more=given + "\n[evaluation]\ndependence = ['dose']\nby = ['sex']\n")
    printed = silvan("fit", path, "--output", tmp_path / "run").output
    record = Run(tmp_path / "run").read()
    assert record.positive == named
    assert " ".join(printed.split()).count(f"positive class: label = {named}") >= 2
    assert f",{named}," in (tmp_path / "run" / "evaluation.csv").read_text()
    page = (tmp_path / "run" / "report.html").read_text()
    for text in (
        f"(positive class: <bdi>{named}</bdi>)",
        f"ROC, label = {named}",
        f"calibration, label = {named}",
        f"decision curve, label = {named}",
        f"mean probability of label = {named}",
        f"; positive class: label = {named}",
        f"the positive class is {named}",
    ):
        assert text in page
    markdown = silvan("report", tmp_path / "run", "--markdown").output
    assert markdown.count(f"positive class: label = {named}") >= 3
    assert f"the positive class is {named}" in markdown
    tables["north"].write_csv(tmp_path / "new.csv")
    shown = silvan("evaluate", tmp_path / "run", tmp_path / "new.csv").output
    assert f"positive class: {named}" in " ".join(shown.split())
    listed = json.loads(silvan("evaluate", tmp_path / "run", "--json").output)
    assert {row["positive"] for row in listed["evaluation"]} == {named}


# -- bad input
TWO = {"a": pl.DataFrame({"x": [1.0, 2.0] * 30, "ill": ["healthy", "diseased"] * 30})}
NUMBERS = {"a": pl.DataFrame({"x": [1.0, 2.0] * 30, "ill": [0, 1] * 30})}
THREE = {"a": pl.DataFrame({"x": [1.0, 2.0, 3.0] * 20, "ill": ["a", "b", "c"] * 20})}
AMOUNT = {"a": pl.DataFrame({"x": [1.0, 2.0] * 30, "ill": [0.5, 1.25] * 30})}


@pytest.mark.parametrize(
    ("tables", "positive", "text"),
    [
        (TWO, "Diseased", "did you mean 'diseased'?"),
        (TWO, "disease", "did you mean 'diseased'?"),
        (TWO, "sick", "it has 'diseased', 'healthy'"),
        (TWO, 1, "it has 'diseased', 'healthy'"),
        (NUMBERS, 2, "it has '0', '1'"),
        (THREE, "a", "is for a label of two classes, and 'ill' has 3 classes"),
        (AMOUNT, 0.5, "is for a label of two classes, and 'ill' is a number"),
    ],
)
def test_a_class_that_cannot_be_positive_is_refused(tables, positive, text):
    with pytest.raises(InputError, match="positive") as caught:
        sv.federate_rows(tables, label="ill", positive=positive)
    assert text in str(caught.value)
    assert caught.value.parameter == "positive"


@pytest.mark.parametrize("positive", [1, "1", 1.0, np.int64(1), True, "true"])
def test_a_class_may_be_written_as_text_or_number(positive):
    truth = isinstance(positive, bool) or positive == "true"
    frame = pl.DataFrame({"x": [1.0, 2.0] * 30, "ill": [False, True] * 30 if truth else [0, 1] * 30})
    fed = sv.federate_rows({"a": frame}, label="ill", positive=positive)
    assert fed.schema.label.positive == fed.schema.label.classes[1]


def test_a_schema_and_the_parameter_must_not_contradict_each_other():
    schema = sv.Schema.of(["x"], sv.Label("ill", ("diseased", "healthy"), positive="diseased"))
    assert sv.federate_rows(TWO, label="ill", schema=schema, positive="diseased").schema == schema
    with pytest.raises(InputError, match="the schema says 'diseased'"):
        sv.federate_rows(TWO, label="ill", schema=schema, positive="healthy")


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ("positive = 'yess'", "study.toml:4: positive must be a class of 'label', got 'yess'; did you mean 'yes'?"),
        ("positive = ['yes']", "study.toml:4: positive must be a class of the label"),
        ("[schema]\nage = {}\nlabel = { classes = ['no', 'yes'], positive = 'maybe' }", "it has 'no', 'yes'"),
    ],
)
def test_a_study_file_says_where(tmp_path, more, text):
    failed = silvan("fit", write_study(tmp_path, more=more), ok=False)
    assert failed.exit_code
    assert text in " ".join((failed.output + failed.stderr).split()).replace("- ", "-")


def test_a_coordinator_cannot_choose_another_one_than_the_study():
    """Metrics at two thresholds for two classes would disclose more than owners approved."""
    schema = federation(positive="no").schema
    text = StudyText("label", lambda schema: {}, positive="no")
    assert text.allows(schema)
    assert not text.allows(federation(positive="yes").schema)
    assert not text.allows(federation().schema)
    assert not StudyText("label", lambda schema: {}).allows(schema)


def test_sites_score_by_one_schema_only():
    fed = federation(positive="no")
    model = forest(fed)
    model.evaluate(fed)
    request = EvaluateModels(
        schema=fed.blob(federation().schema.to_json().encode()), candidates=[], feature_key=model.feature_key()
    )
    with pytest.raises(FederationError, match="schema"):
        fed.ask(request)
