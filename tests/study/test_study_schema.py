"""A schema in the study file: what columns mean, decided before anybody looks at them."""

import pytest
from helpers.private_study import spent
from helpers.runs import silvan, write_study
from helpers.studies import parts, table

from silvan.cli import local_run
from silvan.errors import InputError
from silvan.study.run_folder import Run
from silvan.study.study_file import read_study

SCHEMA = """
[schema]
age = { bounds = [0, 120] }
dose = { bounds = [0, 10] }
sex = { categories = ["f", "m"] }
label = { classes = ["no", "yes"] }
"""


def test_a_private_forest_from_a_file(tmp_path):
    """With a given schema, an epsilon and a budget at every site."""
    pytest.importorskip("opendp", reason="opendp is not installed; to test noise: pip install 'silvan[dp]'")
    study = write_study(tmp_path, parts(table(n=240), 3))
    text = study.read_text().replace(
        "[learner]", f"{SCHEMA}\n[policy]\nepsilon = 5.0\n[learner]\nepsilon = 3.0\nn_rows = 240"
    )
    study.write_text("\n".join(line for line in text.splitlines() if not line.startswith(("test", "max_depth"))))
    silvan("fit", study, "--output", tmp_path / "run")
    run = Run(tmp_path / "run")
    assert run.read().status == "done"
    assert run.read().features == 3
    assert not any(kind.name == "Describe" for kind in run.read().kinds)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("age = 3", "one line per column"),
        ("age = { bounds = [3] }", "age: "),
        ("age = { bounds = [3, 1] }", "bounds must be finite and rising"),
        ("age = { bonds = [1, 3] }", "age: "),
        ("age = { bounds = [1, 3] }", "lacks the label"),
        ("label = { classes = [] }", "needs at least one class"),
    ],
)
def test_an_invalid_schema(tmp_path, schema, said):
    study = write_study(tmp_path)
    study.write_text(f"{study.read_text()}\n[schema]\n{schema}\n")
    with pytest.raises(InputError, match=said):
        read_study(study)


# -- a private study that is evaluated


def private_study(folder, evaluation="[evaluation]\nepsilon = 1.0\n", policy="epsilon = 4.0"):
    study = write_study(folder, parts(table(n=240), 3))
    learner = f"{SCHEMA}\n[policy]\n{policy}\n{evaluation}\n[learner]\nepsilon = 3.0\nn_rows = 180"
    text = study.read_text().replace("[learner]", learner)
    study.write_text("\n".join(line for line in text.splitlines() if not line.startswith("max_depth")))
    return study


@pytest.fixture
def federations(monkeypatch):
    """The federations that studies make, with the records of their sites."""
    made, make = [], local_run.make_federation

    def kept(*given, **named):
        made.append(make(*given, **named))
        return made[-1]

    monkeypatch.setattr(local_run, "make_federation", kept)
    return made


def test_a_private_forest_is_evaluated_from_a_file(tmp_path, federations):
    """Metrics over all sites with intervals, their cost, and no metrics of single sites."""
    pytest.importorskip("opendp", reason="opendp is not installed; to test noise: pip install 'silvan[dp]'")
    study = private_study(tmp_path)
    said = silvan("fit", study, "--output", tmp_path / "run").output
    assert "4 of each site's privacy budget was spent" in " ".join(said.split())
    assert spent(federations[0]) == pytest.approx(4.0)
    run = Run(tmp_path / "run")
    assert not run.file("learnt_rows.private").exists()  # nothing exact is kept
    (row,) = run.read().evaluation
    assert (row.site, row.model, row.epsilon) == ("all", "federated", 1.0)
    assert row.between["accuracy"][0] <= row.metrics["accuracy"] <= row.between["accuracy"][1]
    head, line = run.file("evaluation.csv").read_text().splitlines()
    assert head.startswith("site,model,rows,auc,accuracy,f1,mcc,auc_low,auc_high")
    assert head.endswith("use,positive,epsilon")
    assert line.endswith("false,yes,1.0")
    assert len(head.split(",")) == len(line.split(","))
    page = run.file("report.html").read_text()
    assert "from counts with noise for epsilon 1." in page
    assert "single site" in page
    again = silvan("fit", study, "--output", tmp_path / "run").output  # from the journal: nothing is requested again
    assert "4 of each site's privacy budget was spent" in " ".join(again.split())
    assert run.read().evaluation == [row]
    # shared files have neither an exact number of rows nor an exact class share
    assert all((site.rows, site.test_rows, site.positives) == (0, 0, None) for site in run.read().sites)
    assert "training rows" not in run.file("report.html").read_text()
    assert spent(federations[1]) == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("evaluation", "policy", "said"),
    [
        ("", "epsilon = 4.0", "EvaluateModels is answered without noise"),
        ("[evaluation]\nepsilon = 1.5\n", "epsilon = 4.0", "all that is about to be asked costs 4.5"),
        (
            "[evaluation]\nepsilon = 1.0\n",
            'messages = ["CountTables", "CountColumns"]',
            "does not allow CountByScoreWithNoise",
        ),
    ],
)
def test_studies_that_a_site_would_refuse_stop_first(tmp_path, federations, evaluation, policy, said):
    """Not when the model is evaluated, after everything was spent."""
    result = silvan("fit", private_study(tmp_path, evaluation, policy), ok=False)
    found = " ".join((result.output + result.stderr).split())
    assert result.exit_code
    assert said in found
    assert "site 'site 0' refused this before anything was asked" in found
    assert spent(federations[0]) == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("evaluation", "said"),
    [
        ("epsilon = 0\n", "epsilon must be a number above 0"),
        ('epsilon = "much"\n', "epsilon must be a number above 0"),
        ("epsilon = true\n", "epsilon must be a number above 0"),
        ("epsilom = 1.0\n", "unknown key 'epsilom' in"),
    ],
)
def test_an_invalid_evaluation(tmp_path, evaluation, said):
    with pytest.raises(InputError, match=said):
        read_study(private_study(tmp_path, f"[evaluation]\n{evaluation}"))


def test_an_evaluation_with_noise_needs_a_private_forest_and_test_rows(tmp_path):
    study = private_study(tmp_path)
    text = study.read_text()
    study.write_text(text.replace("epsilon = 3.0", ""))
    with pytest.raises(InputError, match="is for a forest with epsilon"):
        read_study(study)
    study.write_text("\n".join(line for line in text.splitlines() if not line.startswith("test")))
    with pytest.raises(InputError, match="no test rows to evaluate on"):
        read_study(study)
    study.write_text(text.replace(SCHEMA, ""))
    with pytest.raises(InputError, match="epsilon needs a schema"):
        read_study(study)
