"""Claims of the publications, on cases small enough for every day; each claim can fail."""

import numpy as np
import polars as pl
import pytest
from experiments.autoforest import left_out, reliability
from experiments.autoforest import paper as autoforest
from experiments.bofrf import checks, environments
from experiments.bofrf import paper as bofrf
from experiments.federated_forest import data as forest_data
from experiments.federated_forest import paper as federated_forest
from experiments.frf_health import paper as frf_health
from experiments.histogram import paper as histogram
from experiments.thesis import paper as thesis
from experiments.thesis import printed
from sklearn.datasets import load_breast_cancer, make_classification

import silvan as sv
from silvan import datasets


def rows_of(make, cases):
    """Runs cases as the framework does: a row has its case's settings."""
    return pl.DataFrame([settings | row for settings in cases for row in make(**settings)], infer_schema_length=None)


def check(paper, item, n, rows):
    """Checks the n-th claim of a table or figure."""
    held, told = paper.item(item).claims[n].check(rows)
    assert told
    return held


@pytest.fixture
def hearts(monkeypatch):
    """Heart disease in place of other data sets, and fewer trees."""
    frame = datasets.heart_disease().rename({"disease": "label"}).drop("hospital")
    monkeypatch.setattr(frf_health, "table", lambda data: frame)
    monkeypatch.setattr(frf_health, "TREES", 40)


@pytest.mark.filterwarnings("ignore")
def test_more_sites_hurt_local_forests_but_not_the_merged_one(hearts):
    cases = [{"data": "heart", "sites": n, "seed": s} for n in (2, 20) for s in range(2)]
    rows = rows_of(frf_health.over_sites, cases)
    turned = rows.rename({"local_auc": "combined_auc", "combined_auc": "local_auc"})
    for n, wrong in enumerate((rows.with_columns(sites=22 - pl.col("sites")), turned, turned)):
        if n != 1:  # near the forest of all rows
            assert not check(frf_health.PAPER, "figure 3", n, wrong)
        assert check(frf_health.PAPER, "figure 3", n, rows)


@pytest.mark.filterwarnings("ignore")
def test_weighting_helps_where_sizes_are_extreme(monkeypatch):
    """A task that needs many rows; where few suffice, as in most of the publication's, weighting hardly matters."""
    X, y = make_classification(900, 20, n_informative=10, n_redundant=0, random_state=0)
    frame = pl.DataFrame(X).with_columns(label=pl.Series(y))
    monkeypatch.setattr(frf_health, "table", lambda data: frame)
    monkeypatch.setattr(frf_health, "TREES", 20)
    rows = rows_of(frf_health.over_sizes, [{"data": "made up", "share": 2, "seed": s} for s in range(4)])
    turned = rows.rename({"weighted_auc": "combined_auc", "combined_auc": "weighted_auc"})
    assert check(frf_health.PAPER, "figure 4", 2, rows)
    assert check(frf_health.PAPER, "figure 4", 2, turned) is False


@pytest.fixture
def small_table(monkeypatch):
    """Ten columns of the breast cancer table in place of Telco churn, and few trees."""
    found = load_breast_cancer()
    frame = pl.DataFrame(found.data[:, :10], schema=[f"c{i}" for i in range(10)]).with_columns(label=found.target)
    bounds = [(0.0, float(2 ** np.ceil(np.log2(frame[:, i].max())))) for i in range(10)]
    schema = sv.Schema.of([sv.Feature(f"c{i}", bounds=b) for i, b in enumerate(bounds)], sv.Label("label", (0, 1)))
    monkeypatch.setattr(histogram, "table_of", lambda data, rows: frame)
    monkeypatch.setattr(histogram, "schema_of", lambda data: schema)
    monkeypatch.setattr(histogram, "FOREST", {**histogram.FOREST, "n_estimators": 8})
    monkeypatch.setattr(histogram, "DEPTHS", (4,))


