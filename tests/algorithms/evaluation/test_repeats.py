"""Repeated splits: every row is evaluated, intervals hold, and metrics are means over the splits."""

import numpy as np
import pytest
from helpers.studies import federate, parts, table

import silvan as sv
from silvan.algorithms.evaluation.evaluation import Row
from silvan.algorithms.evaluation.repeats import best_candidate, corrected_interval, folds_of, over_splits
from silvan.data.holdout import Fold
from silvan.errors import InputError


@pytest.mark.parametrize(("test", "n"), [(0.0, 10), (0.1, 10), (0.2, 5), (0.3, 3), (0.5, 2), (0.9, 2)])
def test_every_row_is_evaluated_in_each_repeat(test, n):
    fed = federate(parts(table(n=90), 2), test=0.2)
    folds = folds_of(test, 2)
    assert len(folds) == 2 * n
    assert len(set(folds)) == len(folds)
    schema = fed.schema
    for name in fed.sites:
        times = np.zeros(len(fed.site(name).table), int)
        for fold in folds:
            site = fed.split(fold).site(name)
            held = site.held_out.between(0, len(times))
            assert len(site.part(schema, test=True).y) == held.sum()
            assert len(site.part(schema).y) == site.n_train == (~held).sum()
            times += held
        assert set(times) == {2}


def test_classes_are_spread_over_the_folds():
    fed = federate(parts(table(n=200), 2), test=0.2)
    sizes = [np.bincount(fed.split(fold).site("site 0").part(fed.schema, test=True).y) for fold in folds_of(0.2, 1)]
    assert np.ptp(sizes, axis=0).max() <= 1


def test_tables_are_read_and_encoded_once():
    fed = federate(parts(table(n=60), 2), test=0.2)
    encoded = fed.site("site 0")
    encoded.part(fed.schema)
    one, other = (fed.split(Fold(i, 5)).site("site 0") for i in (0, 1))
    assert one.table is other.table is encoded.table
    everything = ("encoded", fed.schema.hash, True)
    assert one.cache[everything] is other.cache[everything] is encoded.cache[everything]


def test_the_interval_follows_nadeau_and_bengio():
    gains = np.array([0.1, 0.2, 0.15, 0.05, 0.1, 0.3])
    low, high = corrected_interval(gains, 0.25)
    reach = 2.5705818366147395 * gains.std(ddof=1) * np.sqrt(1 / 6 + 0.25)  # the 97.5 % quantile of t with 5 degrees
    assert (low, high) == pytest.approx((gains.mean() - reach, gains.mean() + reach))


def test_where_there_is_no_interval():
    assert corrected_interval(np.array([0.1, 0.2]), 0.1) is None, "too few splits"
    assert corrected_interval(np.full(10, 0.1), 0.1) is None, "no spread is no certainty"
    assert corrected_interval(np.zeros(10), 0.1) == (0.0, 0.0)


def rows(site, local, joined, n=10, metric="auc"):
    return [Row(site, "local", n, {metric: local}), Row(site, "other", n, {metric: joined})]


def test_means_over_splits():
    splits = [[*rows("a", 0.5, 0.6 + i / 100), *rows("b", 0.7, np.nan if i else 0.8, n=30)] for i in range(6)]
    found = {(row.site, row.model): row for row in over_splits(splits, folds_of(0.5, 3))}
    assert found["a", "other"].rows == 20, "every row counts once"
    assert found["a", "other"].metrics["auc"] == pytest.approx(0.625)
    assert found["a", "other"].gain == pytest.approx(0.125)
    assert found["a", "other"].low > 0.05
    assert found["b", "other"].gain == pytest.approx(0.1), "splits where a figure is not defined do not count"
    assert found["b", "other"].low is None
    assert found["all", "other"].metrics["auc"] == pytest.approx(np.mean([(6 + 24) / 40, 0.61, 0.62, 0.63, 0.64, 0.65]))
    assert found["all", "local"].gain is None


def test_smaller_errors_are_better():
    splits = [rows("a", 5.0, 4.0 + i / 100, metric="rmse") for i in range(6)]
    [_, other, *_] = over_splits(splits, folds_of(0.5, 3))
    assert other.gain == pytest.approx(0.975)
    assert best_candidate(splits[0], ["local", "other"]) == "other"


def test_the_best_model():
    assert best_candidate(rows("a", 0.5, 0.6), ["local", "other"]) == "other"
    assert best_candidate(rows("a", 0.6, 0.6), ["other", "local"]) == "other", "of equal ones the first"
    assert best_candidate(rows("a", np.nan, np.nan), ["other", "local"]) == "other"


@pytest.mark.parametrize("repeats", [0, -1, 1.5, True, "ten", None, 1001])
def test_wrong_repeats(repeats):
    with pytest.raises(InputError, match="repeats must be a whole number between 1 and 1,000"):
        folds_of(0.2, repeats)


def test_a_forest_that_has_seen_rows_is_refused():
    tables = parts(table(n=60), 2)
    forest = sv.MergedForest(n_estimators=2, max_depth=2).fit(federate(tables)).forest_
    fed = federate(tables, test=0.2, forests={"site 0": forest})
    with pytest.raises(InputError, match="repeats need forests that are not fitted"):
        fed.split(Fold(0, 5))


def test_coverage_in_small():
    """A rule trained on few rows against another: the interval contains the true gain about as often as it claims."""
    rng = np.random.default_rng(0)

    def accuracies(x, y, new, truth):
        below, above = x[y == 0].mean(axis=0), x[y == 1].mean(axis=0)
        near = ((new - below) ** 2).sum(axis=1) > ((new - above) ** 2).sum(axis=1)
        one = np.abs(new[:, 0] - below[0]) > np.abs(new[:, 0] - above[0])
        return (one == truth).mean(), (near == truth).mean()

    def draw(n):
        y = np.arange(n) % 2
        return rng.normal(size=(n, 4)) + 0.5 * y[:, None], y

    world = draw(20_000)
    held, gains = [], []
    for _ in range(200):
        x, y = draw(60)
        found = []
        for _ in range(4):
            order = rng.permutation(60)
            for k in range(5):
                test = np.isin(np.arange(60), order[k::5])
                local, joined = accuracies(x[~test], y[~test], x[test], y[test])
                found.append(joined - local)
        held.append(corrected_interval(np.array(found), 0.25))
        local, joined = accuracies(*draw(48), *world)
        gains.append(joined - local)
    true = np.mean(gains)
    share = np.mean([low <= true <= high for low, high in held])
    assert 0.9 <= share <= 1.0
