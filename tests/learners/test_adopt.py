"""A site that joins after training adopts the shared forest."""

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score, roc_curve

import silvan as sv
from silvan.errors import InputError

SMALL = {"n_estimators": 20, "max_depth": 5}


def rows_of(*hospitals):
    table = sv.datasets.heart_disease()
    return table.filter(pl.col("hospital").is_in(hospitals))


def joining(table, forest, **options):
    return sv.federate_rows({"new": table}, label="disease", schema=forest.schema, test=0.3, **options)


@pytest.fixture(scope="module")
def shared():
    """The forest of three hospitals."""
    fed = sv.federate_rows(rows_of("Cleveland", "Switzerland", "VA"), site="hospital", label="disease")
    return sv.AutoForest(**SMALL).fit(fed).forest_


def test_a_new_site_compares_the_shared_forest_on_all_of_its_training_rows(shared):
    fed = joining(rows_of("Hungarian"), shared)
    model = sv.AutoForest(**SMALL).adopt(shared, fed)
    part = fed.site("new").part(shared.schema)
    auc = roc_auc_score(part.y, shared.plain().predict_proba(part.X)[:, 1])
    assert model.forest_ == shared  # nothing of the new site is in it
    assert f"on {len(part)} rows" in model.choices_["new"]
    assert f"{auc:.3f}" in model.choices_["new"]


def test_adopting_takes_no_test_row(shared):
    fed = joining(rows_of("Hungarian"), shared)
    model = sv.AutoForest(**SMALL).adopt(shared, fed)
    before = model.evaluate(fed).filter(site="new", model="federated")["auc"].item()
    test = fed.site("new").part(shared.schema, test=True)
    test.y[:] = 1 - test.y  # as the site holds it
    again = sv.AutoForest(**SMALL).adopt(shared, fed)
    assert again.forests_["new"] == model.forests_["new"]
    assert again.evaluate(fed).filter(site="new", model="federated")["auc"].item() == pytest.approx(
        1 - before, abs=2e-3
    )


def test_leaves_and_curve_follow_the_rows_of_the_site(shared):
    """Where labels mean the opposite, the shared forest is of no use, and the site notices."""
    table = rows_of("Hungarian").with_columns(disease=1 - pl.col("disease"))
    fed = joining(table, shared)
    model = sv.AutoForest(**SMALL).adopt(shared, fed)
    found = {row["model"]: row for row in model.evaluate(fed).iter_rows(named=True) if row["site"] == "new"}
    assert found["shared"]["auc"] < 0.3
    assert found["federated"]["auc"] > 0.8
    assert found["federated"]["log_loss"] < found["shared"]["log_loss"]


def test_a_threshold_by_a_rule_is_one_of_calibrated_scores(shared):
    fed = joining(rows_of("Hungarian"), shared)
    model = sv.AutoForest(**SMALL, threshold="youden").adopt(shared, fed)
    part = fed.site("new").part(shared.schema)
    false, true, at = roc_curve(part.y, shared.predict_proba(part.X)[:, 1])
    chosen = np.searchsorted(-at, -model.threshold_, "right") - 1
    assert (true - false)[chosen] == pytest.approx((true - false).max(), abs=0.02)


def test_an_adopted_forest_with_as_many_trees_as_the_site_is_not_taken_for_its_own(shared):
    fed = joining(rows_of("Hungarian"), shared)
    model = sv.AutoForest(n_estimators=len(shared), max_depth=5).adopt(shared, fed)
    assert len(model.forests_["new"]) in (len(shared), 2 * len(shared))
    if model.shares_["new"] < 1.0:
        assert model.draws(fed, [])[model.forests_["new"].hash].owners != ("new",)


def test_numbers_are_adopted_too():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    frame = pl.DataFrame({f"x{i}": x[:, i] for i in range(3)} | {"label": 3 * x[:, 0] + rng.normal(size=400)})
    fed = sv.federate_rows({"a": frame[:150], "b": frame[150:300]})
    forest = sv.HistogramForest(**SMALL).fit(fed).forest_
    new = sv.federate_rows({"new": frame[300:]}, schema=forest.schema, test=0.3)
    model = sv.AutoForest(**SMALL, intervals=True).adopt(forest, new)
    found = {row["model"]: row["rmse"] for row in model.evaluate(new).iter_rows(named=True) if row["site"] == "new"}
    assert found["federated"] < 1.1 * min(found["local"], found["shared"])
    assert model.predict_interval(frame[:2], site="new").shape == (2, 2)


@pytest.mark.parametrize("rows", [8, 11, 40])
def test_a_site_with_few_rows_stays_with_the_shared_forest_or_near_it(shared, rows):
    fed = joining(rows_of("Hungarian")[:rows], shared)
    model = sv.AutoForest(**SMALL).adopt(shared, fed)
    scores = model.predict_proba(rows_of("VA"), site="new")[:, 1]
    assert np.isfinite(scores).all()
    if rows < 20:
        assert "the shared forest" in model.choices_["new"]


def test_a_site_with_one_class_keeps_the_shared_forest(shared):
    fed = joining(rows_of("Hungarian").filter(pl.col("disease") == 0), shared)
    model = sv.AutoForest(**SMALL).adopt(shared, fed)
    assert model.shares_["new"] == model.fitted_["new"] == 0.0
    row = model.evaluate(fed).filter(site="new", model="federated").row(0, named=True)
    assert not row["use"]


def _other_schema(shared):
    return sv.AutoForest(**SMALL), shared, sv.federate_rows({"new": rows_of("VA")}, label="disease")


def _votes(shared):
    fed = sv.federate_rows(rows_of("Cleveland", "VA"), site="hospital", label="disease")
    return sv.AutoForest(**SMALL), sv.BOFRF(**SMALL).fit(fed).forest_, joining(rows_of("Hungarian"), shared)


def _no_choice(shared):
    return sv.AutoForest(**SMALL, choose=False), shared, joining(rows_of("Hungarian"), shared)


def _no_forest(shared):
    return sv.AutoForest(**SMALL), 5, joining(rows_of("Hungarian"), shared)


def _parties(shared):
    table = rows_of("VA").drop("hospital").with_row_index("id")
    halves = {"a": table.select("id", "age", "disease"), "b": table.select("id", "sex")}
    return sv.AutoForest(**SMALL), shared, sv.federate_columns(halves, label="disease", id="id")


@pytest.mark.parametrize(
    ("case", "remedy"),
    [
        (_other_schema, "schema=forest.schema"),
        (_votes, "mean"),
        (_no_choice, "choose"),
        (_no_forest, "silvan"),
        (_parties, "federate_rows"),
    ],
)
def test_what_cannot_be_adopted_is_refused_with_a_remedy(shared, case, remedy):
    model, forest, fed = case(shared)
    with pytest.raises(InputError, match=remedy):
        model.adopt(forest, fed)
