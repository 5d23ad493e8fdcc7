"""Sites whose replies are nonsense, duplicate, late or misdirected: named or ignored, and the study stays intact."""

import struct
import zlib
from functools import cache

import msgspec
import numpy as np
import pytest
from helpers.studies import Late, Recorded, assert_books, disturbed, federate, from_reply, parts, table, twice

import silvan as sv
from silvan.errors import SiteError
from silvan.federation import wire
from silvan.federation.message import Envelope, Missing, Trouble

TABLES = parts(table(n=90), 3)
BAD = "site 1"
AGREED = 9  # replies of the agreement: three kinds, three sites


@cache
def whole():
    return fit(federate(TABLES)).hash


def fit(fed):
    return sv.HistogramForest(n_estimators=3, max_depth=3).fit(fed).forest_


def remade(data, **changes):
    return wire.encode(msgspec.structs.replace(wire.decode(data, Envelope), **changes))


def reply_with(data, **fields):
    """Changes fields of whatever message is inside."""
    envelope = wire.decode(data, Envelope)
    inside = msgspec.msgpack.decode(envelope.body, ext_hook=lambda code, d: wire.unpack_array(d))
    return remade(data, body=wire._ENCODER.encode({**inside, **{k: v(inside) for k, v in fields.items()}}))


def ext(data):
    """Puts an array written by hand where there are arrays."""
    envelope = wire.decode(data, Envelope)
    [name, *_] = msgspec.msgpack.decode(envelope.body)
    return lambda array: remade(
        wire.encode(envelope), body=msgspec.msgpack.encode({name: msgspec.msgpack.Ext(1, array)})
    )


CLAIM = struct.pack("<BBBBQ", 7, 7, 0, 1, 2**31)
BOMB = struct.pack("<BBBBQ", 7, 7, 1, 1, 2**29) + zlib.compress(b"\0" * 2**20)

# what a site may send in place of its true part, and the message about it
UNUSABLE = {
    "no message": (lambda data: b"\xc1\xc1", "unusable: not what Envelope should be"),
    "nothing": (lambda data: b"", "unusable"),
    "garbage inside": (lambda data: remade(data, body=b"\xff\xfe"), "unusable"),
    "nothing inside": (lambda data: remade(data, body=b"\x80"), "unusable"),
    "a reply to something else": (lambda data: remade(data, kind="Size"), "another kind of message"),
    "a request": (lambda data: remade(data, kind="CountGrid"), "another kind of message"),
    "two gigabytes claimed": (lambda data: ext(data)(CLAIM), "over the limit"),
    "a bomb": (lambda data: ext(data)(BOMB), "over the limit"),
    "another shape": (lambda data: reply_with(data, cells=lambda r: r["cells"][:, :-1]), "not the ones requested"),
    "another type": (lambda data: reply_with(data, cells=lambda r: r["cells"] * 1.0), "not the ones requested"),
    "wider numbers": (
        lambda data: reply_with(data, label=lambda r: r["label"].astype(np.int32)),
        "not the ones requested",
    ),
    "negative counts": (lambda data: reply_with(data, cells=lambda r: -r["cells"]), "not the ones requested"),
    "trouble": (
        lambda data: remade(data, kind="Trouble", body=wire.encode(Trouble("input", "\x1b[2J\x07" + "no" * 999))),
        "CountGrid: .2Jno",
    ),
    "asks for ever": (
        lambda data: remade(data, kind="Missing", body=wire.encode(Missing([wire.decode(data, Envelope).study]))),
        "keeps asking",
    ),
    "another round": (lambda data: remade(data, question="0" * 64), "did not answer CountGrid"),
    "in another's name": (lambda data: remade(data, sender="site 0"), "did not answer CountGrid"),
}


def unusable(how):
    """From the first sum on, one site replies like that."""

    def twist(site, data):
        asked = wire.decode(data, Envelope).kind == "GridCounts"
        return [(site, UNUSABLE[how][0](data) if site == BAD and asked else data)]

    return disturbed(twist)


@pytest.mark.parametrize("how", UNUSABLE)
def test_an_unusable_reply_names_the_site(how, tmp_path):
    fed = federate(TABLES, unusable(how), journal=str(tmp_path / "journal"))
    with pytest.raises(SiteError, match=UNUSABLE[how][1]) as caught:
        fit(fed)
    fed.close()
    assert caught.value.site == BAD
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()
    # nothing of it stays: with the site repaired, the study continues as if nothing had happened
    again = federate(TABLES, journal=str(tmp_path / "journal"))
    assert fit(again).hash == whole()
    again.close()


