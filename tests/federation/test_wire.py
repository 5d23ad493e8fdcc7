"""Bytes on the wire: what is written is read back, and nothing that is read can do harm."""

import struct
import tracemalloc
import zlib
from contextlib import suppress

import msgspec
import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from silvan.algorithms.horizontal.histogram_forest import Histograms
from silvan.algorithms.shared_bins import CutPoints
from silvan.errors import WireError
from silvan.federation import wire
from silvan.federation.message import Envelope

CODES = ["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8"]


class Mixed(msgspec.Struct, frozen=True):
    word: str
    numbers: list[int]
    array: np.ndarray
    arrays: dict[str, np.ndarray] = {}


any_array = st.sampled_from(CODES).flatmap(
    lambda code: st.sampled_from("<>").flatmap(
        lambda order: hnp.arrays(
            np.dtype(order + code), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
        )
    )
)


def same(a, b):
    """Equal bit for bit, NaN payloads included, in this machine's byte order."""
    native = a.astype(a.dtype.newbyteorder("="))
    return b.dtype == native.dtype and b.shape == a.shape and b.tobytes() == native.tobytes()


def array_bytes(kind=7, sent=7, deflated=0, shape=(2,), body=b"\0" * 8):
    """Writes an array by hand; kind 7 is int32."""
    return struct.pack("<BBBB", kind, sent, deflated, len(shape)) + struct.pack(f"<{len(shape)}Q", *shape) + body


def message(*arrays):
    """Puts arrays written by hand into a message."""
    first, *more = [msgspec.msgpack.Ext(1, a) for a in arrays]
    named = {str(i): value for i, value in enumerate(more)}
    return msgspec.msgpack.encode({"word": "", "numbers": [], "array": first, "arrays": named})


# -- round trips


@given(any_array)
@example(np.float64(2.5) * np.ones(()))
@example(np.zeros((3, 0, 2), ">i8"))
@example(np.arange(24, dtype=np.int64).reshape(2, 3, 4).T)
@example(np.arange(100)[::-3])
def test_arrays(array):
    back = wire.unpack_array(wire.pack_array(array))
    assert same(array, back)
    back[...] = 0  # a writable copy


@given(
    st.text(), st.lists(st.integers(-(2**63), 2**63 - 1)), any_array, st.dictionaries(st.text(), any_array, max_size=3)
)
@examples(40)
def test_messages(word, numbers, array, arrays):
    back = wire.decode(wire.encode(Mixed(word, numbers, array, arrays)), Mixed)
    assert (back.word, back.numbers) == (word, numbers)
    assert same(array, back.array)
    assert list(back.arrays) == list(arrays)
    assert all(same(arrays[k], back.arrays[k]) for k in arrays)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_integers_are_narrowed_and_widened_again(a, b):
    array = np.array([a, b], np.int64)
    data = wire.pack_array(array)
    assert same(array, wire.unpack_array(data))
    if min(a, b) >= 0 and max(a, b) < 256:
        assert len(data) == 4 + 8 + 2


@given(any_array)
@example(np.array([[1, 255], [0, 3]], np.int32))
@example(np.array([1, 256]))  # not aligned in the message
@example(np.array([-1, 3]))
@example(np.zeros(300, np.int64))
def test_counters_as_they_were_sent(array):
    """Read without a wide copy they are the same numbers, and keep the type they stand for."""
    back = wire.decode(wire.encode(Mixed("", [], array)), Mixed, narrow=True).array
    wide = wire.unpack_array(wire.pack_array(array))
    assert wire.element_type(back) == wire.element_type(wide) == wide.dtype
    assert same(wide, back.astype(wide.dtype))
    assert back.flags.aligned
    if back.dtype != wide.dtype:
        assert back.dtype.kind == "u"
        assert not back.flags.writeable


def test_a_claim_of_another_type_is_no_narrow_counter():
    """One byte per element, meant as such or as four bytes: a reader distinguishes the two."""
    byte = wire.unpack_array(wire.pack_array(np.array([1, 2], np.uint8)), narrow=True)
    counters = wire.unpack_array(wire.pack_array(np.array([1, 2], np.int32)), narrow=True)
    assert byte.dtype == counters.dtype == np.uint8
    assert (wire.element_type(byte), wire.element_type(counters)) == (np.uint8, np.int32)


