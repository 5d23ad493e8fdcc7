"""Encrypted histograms compared with plain ones, at the limits of the packing, and with lying parties."""

from copy import copy

import numpy as np
import pytest
from helpers.examples import examples
from helpers.naive_kernels import fill_naive
from hypothesis import given
from hypothesis import strategies as st

from silvan.data.bins.bins import Bins, HistogramBins
from silvan.errors import CipherError, InputError
from silvan.federation import wire
from silvan.privacy.paillier import modular
from silvan.privacy.paillier.cipher import Ciphertexts, Masks, decrypt, encrypt
from silvan.privacy.paillier.modular_kernels import has_vectors
from silvan.privacy.paillier.packing import (
    AskedHistograms,
    Lanes,
    encrypt_rows,
    list_cells,
    read_sums,
    receive_rows,
    sum_rows,
)
from silvan.privacy.paillier.paillier_keys import PrivateKey
from silvan.tree.level import fill_bases
from silvan.tree.node_rows import Binned, NodeRows

pytest.importorskip("gmpy2", reason="no gmpy2, so encrypted sums are not tested; pip install 'silvan[vertical]'")

KEY = PrivateKey(0xD59158EC5ADE142E07E960523DB20DDB, 0xE970CF55A3BF456ACA87568570BB01E3)
MASKS = Masks(KEY.public)


