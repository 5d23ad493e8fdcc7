"""Blobs: known by what they hold, sent once to each site, each with the sites that made it."""

from silvan.federation.delivery.blobs import Blobs
from silvan.federation.message import Owner

NORTH, EAST = Owner("north", "a model", b"1"), Owner("east", "a model", b"2")


def test_the_same_content_is_the_same_blob():
    blobs = Blobs()
    blob = blobs.add(b"a schema")
    assert blobs.add(b"a schema") == blob != blobs.add(b"another")
    assert blobs.content(blob) == b"a schema"


def test_a_site_was_sent_what_a_message_to_it_had():
    blobs = Blobs()
    first, second = (blobs.add(data).hash for data in (b"first", b"second"))
    assert blobs.send("north", [first]) == {first: b"first"}
    assert blobs.not_sent("north", [second, first]) == [second]
    assert blobs.not_sent("east", [second, first]) == [second, first]


def test_two_sites_may_make_the_same():
    blobs = Blobs()
    work, other = blobs.add_work(b"a tree", NORTH), blobs.add(b"a schema")
    for maker in (EAST, NORTH):
        assert blobs.add_work(b"a tree", maker) == work
    assert blobs.makers(work) == [NORTH, EAST]
    assert blobs.makers(other) == []
    assert blobs.makers_by_hash([other.hash, work.hash]) == {work.hash: [NORTH, EAST]}