@pytest.mark.parametrize("dtype", CODES)
def test_elements_are_little_endian(dtype):
    """A fixed byte layout, whatever machine wrote it."""
    array = np.array([0, 1], "<" + dtype)
    assert wire.pack_array(array) == wire.pack_array(array.astype(">" + dtype))
    assert wire.pack_array(np.array([1e300, 2.0])).endswith(struct.pack("<2d", 1e300, 2.0))
    assert wire.pack_array(np.array([258], np.uint16)).endswith(b"\x02\x01")


def test_sparse_arrays_are_compressed():
    counts = np.zeros((100, 1000), np.int64)
    counts[::10, 5] = 300
    data = wire.pack_array(counts)
    assert len(data) < counts.size // 50
    assert same(counts, wire.unpack_array(data))
    noise = np.random.default_rng(0).integers(0, 255, 10_000)
    assert len(wire.pack_array(noise)) < 10_000 + 20  # narrowed, and not compressed needlessly


@pytest.mark.parametrize(
    "array",
    [np.zeros(2, complex), np.array(["text"]), np.array([None]), np.zeros((1,) * 5), np.zeros(1, "M8[s]")],
    ids=lambda a: str(a.dtype),
)
def test_other_arrays_cannot_be_sent(array):
    with pytest.raises(TypeError, match="cannot be sent"):
        wire.encode(Histograms(sums=array))


def test_other_objects_cannot_be_sent():
    with pytest.raises(TypeError, match="cannot hold values of type object"):
        wire.encode(Mixed("", [], object()))


# -- hostile bytes


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x07\x07\x00",
        array_bytes(kind=11),
        array_bytes(sent=200),
        array_bytes(deflated=2),
        array_bytes(shape=(1,) * 5),
        array_bytes()[:9],
        array_bytes(body=b"\0" * 7),
        array_bytes(body=b"\0" * 9),
        array_bytes(shape=(3,)),
        array_bytes(kind=7, sent=8, body=b"\0" * 16),  # sent wider than it is
        array_bytes(kind=7, sent=9),  # floats narrowed to integers
        array_bytes(kind=9, sent=1, body=b"\0" * 2),
        array_bytes(kind=0, sent=0, body=b"\0\x02"),  # neither true nor false
        array_bytes(deflated=1, body=b"not deflated"),
        array_bytes(deflated=1, body=zlib.compress(b"\0" * 7)),
        array_bytes(deflated=1, body=zlib.compress(b"\0" * 9)),
        array_bytes(deflated=1, body=zlib.compress(b"\0" * 8)[:-1]),
        array_bytes(deflated=1, body=zlib.compress(b"\0" * 8) + b"more"),
    ],
)
def test_malformed_arrays(data):
    for narrow in (False, True):
        with pytest.raises(WireError):
            wire.unpack_array(data, narrow=narrow)
        with pytest.raises(WireError):
            wire.decode(message(data), Mixed, narrow=narrow)


@pytest.mark.parametrize(
    "shape",
    [(2**31,), (2**29,), (2**63,), (2**32, 2**32), (2**64 - 1,) * 4, (0, 2**40), (2**40, 0), (0, 2**63)],
)
@pytest.mark.parametrize("deflated", [0, 1])
def test_claimed_sizes_of_gigabytes(shape, deflated):
    """A claimed size is refused before memory is allocated for it."""
    bomb = zlib.compress(b"\0" * 2**20) if deflated else b""
    data = message(array_bytes(shape=shape, deflated=deflated, body=bomb))
    with peak_below(2**22), pytest.raises(WireError, match="over the limit"):
        wire.decode(data, Mixed)


def test_a_bomb_larger_than_its_claim():
    data = array_bytes(kind=1, sent=1, deflated=1, shape=(100,), body=zlib.compress(b"\0" * 2**24, 9))
    with peak_below(2**20), pytest.raises(WireError, match="does not match"):
        wire.unpack_array(data)