@pytest.mark.filterwarnings("ignore")
def test_the_federated_forest_is_above_local_ones_on_average(small_table):
    cases = [{"data": "Telco", "clients": 10, "rows": 0, "seed": s} for s in range(2)]
    rows = rows_of(histogram.local_against_federated, cases)
    assert check(histogram.PAPER, "figure 1", 0, rows)
    turned = rows.rename({"local_f1": "federated_f1", "federated_f1": "local_f1"})
    assert not check(histogram.PAPER, "figure 1", 0, turned)


@pytest.mark.filterwarnings("ignore")
def test_auc_falls_with_epsilon(small_table):
    same = {"data": "Telco", "form": "levels", "reading": "each", "rows": 0, "seed": 0}
    rows = rows_of(histogram.with_noise, [{**same, "epsilon": epsilon} for epsilon in (0.001, 100.0)])
    assert check(histogram.PAPER, "figure 7", 2, rows)
    assert not check(histogram.PAPER, "figure 7", 2, rows.with_columns(auc=1 - pl.col("auc")))


@pytest.mark.filterwarnings("ignore")
def test_the_vertical_forest_is_the_pooled_one(monkeypatch):
    monkeypatch.setitem(forest_data.NAMES, "breast cancer", "breast_cancer")
    monkeypatch.setattr(federated_forest, "TREES", 10)
    monkeypatch.setattr(federated_forest, "GRID", [{"max_depth": 5, "max_features": "sqrt"}])
    rows = rows_of(federated_forest.two_parties, [{"data": "breast cancer", "rows": 300, "draws": 2, "seed": 5}])
    assert check(federated_forest.PAPER, "table 3", 0, rows)
    assert not check(federated_forest.PAPER, "table 3", 0, rows.with_columns(equal=pl.Series([1, 0])))


@pytest.mark.filterwarnings("ignore")
def test_bofrf_is_above_local_forests_on_average(monkeypatch):
    """Three small sites of heart disease, sampled as the environments are."""
    frame = datasets.heart_disease().rename({"disease": "label"}).drop("hospital")
    sites = {"environment": [1] * 3, "dataset": ["heart"] * 3, "site": ["S1", "S2", "S3"]}
    counts = {"rows": [60, 50, 70], "positives": [30, 20, 40]}
    monkeypatch.setattr(environments, "load", lambda name: frame)
    monkeypatch.setattr(environments, "ENVIRONMENTS", pl.DataFrame(sites | counts))
    monkeypatch.setattr(environments, "FOREST", {"n_estimators": 20, "max_depth": 4})
    cases = [{"data": bofrf.PIMA, "environment": "E1", "tuned": 0, "seed": s} for s in range(4)]
    rows = bofrf.untuned(bofrf.PIMA)(rows_of(environments.in_environment, cases))
    assert check(bofrf.PAPER, "table 3", 0, rows)
    assert not check(bofrf.PAPER, "table 3", 0, rows.rename({"local": "bofrf", "bofrf": "local"}))
    # the choice on test rows is never worse than the better of both there
    assert (rows["personal_paper"] >= rows["bofrf_paper"]).all()


def combined(gain, rng):
    """Returns combinations of eight sites in which BOFRF beats BOPPID by a given amount."""
    sites = [{"site": f"S{i}", "stand_in": "made up", "seed": 0, "sites": n} for i in range(8) for n in (2, 8) * 20]
    noise = rng.normal(0, 0.01, (2, len(sites)))
    figures = {
        "bofrf_auc": 0.7 + gain + noise[0],
        "boppid_auc": 0.7 + noise[1],
        "printed_auc": np.full(len(sites), 0.7),
    }
    return pl.DataFrame(sites).with_columns(**{name: pl.Series(values) for name, values in figures.items()})


@pytest.mark.parametrize(("gain", "held"), [(0.02, True), (0.0, False), (-0.02, False)])
def test_the_z_test_finds_real_differences(gain, held):
    assert checks.z_test("auc")(combined(gain, np.random.default_rng(0)))[0] is held