@pytest.mark.parametrize("how", UNUSABLE)
def test_an_unusable_reply_with_a_quorum(how):
    """The site is left out from there on, and the others continue."""
    fed = federate(TABLES, unusable(how), quorum=2)
    seen = []
    fed.watch(seen.append)
    forest = fit(fed)
    assert list(fed.lost) == [BAD]
    assert fed.active == ["site 0", "site 2"]
    assert [(e.site, e.kind) for e in seen if e.what == "lost"] == [(BAD, "CountGrid")]
    assert not [e for e in seen if e.site == BAD and e.kind == "CountFine"]
    assert forest == fit(federate({name: TABLES[name] for name in fed.active}, schema=fed.schema))


def test_histograms_that_do_not_add_up():
    """Right in shape and type, but no rows could give them."""

    def twist(site, data):
        if site == BAD and wire.decode(data, Envelope).kind == "Histograms":
            data = reply_with(data, sums=lambda r: r["sums"] + (np.arange(len(r["sums"])) == 1)[:, None])
        return [(site, data)]

    with pytest.raises(SiteError, match=f"{BAD}.*GrowLevel.*do not add up"):
        sv.HistogramForest(n_estimators=3, max_depth=3, max_features=None).fit(federate(TABLES, disturbed(twist)))


@pytest.mark.parametrize("bad", ["site 0", BAD], ids=["first", "later"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint32, np.int64, np.float64])
def test_histograms_of_another_type(dtype, bad):
    """The right numbers; also where they have as many bytes on the wire as narrowed counters."""

    def twist(site, data):
        if site == bad and wire.decode(data, Envelope).kind == "Histograms":
            data = reply_with(data, sums=lambda r: r["sums"].astype(dtype))
        return [(site, data)]

    with pytest.raises(SiteError, match=f"{bad}.*GrowLevel.*of another size"):
        fit(federate(TABLES, disturbed(twist)))


def test_counts_too_large_to_be_added():
    """Each number is a valid count, but their sum would overflow to a negative one."""

    def twist(site, data):
        if wire.decode(data, Envelope).kind == "GridCounts":
            data = reply_with(data, cells=lambda r: np.where(r["cells"] > 0, 2**31 - 1, 0).astype(np.int32))
        return [(site, data)]

    with pytest.raises(SiteError, match="cells too large to be added"):
        fit(federate(TABLES, disturbed(twist)))


# -- documented to have no effect


@pytest.mark.parametrize("kind", [disturbed(twice), Late], ids=["twice", "late"])
def test_harmless_changes_of_replies(kind):
    fed = federate(TABLES, kind)
    assert fit(fed).hash == whole()
    assert not fed.lost


# -- blobs


def test_a_blob_travels_once_to_each_site():
    fed = federate(TABLES, Recorded)
    fit(fed)
    blobs = [
        (site, h) for site, way, d in fed.transport.record if way == "received" for h in wire.decode(d, Envelope).blobs
    ]
    assert len(blobs) == len(set(blobs)) == 9  # the schema, the bins, and the counts of categories


def test_a_site_that_lost_its_blobs_is_sent_them_again():
    class Forgetful(Recorded):
        def deliver(self, messages, verb, timeout):
            for store in (member.store for member in self.local_sites.values()):
                for key in [key for key in store._values if key.startswith("blob ")]:
                    del store._values[key]
                store._blobs.clear()
            yield from super().deliver(messages, verb, timeout)

    fed = federate(TABLES, Forgetful)
    assert fit(fed).hash == whole()
    missing = [d for _, way, d in fed.transport.record if way == "sent" and wire.decode(d, Envelope).kind == "Missing"]
    assert len(missing) == 12  # at all sums but the first
    assert_books(fed)


def test_a_site_receives_only_referenced_blobs():
    """Knowing the hash of another site's model is not enough to get it."""
    fed = federate(TABLES, Recorded)
    secret = fed.blob(b"the model of another site")

    def twist(site, data):
        return [(site, remade(data, kind="Missing", body=wire.encode(Missing([secret.hash]))))]

    class Nosy(Recorded, disturbed(from_reply(AGREED, twist))):
        """Keeps what was sent, and disturbs the replies."""

    nosy = federate(TABLES, Nosy)
    nosy.blob(b"the model of another site")
    with pytest.raises(SiteError, match="keeps asking"):
        fit(nosy)
    sent = [data for _, way, data in nosy.transport.record if way == "received"]
    assert sent
    assert not any(b"the model" in data for data in sent)
