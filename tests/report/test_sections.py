"""Sections of the page: curves by site, columns, weights, distances, a tree, the audit, the model card."""

import json
import re
from types import SimpleNamespace

import msgspec
import numpy as np
import polars as pl
import pytest
from helpers.runs import fitted, silvan, write_study
from helpers.studies import parts, table
from rich.console import Console

from silvan.cli.terminal import shown
from silvan.data.schema import Feature, Label, Schema
from silvan.deploy.studies.send_results import copy_for
from silvan.errors import FormatError
from silvan.federation.agreement import ColumnAtSites
from silvan.forest.forest import Forest
from silvan.learners.evaluation_frame import whole_frame
from silvan.learners.registry import LEARNERS
from silvan.learners.result import SiteTrees
from silvan.report.charts import calibration, roc_points
from silvan.report.html import render, without_controls, write_report
from silvan.report.markdown import escape, markdown
from silvan.report.model_card import importance_note, model_card
from silvan.report.site_tables import column_table, distance_table, subgroup_table, threshold_table, weight_table
from silvan.report.summary import summarise, summarise_run
from silvan.report.tree_outline import outline
from silvan.study.run_folder import AUDIT, Counts, Curve, Dependence, Kind, MetricsRow, Model, Record, Run, SiteRows

RISING = [(0.1, 9.0, 1.0), (0.5, 5.0, 5.0), (0.9, 1.0, 9.0)]


def record(n_sites=2, **more):
    """Makes a record of sites with counts, without running anything."""
    names = [*(f"s{i}" for i in range(n_sites)), "all"]
    figures = {"auc": 0.8}
    further = {"auc_low": 0.7, "auc_high": 0.9, "calibration_slope": 1.1, "threshold": 0.4, "sensitivity": 0.8}
    rows = [MetricsRow(n, m, 30, figures, more=further) for n in names for m in ("local", "federated")]
    benefit = [(0.1, 0.4, 0.3), (0.5, 0.2, 0.0)]
    counts = [
        Counts(n, m, [[10, 5], [5, 10]], [[10, 5], [5, 10]], {"yes": RISING}, benefit)
        for n in names
        for m in ("local", "federated")
    ]
    sites = [SiteRows(name, 70, 30, 0.5) for name in names[:-1]]
    made = {"classes": ["no", "yes"], "positive": "yes", "features": 3, "label": "sick", "status": "done"}
    return Record(name="r", sites=sites, evaluation=rows, counts=counts, **{**made, **more})


# -- curves and metrics


def test_a_roc_curve_of_groups():
    expected = [(0, 0), (1 / 15, 9 / 15), (6 / 15, 14 / 15), (1, 1)]
    assert np.allclose(roc_points(RISING), expected)
    assert roc_points([(0.1, 5.0, 0.0), (0.9, 5.0, 0.0)]) == []
    assert roc_points([]) == []


def test_a_calibration_curve_has_at_most_ten_dots():
    groups = [(i / 60, 5.0, 5.0) for i in range(60)]
    assert str(calibration([("m", groups)], {"m": "x"}, "m")).count("<circle") == 10


@pytest.mark.parametrize(("n_sites", "folded"), [(2, 0), (5, 5), (50, 50)])
def test_every_site_has_its_curves(n_sites, folded):
    page = render(summarise(record(n_sites)))
    assert page.count('class="roc"') == 3 * (n_sites + 1)
    assert page.count('<details class="site">') == folded
    assert "0.700 to 0.900" in page
    assert "calibration, sick = yes, slope 1.10" in page


def test_effects_of_single_columns():
    """A curve for numbers, a table for categories; in the Markdown tables of both, and all of it escaped."""
    shown = [
        Dependence("age", [40.0, 50.0, 60.0], {"yes": [0.2, 0.3, 0.6]}),
        Dependence("<ward>", ["a", "<b>"], {"yes": [0.25, 0.5]}),
        Dependence("dose", [1.0], {"yes": [0.25]}),
    ]
    made = record(dependence=shown, permutation={"age": 0.0277, "dose": -0.00042})
    page = render(summarise(made))
    assert page.count('aria-label="Mean prediction by age"') == 1
    assert "age = 50: 0.3" in page
    assert "<ward>" not in page
    assert "&lt;b&gt;" in page
    assert "How likely" not in page
    assert "\N{MINUS SIGN}0.0004<" in page
    text = markdown(summarise(made))
    assert "| 60 | 0.6 |" in text
    assert "Mean prediction by dose" in text
    several = [Dependence("age", [40.0, 50.0], {"a": [0.2, 0.3], "b": [0.3, 0.3], "c": [0.5, 0.4]})]
    made = record(classes=["a", "b", "c"], dependence=several)
    made.counts = []
    page = render(summarise(made))
    assert all(f'<path class="curve c{i}"' in page for i in range(3))
    assert "How predictions depend on single columns" not in render(summarise(record()))