class Study:
    """A table with secret numbers, sorted into nodes that use some features."""

    def __init__(
        self, seed, rows=40, fields=2, most=1, nodes=3, n_bins=(5, 1, 9), n_sampled=2, extreme=False, gaps=False
    ):
        rng = np.random.default_rng(seed)
        self.n_bins, self.offsets = np.array(n_bins), np.arange(seed, seed + nodes) % 4
        self.shift = np.where((self.n_bins > 1) & (self.n_bins < 60), seed % 3, 0).astype(np.uint8)
        codes = [rng.integers(0, b << s, rows) - (1 << s) + 1 for b, s in zip(n_bins, self.shift.tolist(), strict=True)]
        self.codes = np.maximum(np.stack(codes, axis=1), 0).astype(np.uint8)
        self.codes[rng.random(self.codes.shape) < 0.3] = 0
        self.values = np.full((rows, fields), most) if extreme else rng.integers(0, most + 1, (rows, fields))
        self.lanes = Lanes(256, rows, fields, most)
        self.order = rng.permutation(rows)[: max(1, rows - rows // 4)]
        cuts = np.sort(rng.integers(0, len(self.order) + 1, nodes - 1))
        self.starts, self.stops = np.append(0, cuts), np.append(cuts, len(self.order))
        self.features = np.full((nodes, n_sampled), -1, np.int32)
        for drawn in self.features:
            n = min(len(n_bins), rng.integers(0, n_sampled + 1) if gaps else n_sampled)
            drawn[:n] = np.sort(rng.permutation(len(n_bins))[:n])

    @property
    def sizes(self):
        return self.stops - self.starts

    @property
    def totals(self):
        return np.stack([self.values[r].sum(axis=0) for r in self.nodes()])

    @property
    def asked(self):
        """The rows by node, the requested nodes, and their features."""
        n_bins, shift = self.n_bins, self.shift
        bins = Bins((), (), np.zeros(len(n_bins), np.bool_), n_bins, shift)
        object.__setattr__(bins, "in_histograms", HistogramBins(n_bins, shift, n_bins))
        keys = np.zeros(len(self.codes), np.uint64)
        table = Binned(self.codes, np.zeros(len(self.codes), np.uint16), keys, bins, 1)
        rows = NodeRows.__new__(NodeRows)  # sorted into nodes already
        rows.table, rows.order, rows.offsets = table, self.order, self.offsets
        rows.starts, rows.stops = self.starts, self.stops
        return rows, np.arange(len(self.starts)), self.features

    def nodes(self):
        return [self.order[a:b] for a, b in zip(self.starts, self.stops, strict=True)]

    def plain(self):
        """The result of ``fill_naive``."""
        bins = HistogramBins(self.n_bins, self.shift, self.n_bins)
        wanted = [
            fill_naive(self.codes, self.values, rows, f, bins, offset, self.lanes.fields)
            for rows, drawn, offset in zip(self.nodes(), self.features, self.offsets.tolist(), strict=True)
            for f in drawn
            if f >= 0
        ]
        return np.concatenate([np.zeros((0, self.lanes.fields), np.int64), *wanted])

    def send(self, n_jobs=1, **options):
        rows = receive_rows(KEY.public, self.lanes, encrypt_rows(KEY, self.lanes, self.values, n_jobs), n_jobs)
        return sum_rows(rows, MASKS, *self.asked, n_jobs, **options)

    def read(self, counts, sums, n_jobs=1):
        asked = AskedHistograms(self.features, self.n_bins)
        return read_sums(KEY, self.lanes, asked, counts, sums, self.sizes, self.totals, n_jobs)


@st.composite
def studies(draw):
    return Study(
        draw(st.integers(0, 2**32)),
        rows=draw(st.integers(1, 60)),
        fields=draw(st.sampled_from([1, 2, 3, 23, 60])),
        most=draw(st.sampled_from([1, 2, 1000, 2**40])),
        nodes=draw(st.integers(1, 4)),
        n_bins=draw(st.lists(st.integers(1, 12) | st.just(256), min_size=1, max_size=4)),
        n_sampled=draw(st.integers(1, 3)),
        extreme=draw(st.booleans()),
        gaps=draw(st.booleans()),
    )


@examples(40)
@given(studies())
def test_encrypted_histograms_equal_plain_ones(study):
    counts, sums = study.send()
    assert (study.read(counts, sums) == study.plain()).all()
    study.values = np.ones_like(study.values)
    assert (counts == study.plain()[:, 0]).all()


@pytest.mark.skipif(not has_vectors(), reason="no AVX-512 IFMA here, so there is one kernel to test")
def test_both_kernels_give_the_same_bytes(monkeypatch):
    study = Study(4, fields=3, nodes=4)
    sent = []
    for vectors in (True, False):
        monkeypatch.setattr(modular, "has_vectors", lambda vectors=vectors: vectors)
        key = PrivateKey(KEY.p, KEY.q)

        def entropy(count):
            return bytes(np.random.default_rng(count).bytes(count))

        encrypted = encrypt_rows(key, study.lanes, study.values, 2, entropy)
        rows = receive_rows(key.public, study.lanes, encrypted)
        counts, sums = sum_rows(rows, Masks(key.public, entropy=entropy), *study.asked, entropy=entropy)
        assert (study.read(counts, sums) == study.plain()).all()
        sent.append([encrypted.data.tobytes(), sums.data.tobytes()])
    assert sent[0] == sent[1]


def test_threads_change_nothing():
    study = Study(3, rows=80, fields=3, nodes=5, n_bins=(30, 40, 7))
    counts, sums = study.send(n_jobs=4)
    assert (study.read(counts, sums, n_jobs=3) == study.plain()).all()


def test_the_wire_form():
    study = Study(1)
    counts, sums = study.send()
    assert sums.data.dtype == np.uint8
    assert sums.data.shape[1] == KEY.public.width == 64
    arrived = wire.decode(wire.encode(sums), Ciphertexts)
    assert (study.read(counts.astype(np.uint16), arrived) == study.plain()).all()
    assert wire.decode(wire.encode(study.lanes), Lanes) == study.lanes


def test_sums_get_fresh_masks_each_time():
    study = Study(2)
    encrypted = encrypt_rows(KEY, study.lanes, study.values, 1)
    rows = receive_rows(KEY.public, study.lanes, encrypted, 1)
    (_, a), (_, b) = sum_rows(rows, MASKS, *study.asked), sum_rows(rows, MASKS, *study.asked)
    assert len(a) > 0
    assert (a.data != b.data).any(axis=1).all()
    assert decrypt(KEY, a) == decrypt(KEY, b)
    fixed = [sum_rows(rows, MASKS, *study.asked, n_jobs=n, entropy=lambda count: bytes([7]) * count)[1] for n in (1, 3)]
    assert (fixed[0].data == fixed[1].data).all()


# what fits


@pytest.mark.parametrize(
    ("rows", "fields", "most", "parts", "stride"),
    [
        (100, 1, 1, 1, 255),
        (100, 2, 1, 1, 127),
        (100, 36, 1, 1, 7),  # 36 lanes of the 7 bits that 100 takes
        (100, 37, 1, 2, 13),
        (2**20, 23, 1, 2, 21),
        (1000, 1, 2**50, 1, 255),
        (1000, 5, 2**50, 2, 85),
    ],
)
def test_lanes(rows, fields, most, parts, stride):
    lanes = Lanes(256, rows, fields, most)
    assert (lanes.parts, lanes.stride) == (parts, stride)
    assert (1 << lanes.stride) > rows * most
    assert lanes.stride * lanes.fields_a_part <= 255
    assert [f for i in range(parts) for f in range(fields)[lanes.part(i)]] == list(range(fields))


def test_23_classes_fit_one_ciphertext_of_full_size():
    assert Lanes(2048, 500_000, 23, 1).parts == 1
    assert Lanes(2048, 20_000, 136, 1).parts == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        *(({name: value}, "at least 1") for name, value in (("rows", 0), ("fields", 0), ("most", 0), ("bits", -1))),
        ({"bits": 2048, "rows": 2**31, "most": 2**31}, "more than 62 bits"),
        ({"bits": 32, "rows": 2**20, "most": 2**20}, "does not fit a key of 32 bits"),
    ],
    ids=str,
)
def test_lanes_of_nothing_or_that_would_overflow_are_refused_before_anything_is_encrypted(wrong, said):
    with pytest.raises(InputError, match=said):
        Lanes(**{"bits": 256, "rows": 10, "fields": 1, "most": 1, **wrong})


