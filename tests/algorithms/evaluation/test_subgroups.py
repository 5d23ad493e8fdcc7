"""Metrics of subgroups: equal to brute force, with minimum sizes, and without disclosing any label."""

from collections import defaultdict
from itertools import product

import numpy as np
import polars as pl
import pytest
from helpers.limits import limited
from helpers.studies import TASKS, federate, parts, table
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

import silvan as sv
from silvan.algorithms.evaluation.evaluate import CountByScore, count_by_score
from silvan.algorithms.evaluation.evaluation import answer_of
from silvan.algorithms.evaluation.score_groups import (
    Answer,
    Subgroup,
    cells_of,
    check_by,
    check_subgroups,
    in_groups_by_cell,
    places_of,
)
from silvan.errors import FormatError, InputError, RefusedError
from silvan.metrics import classification, regression
from silvan.privacy.policy import PolicyBetweenMachines

SMALL = {"n_estimators": 12, "max_depth": 4}
GROUPS = PolicyBetweenMachines()


def fitted(task="binary", learner=sv.HistogramForest, n=300, **settings):
    fed = federate(parts(table(task, n=n), 3), test=0.4, **settings)
    return fed, learner(**SMALL).fit(fed)


@pytest.mark.parametrize("task", TASKS)
def test_single_rows_equal_brute_force(task):
    fed, model = fitted(task)
    found = model.evaluate(fed, by=["sex"])
    sex = fed.schema.names.index("sex")
    for site in fed.sites:
        part = fed.site(site).part(fed.schema, test=True)
        for code, name in enumerate(fed.schema.features[sex].categories):
            rows = part.X[:, sex] == code
            answer = answer_of(model.forest_, part.X[rows], np.zeros(part.X.shape[1], bool))
            [line] = found.filter(site=site, model="federated", group=f"sex = {name}").to_dicts()
            assert line["rows"] == rows.sum()
            if task == "number":
                wanted = regression(answer.scores[:, 0], part.y[rows])
                assert line["rmse"] == pytest.approx(wanted["rmse"], rel=0.01)
            else:
                wanted = classification(answer.scores, part.y[rows], answer.decided)
                assert line["auc"] == pytest.approx(wanted["auc"], abs=6e-4)
    plain = model.evaluate(fed)
    whole = found.filter(group="")
    assert whole.drop("group").equals(plain)
    assert "group" not in plain.columns


def test_overall_subgroup_metrics_are_means_weighted_by_rows():
    fed, model = fitted(policy=GROUPS)
    found = model.evaluate(fed, by=["sex"]).filter(model="federated", group="sex = f")
    sites = found.filter(pl.col("site") != "all")
    [overall] = found.filter(site="all").to_dicts()
    assert overall["rows"] == sites["rows"].sum()
    assert overall["accuracy"] == pytest.approx((sites["accuracy"] * sites["rows"]).sum() / overall["rows"], abs=1e-9)


# -- which are shown


@given(st.lists(st.integers(0, 5), min_size=1, max_size=120), st.integers(1, 25))
def test_the_remainder_is_never_a_single_small_subgroup(codes, min_test):
    X = np.array(codes, np.float32)[:, None]
    cells = cells_of(X, (0,), PolicyBetweenMachines(min_test=min_test))
    least = max(10, min_test)
    assert sorted(np.concatenate(cells.rows()).tolist()) == list(range(len(codes)))
    for (code,), rows in zip(cells.shown, cells.rows(), strict=False):
        assert set(X[rows, 0]) == {code}
        assert len(rows) == codes.count(code) >= least
    rest = np.flatnonzero(cells.place == len(cells.shown))
    if len(rest) and cells.shown:
        assert len(rest) >= least
        assert len(set(X[rest, 0])) > 1


def test_missing_values_and_several_columns():
    X = np.array([[0, 0], [0, 1], [np.nan, 1], [1, 1]] * 12, np.float32)
    cells = cells_of(X, (0, 1), sv.Policy())
    assert cells.shown == [[-1, 1], [0, 0], [0, 1], [1, 1]]
    fed, model = fitted(n=900)
    found = model.evaluate(fed, by=["ward", "sex"])["group"].unique().to_list()
    assert "ward = a, sex = f" in found
    assert "ward = missing, sex = f" not in found  # too few


