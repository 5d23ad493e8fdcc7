"""Test rows by date: the latest ones, whole dates, and clear errors for columns that cannot be used."""

from datetime import date, timedelta

import numpy as np
import polars as pl
import pytest
from helpers.studies import federate

import silvan as sv
from silvan.data.batches import Batched, Whole
from silvan.data.date_split import DateSplit, check_split
from silvan.errors import FormatError, InputError, SiteError

DAYS = [date(2020, 1, 1) + timedelta(days=7 * (i % 25)) for i in range(100)]


def visits(days=DAYS, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=len(days))
    label = np.where(x + rng.normal(size=len(days)) > 0, "yes", "no")
    return pl.DataFrame({"x": x, "z": rng.normal(size=len(days)), "seen": days, "label": label})


def held(table, by, test, person=None):
    split = DateSplit(by, test)
    return split.hold_out(Whole(table, "label", [by]), person).between(0, len(table))


@pytest.mark.parametrize(
    ("test", "first"),
    [
        ("last 20%", DAYS[20]),
        ("last 1%", DAYS[24]),  # the nearest share that whole dates allow
        ("last 99%", DAYS[1]),
        ("Last 21.9 %", DAYS[20]),
        ("since 2020-06-10", DAYS[23]),
        ("since 2020-06-11", DAYS[24]),
    ],
)
@pytest.mark.parametrize("written", ["dates", "texts", "times", "objects"])
def test_the_latest_rows_are_test_rows(test, first, written):
    table = visits()
    cells = {
        "dates": pl.col("seen"),
        "texts": pl.col("seen").dt.to_string(),
        "times": pl.col("seen").cast(pl.Datetime),
        "objects": pl.col("seen").dt.to_string("%d.%m.%Y"),
    }
    found = held(table.with_columns(cells[written].alias("seen")), "seen", test)
    assert found.tolist() == [day >= first for day in DAYS]


def test_numbers_order_rows_too():
    table = visits().with_columns(pl.col("seen").dt.ordinal_day().alias("seen"))
    assert held(table, "seen", "since 140").tolist() == [day.timetuple().tm_yday >= 140 for day in DAYS]
    assert held(table, "seen", "last 20%").tolist() == [day >= DAYS[20] for day in DAYS]


def test_rows_read_in_batches_are_split_alike(tmp_path):
    table = visits(DAYS * 50)
    table.write_csv(tmp_path / "visits.csv")
    split = DateSplit("seen", "last 20%")
    batched = Batched(tmp_path / "visits.csv", "label", 1 << 12, tmp_path, ["seen"])
    assert len(list(batched.batches())) > 1
    assert (split.hold_out(batched).bits == split.hold_out(Whole(table, "label", ["seen"])).bits).all()


def test_a_person_is_dated_by_the_first_row():
    person = np.arange(100) // 2  # the rows of a person are a week apart
    found = held(visits(), "seen", f"since {DAYS[20]}", person)
    assert (found[::2] == found[1::2]).all()
    assert found.tolist() == [min(DAYS[i - i % 2], DAYS[i - i % 2 + 1]) >= DAYS[20] for i in range(100)]


@pytest.mark.parametrize(
    ("days", "test", "said"),
    [
        ([*DAYS[:97], None, None, None], "last 20%", "3 rows of 100 have no date"),
        ([*map(str, DAYS[:98]), "soon", "later"], "last 20%", "2 cells of 100 hold neither a date"),
        ([DAYS[0]] * 100, "last 20%", "no row is in the test set"),
        (DAYS, "since 2031-01-01", "no row is in the test set"),
        (DAYS, "since 2001-01-01", "all rows are in the test set"),
        (DAYS, "since 2020", "the column holds dates"),
        (list(range(100)), "since 2020-01-01", "the column holds numbers"),
    ],
)
def test_columns_unusable_for_a_split_by_date(days, test, said):
    with pytest.raises(InputError) as error:
        held(visits().with_columns(pl.Series("seen", days)), "seen", test)
    assert error.value.parameter == "split"
    assert said in str(error.value)
    assert "soon" not in str(error.value), "no cell is quoted"


def test_a_missing_column():
    with pytest.raises(InputError, match="split names 'date', but the table has no such column"):
        held(visits(), "date", "last 20%")


@pytest.mark.parametrize(
    "split",
    [
        {"by": "seen"},
        {"by": "", "test": "last 20%"},
        {"by": "seen", "test": "last 0%"},
        {"by": "seen", "test": "last 100%"},
        {"by": "seen", "test": "first 20%"},
        {"by": "seen", "test": "since yesterday"},
        {"by": "seen", "test": "last 20%", "more": 1},
        {"by": "seen", "test": 0.2},
        "sites",
        0.2,
    ],
)
def test_invalid_splits(split):
    with pytest.raises(InputError) as error:
        check_split(split)
    assert error.value.parameter == "split"


