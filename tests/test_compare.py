"""Comparing learners on many splits, as a user does."""

import numpy as np
import polars as pl
import pytest
from helpers.studies import federate, parts, table

import silvan as sv


@pytest.fixture(scope="module")
def found():
    fed = federate(parts(table(n=150), 3), test=0.25)
    learners = {"merged": sv.MergedForest(n_estimators=6, max_depth=3), "exact": sv.HistogramForest(n_estimators=6)}
    return fed, sv.compare(fed, learners, repeats=2)


def test_a_line_for_each_site_and_model(found):
    _, got = found
    assert got.frame.select("site", "model").rows() == [
        (site, model) for site in ("site 0", "site 1", "site 2", "all") for model in ("local", "merged", "exact")
    ]
    assert got.frame.filter(model="local", site="site 1")["rows"].item() == len(parts(table(n=150), 3)["site 1"])
    assert got.frame.filter(site="all")["rows"].to_list() == [150] * 3
    assert (got.repeats, got.folds, len(got.splits)) == (2, 4, 2 * 4 * 3 * 3)
    assert got.frame.filter(pl.col("use"))["site"].to_list() == ["site 0", "site 1", "site 2"]


def test_figures_are_the_means_of_the_splits(found):
    _, got = found
    by_hand = got.splits.group_by("site", "model").agg(pl.col("auc").mean())
    for row in by_hand.iter_rows(named=True):
        [line] = got.frame.filter(site=row["site"], model=row["model"]).iter_rows(named=True)
        assert line["auc"] == pytest.approx(row["auc"])
    wide = got.splits.filter(site="site 0").pivot(on="model", index=["repeat", "fold"], values="auc")
    gains = (wide["exact"] - wide["local"]).to_numpy()
    [line] = got.frame.filter(site="site 0", model="exact").iter_rows(named=True)
    assert line["gain"] == pytest.approx(np.mean(gains))
    middle = (line["gain_low"] + line["gain_high"]) / 2
    assert middle == pytest.approx(line["gain"])


def test_what_is_used_is_never_worse_beyond_noise(found):
    used = found[1].frame.filter(pl.col("use"))
    assert "lost" not in used["certainty"].to_list()


def test_it_is_the_same_again(found):
    fed, got = found
    again = sv.compare(fed, [sv.MergedForest(n_estimators=6, max_depth=3)], repeats=2)
    ours = got.frame.filter(pl.col("model") == "merged").drop("model", "use")
    assert again.frame.filter(pl.col("model") == "MergedForest").drop("model", "use").equals(ours)


def test_a_split_is_what_federating_its_rows_gives(found):
    """Nothing of one split is left in the next."""
    _, got = found
    learner = sv.HistogramForest(n_estimators=6)
    alone = sv.compare(federate(parts(table(n=150), 3), test=0.25), {"exact": learner}, repeats=2)
    assert alone.splits.filter(model="exact")["auc"].to_list() == got.splits.filter(model="exact")["auc"].to_list()


def test_it_prints_within_80_columns(found):
    text = str(found[1])
    assert repr(found[1]) == text
    assert max(map(len, text.splitlines())) <= 80
    for word in ("site 0", "mean of all", "merged", "95 % interval", "Every row is judged 2 times"):
        assert word in text


def test_long_names_and_numbers_print_within_80_columns():
    rows = table(n=80).with_columns(pl.Series("label", np.arange(80) * 1.5))
    tables = {"the university hospital": rows[:40], "x": rows[40:]}
    fed = sv.federate_rows(tables, label="label")
    text = str(sv.compare(fed, [sv.HistogramForest(n_estimators=2, max_depth=2)] * 2, repeats=1))
    assert max(map(len, text.splitlines())) <= 80
    assert "HistogramForest" in text
    assert "HistogramFor… 2" in text
    assert "RMSE" in text
    assert "nan" not in text


def test_what_moved_is_counted():
    fed = federate(parts(table(n=60), 2), test=0.5)
    before = sum(fed.traffic.values())
    sv.compare(fed, [sv.MergedForest(n_estimators=2, max_depth=2)], repeats=1)
    assert sum(fed.traffic.values()) > before


@pytest.mark.parametrize(
    ("learners", "said"),
    [
        ([], "between 1 and 7"),
        (sv.MergedForest(), "a list of learners"),
        ([sv.MergedForest], "learners must be learners"),
        ([sv.ForestClassifier()], "learners must be learners"),
        ([sv.HistogramForest(epsilon=1.0)], "without epsilon"),
        ({"local": sv.MergedForest()}, "cannot be called 'local'"),
        ([sv.MergedForest()] * 8, "between 1 and 7, got 8"),
    ],
)
def test_what_cannot_be_compared(found, learners, said):
    with pytest.raises(sv.InputError, match=said):
        sv.compare(found[0], learners)


def test_federations_that_cannot_be_split():
    rows = table(n=40).with_columns(id=pl.Series(range(40)))
    columns = [name for name in rows.columns if name not in ("id", "label")]
    fed = sv.federate_columns(
        {"a": rows.select("id", "label"), "b": rows.select("id", *columns)}, id="id", label="label", test=0.2
    )
    with pytest.raises(sv.InputError, match="repeats need rows at sites of a federation that can split them anew"):
        sv.compare(fed, [sv.MergedForest()])
