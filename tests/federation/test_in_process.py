"""Federations in one process: how they are created, and slow sites."""

import threading

import numpy as np
import polars as pl
import pytest
from helpers.studies import federate, parts, table

import silvan as sv
from silvan.errors import FederationError, InputError, SiteError
from silvan.federation.describe import CountRows
from silvan.federation.site import Site
from silvan.learners.federated_estimator import FederatedEstimator

TABLES = parts(table(n=60), 3)


# -- making one


@pytest.mark.filterwarnings("ignore:'sex' is absent at pair")
def test_tables_of_any_kind(tmp_path):
    import pandas as pd

    frame = TABLES["site 0"].drop("ward")
    frame.write_csv(tmp_path / "a.csv")
    frame.write_parquet(tmp_path / "b.parquet")
    numbers = frame.drop("sex")
    fed = federate(
        {
            "csv": str(tmp_path / "a.csv"),
            "parquet": tmp_path / "b.parquet",
            "polars": frame,
            "pandas": pd.DataFrame(frame.to_dict(as_series=False)),
            "pair": (numbers.drop("label"), numbers["label"]),
        }
    )
    assert fed.schema.names == ("age", "dose", "sex", "noise")
    encoded = [fed.site(name).part(fed.schema) for name in fed.sites]
    for part in encoded[1:-1]:
        assert np.array_equal(part.X, encoded[0].X, equal_nan=True)
        assert np.array_equal(part.y, encoded[0].y)


@pytest.mark.parametrize(
    ("tables", "settings", "text"),
    [
        ({}, {}, "needs at least one site"),
        (TABLES["site 0"], {}, "pass a dict of tables by site, or one table and site="),
        (TABLES, {"site": "ward"}, "with a dict of tables leave it out"),
        (TABLES["site 0"], {"site": "hospital"}, "no column 'hospital'"),
        (TABLES["site 0"], {"site": "ward"}, "column 'ward' is missing in"),
        ({1: TABLES["site 0"], "1": TABLES["site 1"]}, {}, "names that read alike"),
        ({"all": TABLES["site 0"]}, {}, "cannot be called 'all'"),
        ({"": TABLES["site 0"]}, {}, "cannot be called ''"),
        ({" ": TABLES["site 0"]}, {}, "cannot be called ' '"),
        ({"a\nb": TABLES["site 0"]}, {}, "cannot be called"),
        (TABLES, {"test": 1.0}, "test must be at least 0 and below 1"),
        (TABLES, {"test": -0.1}, "test must be at least 0 and below 1"),
        (TABLES, {"test": float("nan")}, "test must be at least 0 and below 1"),
        (TABLES, {"task": "ranking"}, "task must be None, 'classification', 'regression' or 'survival'"),
        (TABLES, {"random_state": -1}, "random_state must be a whole number"),
        (TABLES, {"random_state": None}, "random_state must be a whole number"),
        (TABLES, {"random_state": 0.5}, "random_state must be a whole number"),
        (TABLES, {"sums": "hidden"}, "sums must be 'trusted', 'ring' or 'masked'"),
        (parts(table(n=60), 2), {"sums": "ring"}, "sums must be 'trusted' for fewer than 3 sites"),
    ],
)
def test_invalid_federations(tables, settings, text):
    with pytest.raises(InputError, match=text):
        federate(tables, **settings)


def test_one_table_with_a_column_of_whole_numbers_for_sites():
    frame = table(n=40).with_columns(hospital=pl.Series([7, 3] * 20))
    fed = federate(frame, site="hospital")
    assert fed.sites == ["7", "3"]
    assert "hospital" not in fed.schema.names


def test_keys():
    """The feature key is the coordinator's, the sampling key the sites'; only the latter comes from the federation."""
    a, b = federate(TABLES), federate(TABLES, random_state=1)
    keys = [[fed.site(name).sampling_key.tolist() for name in fed.sites] for fed in (a, b)]
    assert keys[0][0] == keys[0][1] == keys[0][2] != keys[1][0]


def test_a_site_by_name():
    fed = federate(TABLES)
    assert fed.site("site 1").name == "site 1"
    with pytest.raises(InputError, match="no site 'mars'; the sites are site 0, site 1, site 2"):
        fed.site("mars")


LEARNERS = [
    made
    for made in (getattr(sv, name) for name in sv.__all__)
    if isinstance(made, type) and issubclass(made, FederatedEstimator)
]


@pytest.mark.parametrize("learner", LEARNERS)
def test_learners_need_a_federation(learner):
    """One line, which says what to do with X and y."""
    X, y = np.zeros((4, 2)), [0, 1, 0, 1]
    made_by = "federate_columns" if learner.__name__.startswith("Vertical") else "federate_rows"
    for given in ((X, y), (X,), (X, None), (TABLES,)):
        text = (
            rf"^fit takes a federation, fit\(sv.{made_by}\(tables\)\), and no y; got (ndarray|ndarray and y|dict); "
            "for one table use .*$"
        )
        with pytest.raises(InputError, match=text):
            learner().fit(*given)
    with pytest.raises(InputError, match="and no y; got Federation and y; for one table"):
        learner().fit(federate(TABLES), y)


def test_all_learners_are_tested():
    assert {learner.__name__ for learner in LEARNERS} >= {"AutoForest", "BOFRF", "MultBoost", "VerticalLinear"}


# -- slow sites


class Stuck(Site):
    """Does not reply until it is released."""

    gate = threading.Event()

    def receive(self, data, verb):
        self.gate.wait(30)
        return super().receive(data, verb)


@pytest.fixture
def stuck():
    """A federation in which site 1 stalls from now on."""
    Stuck.gate = threading.Event()
    fed = federate(TABLES)
    fed.timeout = 0.25
    fed.local_sites["site 1"].__class__ = Stuck
    yield fed
    Stuck.gate.set()


def test_a_late_site_is_named_with_what_it_was_asked_and_how_long(stuck):
    with pytest.raises(SiteError, match=r"site 'site 1': did not answer CountRows within 0\.25 s"):
        stuck.ask(CountRows())


def test_a_late_site_and_a_quorum(stuck):
    stuck.quorum = 2
    assert list(stuck.ask(CountRows())) == ["site 0", "site 2"]
    assert stuck.lost == {"site 1": "site 'site 1': did not answer CountRows within 0.25 s"}
    Stuck.gate.set()  # too late: its reply belongs to no open request
    assert list(stuck.ask(CountRows())) == ["site 0", "site 2"]
    stuck.timeout = None
    assert list(sv.HistogramForest(n_estimators=2, max_depth=2).fit(stuck).forests_) == ["site 0", "site 2"]


def test_all_are_late(stuck):
    stuck.quorum = 1
    for member in stuck.local_sites.values():
        member.__class__ = Stuck
    with pytest.raises(FederationError, match="0 of 3 sites are left at CountRows, the quorum is 1"):
        stuck.ask(CountRows())


def test_a_stuck_site_does_not_keep_the_program_from_ending(stuck):
    stuck.quorum = 2
    stuck.ask(CountRows())
    left = [thread for thread in threading.enumerate() if thread.name == "silvan-site 1"]
    assert left
    assert all(thread.daemon for thread in left)
