"""What publications say, on cases small enough for every day: the claims of their pages, which can fail."""

import numpy as np
import polars as pl
import pytest
from experiments.federated_forest import data as forest_data
from experiments.federated_forest import paper as federated_forest
from experiments.frf_health import paper as frf_health
from experiments.histogram import paper as histogram
from sklearn.datasets import load_breast_cancer, make_classification

import silvan as sv
from silvan import datasets


def rows_of(make, cases):
    """Run cases as the frame does: a row has its case's settings."""
    return pl.DataFrame([settings | row for settings in cases for row in make(**settings)], infer_schema_length=None)


def check(paper, item, n, rows):
    """Check the n-th claim of a table or figure."""
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
def test_more_sites_hurt_own_forests_and_not_the_merged_one(hearts):
    cases = [{"data": "heart", "sites": n, "seed": s} for n in (2, 20) for s in range(2)]
    rows = rows_of(frf_health.over_sites, cases)
    turned = rows.rename({"local_auc": "combined_auc", "combined_auc": "local_auc"})
    for n, wrong in enumerate((rows.with_columns(sites=22 - pl.col("sites")), turned, turned)):
        if n != 1:  # near the forest of all rows
            assert not check(frf_health.PAPER, "figure 3", n, wrong)
        assert check(frf_health.PAPER, "figure 3", n, rows)


@pytest.mark.filterwarnings("ignore")
def test_weighting_helps_where_sizes_are_extreme(monkeypatch):
    """A task that needs many rows; where few are enough, as in most of the publication's, weighting hardly matters."""
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
