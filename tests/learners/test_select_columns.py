"""Federated feature selection: from training rows and sums, never from test rows."""

import numpy as np
import polars as pl
import pytest
from helpers.limits import in_groups_of

import silvan as sv
from silvan.algorithms.evaluation.candidates import sent_model
from silvan.algorithms.evaluation.column_effects import importances
from silvan.algorithms.evaluation.out_of_bag import unseen_rows
from silvan.errors import InputError, SilvanError

SMALL = {"n_estimators": 30, "max_depth": 6}


def frame(n=600, seed=0, classes=True):
    """Two columns that matter, and six that do not."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 8))
    y = x[:, 0] + 0.7 * x[:, 1] + 0.5 * rng.normal(size=n)
    label = (y > 0).astype(int) if classes else y
    names = {f"x{i}": x[:, i] for i in range(8)}
    return pl.DataFrame(names | {"label": label, "site": rng.integers(0, 3, n).astype(str)})


@pytest.mark.parametrize("classes", [True, False])
@pytest.mark.parametrize("options", [{}, {"sums": "masked"}, {"cold": True}])
def test_columns_that_matter_are_kept(classes, options):
    fed = sv.federate_rows(frame(classes=classes), site="site", test=0.3, **options)
    found = sv.select_columns(fed, sv.HistogramForest(**SMALL))
    assert found.kept[:2] == ["x0", "x1"]
    assert len(found.kept) <= 4  # chance keeps few others
    assert set(found.kept) | set(found.dropped) == {f"x{i}" for i in range(8)}
    assert found.least == max(0.0, -min(found.importances.values()))


def test_without_site_differences_importances_are_those_of_out_of_bag_rows():
    """The sum over sites is the growth of the squared error of trees that did not see a row, computed by hand."""
    fed = sv.federate_rows(frame(200), site="site")
    model = sv.HistogramForest(**SMALL).fit(fed)
    found = model.permutation_importance(fed, repeats=20, training=True)
    drawn = model.sampled_rows(fed)
    parts = [fed.site(site).part(fed.schema) for site in fed.active]
    X, y = np.concatenate([p.X for p in parts]), np.concatenate([p.y for p in parts])
    trees = [model.forest_.take(np.array([t])) for t in range(len(model.forest_))]

    def error(X):
        each = np.array([tree.predict_proba(X)[:, 1] for tree in trees])
        each[drawn] = np.nan
        score = np.nanmean(each, axis=0)
        return float(np.nanmean((score - y) ** 2))

    rng, plain, shuffled = np.random.default_rng(0), error(X), X.copy()
    place = [f.name for f in fed.schema.features].index("x0")
    grown = []
    for _ in range(10):
        for part, start in zip(parts, np.cumsum([0, *map(len, parts[:-1])]), strict=True):
            rows = slice(start, start + len(part))
            shuffled[rows, place] = rng.permutation(X[rows, place])
        grown.append(error(shuffled) - plain)
    assert found["x0"] == pytest.approx(np.mean(grown), rel=0.15)


def test_test_rows_take_no_part():
    fed = sv.federate_rows(frame(), site="site", test=0.3)
    before = sv.select_columns(fed, sv.HistogramForest(**SMALL))
    for site in fed.active:
        part = fed.site(site).part(fed.schema, test=True)
        part.y[:] = 1 - part.y  # as the site holds it
    assert sv.select_columns(fed, sv.HistogramForest(**SMALL)).importances == before.importances


def test_labels_by_chance_keep_about_nothing():
    rng = np.random.default_rng(3)
    table = frame().with_columns(label=pl.Series(rng.integers(0, 2, 600)))
    fed = sv.federate_rows(table, site="site")
    found = sv.select_columns(fed, sv.HistogramForest(**SMALL))
    assert max(found.importances.values()) < 0.02
    assert 1 <= len(found.kept) <= 5


@pytest.mark.parametrize("learner", [sv.AutoForest, sv.MergedForest, sv.BOFRF])
def test_other_learners_choose_too(learner):
    fed = sv.federate_rows(frame(), site="site", test=0.3)
    assert sv.select_columns(fed, learner(**SMALL), most=2).kept == ["x0", "x1"]


def test_where_scores_are_grouped_a_label_shows_only_its_group():
    """Rows of a group may swap their labels without any change of what leaves; rows of two groups may not."""
    fed = sv.federate_rows(frame(), site="site", policy=in_groups_of(20))
    model = sv.HistogramForest(**SMALL).fit(fed)
    site = fed.site(fed.active[0])
    part, draws = site.part(fed.schema), model.draws(fed, [])[model.forest_.hash]
    answer, _ = unseen_rows(site, fed.schema, model.forest_, draws)
    group = answer.scores[:, 1]
    assert len(group) == len(part)
    first = model.permutation_importance(fed, training=True)

    def swapped(same):
        pairs = np.argwhere(((group[:, None] == group) == same) & (part.y[:, None] != part.y))
        a, b = pairs[0] if same else max(pairs, key=lambda two: abs(group[two[0]] - group[two[1]]))
        part.y[[a, b]] = part.y[[b, a]]
        return model.permutation_importance(fed, training=True)

    assert swapped(True) == first
    assert swapped(False) != first


def _boosting(fed):
    return sv.select_columns(fed, sv.BOPPID())


def _none(fed):
    return sv.select_columns(fed, most=0)


def _all_rows(fed):
    return sv.select_columns(fed, sv.HistogramForest(**SMALL, bootstrap=False))


def _subgroups(fed):
    model = sv.HistogramForest(**SMALL).fit(fed)
    return model.permutation_importance(fed, by=["x0"], training=True)


@pytest.mark.parametrize("ask", [_boosting, _none, _all_rows, _subgroups])
def test_what_cannot_be_chosen_is_refused(ask):
    with pytest.raises(InputError):
        ask(sv.federate_rows(frame(200), site="site", test=0.3))


def test_a_study_about_test_rows_does_not_let_training_rows_be_shuffled():
    """A coordinator that may ask for importance on test rows cannot ask for training rows instead."""
    fed = sv.federate_rows(frame(200), site="site", test=0.3)
    model = sv.HistogramForest(**SMALL).fit(fed)
    sent = sent_model(fed, model.forest_, model.draws(fed, []))
    given = fed.schema, sent, model.feature_key(), model.forest_, 5
    with model.held_to_text(fed, training=True):
        assert importances(fed, *given, training=True)
    with model.held_to_text(fed), pytest.raises(SilvanError, match="training"):
        importances(fed, *given, training=True)