@pytest.mark.parametrize("bad", [-1, 2])
def test_values_outside_their_lane(bad):
    study = Study(0)
    study.values[7, 1] = bad
    with pytest.raises(InputError, match="from 0 to 1"):
        study.send()


FOUR = Lanes(256, 4, 2, 1)


@pytest.mark.parametrize(
    ("lanes", "values", "said"),
    [
        (FOUR, np.zeros((4, 3), int), "values must be whole numbers"),
        (FOUR, np.zeros((3, 2), int), "values must be whole numbers"),
        (FOUR, np.zeros((4, 2)), "values must be whole numbers"),
        (FOUR, np.zeros(8, int), "values must be whole numbers"),
        (Lanes(2048, 4, 2, 1), np.zeros((4, 2), int), "lanes for a key of 2048 bits"),
        (Lanes(256, 1, 2, one_hot=True), np.array([[0, 0]]), "one 1 a row"),
        (Lanes(256, 1, 2, one_hot=True), np.array([[1, 1]]), "one 1 a row"),
    ],
)
def test_values_that_do_not_fit_their_lanes(lanes, values, said):
    with pytest.raises(InputError, match=said):
        encrypt_rows(KEY, lanes, values)


def test_a_lane_may_be_filled_completely():
    """31 lanes of 8 bits; a bin of 100 rows with 1 in every lane, beside one of 101 that is left out."""
    study = Study(0, rows=201, fields=31, n_bins=(2,), nodes=1, n_sampled=1, extreme=True)
    study.lanes = Lanes(256, 201, 31, 1)
    assert study.lanes.stride == 8
    study.codes[:, 0] = np.arange(201) < 101
    study.order, study.starts, study.stops = np.arange(201), np.array([0]), np.array([201])
    study.features[:] = 0
    assert (study.read(*study.send()) == [[100] * 31, [101] * 31]).all()


def test_more_rows_in_a_bin_than_agreed():
    """A row listed twice: its bin could outgrow its lane."""
    study = Study(0, rows=5, n_bins=(3,), nodes=1, n_sampled=1)
    study.features[:] = 0
    study.codes[:, 0] = [1, 1, 1, 2, 2]
    study.order, study.stops = np.repeat(np.arange(5), 2), np.array([10])
    with pytest.raises(InputError, match="a bin has 6 rows, but lanes were made for 5"):
        study.send()


@given(st.lists(st.integers(0, 500), min_size=1, max_size=60), st.sampled_from([1, 3, 1000]), st.integers(1, 9))
def test_shifting_is_never_more_work_than_adding(counts, most, fields):
    """And no bin is forgotten or cut: cells fit a lane, and only the empty and the fullest bins are left out."""
    counts = np.array(counts)
    lanes = Lanes(256, 30_000, fields, most)
    cells = list_cells(counts, AskedHistograms(np.zeros((1, 1), np.int32), np.array([len(counts)])), lanes)
    left_out = set(range(len(counts))) - set(cells.bin.tolist())
    assert {int(counts[b]) for b in left_out} <= {0, int(counts.max())}
    assert sum(counts[b] > 0 for b in left_out) == (counts.max() > 0)
    assert cells.width.tolist() == [(int(c) * most).bit_length() for c in cells.rows]
    assert all(cells.width[a:b].sum() <= lanes.stride for a, b in zip(cells.first[:-1], cells.first[1:], strict=True))
    if most == 1:
        assert cells.width.sum() <= counts.sum()


# lies


@pytest.fixture(scope="module")
def sent():
    study = Study(5, rows=60, nodes=2, n_bins=(6, 8))
    study.features[:] = [0, 1]
    return study, *study.send()


