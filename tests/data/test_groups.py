"""Several rows per person: persons give the keys, all rows of a person are held out or none, and one counts."""

import numpy as np
import polars as pl
import pytest
from helpers.visits import one_site

from silvan.data.batches import Batched, Whole
from silvan.data.column_types import check_apart
from silvan.data.groups import read_groups
from silvan.data.holdout import Fold, hold_out
from silvan.errors import InputError, SchemaError
from silvan.federation.row_holdout import hold_out_persons
from silvan.tree.sampling import make_key, one_of_each, persons_of, rows_of_trees


def table(ids, room=None):
    frame = pl.DataFrame({"id": ids, "x": range(len(ids)), "label": [i % 2 for i in range(len(ids))]}, strict=False)
    more = {"exclude": ("id",), "kinds": {"id": "categorical"}}
    return Whole(frame, **more) if room is None else Batched(frame, "label", room, **more)


def groups_of(ids, room=None):
    return read_groups(table(ids, room), "id", b"salt")


@pytest.fixture
def many():
    """Ids of patients with one to six visits each."""
    rng = np.random.default_rng(3)
    return one_site(rng, "a", rng.integers(1, 7, 300))


def test_rows_are_numbered_within_their_person():
    keys = groups_of(["b", "a", "b", "c", "b", "a"]).keys
    assert keys["place"].tolist() == [0, 0, 1, 0, 2, 1]
    assert keys["rows"].tolist() == [3, 2, 3, 1, 3, 2]
    assert len(np.unique(keys["person"])) == 3


def test_batches_make_no_difference(many):
    ids = many["patient"].to_list()
    whole, pieces = groups_of(ids), groups_of(ids, 64)
    assert whole.keys.tobytes() == pieces.keys.tobytes()
    assert set(whole.ids) == set(pieces.ids)


def test_another_person_changes_no_other_key(many):
    ids = many["patient"].to_list()
    other = [i for i, one in enumerate(ids) if one != "a7"]
    assert (groups_of(ids).keys[other] == groups_of([ids[i] for i in other]).keys).all()


@pytest.mark.parametrize("ids", [["1", "1", "2"], [1, 1, 2], [1.0, 1.0, 2.0], ["x ", "x", "y"], [True, True, False]])
def test_ids_of_any_type(ids):
    assert groups_of(ids).keys["rows"].tolist() == [2, 2, 1]


def test_leading_zeros_distinguish_persons(tmp_path):
    (tmp_path / "t.csv").write_text("id,x,label\n01,1,0\n1,2,1\n001,3,0\n")
    opened = Whole(tmp_path / "t.csv", "label", ("id",), {"id": "categorical"})
    assert len(read_groups(opened, "id", b"salt").ids) == 3


@pytest.mark.parametrize("gap", [None, "", "  ", "NA", "nan"])
def test_a_missing_id_is_an_error_with_the_number(gap):
    with pytest.raises(SchemaError, match="missing in 2 of 4 rows"):
        groups_of(["a", gap, "b", gap])


def test_a_missing_number_is_an_error():
    with pytest.raises(SchemaError, match="missing in 1 of 3 rows"):
        groups_of([1.0, None, 2.0])


def test_dates_are_refused_as_ids():
    with pytest.raises(SchemaError, match="must hold numbers or text"):
        groups_of(pl.Series(["2020-01-01", "2020-01-02"]).str.to_date().to_list())


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("label", "names 'label', which is the label"),
        ("site", "names 'site', which is the column that names the site"),
        ("age", "names 'age', which the schema has as a feature"),
        ("", "must be the name of a column"),
    ],
)
def test_a_column_with_another_role(column, text):
    check_apart("group", "patient", "label", "site", ["age"])
    check_apart("group", None, "label", None)
    with pytest.raises(InputError, match=f"^group {text}") as caught:
        check_apart("group", column, "label", "site", ["age"])
    assert caught.value.parameter == "group"


@pytest.mark.parametrize("room", [None, 512], ids=["in memory", "in batches"])
def test_all_rows_of_a_person_are_held_out_or_none(many, room):
    groups, n = groups_of(many["patient"].to_list(), room), len(many)
    opened = Batched(many, "label", sys_max(room), exclude=["patient"])
    folds = np.array(
        [hold_out(opened, "label", 0.2, 1, fold=Fold(k, 5), groups=groups).between(0, n) for k in range(5)]
    )
    assert (folds.sum(axis=0) == 1).all()
    some = hold_out(opened, "label", 0.3, 1, groups=groups).between(0, n)
    for held in [*folds, some, hold_out_persons(groups, 0.3, b"key").between(0, n)]:
        assert 0.1 < held.mean() < 0.4
        assert not set(groups.person[held]) & set(groups.person[~held])
    singly = np.array([hold_out_persons(groups, 0.2, b"key", Fold(k, 5)).between(0, n) for k in range(5)])
    assert (singly.sum(axis=0) == 1).all()


def sys_max(room):
    return 1 << 40 if room is None else room


def test_classes_have_their_share_of_persons(many):
    groups, n = groups_of(many["patient"].to_list()), len(many)
    held = hold_out(Whole(many, exclude=["patient"]), "label", 0.25, 1, groups=groups).between(0, n)
    for value in (0, 1):
        first = groups.first & (many["label"] == value).to_numpy()
        assert (held & first).sum() == pytest.approx(0.25 * first.sum(), abs=1)


def test_another_person_moves_nobody_else_between_parts(many):
    ids = many["patient"].to_list()
    other = [i for i, one in enumerate(ids) if one != "a7"]
    with_one = hold_out_persons(groups_of(ids), 0.4, b"key").between(0, len(ids))
    without = hold_out_persons(groups_of([ids[i] for i in other]), 0.4, b"key").between(0, len(other))
    assert (with_one[other] == without).all()


def test_each_tree_uses_one_row_per_sampled_person(many):
    keys, key = groups_of(many["patient"].to_list()).keys, make_key(1, "rows")
    whose = np.unique(keys["person"], return_inverse=True)[1]
    persons = persons_of(keys)
    assert len(persons) == 300
    for draw in (True, False, 0.4):
        drawn = rows_of_trees(key, keys, 0, 40, draw)
        each = np.array([np.bincount(whose[tree], minlength=300) for tree in drawn])
        assert each.max() == 1
        names = np.unique(keys["person"])
        by_person = rows_of_trees(key, names, 0, 40, draw)
        assert (each.astype(bool) == by_person).all()
    assert np.array_equal(rows_of_trees(key, keys, 3, 4, True), rows_of_trees(key, keys, 0, 7, True)[3:])


def test_all_rows_of_a_person_take_their_turns(many):
    keys = groups_of(many["patient"].to_list()).keys
    drawn = rows_of_trees(make_key(1, "rows"), keys, 0, 2000, False)
    error = 5 / np.sqrt(2000)
    assert np.abs(drawn.mean(axis=0) - 1 / keys["rows"]).max() < error


def test_one_row_stands_for_each_person(many):
    keys = groups_of(many["patient"].to_list()).keys
    chosen = one_of_each(keys)
    assert len(np.unique(keys["person"][chosen])) == chosen.sum() == 300
    places = keys[chosen & (keys["rows"] == 3)]["place"]
    assert np.bincount(places).min() > 5  # not always the first


def test_persons_are_counted_once_under_each_code():
    groups = groups_of(["a", "a", "b", "b", "c"])
    assert groups.count(np.array([0, 0, 0, 1, -1]), 3).tolist() == [2, 1, 0]