# -- what is disclosed


def told(answer, labels, cells):
    columns = np.column_stack([cells.place, answer.scores, answer.decided, labels])
    return columns[np.lexsort(columns.T)].tobytes()


@pytest.mark.parametrize("codes", [[0] * 5 + [1] * 5, [0, 1] * 5, [0] * 7 + [1] * 3])
def test_no_label_is_disclosed(codes):
    """Labellings that give the same report, in each subgroup, leave every row two possible classes."""
    rng = np.random.default_rng(0)
    score = rng.random(10)
    before = Answer(np.column_stack([1 - score, score]), (score > 0.5).astype(int))
    place = np.array(codes)
    cells = cells_of(place[:, None].astype(np.float32), (0,), sv.Policy())._replace(place=place, shown=[[0], [1]])
    if min(np.bincount(place)) < 4:  # as sites do: small subgroups are merged with others
        cells = cells._replace(place=np.zeros(10, int), shown=[])
    alike = defaultdict(list)
    for labels in product(range(2), repeat=10):
        y = np.array(labels)
        alike[told(*in_groups_by_cell(before, y, 2, 4, cells), cells)].append(y)
    assert all(len(np.unique(row)) > 1 for found in alike.values() for row in np.array(found).T)
    assert len(alike) > 2


def test_overall_counts_use_the_same_groups():
    """Another grouping of the same rows counts as another model."""
    fed, model = fitted(policy=PolicyBetweenMachines())
    limited(fed, models=1)
    model.evaluate(fed, by=["sex"])
    model.permutation_importance(fed, 1, by=["sex"])
    with pytest.raises(RefusedError, match="external models"):
        model.permutation_importance(fed, 1)
    with pytest.raises(RefusedError, match="external models"):
        model.evaluate(fed)
    site, blob = fed.site("site 0"), fed.blob(fed.schema.to_json().encode())
    asked = CountByScore(schema=blob, candidates=[model._explained(fed)[1]], feature_key=model.feature_key())
    by_sex = structs.replace(asked, by=places_of(fed.schema, ["sex"]))
    assert count_by_score(site, by_sex).confusion.sum() == len(site.part(fed.schema, test=True))
    with pytest.raises(RefusedError, match="external models"):
        count_by_score(site, asked)


# -- bad input


def test_bad_columns():
    fed, model = fitted(n=90)
    for by, why in [
        (["sexx"], "not a feature"),
        (["age"], "has numbers"),
        ("sex", "a list of at most 3"),
        (["sex", "sex"], "each once"),
    ]:
        with pytest.raises(InputError, match=why):
            model.evaluate(fed, by=by)
    with pytest.raises(InputError, match="leave it out here"):
        model.evaluate(fed, table(), by=["sex"])
    sex, age = (fed.schema.names.index(name) for name in ("sex", "age"))
    for by in ((age,), (sex, sex), (99,), (-1,), (0, 1, 2, 3)):
        with pytest.raises(FormatError, match="different columns of categories"):
            check_by(fed.schema, by)


def test_impossible_replies_are_refused():
    fed, _ = fitted(n=90)
    sex = (fed.schema.names.index("sex"),)
    right = Subgroup([0], 10, np.zeros((1, 6)), ())
    check_subgroups([right], fed.schema, sex, 10)
    for some in (
        [right, right],
        [structs.replace(right, rows=11)],
        [structs.replace(right, rows=0)],
        [structs.replace(right, codes=[7])],
        [structs.replace(right, codes=[-2])],
        [structs.replace(right, codes=[0, 0])],
        [structs.replace(right, codes=[])],
    ):
        with pytest.raises(FormatError, match="subgroups are not possible"):
            check_subgroups(some, fed.schema, sex, 10)
    with pytest.raises(FormatError):
        check_subgroups([right], fed.schema, (), 10)
