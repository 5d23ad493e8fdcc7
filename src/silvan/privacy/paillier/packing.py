"""Encrypted histograms: many counters in one ciphertext.

A row's numbers (one per class, or one target) are in lanes, equal ranges of the bits of a plaintext. The party with
the rows' ciphertexts multiplies those of a bin, which adds them up lane by lane. The sums of several bins then go
into one ciphertext: each is shifted up within its lane to make room for the next, in all lanes at once. A bin of c
rows needs only the bits of c times the maximum of a row, so if rows count one each, there are at most as many shifts
by a bit (squarings) as additions of rows. Empty bins take no space; the fullest bin of a histogram is left out,
because the label holder knows the node's totals and can subtract.

The layout follows from the counts of rows by bin. They reveal nothing about labels, but something about the columns:
seal them for the owner of the key, who would find them in the sums anyway.
"""

import secrets
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec
import numpy as np

from silvan.errors import CipherError, InputError
from silvan.privacy.paillier.cipher import Ciphertexts, Masks, check_ciphertexts, decrypt, encrypt
from silvan.privacy.paillier.modular import cut_bits, products, run_chains, to_words
from silvan.privacy.paillier.modular_kernels import SQUARE
from silvan.privacy.paillier.paillier_keys import Entropy, PrivateKey, PublicKey
from silvan.tree.level import fill_bases, fill_nodes, place_level
from silvan.tree.node_rows import NodeRows
from silvan.util.kernels import njit
from silvan.util.threads import thread_count

_LARGEST = 1 << 62
"""Sums are read as int64."""


