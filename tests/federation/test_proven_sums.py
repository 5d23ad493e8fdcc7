"""Proofs of sums: what sites counted passes, and nothing else does; fingerprints change with any difference."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from silvan.federation.handlers import HANDLERS
from silvan.federation.message import SummedReply
from silvan.federation.proven_sums import PRIME, ROOM, SumName, fingerprint_of, is_proven, points_of, prove
from silvan.federation.sums import add

KEY = b"k" * 32
POINTS = points_of(KEY, "a study")


class Counts(SummedReply, frozen=True, kw_only=True):
    """Two fields of counters."""

    first: np.ndarray
    second: np.ndarray


def naive(reply, points):
    """The same with Python's integers, counter by counter."""
    counters = [int(c) for name in ("first", "second") for c in getattr(reply, name).reshape(-1)]
    return tuple(sum(c * pow(point, i + 1, PRIME) for i, c in enumerate(counters)) % PRIME for point in points)


def counts(first, second=()):
    return Counts(first=np.asarray(first), second=np.asarray(second, np.int64))


TYPES = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64]


@given(st.data())
def test_the_kernel_is_its_naive_twin(data):
    """For every width and sign, every size of counters, over the end of a block and of a field."""
    dtype = data.draw(st.sampled_from(TYPES))
    some = hnp.arrays(dtype, hnp.array_shapes(max_dims=2, max_side=9))
    reply = counts(data.draw(some), data.draw(hnp.arrays(np.int64, st.integers(0, 5))))
    assert fingerprint_of(reply, POINTS).values == naive(reply, POINTS)


@pytest.mark.parametrize("n", [0, 1, 1023, 1024, 1025, 3000])
@pytest.mark.parametrize("size", [1, 1 << 20, 1 << 22, 1 << 40, 1 << 62])
def test_over_the_ends_of_blocks(n, size):
    draw = np.random.default_rng(n)
    reply = counts(draw.integers(-size, size, n), draw.integers(0, size, 7))
    assert fingerprint_of(reply, POINTS).values == naive(reply, POINTS)


def test_over_the_end_of_a_piece():
    first = np.zeros((1 << 16) + 5, np.uint16)
    first[[0, 1023, 1024, -6, -1]] = 1, 2, 3, 4, 5
    assert fingerprint_of(counts(first, [6]), POINTS).values == naive(counts(first, [6]), POINTS)


def test_fingerprints_add_up():
    draw = np.random.default_rng(1)
    parts = [counts(draw.integers(0, 1 << 30, (40, 50)), draw.integers(-9, 9, 30)) for _ in range(5)]
    whole = Counts(first=sum(p.first for p in parts), second=sum(p.second for p in parts))
    each = [fingerprint_of(part, POINTS).values for part in parts]
    assert fingerprint_of(whole, POINTS).values == tuple(sum(of) % PRIME for of in zip(*each, strict=True))


def test_a_single_count_among_a_million_is_missed_by_no_point():
    first = np.random.default_rng(2).integers(0, 1000, 1_000_000)
    before = fingerprint_of(counts(first), POINTS).values
    for at in (0, 517_213, 999_999):
        first[at] += 1
        after = fingerprint_of(counts(first), POINTS).values
        assert all(a != b for a, b in zip(before, after, strict=True))
        first[at] -= 1


def test_counts_that_change_places_or_fields_are_found():
    before = fingerprint_of(counts([1, 2, 3], [4]), POINTS).values
    for other in (counts([2, 1, 3], [4]), counts([1, 2, 4], [3]), counts([0, 1, 2], [3])):
        assert fingerprint_of(other, POINTS).values != before


def test_even_differences_are_found():
    """Modulo 2^64, differences by large powers of two vanish in products with even numbers; a prime has no such."""
    before = fingerprint_of(counts(np.zeros(8, np.int64)), (2, 4)).values
    other = np.zeros(8, np.int64)
    other[[1, 6]] = 1 << 58, 1 << 57
    assert fingerprint_of(counts(other), (2, 4)).values != before


