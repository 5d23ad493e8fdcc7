"""The whole audit: from Python and from the command line, with limits, reports and exit codes."""

import json

import numpy as np
import pytest
from helpers.runs import fitted, silvan
from helpers.studies import federate, parts, table

import silvan as sv
from silvan.auditing.findings import DEFAULTS, HELPS, Finding, auc, gained, make_limits, read_limits, share, what_helps
from silvan.auditing.release import Release, case_of
from silvan.auditing.single_row_leaves import single_row_leaves
from silvan.errors import InputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("audit")
    fitted(path)
    return path


@pytest.fixture(scope="module")
def fed():
    return federate(parts(table(n=400), 3), test=0.4)


def test_every_attack_is_in_the_report(fed):
    model = sv.BOFRF(n_estimators=6, min_samples_leaf=5).fit(fed)
    report = sv.audit(model, fed, limits={"assignment": 1.0})
    assert {f.attack for f in report.findings} == set(DEFAULTS) - {"labels"}
    assert all(f.value is not None for f in report.findings)
    assert all(f.undefended is not None for f in report.findings)
    assert report["support"].undefended > report["support"].value + 0.1
    assert report["lonely"].verdict == "held"
    json.dumps(report.as_dict())


@pytest.mark.parametrize(
    "model",
    [
        sv.HistogramForest(n_estimators=6, min_samples_leaf=4),
        sv.MergedForest(n_estimators=7, min_samples_leaf=4),
        sv.MergedForest(n_estimators=7, min_samples_leaf=4, weights="trees"),
        sv.BOFRF(n_estimators=3, min_samples_leaf=4),
    ],
    ids=["histogram", "merged", "by rows", "bofrf"],
)
def test_samples_are_those_of_the_trees(model, fed):
    model.fit(fed)
    drawn = model.sampled_rows(fed)
    assert drawn.shape == (len(model.forest_), sum(fed.rows.values()))
    case = case_of(fed, fed.schema, 0)
    assert single_row_leaves(Release(model.forest_), case, drawn).note == "the smallest leaf holds 4 rows"


def test_a_table_of_members_is_enough_for_some(fed):
    model = sv.HistogramForest(n_estimators=4).fit(fed)
    report = sv.audit(model.forest_, members=table(n=400))
    ran = {f.attack for f in report.findings if f.value is not None}
    assert ran == {"lonely"}
    assert "outside the training set" in report["membership"].note
    with pytest.raises(InputError, match="either a federation or a table"):
        sv.audit(model.forest_)


def test_regression_is_audited_as_well():
    fed = federate(parts(table("number", n=300), 2), test=0.4)
    report = sv.audit(sv.MergedForest(n_estimators=10).fit(fed), fed)
    assert report["membership"].undefended > 0.6
    assert report["reconstruction"].verdict == "not run"


def test_a_private_forest_is_compared_with_its_bound():
    pytest.importorskip("opendp")
    frame = table(n=400).select("age", "dose", "noise", "label")
    ends = {"age": (0, 120), "dose": (1, 6), "noise": (-20, 60)}
    features = tuple(sv.Feature(name, bounds=bounds) for name, bounds in ends.items())
    schema = sv.Schema(features, sv.Label("label", ("no", "yes")))
    fed = federate(parts(frame, 2), test=0.4, test_by="row", schema=schema)
    report = sv.audit(sv.HistogramForest(epsilon=1.0).fit(fed), fed)
    assert report["membership"].value < 0.731
    assert "no attacker exceeds 0.731" in report["membership"].note
    assert report["lonely"].verdict == "not run"  # leaf values have noise
    assert report["leaf_labels"].low < 0 < report["leaf_labels"].undefended


# -- the command line


def test_a_run_is_audited_and_reported(folder):
    result = silvan("audit", folder / "run", "--limit", "assignment=1", "--limit", "thresholds=1", ok=False)
    assert result.exit_code == 0, result.output
    assert "Membership, by confidence" in result.stdout
    data = json.loads((folder / "run" / "audit.json").read_text())
    assert data["format"] == "silvan audit"
    assert data["reports"][0]["passed"]
    page = (folder / "run" / "audit.html").read_text()
    assert "Single-record leaves" in page
    assert "http" not in page.replace("http-equiv", "")  # it loads nothing