class Lanes(msgspec.Struct, frozen=True):
    """The layout of a row's numbers: ``fields`` of them, each from 0 to ``most``, of at most ``rows`` rows.

    Agreed once; it defines the layout completely. If fields are classes (``one_hot``: a 1 and zeros), a check detects
    sums that do not add up to the rows of their bin.
    """

    bits: int  # of the key
    rows: int
    fields: int
    most: int = 1
    one_hot: bool = False

    def __post_init__(self) -> None:
        """Check that no sum can overflow, before anything is encrypted."""
        if min(self.bits, self.rows, self.fields, self.most) < 1:
            raise InputError("bits, rows, fields and most must be at least 1")
        if self.rows * self.most >= _LARGEST:
            raise InputError(f"{self.rows} rows of up to {self.most} each add up to more than 62 bits")
        if self._width > self.capacity:
            raise InputError(f"a sum of {self._width} bits does not fit a key of {self.bits} bits; use a larger key")

    @property
    def capacity(self) -> int:
        """Bits of a plaintext."""
        return self.bits - 1

    @property
    def _width(self) -> int:
        return (self.rows * self.most).bit_length()

    @property
    def parts(self) -> int:
        """Ciphertexts per row."""
        return -(-self.fields // (self.capacity // self._width))

    @property
    def fields_a_part(self) -> int:
        """Lanes of a ciphertext."""
        return -(-self.fields // self.parts)

    @property
    def stride(self) -> int:
        """Bits of a lane."""
        return self.capacity // self.fields_a_part

    def part(self, i: int) -> slice:
        """Fields in the i-th ciphertext of a row."""
        return slice(i * self.fields_a_part, min((i + 1) * self.fields_a_part, self.fields))


@dataclass(frozen=True)
class EncryptedRows:
    """Rows as the adding party holds them: checked, in Montgomery form."""

    key: PublicKey
    lanes: Lanes
    numbers: np.ndarray  # (parts x rows, limbs)


class AskedHistograms(NamedTuple):
    """The requested histograms, in the layout of ``tree/level.py``."""

    features: np.ndarray  # (nodes, columns), -1 for none
    n_bins: np.ndarray  # by feature


class Cells(NamedTuple):
    """The bins that are sent, in the order of packing."""

    task: np.ndarray  # which histogram
    bin: np.ndarray
    at: np.ndarray  # position in all histograms
    rows: np.ndarray  # in the bin
    width: np.ndarray  # bits
    first: np.ndarray  # first cell of each ciphertext, and the end


def encrypt_rows(
    key: PrivateKey,
    lanes: Lanes,
    values: np.ndarray,
    n_jobs: int | None = None,
    entropy: Entropy = secrets.token_bytes,
) -> Ciphertexts:
    """Encrypt the numbers of every row: (rows, fields), whole, from 0 to ``lanes.most``.

    All first ciphertexts come first, then all second ones.
    """
    if lanes.bits != key.public.bits:
        raise InputError(f"lanes for a key of {lanes.bits} bits, the key has {key.public.bits}")
    if values.dtype.kind not in "biu" or values.shape != (lanes.rows, lanes.fields):
        raise InputError.about(
            "values",
            f"must be whole numbers, ({lanes.rows}, {lanes.fields}); got {values.dtype} of shape {values.shape}",
        )
    if not 0 <= values.min() <= values.max() <= lanes.most:
        raise InputError.about("values", f"must be from 0 to {lanes.most}")
    if lanes.one_hot and (values.sum(axis=1) != 1).any():
        raise InputError.about("values", "must be one 1 a row and zeros, as the lanes are one_hot")
    plain, stride = [], lanes.stride
    for i in range(lanes.parts):
        part = values[:, lanes.part(i)]
        packed = [0] * len(part)
        for row, field in zip(*(x.tolist() for x in np.nonzero(part)), strict=True):
            packed[row] += int(part[row, field]) << (field * stride)
        plain += packed
    return encrypt(key, plain, n_jobs, entropy)


def receive_rows(key: PublicKey, lanes: Lanes, ciphertexts: Ciphertexts, n_jobs: int | None = None) -> EncryptedRows:
    """Check rows that someone else encrypted, and prepare them for adding."""
    if lanes.bits != key.bits:
        raise InputError(f"lanes for a key of {lanes.bits} bits, the key has {key.bits}")
    if len(ciphertexts) != lanes.parts * lanes.rows:
        raise CipherError(f"{lanes.parts * lanes.rows} ciphertexts were agreed on, got {len(ciphertexts)}")
    return EncryptedRows(key, lanes, check_ciphertexts(key, ciphertexts, n_jobs))


def sum_rows(
    rows: EncryptedRows,
    masks: Masks,
    by_node: NodeRows,
    nodes: np.ndarray,
    features: np.ndarray,
    n_jobs: int | None = None,
    entropy: Entropy = secrets.token_bytes,
) -> tuple[np.ndarray, Ciphertexts]:
    """Add up the rows of nodes bin by bin: return counts of rows (of all histograms), and packed sums.

    ``features`` are those asked for, as in ``AskedHistograms``.

    Sums are hidden by ``masks``: they cannot be traced to rows. Of k ciphertexts a row, all first sums come first.
    """
    if masks.key != rows.key:
        raise InputError(f"masks are of {masks.key}, the rows of {rows.key}")
    asked, threads = AskedHistograms(features, by_node.table.bins.n_bins), thread_count(n_jobs)
    starts, stops, offsets = by_node.starts[nodes], by_node.stops[nodes], by_node.offsets[nodes]
    bases, shift = fill_bases(*asked), by_node.table.bins.shift
    hist = np.zeros((bases[-1, 0], 1), np.int32)
    plain = replace(by_node.table, target=np.zeros(len(by_node.table), np.uint16), n_stats=1)
    fill_nodes(plain, by_node.order, starts, stops, offsets, features, bases, hist, threads)
    counts = hist[:, 0].astype(np.int64)
    cells = list_cells(counts, asked, rows.lanes)
    place = np.full(len(counts), -1)
    ends = np.cumsum(cells.rows)
    place[cells.at] = ends - cells.rows
    listed = np.empty(cells.rows.sum(), np.int64)
    node, column = np.nonzero(features >= 0)
    drawn = features[node, column].astype(np.int64)
    begin = place_level(features, bases, shift, offsets)[node, column]
    _list(plain.codes, by_node.order, starts[node], stops[node], shift[drawn], drawn, begin, place, listed)
    modulus = rows.key.modulus
    sums, packing, begin = rows.numbers[:0], *_packing(cells)
    for part in range(rows.lanes.parts):
        added = products(rows.numbers, listed + part * rows.lanes.rows, np.append(0, ends), modulus, threads)
        sums = np.concatenate([sums, run_chains(added, packing, begin, modulus, threads)])
    return counts, masks.hide(sums, n_jobs, entropy)


def _packing(cells: Cells) -> tuple[np.ndarray, np.ndarray]:
    """List the operations that pack cells: for each but the first of a ciphertext, shift by its width, then add it."""
    steps = cells.width + 1
    steps[cells.first[:-1]] = 1
    ends = np.append(0, np.cumsum(steps))
    operations = np.full(ends[-1], SQUARE)
    operations[ends[1:] - 1] = np.arange(len(steps))
    return operations, ends[cells.first]


def read_sums(
    key: PrivateKey,
    lanes: Lanes,
    asked: AskedHistograms,
    counts: np.ndarray,
    ciphertexts: Ciphertexts,
    sizes: np.ndarray,
    totals: np.ndarray,
    n_jobs: int | None = None,
) -> np.ndarray:
    """Decrypt what ``sum_rows`` returned: int64 (bins of all histograms, fields).

    ``sizes`` (nodes,) and ``totals`` (nodes, fields) are the rows and sums of each node, which the owner of the key
    knows; raise an error if counts or sums do not add up to them.
    """
    node, column = np.nonzero(asked.features >= 0)
    bases = fill_bases(*asked)
    begin = bases[node, column]
    counts = _checked_counts(counts, bases[-1, 0], begin, sizes[node], lanes)
    cells = list_cells(counts, asked, lanes)
    groups = len(cells.first) - 1
    if len(ciphertexts) != lanes.parts * groups:
        raise CipherError(f"{lanes.parts * groups} ciphertexts were expected, got {len(ciphertexts)}")
    plain = decrypt(key, ciphertexts, n_jobs)

    group = np.repeat(np.arange(groups), np.diff(cells.first))
    ends = np.append(0, np.cumsum(cells.width))
    above = ends[cells.first[1:]][group] - ends[1:]  # bits of the cells after it
    used = np.diff(ends[cells.first])
    hist = np.zeros((len(counts), lanes.fields), np.int64)
    for i in range(lanes.parts):
        here = plain[i * groups : (i + 1) * groups]
        fields = range(lanes.fields)[lanes.part(i)]
        lane = sum(1 << (lanes.stride * k) for k in range(len(fields)))
        if any(m & ~(lane * ((1 << bits) - 1)) for m, bits in zip(here, used.tolist(), strict=True)):
            raise CipherError("packed sums hold something beside sums")
        words = to_words(here, -(-lanes.bits // 64))
        for k, field in enumerate(fields):
            sums = np.empty(len(group), np.int64)
            cut_bits(words, group, above + k * lanes.stride, cells.width, sums)
            hist[cells.at, field] = sums
    if (hist[cells.at] > cells.rows[:, None] * lanes.most).any():
        raise CipherError("sums are larger than so many rows can make them")
    if len(begin):
        fullest = _fullest(counts, begin, asked.n_bins[asked.features[node, column]])
        hist[fullest] = totals[node] - np.add.reduceat(hist, begin)
        if ((hist[fullest] < 0) | (hist[fullest] > counts[fullest, None] * lanes.most)).any():
            raise CipherError("sums by bin do not add up to those of their node")
    if lanes.one_hot and (hist.sum(axis=1) != counts).any():
        raise CipherError("sums by class do not add up to the rows of their bin")
    return hist


def _checked_counts(counts: np.ndarray, size: int, begin: np.ndarray, rows: np.ndarray, lanes: Lanes) -> np.ndarray:
    """Check that counts by bin fit the nodes' numbers of rows, and return them as int64."""
    if counts.dtype.kind not in "iu" or counts.shape != (size,):
        raise CipherError(f"{size} counts were asked for, got {counts.dtype} of shape {counts.shape}")
    if len(counts) and not 0 <= counts.min() <= counts.max() <= lanes.rows:
        raise CipherError(f"counts must be from 0 to {lanes.rows}")
    counts = counts.astype(np.int64)
    if len(begin) and (np.add.reduceat(counts, begin) != rows).any():
        raise CipherError("counts by bin do not add up to the rows of their node")
    return counts


def list_cells(counts: np.ndarray, asked: AskedHistograms, lanes: Lanes) -> Cells:
    """List the bins to send and assign them to ciphertexts; it depends on the counts alone."""
    if len(counts) and counts.max() > lanes.rows:
        raise InputError(f"a bin has {counts.max()} rows, but lanes were made for {lanes.rows} rows in all")
    node, column = np.nonzero(asked.features >= 0)
    begin = fill_bases(*asked)[node, column]
    sizes = asked.n_bins[asked.features[node, column]].astype(np.int64)
    sent = counts > 0
    sent[_fullest(counts, begin, sizes)] = False
    at = np.flatnonzero(sent)
    task = np.repeat(np.arange(len(begin)), sizes)[at]
    count = counts[at]
    width = _bit_length(count * lanes.most)
    return Cells(task, at - begin[task], at, count, width, _first_cells(width, lanes.stride))


def _bit_length(x: np.ndarray) -> np.ndarray:
    """Count the bits of positive numbers below 2^62, exactly."""
    powers = np.int64(1) << np.arange(63)
    return np.searchsorted(powers, x, side="right")


@njit(nogil=True, cache=True)
def _first_cells(width: np.ndarray, room: int) -> np.ndarray:
    """List the first cell of each ciphertext, and the end: a new one begins when a cell does not fit the last one."""
    firsts, used = [0] * min(width.shape[0], 1), 0
    for i in range(width.shape[0]):
        if used + width[i] > room:
            firsts.append(i)
            used = 0
        used += width[i]
    firsts.append(width.shape[0])
    return np.array(firsts)


@njit(nogil=True, cache=True)
def _list(
    codes: np.ndarray,
    order: np.ndarray,
    starts: np.ndarray,
    stops: np.ndarray,
    shifts: np.ndarray,
    features: np.ndarray,
    begin: np.ndarray,
    place: np.ndarray,
    out: np.ndarray,
) -> None:
    """List the rows of each bin, from its position on; bins without a position are left out."""
    for t in range(starts.shape[0]):
        for i in range(starts[t], stops[t]):
            at = (begin[t] + codes[order[i], features[t]]) >> np.int64(shifts[t])
            if place[at] >= 0:
                out[place[at]] = order[i]
                place[at] += 1


@njit(nogil=True, cache=True)
def _fullest(counts: np.ndarray, begin: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Find the fullest bin of each histogram; in a tie the first."""
    out = begin.copy()
    for t in range(begin.shape[0]):
        for b in range(begin[t], begin[t] + sizes[t]):
            if counts[b] > counts[out[t]]:
                out[t] = b
    return out