def test_arrays_share_the_limit_of_a_message(monkeypatch):
    """Many bombs, each below the limit, exceed it together."""
    monkeypatch.setattr(wire, "MAX_MESSAGE", 2**20)
    bomb = array_bytes(kind=1, sent=1, deflated=1, shape=(2**19,), body=zlib.compress(b"\0" * 2**19, 9))
    assert wire.decode(message(bomb), Mixed).array.nbytes == 2**19
    with peak_below(2**22), pytest.raises(WireError, match="over the limit"):
        wire.decode(message(*[bomb] * 1000), Mixed)
    counters = array_bytes(sent=1, shape=(2**17,), body=b"\0" * 2**17)  # one byte each, four when they are added up
    for narrow in (False, True):
        with pytest.raises(WireError, match="over the limit"):
            wire.decode(message(*[counters] * 3), Mixed, narrow=narrow)


def test_a_message_over_the_limit(monkeypatch):
    monkeypatch.setattr(wire, "MAX_MESSAGE", 100)
    with pytest.raises(WireError, match="101 bytes is over the limit of 100"):
        wire.decode(b"\0" * 101, Mixed)


@pytest.mark.parametrize(
    "data",
    [
        b"\xdd\xff\xff\xff\xff",  # a list of four billion
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
        b"\x84\xa4word\xdb\xff\xff\xff\xff",
        b"\x91" * 100_000,  # lists in lists
        b"\x81\xa1x" * 100_000,
        b"\x81\xa4word\xa1\xff",  # not UTF-8
        b"\xc1",
        msgspec.msgpack.encode({"word": "", "numbers": [], "array": msgspec.msgpack.Ext(2, b"")}),
        msgspec.msgpack.encode({"word": "", "numbers": [], "array": [1, 2]}),
        msgspec.msgpack.encode({"word": "", "numbers": [1.5], "array": None}),
    ],
    ids=lambda data: data[:8].hex(),
)
@pytest.mark.parametrize("kind", [Mixed, Envelope])
def test_malformed_messages(data, kind):
    with peak_below(2**22), pytest.raises(WireError):
        wire.decode(data, kind)


def test_errors_do_not_quote():
    for data in (b"\x81\xa6SECRET\x01", msgspec.msgpack.encode({"word": 12345678, "numbers": "SECRET"})):
        with pytest.raises(WireError) as caught:
            wire.decode(data, Mixed)
        assert "SECRET" not in str(caught.value)
        assert "12345678" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__


ARRAYS = {"sparse": np.eye(40, dtype=np.int64), "true": np.ones(3, np.bool_)}
SAMPLES = [
    (Mixed, wire.encode(Mixed("word", [1, -5], np.arange(20.0), ARRAYS))),
    (Envelope, wire.encode(Envelope("study", "question", "site", "Kind", b"body", {"hash": b"blob"}, ["a", "b"]))),
    (CutPoints, wire.encode(CutPoints(np.array([2, 0, 1]), np.array([0.5, 1.5, -2.0], np.float32)))),
]


def test_thousands_of_damaged_messages():
    """A damaged message either reads as a message or is refused."""
    rng = np.random.default_rng(0)
    refused = 0
    for kind, sample in SAMPLES:
        for _ in range(3000):
            data = bytearray(sample)
            for _ in range(rng.integers(1, 4)):
                how, at = rng.integers(4), int(rng.integers(len(data)))
                if how == 0:
                    data[at] = rng.integers(256)
                elif how == 1:
                    data[at] ^= 1 << int(rng.integers(8))
                elif how == 2:
                    del data[at : at + int(rng.integers(1, 9))]
                else:
                    data[at:at] = rng.bytes(int(rng.integers(1, 9)))
                data = data or bytearray(b"\0")
            try:
                assert isinstance(wire.decode(bytes(data), kind), kind)
            except WireError:
                refused += 1
    assert 1000 < refused < 9000


@given(st.binary(max_size=200))
@examples(300)
def test_any_bytes(data):
    for read in (lambda: wire.decode(data, Mixed), lambda: wire.unpack_array(data)):
        with suppress(WireError):
            read()


class peak_below:  # noqa: N801
    """Fails if more memory than this is used at any time."""

    def __init__(self, size):
        self.size = size

    def __enter__(self):
        tracemalloc.start()

    def __exit__(self, *error):
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < self.size