def test_changed_ciphertexts(sent):
    study, counts, sums = sent
    for place in (0, 20, 63):
        data = sums.data.copy()
        data[0, place] ^= 1
        with pytest.raises(CipherError):
            study.read(counts, Ciphertexts(sums.key, data))


def test_plaintexts_that_are_not_sums():
    """Bits outside the used ones, a lane without field, more than a bin's rows can hold: each is detected."""
    study = Study(0, rows=10, fields=63, n_bins=(2,), nodes=1, n_sampled=1)
    study.codes[:, 0] = np.arange(10) < 5
    study.values[:] = 0
    study.order, study.starts, study.stops = np.arange(10), np.array([0]), np.array([10])
    lanes = study.lanes
    assert (lanes.parts, lanes.fields_a_part, lanes.stride) == (1, 63, 4)
    counts, sums = study.send()
    assert decrypt(KEY, sums) == [0]

    def lie(plain):
        return study.read(counts, encrypt(KEY, plain, 1))

    for plain, said in (
        (1 << 3, "beside sums"),  # five rows take three bits of the four
        (1 << (63 * 4), "beside sums"),
        (6, "larger than so many rows"),
        (5, "those of their node"),
    ):
        with pytest.raises(CipherError, match=said):
            lie([plain])
    study.lanes = Lanes(256, 10, 65)
    study.values = np.zeros((10, 65), np.int64)
    assert (study.lanes.parts, study.lanes.fields_a_part) == (2, 33)
    with pytest.raises(CipherError, match="beside sums"):
        lie([0, 1 << (32 * study.lanes.stride)])


WRONG = {
    "another key": lambda sums: Ciphertexts(b"x" * 16, sums.data),
    "no key": lambda sums: Ciphertexts(b"", sums.data),
    "too few": lambda sums: Ciphertexts(sums.key, sums.data[:-1]),
    "too many": lambda sums: Ciphertexts(sums.key, np.concatenate([sums.data, sums.data[:1]])),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_ciphertexts_of_another_key_or_number(sent, wrong):
    study, counts, sums = sent
    changed, of_key = WRONG[wrong](sums), "key" in wrong
    with pytest.raises(CipherError, match="not for" if of_key else "ciphertexts were expected"):
        study.read(counts, changed)
    with pytest.raises(CipherError, match="not for" if of_key else "were agreed on"):
        receive_rows(KEY.public, Lanes(256, len(sums), 1, 1), changed)


def test_impossible_counts_are_refused(sent):
    study, counts, sums = sent
    base = fill_bases(study.features, study.n_bins)[0, 1]

    def moved(bin_, change):
        wrong = counts.copy()
        wrong[bin_] += change
        return wrong

    for wrong, said in [
        *((shape, "counts were asked for") for shape in (counts[:-1], counts.astype(float), counts[None])),
        (moved(0, 1), "do not add up"),
        (moved(base, -(10**6)), "from 0 to 60"),
        (moved(0, 61), "from 0 to 60"),
    ]:
        with pytest.raises(CipherError, match=said):
            study.read(wrong, sums)


def test_counts_that_contradict_the_sums():
    """Rows counted in another bin than the one that sums them: detected if each row has one class."""
    study = Study(5, rows=60, nodes=2, n_bins=(6, 8))
    study.values[:, 1] = 1 - study.values[:, 0]
    study.lanes = Lanes(256, 60, 2, one_hot=True)
    counts, sums = study.send()
    assert (study.read(counts, sums) == study.plain()).all()
    for change in (1, -1):
        wrong = counts.copy()
        wrong[[1, 2]] += change, -change
        assert wrong.min() >= 0
        with pytest.raises(CipherError, match="sums"):
            study.read(wrong, sums)


def test_sums_of_other_rows_do_not_add_up(sent):
    study, counts, _ = sent
    other = copy(study)
    other.values = np.ones_like(study.values)
    lies = other.send()[1]
    with pytest.raises(CipherError, match="do not add up to those of their node"):
        study.read(counts, lies)


def test_masks_of_another_key():
    study = Study(0)
    rows = receive_rows(KEY.public, study.lanes, encrypt_rows(KEY, study.lanes, study.values))
    other = Masks(PrivateKey(0xD59158EC5ADE142E07E960523DB20DDB, 0xD59158EC5ADE142E07E960523DB20DDB + 2).public)
    with pytest.raises(InputError, match="masks are of"):
        sum_rows(rows, other, *study.asked)