def test_an_exceeded_limit_is_an_exit_code_and_a_sentence(folder, tmp_path):
    (tmp_path / "audit.toml").write_text("[limits]\nassignment = 0.0\n")
    result = silvan("audit", folder / "run", "--thresholds", tmp_path / "audit.toml", "-o", tmp_path / "out", ok=False)
    assert result.exit_code == 1
    assert "Limits exceeded: " in result.stdout
    assert "Change this in the study file" in result.stdout
    assert "assignment" in result.stdout
    assert "exceeded" in (tmp_path / "out" / "audit.html").read_text()


def test_a_model_file_needs_a_table(folder):
    model = folder / "run" / "model.silvan"
    assert "name the rows with --table" in silvan("audit", model, ok=False).stderr
    result = silvan(
        "audit", model, "--table", folder / "0.csv", "--others", folder / "1.csv", "--limit", "lonely=1", ok=False
    )
    assert "Membership" in result.stdout
    assert result.exit_code in (0, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[limits]\nmembershp = 0.5\n", "did you mean 'membership'?"),
        ("[limits]\nlonely = 2\n", "from 0 to 1"),
        ("[limit]\nlonely = 0\n", "one section, [limits]"),
        ("limits = \n", "not valid TOML"),
    ],
)
def test_wrong_limits_are_reported(folder, tmp_path, text, said):
    (tmp_path / "audit.toml").write_text(text)
    with pytest.raises(InputError, match="audit") as caught:
        read_limits(tmp_path / "audit.toml")
    assert said in str(caught.value)


def test_limits_on_the_command_line(folder):
    assert "ATTACK=NUMBER" in silvan("audit", folder / "run", "--limit", "membership", ok=False).stderr
    assert "did you mean 'support'" in silvan("audit", folder / "run", "--limit", "suport=1", ok=False).stderr


# -- figures


def test_verdicts():
    finding = Finding("lonely", "", "", "", value=0.2, low=0.1, high=0.3, limit=0.25)
    assert finding.verdict == "close"
    assert Finding("lonely", "", "", "", value=0.2, high=0.22, limit=0.25).verdict == "held"
    assert Finding("lonely", "", "", "", value=0.2, limit=0.1).verdict == "exceeded"
    assert Finding("lonely", "", "", "").verdict == "not run"
    assert make_limits({"lonely": 0.5})["lonely"] == 0.5


def test_audit_intervals_have_their_nominal_coverage():
    rng = np.random.default_rng(0)
    inside = {"auc": 0, "share": 0, "gained": 0}
    truth = 0.7602  # of two normal distributions one standard deviation apart
    for _ in range(400):
        _, low, high = auc(rng.normal(1, 1, 80), rng.normal(0, 1, 60))
        inside["auc"] += low <= truth <= high
        _, low, high = share(int((rng.random(50) < 0.3).sum()), 50)
        inside["share"] += low <= 0.3 <= high
        guess = rng.uniform(0.4, 0.6, 60)
        _, low, high = gained(guess + rng.normal(0.25, 0.1, 60), guess)
        inside["gained"] += low <= 0.5 <= high
    assert all(0.9 <= n / 400 <= 0.985 for n in inside.values()), inside


def test_auc_equals_the_usual_definition():
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(1)
    members, others = rng.integers(0, 9, 50), rng.integers(0, 9, 70)
    value, *_ = auc(members, others)
    scores, truth = np.concatenate([members, others]), np.repeat([1, 0], [50, 70])
    assert value == pytest.approx(roc_auc_score(truth, scores))


def test_a_remedy_is_named_once_for_all_its_attacks():
    lines = what_helps(["membership", "assignment", "support", "thresholds"])
    assert lines[0].startswith("membership, support: larger leaves, as min_samples_leaf = 10")
    assert lines[1] == 'assignment: sums = "masked" before the first section, for three sites or more'
    assert lines[2] == "thresholds: see docs/audit.md"
    assert set(HELPS) <= set(DEFAULTS)