def test_two_hundred_sites_fit_a_page():
    assert len(render(summarise(record(200)))) < 3_000_000


def test_sensitivity_over_all_rows_needs_a_threshold_at_every_site():
    made = record()
    summary = summarise(made)
    assert threshold_table(summary).rows[-1][-1] == "0.800"
    made.evaluation = [
        msgspec.structs.replace(row, more={**row.more, "threshold": None}) if row.site == "s1" else row
        for row in made.evaluation
    ]
    assert threshold_table(summarise(made)).rows[-1][-1] == "–"


def test_a_site_without_test_rows_and_one_of_one_class():
    made = record(3)
    none = {"auc": None}
    made.evaluation = [
        msgspec.structs.replace(row, metrics=none, more={}, rows=0 if row.site == "s0" else 30, note=f"why {row.site}")
        if row.site in ("s0", "s1")
        else row
        for row in made.evaluation
    ]
    made.counts = [
        Counts(c.site, c.model, groups={"yes": [] if c.site == "s0" else [(0.1, 15.0, 0.0), (0.4, 15.0, 0.0)]})
        if c.site in ("s0", "s1")
        else c
        for c in made.counts
    ]
    page = render(summarise(made))
    assert "No curves: why s0" in page
    assert page.count('aria-label="ROC curves') == 2
    assert "nan" not in page.split("</style>")[1]


def test_a_class_without_rows_anywhere():
    made = record()
    made.evaluation = [msgspec.structs.replace(row, metrics={"auc": None}, more={}) for row in made.evaluation]
    made.counts = [Counts(c.site, c.model, groups={"yes": [(0.1, 15.0, 0.0), (0.2, 15.0, 0.0)]}) for c in made.counts]
    page = render(summarise(made))
    assert "ROC curves," not in page
    assert "nan" not in page.split("</style>")[1]


def test_several_splits_have_curves_too(tmp_path):
    made = fitted(tmp_path, more="repeats = 1")
    assert {(c.site, c.model) for c in made.counts if c.groups} >= {("north", "federated"), ("all", "local")}
    assert (tmp_path / "run" / "report.html").read_text().count('aria-label="Calibration') == 4


# -- tables


def test_columns_by_site_show_only_agreed_facts(tmp_path):
    tables = parts(table(n=240), 3)
    tables["site 1"] = tables["site 1"].drop("dose")
    made = fitted(tmp_path, tables=tables)
    shown = column_table(summarise(made))
    heads, rows = shown.heads, shown.rows
    by_name = {row[0]: row[2:] for row in rows}
    assert heads == ["Column", "Kind", "site 0", "site 1", "site 2"]
    assert by_name["age"] == ["32 to 64"] * 3
    assert by_name["dose"][1] == "absent"
    assert by_name["sex"] == ["2 categories"] * 3
    assert len(by_name["label = yes"]) == 3
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count("32 to 64") >= 3


def test_columns_of_many_sites_are_counted():
    columns = [{"name": "age", "kind": "numeric", "sites": ["s0"], "sizes": {"s0": (32.0, 64.0)}, "categories": {}}]
    made = msgspec.convert(msgspec.to_builtins(record(9)) | {"columns": columns}, Record)
    assert column_table(summarise(made)).rows[-1] == ["age", "number", "absent at 8; 32 to 64 at 1"]


def test_a_private_study_shows_no_columns(tmp_path):
    path = write_study(tmp_path, more="")
    text = path.read_text().replace("max_depth = 3", "max_depth = 3\nepsilon = 1.0\nn_rows = 100")
    path.write_text(
        text + "\n[policy]\nepsilon = 9.0\n[schema]\nage = { bounds = [0, 100] }\nsex = { categories = ['f', 'm'] }\n"
        "label = { classes = ['no', 'yes'] }\n[evaluation]\nepsilon = 1.0\n"
    )
    silvan("fit", path, "--output", tmp_path / "run")
    summary = summarise_run(tmp_path / "run")
    assert summary["columns"] == []
    assert "noisy counts" in summary["importance_note"]
    assert "sites were not asked" in summary["alike"]
    assert "epsilon 1 for training and 1 for evaluation, 2 in all" in " ".join(dict(summary["card"])["Privacy"])


