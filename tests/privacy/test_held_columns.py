"""Signatures show which sites have a column, and a sum over many sites uses columns that many have."""

import msgspec
import pytest
from helpers.studies import federate, parts, table

import silvan as sv
from silvan.errors import RefusedError
from silvan.federation.message import Blob
from silvan.federation.store import digest
from silvan.privacy.held_columns import HeldColumns, NoteColumns, note_columns

pytestmark = pytest.mark.filterwarnings("ignore:.* absent at")

TABLES = parts(table(n=90).select("age", "dose", "sex", "label"), 3)
ONE = {**TABLES, "site 1": TABLES["site 1"].drop("dose"), "site 2": TABLES["site 2"].drop("dose", "sex")}


@pytest.mark.parametrize("how", [{}, {"signed": True, "sums": "masked"}, {"cold": True}])
def test_columns_that_all_sites_have_are_summed(how):
    fed = federate(TABLES, policy=sv.Policy(min_sites=3), **how)
    plain = federate(TABLES, **how)
    forests = [sv.HistogramForest(2, max_depth=2).fit(one).forest_.hash for one in (fed, plain)]
    assert forests[0] == forests[1]
    assert fed.agreement_rounds == plain.agreement_rounds + 2


def test_columns_of_a_schema_that_is_given():
    fed = federate(TABLES, policy=sv.Policy(min_sites=3), schema=federate(TABLES).schema, test=0.3)
    sv.HistogramForest(2, max_depth=2).fit(fed).evaluate(fed)


@pytest.mark.parametrize(("column", "least", "allowed"), [("age", 3, True), ("dose", 2, False), ("dose", 1, True)])
def test_a_column_of_one_site_is_never_summed_over_many(column, least, allowed):
    tables = {name: frame.drop("sex", strict=False) for name, frame in ONE.items()}
    fed = federate(tables, policy=sv.Policy(min_sites=least), exclude=[] if column == "dose" else ["dose"])
    if allowed:
        sv.HistogramForest(2, max_depth=2).fit(fed)
    else:
        with pytest.raises(RefusedError, match="fewer are known to have one of the columns: exclude"):
            sv.HistogramForest(2, max_depth=2).fit(fed)


def test_not_even_its_categories_are_counted():
    with pytest.raises(RefusedError, match=r"CountCategories.*fewer are known"):
        federate(ONE, policy=sv.Policy(min_sites=3), exclude=["dose"])


def test_a_coordinator_cannot_claim_columns_for_sites():
    """A list counts for the sites that signed it, and for no other."""
    fed = federate(ONE, policy=sv.Policy(min_sites=3), exclude=["sex"])
    list_ = msgspec.msgpack.encode(["dose"])
    forged = fed.work("site 1", HeldColumns(columns=["dose"], signature=bytes(64)))
    with pytest.raises(RefusedError, match="was changed on its way"):
        fed.ask(NoteColumns(lists=[forged]))
    for blob in (Blob(digest(list_)), fed.blob(msgspec.msgpack.encode(["dose", "age"]))):
        fed.site("site 0").store.put(f"blob {blob.hash}", fed.content(blob))
        note_columns(fed.site("site 0"), NoteColumns(lists=[blob]))
    with pytest.raises(RefusedError, match="fewer are known"):
        sv.HistogramForest(2, max_depth=2).fit(fed)