@pytest.mark.parametrize("value", [ROOM, -ROOM - 1, -(1 << 63)])
def test_counters_that_could_hide_a_difference_are_noticed(value):
    """A difference of p is none modulo p: so whoever compares must know how large counters can be."""
    honest, lied = counts([value]), counts([value + PRIME])
    assert fingerprint_of(honest, POINTS).values == fingerprint_of(lied, POINTS).values
    assert max(fingerprint_of(one, POINTS).largest for one in (honest, lied)) >= ROOM
    assert fingerprint_of(counts([ROOM // 2 - 1, 1 - ROOM // 2]), POINTS).largest < ROOM
    assert fingerprint_of(Counts(first=np.array([1 << 63], np.uint64), second=np.array([0])), POINTS).largest >= ROOM


def test_points_are_of_one_key_and_one_study():
    assert len({*POINTS, *points_of(b"k" * 32, "another"), *points_of(b"o" * 32, "a study")}) == 6


# -- proofs


def test_every_kind_of_sum_carries_a_proof():
    kinds = [kind for kind, _ in HANDLERS.values() if kind.verb == "total"]
    assert len(kinds) > 20
    assert [kind.kind() for kind in kinds if not issubclass(kind.reply, SummedReply)] == []


SITES = ["a", "b", "c"]
NAME, ASKED = SumName("a study", "ward (1)", SITES), {"a": "one", "b": "one", "c": "another"}


def proved(parts, name=NAME, asked=ASKED):
    """The sum of what sites counted, with its proof."""
    total = None
    for site, part in zip(asked, parts, strict=True):
        own = prove(KEY, name, asked[site], site, part)
        total = own if total is None else add(total, own, site, [])
    return total


def drawn(rng):
    return [counts(rng.integers(0, 50, (2, 100)).astype(np.int32), rng.integers(-9, 9, 3)) for _ in SITES]


@pytest.fixture
def total():
    return proved(drawn(np.random.default_rng(0)))


def test_the_sum_of_what_sites_answered_is_proven(total):
    assert is_proven(KEY, NAME, ASKED, total) is True


def with_(total, **changed):
    return type(total)(**({name: getattr(total, name) for name in total.__struct_fields__} | changed))


def test_nothing_else_is(total):
    more = total.first.copy()
    more[1, 7] += 1
    forged = {
        "a count": with_(total, first=more),
        "a count and the proof": with_(total, first=more, proof=total.proof + 1),
        "a multiple": with_(total, first=2 * total.first, second=2 * total.second, proof=2 * total.proof),
        "nothing": with_(total, first=0 * total.first, second=0 * total.second, proof=0 * total.proof),
        "another shape of proof": with_(total, proof=total.proof[:1]),
        "no proof": with_(total, proof=total.proof[:0]),
        "as if a part were too large": with_(total, proof=total.proof + np.array([0, 0, 0, 0, 1])),
    }
    assert [what for what, other in forged.items() if is_proven(KEY, NAME, ASKED, other) is not False] == []


def test_a_sum_is_of_one_study_one_task_its_sites_and_their_requests(total):
    fewer = {site: ASKED[site] for site in ["a", "b"]}
    others = {
        "study": (NAME._replace(study="another"), ASKED),
        "task": (NAME._replace(task="ward (2)"), ASKED),
        "sites": (NAME._replace(over=["a", "b"]), fewer),
        "sites in the sum": (NAME._replace(over=["a", "b"]), ASKED),
        "fewer asked": (NAME, fewer),
        "a request": (NAME, ASKED | {"c": "one"}),
    }
    assert [what for what, (name, asked) in others.items() if is_proven(KEY, name, asked, total) is not False] == []
    assert is_proven(b"o" * 32, NAME, ASKED, total) is False


def test_the_order_of_sites_is_nothing(total):
    assert is_proven(KEY, NAME._replace(over=SITES[::-1]), dict(reversed(ASKED.items())), total) is True


@pytest.mark.parametrize("large", [ROOM // 3 + 1, -(1 << 61)])
def test_parts_too_large_to_tell_are_noticed(large):
    """A difference of p is none modulo p, so whoever checks must know how large counters are in each part."""
    parts = drawn(np.random.default_rng(0))
    parts[1].second[0] = large
    total = proved(parts)
    assert is_proven(KEY, NAME, ASKED, total) is None
    assert is_proven(KEY, NAME, ASKED, with_(total, proof=total.proof - np.array([0, 0, 0, 0, 1]))) is False


def test_a_sum_too_large_is_not_proven(total):
    """Although it has the fingerprint of the true one."""
    lied = total.second.copy()
    lied[0] += PRIME
    assert is_proven(KEY, NAME, ASKED, with_(total, second=lied)) is False


def test_one_sites_proof_tells_nothing_of_its_counts():
    """Equal parts have other proofs for every site, request and task: a coordinator can compare none of them."""
    zero, one = counts(np.zeros(10, np.int64)), counts(np.ones(10, np.int64))
    named = [(NAME._replace(task=task), asked, site) for task in "xy" for asked in "pq" for site in SITES]
    proofs = {tuple(prove(KEY, *by, part).proof.tolist()) for by in named for part in (zero, one)}
    assert len(proofs) == 2 * len(named)


def test_without_a_number_of_its_own_a_part_can_be_tried_at_the_points(monkeypatch):
    """The attack: whoever sees parts solves for a point where two proofs are of one polynomial, and forges sums."""
    monkeypatch.setattr("silvan.federation.proven_sums._own", lambda *named: (0, 0))
    low, high = prove(KEY, NAME, "one", "a", counts([1])).proof[:2][::-1]
    point = int(low) + (int(high) << 31)  # 1 x
    assert point == POINTS[0]