def test_gains_of_poor_sites_are_not_chance():
    """Sites that differ only by chance: a low local AUC in some seeds does not predict a larger gain in others."""
    rng = np.random.default_rng(1)
    local = rng.normal(0.75, 0.05, (30, 20))
    rows = pl.DataFrame(
        [
            {checks.WHERE: f"S{i}", "seed": s, "local": local[i, s], "bofrf": 0.77 + rng.normal(0, 0.01)}
            for i in range(30)
            for s in range(20)
        ]
    )
    assert checks.poor_sites_gain_most(rows)[0] is None
    really = rows.with_columns(local=pl.col("local") - (pl.col(checks.WHERE) < "S2") * 0.1)
    really = really.with_columns(bofrf=pl.col("local") + (pl.col(checks.WHERE) < "S2") * 0.05)
    assert checks.poor_sites_gain_most(really)[0] is True


def test_what_follows_from_the_tables_of_the_thesis():
    """Distances, two clusters and Z scores agree; three clusters agree with the nearest centroid, not the farthest."""
    held = {}
    for item in thesis.PAPER.items:
        if item.run == "printed":
            rows = item.select(rows_of(printed.follow, [{"what": w["what"]} for w in printed.RUN.cases(False)]))
            held[item.name] = [claim.check(rows)[0] for claim in item.claims]
    assert held == {
        "table 7.9": [True],
        "table 7.10": [True, True],
        "table C.1": [True, True, False],
        "table B.1": [True],
    }
    scores = rows_of(printed.follow, [{"what": "scores"}])
    by_equation = scores.with_columns(auc_low=pl.col("auc_eq") - 1, auc_high=pl.col("auc_eq") + 1)
    assert not check(thesis.PAPER, "table B.1", 0, by_equation)


@pytest.mark.filterwarnings("ignore")
def test_autoforest_is_above_pooled_and_not_below_local(monkeypatch):
    monkeypatch.setattr(autoforest, "TREES", 20)
    rows = rows_of(autoforest.at_sites, [{"data": "heart", "seed": s} for s in range(3)])
    item = autoforest.PAPER.item("table 3")
    assert check(autoforest.PAPER, "table 3", 3, item.select(rows))
    turned = rows.rename({"auto_auc": "federated_auc", "federated_auc": "auto_auc"})
    assert not check(autoforest.PAPER, "table 3", 3, item.select(turned))
    assert (item.select(rows)["over_local"] > 0).all()


def test_holm_rejects_step_by_step():
    p = np.array([0.01, 0.04, 0.03, 0.005])
    assert reliability.holm(p).tolist() == [True, False, False, True]  # limits 0.0125, 0.0167, 0.025, 0.05
    assert not reliability.holm(np.array([0.02, 0.03, 0.04])).any()
    assert reliability.holm(np.array([0.04])).all()


def test_calibrated_forests_lose_less_at_four_hospitals(monkeypatch):
    monkeypatch.setattr(reliability, "TREES", 20)
    rows = rows_of(reliability.at_sites, [{"data": "heart", "seed": s} for s in range(5)])
    items = {item.name: item for item in autoforest.PAPER.items}
    claims = items["table 6"].claims
    selected = items["table 6"].select(rows)
    assert claims[1].check(selected)[0], "the log loss of AutoForest"
    turned = selected.rename({"auto_loss": "auto_before_loss", "auto_before_loss": "auto_loss"})
    assert not claims[1].check(turned)[0]
    below = items["table 7"].select(rows)
    assert items["table 7"].claims[0].check(below)[0]
    worse = rows.with_columns(auto_auc=pl.col("local_auc") - 0.2 - 0.01 * pl.col("seed"))
    assert not items["table 7"].claims[0].check(items["table 7"].select(worse))[0]


def test_a_site_left_out_is_evaluated_by_all_learners(monkeypatch):
    monkeypatch.setattr(left_out, "TREES", 10)
    rows = rows_of(left_out.without_each, [{"data": "heart", "seed": 0}])
    assert rows["site"].to_list() == ["Cleveland", "Hungarian", "Switzerland", "VA"]
    assert rows.select((pl.col(*left_out.TITLES) > 0.4).all()).row(0).count(True) >= 6
