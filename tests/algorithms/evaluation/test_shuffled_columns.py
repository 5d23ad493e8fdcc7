"""Importance of columns from sums of losses: equal to brute force, and without revealing more about labels."""

from collections import defaultdict
from itertools import product
from unittest import mock

import numpy as np
import polars as pl
import pytest
from helpers.limits import limited
from helpers.studies import TASKS, federate, parts, table

import silvan as sv
from silvan.algorithms.evaluation import column_effects
from silvan.algorithms.evaluation.candidates import LocalModel
from silvan.algorithms.evaluation.column_effects import ShuffleColumns, shuffle_columns
from silvan.algorithms.evaluation.site_models import answer_on_test_rows
from silvan.errors import FormatError, InputError, RefusedError
from silvan.federation.part import Part
from silvan.forest.predict import scores
from silvan.privacy.policy import PolicyBetweenMachines

SMALL = {"n_estimators": 12, "max_depth": 4}
GROUPS = PolicyBetweenMachines()


def fitted(task="binary", learner=sv.HistogramForest, n=300, **settings):
    fed = federate(parts(table(task, n=n), 3), test=0.4, **settings)
    return fed, learner(**SMALL).fit(fed)


def by_brute_force(fed, forest, repeats):
    """Shuffles as sites do, but with all rows and labels available."""
    found, rows = dict.fromkeys(fed.schema.names, 0.0), 0
    for name in fed.sites:
        part = fed.site(name).part(fed.schema, test=True)
        rows += len(part)
        n = fed.schema.n_classes
        wanted = np.eye(n)[part.y] if n else part.y[:, None]

        def loss(X, wanted=wanted, n=n):
            return ((scores(forest, X) - wanted) ** 2).sum() / (2 if n == 2 else 1)

        for f, column in enumerate(fed.schema.names):
            for repeat in range(repeats):
                X = part.X.copy()
                X[:, f] = X[column_effects._shuffle(fed.site(name), f, repeat, len(X)), f]
                found[column] += (loss(X) - loss(part.X)) / repeats
    return {column: growth / rows for column, growth in found.items()}


@pytest.mark.parametrize("task", TASKS)
def test_single_rows_equal_brute_force(task):
    fed, model = fitted(task)
    found, wanted = model.permutation_importance(fed, repeats=2), by_brute_force(fed, model.forest_, 2)
    assert found == pytest.approx(wanted, rel=0.01, abs=1e-3 * max(wanted.values()))
    assert list(found.values()) == sorted(found.values(), reverse=True)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("learner", [sv.MergedForest, sv.BOFRF])
def test_in_groups_it_is_nearly_the_same(task, learner):
    """For trees of sites, which carry no gains. With many rows, groups cost little accuracy."""
    fed, model = fitted(task, learner, n=4800, policy=GROUPS)
    found, wanted = model.permutation_importance(fed, repeats=2), by_brute_force(fed, model.forest_, 2)
    most = max(wanted.values())
    assert found == pytest.approx(wanted, abs=0.15 * most)
    assert abs(found["noise"]) < 0.03 * most
    with pytest.raises(AttributeError, match="permutation_importance"):
        _ = model.feature_importances_


def test_all_ways_of_summing_agree():
    found = []
    for sums in ("trusted", "ring", "masked"):
        fed, model = fitted(sums=sums, random_state=3)
        found.append(model.permutation_importance(fed, repeats=1))
    assert found[0] == found[1] == found[2]


def asked(fed, learner, repeats=1, **changes):
    blob = fed.blob(fed.schema.to_json().encode())
    sent = learner._explained(fed)[1]
    given = {"schema": blob, "model": sent, "feature_key": learner.feature_key(), "repeats": repeats}
    return ShuffleColumns(**{**given, **changes})


def told(answer, labels):
    """What the evaluation of a model counts."""
    columns = np.column_stack([answer.scores, answer.decided, labels])
    return columns[np.lexsort(columns.T)].tobytes()


def test_importance_reveals_no_more_about_labels_than_the_evaluation():
    """Among all labels of seven rows out of ten, those with the same evaluation have the same losses.

    One row differs from all others in a column, so that shuffling it moves little but this row.
    """
    fed, model = fitted(n=90, policy=GROUPS)
    model.permutation_importance(fed, 1)  # so that the site has the model
    site, request = fed.site("site 0"), asked(fed, model)
    X = site.part(fed.schema, test=True).X[:10].copy()
    X[:, 0] = 30.0
    X[3, 0] = 80.0
    alike = defaultdict(set)
    for labels in product(range(2), repeat=7):
        site.cache.clear()
        part = Part(X, np.array([*labels, 0, 1, 1]), np.arange(10, dtype=np.uint64))
        with mock.patch.object(site, "part", return_value=part):
            losses = shuffle_columns(site, request).sums
            answer = answer_on_test_rows(site, fed.schema, request.model, request.feature_key)
        if losses.any():
            alike[told(*answer)].add(losses.tobytes())
    assert all(len(losses) == 1 for losses in alike.values())
    assert len(alike) > 2


def test_importance_counts_as_the_evaluated_model():
    """If one model may be evaluated, its columns may be shuffled, and those of no other model."""
    fed, model = fitted()
    limited(fed, models=1)  # that of pooled rows is the same
    model.evaluate(fed)
    model.permutation_importance(fed)
    with pytest.raises(RefusedError, match="external models"):
        sv.HistogramForest(3, max_depth=2).fit(fed).permutation_importance(fed)


def test_minimum_sizes_of_the_policy():
    fed, model = fitted(policy=sv.Policy(min_test=200))
    with pytest.raises(InputError, match="enough test rows"):
        model.permutation_importance(fed)


def test_nearly_constant_numbers():
    """A number shared by all rows of a group is not disclosed; a site without other rows replies nothing."""
    frame = table("number", n=200).with_columns(label=pl.when(pl.col("age") > 60).then(pl.col("label")).otherwise(0.0))
    fed = federate(parts(frame, 2), test=0.4, policy=GROUPS)
    model = sv.MergedForest(**SMALL).fit(fed)
    found = model.permutation_importance(fed)
    assert next(iter(found)) == "age"
    site, request = fed.site("site 0"), asked(fed, model)
    part = site.part(fed.schema, test=True)
    site.cache.clear()
    same = Part(part.X, np.zeros(len(part)), part.row_keys)
    with mock.patch.object(site, "part", return_value=same):
        assert not shuffle_columns(site, request).rows.any()


def test_invalid_requests_and_replies():
    fed, model = fitted()
    for repeats in (0, 101):
        with pytest.raises(InputError, match="repeats must be"):
            model.permutation_importance(fed, repeats)
        with pytest.raises(FormatError, match="shuffled 1 to 100 times"):
            shuffle_columns(fed.site("site 0"), asked(fed, model, repeats))
    own = LocalModel(model.forest_settings(fed.schema))
    with fed.working_on("explaining"), pytest.raises(sv.SiteError, match="could not read what it was sent"):
        fed.total(asked(fed, model, model=own))
    with pytest.raises(InputError, match="no global forest"):
        sv.LocalForest(2).fit(fed).permutation_importance(fed)
    with pytest.raises(InputError, match="not fitted yet"):
        sv.BOFRF(2).permutation_importance(fed)
