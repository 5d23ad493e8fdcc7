"""A party that lies in a reply is named, unless the lie concerns its own table (``helpers/lying_party.py``)."""

import pytest
from helpers.column_studies import answering, federate, lying, mirrored, split, wide
from helpers.lying_party import Studies

import silvan as sv
from silvan.algorithms.vertical import encrypted_labels
from silvan.algorithms.vertical.encoded import Sides, Values
from silvan.algorithms.vertical.encrypted_splits import LeftBits


def test_a_party_that_lies():
    """A few of two thousand studies; the program runs more."""
    found = Studies(names=("classes", "number", "linear")).run(24)
    assert found.failures == []
    assert found.seen["named"] > 8


@pytest.mark.parametrize("task", ["binary", "number"])
def test_a_forged_partition(task):
    """The label holder counts the rows of every open node, so a partition covers the rows of the sent statistics."""
    fed = federate(split(wide(task, n=240), 3), lying("party 1", Sides, bits=mirrored))
    with pytest.raises(
        sv.FederationError, match=r"'party 0' counts other rows at a node than party 'party 1' reported"
    ):
        sv.VerticalForest(4, max_depth=4).fit(fed)


def test_a_forged_partition_of_encrypted_labels(monkeypatch):
    pytest.importorskip("gmpy2", reason="gmpy2 is not installed: pip install 'silvan[vertical]'")
    monkeypatch.setattr(encrypted_labels, "TESTING", True)
    fed = federate(split(wide(n=120), 3))
    answering(fed.party("party 2"), LeftBits, bits=mirrored)
    with pytest.raises(sv.RefusedError, match="party 'party 2' splits a node differently from its sums"):
        sv.VerticalForest(4, max_depth=3, labels="encrypted", key_bits=256).fit(fed)


def test_honest_parties_are_not_blamed_for_the_label_holder():
    """A party whose counts differ from those of others is named together with them."""
    fed = federate(split(wide(n=120), 3), lying("party 0", Values, totals=lambda totals: totals[::-1].copy()))
    with pytest.raises(sv.FederationError, match="'party 0'"):
        sv.VerticalForest(4, max_depth=3).fit(fed)


def test_a_label_holder_without_columns_counts_too():
    frame = wide(n=120)
    tables = split(frame, 2, holder=-1)
    tables = {"labels": frame.select("person", "label"), **tables}
    model = sv.VerticalForest(4, max_depth=4).fit(federate(tables))
    assert model.forest_ == sv.PooledForest(4, max_depth=4).fit(federate(tables)).forest_
    with pytest.raises(sv.FederationError, match="'labels' counts other rows at a node than party 'party 1' reported"):
        sv.VerticalForest(4, max_depth=4).fit(federate(tables, lying("party 1", Sides, bits=mirrored)))