# -- in a federation


def test_each_site_keeps_its_latest_rows():
    tables = {"a": visits(), "b": visits(DAYS[5:], 1)}
    fed = federate(tables, split={"by": "seen", "test": "last 20%"})
    assert fed.schema.names == ("x", "z"), "the column is no feature"
    for name, table in tables.items():
        later = table.filter(pl.col("seen") >= DAYS[20])
        part = fed.site(name).part(fed.schema, test=True)
        assert np.allclose(part.X[:, 0], later["x"].to_numpy().astype(np.float32))
        assert fed.site(name).n_train == len(table) - len(later)
    found = sv.HistogramForest(n_estimators=3).fit(fed).evaluate(fed)
    assert found.filter(model="federated", site="all")["rows"].item() == 40


@pytest.mark.parametrize("options", [{}, {"cold": True}, {"memory": "60kB"}, {"sums": "masked"}], ids=str)
def test_the_forest_uses_the_earlier_rows(options):
    tables = {"a": visits(), "b": visits(seed=1), "c": visits(seed=2)}
    split = federate(tables, split=DateSplit("seen", "since 2020-05-20"), **options)
    earlier = {name: rows.filter(pl.col("seen") < date(2020, 5, 20)).drop("seen") for name, rows in tables.items()}
    learner = sv.HistogramForest(n_estimators=3)
    assert learner.fit(split).forest_.hash == learner.fit(federate(earlier, schema=split.schema)).forest_.hash


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"test": 0.2}, "leave one of split and test out"),
        ({"split": {"by": "label", "test": "last 20%"}}, "which is the label"),
        ({"policy": sv.Policy(epsilon=1.0)}, "must name a date if there is a privacy budget"),
    ],
)
def test_settings_incompatible_with_a_split(options, said):
    with pytest.raises(InputError) as error:
        federate({"a": visits(), "b": visits(seed=1)}, **{"split": {"by": "seen", "test": "last 20%"}, **options})
    assert error.value.parameter == "split"
    assert said in str(error.value)


def test_a_site_whose_dates_have_gaps_is_named():
    gaps = visits().with_columns(pl.when(pl.col("x") > 1).then(None).otherwise(pl.col("seen")).alias("seen"))
    with pytest.raises(SiteError, match=r"site .b.: .*rows of 100 have no date"):
        federate({"a": visits(), "b": gaps}, split={"by": "seen", "test": "last 20%"})


def test_a_study_with_a_date_split_resumes(tmp_path):
    """A journal gives the same model and the same metrics; with another split it is another study."""
    tables = {"a": visits(), "b": visits(seed=1)}
    made = {"split": {"by": "seen", "test": "last 20%"}, "journal": str(tmp_path / "journal"), "cold": True}
    found = []
    for _ in range(2):
        fed = federate(tables, **made)
        model = sv.HistogramForest(n_estimators=3).fit(fed)
        found.append((model.forest_.hash, model.evaluate(fed)["auc"].to_list()))
        fed.journal.close()
    assert found[0] == found[1]
    with pytest.raises(FormatError):
        federate(tables, **{**made, "split": {"by": "seen", "test": "last 30%"}})


def test_comparing_on_other_splits_uses_all_rows():
    """Repeated evaluation shuffles all rows anew; a split by date allows a single evaluation."""
    tables = {"a": visits(), "b": visits(seed=1)}
    by_date = federate(tables, split={"by": "seen", "test": "last 20%"})
    found = sv.compare(by_date, [sv.HistogramForest(n_estimators=2)], repeats=1)
    assert found.frame.filter(site="all")["rows"].to_list() == [200, 200]


def test_a_person_s_rows_stay_together():
    tables = {"a": visits(), "b": visits(seed=1)}
    tables = {
        name: rows.with_columns(patient=pl.format("{}{}", pl.lit(name), pl.int_range(100) // 2))
        for name, rows in tables.items()
    }
    fed = federate(tables, split={"by": "seen", "test": "since 2020-05-20"}, group="patient")
    assert fed.schema.names == ("x", "z")
    for site in fed.local_sites.values():
        test = site.held_out.between(0, 100)
        assert test.any()
        assert (test[::2] == test[1::2]).all()


def test_changed_dates_make_another_table():
    """A journal of one split cannot be resumed with another, although the features are the same."""
    split = {"by": "seen", "test": "last 20%"}
    one, other = (
        federate({"a": visits(days), "b": visits(seed=1)}, split=split).site("a").fingerprint()
        for days in (DAYS, DAYS[::-1])
    )
    assert one != other