def test_weights_and_clusters_of_bofrf(tmp_path):
    path = write_study(tmp_path, kind="BOFRF", tables=parts(table(n=300), 3))
    path.write_text(path.read_text() + "clusters = 2\n")
    silvan("fit", path, "--output", tmp_path / "run")
    made = Run(tmp_path / "run").read()
    assert [one.site for one in made.weights] == list(made.weights and {one.site: 0 for one in made.weights})
    assert {one.trees for one in made.weights} == {4}
    for members in made.clusters.values():
        assert sum(one.share for one in made.weights if one.site in members) == pytest.approx(1.0, abs=0.001)
    assert sorted(made.distances) == ["site 0", "site 1", "site 2"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Tree weights by site" in page
    assert "Similar sites" in page
    assert "each site has its own model" in page


def test_weights_and_distances_as_tables():
    trees = [SiteTrees("s0", 5, 4, -0.1, 0.2, 0.3, 0.6), SiteTrees("s1", 5, 5, 0.1, 0.2, 0.3, 0.4)]
    made = record(weights=trees, distances={"s0": [0.0, 1.0], "s1": [1.0, 0.0]})
    assert weight_table(summarise(made)).rows[0] == ["s0", "all sites", "5", "4", "0.20", "−0.10 to 0.30", "60.0%"]
    assert distance_table(summarise(made)).rows == [["s0", "–", "1.00"], ["s1", "1.00", "–"]]
    made.distances = {f"s{i}": [abs(i - j) for j in range(13)] for i in range(13)}
    assert distance_table(summarise(made)).rows[0] == ["s0", "s1 (1.00)", "s12 (12.00)"]
    made.distances = {"s0": [1.0]} | {"s1": []}
    assert distance_table(summarise(made)) is None


def test_omissions_in_a_sites_copy():
    trees = [SiteTrees("s0", 1, 1, 0.1, 0.1, 0.1, 1.0)]
    made = record(
        3, weights=trees, clusters={"s0": ["s0"]}, distances={"s0": [0.0]}, columns=[ColumnAtSites("a", "date")]
    )
    for figures, kept in (("own", False), ("all", True)):
        study = SimpleNamespace(metrics=figures, study=SimpleNamespace(by_columns=False))
        copy = copy_for(made, study, "s1")
        assert [bool(x) for x in (copy.weights, copy.clusters, copy.distances, copy.columns)] == [kept] * 4
        page = render(summarise(copy))
        assert ("Tree weights by site" in page) is kept
        assert {site["title"] for site in summarise(copy)["evaluated"]} == (
            {"all rows", "s0", "s1", "s2"} if kept else {"all rows", "s1"}
        )


def test_subgroups():
    row = MetricsRow("s0", "federated", 12, {"auc": 0.75}, group="sex = f", note="")
    made = record(
        subgroups=[row, msgspec.structs.replace(row, site="all", rows=24), msgspec.structs.replace(row, model="local")]
    )
    lines = subgroup_table(summarise(made)).rows
    assert lines == [["sex = f", "all sites", "24", "–", "0.750", ""], ["sex = f", "s0", "12", "0.750", "0.750", ""]]
    assert "sex = f" in render(summarise(made))
    assert "sex = f" in markdown(summarise(made))


# -- a tree


def forest(**more):
    """Makes a forest of a stump and of a tree that splits by a number and by category."""
    schema = Schema.of(
        [Feature("age"), Feature("ward", "categorical", categories=("a", "b", "c"))], Label("sick", ("no", "yes"))
    )
    arrays = {
        "offsets": [0, 1, 6],
        "feature": [-1, 1, 0, -1, -1, -1],
        "threshold": [0, 0, 50.5, 0, 0, 0],
        "missing_left": [False, True, True, False, False, False],
        "sets": [[0b0111, 0, 0, 0]],
        "value": [[0.5, 0.5], [0.9, 0.1], [0.2, 0.8], [0.4, 0.6]],
        "weights": [1.0, 1.0],
    }
    dtypes = {"sets": np.uint64, "feature": np.int32}
    return Forest(schema, **{k: np.array(v, dtypes.get(k)) for k, v in {**arrays, **more}.items()})


def test_a_tree_in_plain_words():
    tree = outline(forest())
    assert (tree["number"], tree["levels"], tree["leaves"]) == (2, 2, 3)
    assert [(line["level"], line["text"], line["answer"]) for line in tree["lines"]] == [
        (0, "all rows", ""),
        (1, "ward is a or b or missing", ""),
        (2, "age ≤ 50.5, or missing", "sick = yes: 80%"),
        (2, "age > 50.5", "sick = yes: 60%"),
        (1, "ward is c", "sick = yes: 10%"),
    ]


def test_constant_trees_are_not_shown():
    assert outline(forest(weights=[1.0, 0.0])) is None


# -- files beside the run


def test_an_audit_of_another_model_is_left_out(tmp_path):
    made = fitted(tmp_path)
    run = Run(tmp_path / "run")
    finding = {"attack": "membership", "title": "Membership, by confidence", "verdict": "exceeded", "value": 0.7}
    audit = {"reports": [{"name": "x", "hash": made.models[0].hash, "findings": [finding]}]}
    run.file(AUDIT[0]).write_text(json.dumps(audit))
    page = write_report(run).read_text()
    assert f"<code>{made.models[0].hash[:12]}</code>" in page
    assert "these exceeded their limits: Membership, by confidence" in page
    audit["reports"][0]["hash"] = "ab" * 32
    run.file(AUDIT[0]).write_text(json.dumps(audit))
    page = write_report(run).read_text()
    assert "is of another model (abababababab) and is ignored" in page
    assert "Membership" not in page
    for damaged in ("[]", '{"reports": 1}', "\xff", ""):
        run.file(AUDIT[0]).write_text(damaged)
        assert "is damaged, or not an audit" in write_report(run).read_text()


def test_an_audit_goes_aside_with_its_model(tmp_path):
    fitted(tmp_path)
    for name in AUDIT:
        (tmp_path / "run" / name).write_text("{}")
    silvan("fit", tmp_path / "study.toml", "--output", tmp_path / "run", "--fresh")
    assert not any((tmp_path / "run" / name).exists() for name in AUDIT)
    assert all((tmp_path / "run" / "earlier-1" / name).exists() for name in AUDIT)


def test_a_missing_or_replaced_model(tmp_path):
    fitted(tmp_path)
    run = Run(tmp_path / "run")
    path = run.file("model.silvan")
    content = path.read_bytes()
    path.unlink()
    assert "is gone" in write_report(run).read_text()
    path.write_bytes(content[: len(content) // 2])
    assert "no tree is shown" in write_report(run).read_text()
    forest().save(path)
    assert "not the forest that run.json names" in write_report(run).read_text()


@pytest.mark.parametrize("damage", ["half", "foreign", "learner", "types"])
def test_a_folder_without_a_run(tmp_path, damage):
    Run(tmp_path).write(record())
    path = tmp_path / "run.json"
    data = json.loads(path.read_text())
    if damage == "half":
        path.write_text(path.read_text()[:500])
    else:
        change = {"foreign": {"format": "other"}, "learner": {"study": {"learner": 1}}, "types": {"sites": {"a": 1}}}
        path.write_text(json.dumps(data | change[damage]))
    with pytest.raises(FormatError, match=r"run\.json: "):
        write_report(Run(tmp_path))


def test_impossible_counts_are_not_drawn():
    made = record()
    wild = {"yes": [(-1.0, 5.0, 5.0), (0.5, -3.0, 5.0), (0.6, 1.0, 1e308), (0.7, 1e308, 1.0)], "other": []}
    made.counts = [Counts(c.site, c.model, [[1]], [[1], [2, 3]], wild, [(5.0, 0.0, 0.0)]) for c in made.counts]
    made.curves = [Curve("federated", "yes", []), Curve("unknown", "yes", [(0, 0), (1, 1)])]
    page = render(summarise(made))
    assert not re.search(r"\b(nan|inf)\b", page.split("</style>")[1])


# -- the card, and other forms


@pytest.mark.parametrize(
    ("learner", "more", "said"),
    [
        ({"kind": "BOFRF"}, {}, "trees leave their site without gains"),
        ({"kind": "HistogramForest", "epsilon": 1.0}, {}, "noisy counts"),
        ({"kind": "VerticalForest"}, {"by": "columns"}, "each party keeps the splits"),
        ({"kind": "AdaBoostPL"}, {}, "stumps"),
        ({"kind": "BOFRF"}, {"models": [Model("m", "a", 1, 1, "s0")]}, "each site has its own model"),
        ({"kind": "BOFRF"}, {"models": []}, "nothing is trained yet"),
    ],
)
def test_why_there_are_no_importances(learner, more, said):
    made = record(**{"models": [Model("m", "a", 1, 1)], "study": {"learner": learner}, **more})
    assert said in importance_note(made)
    assert said in render(summarise(made))


def test_every_learner_of_a_publication_is_cited():
    assert {name for name, spec in LEARNERS.items() if not spec.papers} == {"LocalAdaBoost", "VerticalLinear"}
    cited = dict(model_card(record(study={"learner": {"kind": "BOFRF"}}), summarise(record())))["To cite"]
    assert cited[:2] == list(LEARNERS["BOFRF"].papers)


@pytest.mark.parametrize("sums", ["trusted", "ring", "masked"])
def test_the_card_says_who_saw_what(sums):
    made = record(sums=sums, kinds=[Kind("GrowLevel", "", "", "total")])
    card = dict(summarise(made)["card"])
    assert {"trusted": "saw each of them", "ring": "round a ring", "masked": "masks that cancel"}[sums] in " ".join(
        card["Privacy"]
    )


def test_json_and_markdown(tmp_path):
    fitted(tmp_path)
    run = tmp_path / "run"
    data = json.loads(silvan("report", run, "--json").stdout)
    assert data["sentences"] == summarise_run(run)["sentences"]
    text = silvan("report", run, "--markdown").stdout
    assert "## Model card" in text
    assert text == markdown(summarise_run(run))
    target = tmp_path / "card.md"
    assert silvan("report", run, "--markdown", "-o", target).stdout.strip() == str(target)
    assert target.read_text() == text
    both = silvan("report", run, "--markdown", "--json", ok=False)
    assert both.exit_code == 1
    assert "exclude each other" in both.stderr


def test_markdown_shows_names_as_they_are():
    assert escape("<b>|a|\n*x*") == r"\<b\>\|a\| \*x\*"
    made = record()
    made.sites[0] = SiteRows("](http://x) | <script>", 1, 1)
    assert "](http" not in markdown(summarise(made)).replace(r"\](http", "")


def test_bidirectional_characters_have_no_effect():
    assert without_controls("a\u202eb\u2066c\x00d\n") == "a\ufffdb\ufffdc\ufffdd\n"
    made = record()
    made.name = "\u05e9\u05dc\u05d5\u05dd \u202e<b>"
    page = render(summarise(made))
    assert "<bdi>\u05e9\u05dc\u05d5\u05dd \ufffd&lt;b&gt;</bdi>" in page
    assert "\u202e" not in markdown(summarise(made))


def test_tables_scroll_in_boxes_that_the_keyboard_reaches():
    page = render(summarise(record()))
    assert page.count("<table") == page.count('role="group" tabindex="0"')
    assert "<script" not in page


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_digits_do_not_depend_on_the_unit(unit):
    """Small errors are not rounded away, and the share of variance has its own digits."""
    made = {"local": 0.9, "federated": 0.7}
    rows = [
        MetricsRow(site, model, 30, {"rmse": error * unit, "r2": 1 - error / 2}, more={"mae": error * unit / 2})
        for site in ("s0", "s1", "all")
        for model, error in made.items()
    ]
    evaluated = msgspec.structs.replace(record(), evaluation=rows, counts=[], classes=None)
    summary = summarise(evaluated)
    assert summary["sites"][0]["gains"]["federated"] == pytest.approx(0.2 * unit)
    console = Console(width=100)
    with console.capture() as captured:
        console.print(shown(threshold_table(summary)))
    assert "0.650" in captured.get()
    printed = str(whole_frame([{"site": r.site, "model": r.model, **r.metrics} for r in rows]))
    assert "0.650" in printed
    assert len({line.split()[2] for line in printed.splitlines()}) == 3  # the title and two errors


def test_each_number_has_suitable_digits(tmp_path):
    fitted(tmp_path, tables=parts(table("number", n=150), 3))
    summary = summarise_run(tmp_path / "run")
    assert (
        dict(zip([t for t, _ in summary["all_metrics"]["titles"]], summary["all_metrics"]["digits"], strict=True))["R²"]
        == 3
    )
    assert pl.read_csv(tmp_path / "run" / "evaluation.csv").height == len(summary["all_metrics"]["rows"])
