"""What do encrypted labels cost, and what would phe take for the same?"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.common import Goal, Report, interleave, ratio
from silvan.data.bins.bins import Bins
from silvan.privacy.paillier.cipher import Masks, decrypt
from silvan.privacy.paillier.modular_kernels import has_vectors
from silvan.privacy.paillier.packing import (
    AskedHistograms,
    EncryptedRows,
    Lanes,
    encrypt_rows,
    list_cells,
    read_sums,
    receive_rows,
    sum_rows,
)
from silvan.privacy.paillier.paillier_keys import PrivateKey, generate
from silvan.tree.level import fill_bases
from silvan.tree.node_rows import Binned, NodeRows
from silvan.util.threads import thread_count

ROWS, TREES, DEPTH, FEATURES, BINS, COLUMNS, BITS = 20_000, 10, 6, 5, 64, 30, 2048
PHE_ROWS = 25
"""phe encrypts so many rows; its histogram uses each of their ciphertexts many times."""


@dataclass
class Level:
    """Rows in nodes, and the requested features of these."""

    key: PrivateKey
    lanes: Lanes
    y: np.ndarray
    codes: np.ndarray
    order: np.ndarray
    cuts: np.ndarray
    features: np.ndarray

    n_bins = np.full(COLUMNS, BINS)

    @property
    def asked(self) -> AskedHistograms:
        """The requested histograms of nodes."""
        return AskedHistograms(self.features, self.n_bins)

    def sum(self, rows: EncryptedRows, masks: Masks, n_jobs: int | None = None) -> tuple[np.ndarray, Any]:
        """Do the adding party's work."""
        start, stop = self.cuts[:-1], self.cuts[1:]
        nothing, codes = np.zeros(COLUMNS, np.uint8), np.arange(1, BINS, dtype=np.uint8)
        bins = Bins((np.zeros(BINS - 2),) * COLUMNS, (codes,) * COLUMNS, nothing.astype(np.bool_), nothing, nothing)
        table = Binned(self.codes, self.y.astype(np.uint16), np.zeros(len(self.y), np.uint64), bins, 2)
        by_node = NodeRows(table, self.order, start, stop, np.zeros_like(start))
        return sum_rows(rows, masks, by_node, np.arange(len(start)), self.features, n_jobs)

    def read(self, counts: np.ndarray, sums: Any, n_jobs: int | None = None) -> np.ndarray:
        """Do the label holder's work."""
        one_hot = np.eye(2, dtype=np.int64)[self.y[self.order]]
        totals = np.add.reduceat(one_hot, self.cuts[:-1])
        sizes = np.diff(self.cuts)
        return read_sums(self.key, self.lanes, self.asked, counts, sums, sizes, totals, n_jobs)

    def plain(self) -> np.ndarray:
        """Compute the histograms from the labels directly."""
        bases = fill_bases(self.features, self.n_bins)
        hist = np.zeros((bases[-1, 0], 2), np.int64)
        for node, (a, b) in enumerate(zip(self.cuts[:-1], self.cuts[1:], strict=True)):
            rows = self.order[a:b]
            for feature, base in zip(self.features[node], bases[node], strict=True):
                np.add.at(hist, (base + self.codes[rows, feature], self.y[rows]), 1)
        return hist


def make_level(key: PrivateKey, rows: int, trees: int, share: float, nodes: int, n_sampled: int) -> Level:
    """Generate rows of two classes and assign a share of them to the nodes of each tree."""
    rng = np.random.default_rng(nodes)
    used = int(share * rows)
    return Level(
        key,
        Lanes(key.public.bits, rows, 2, one_hot=True),
        np.random.default_rng(0).integers(0, 2, rows),
        rng.integers(0, BINS, (rows, COLUMNS)).astype(np.uint8),
        np.concatenate([rng.permutation(rows)[:used] for _ in range(trees)]),
        np.linspace(0, trees * used, trees * nodes + 1).astype(np.int64),
        np.stack([np.sort(rng.permutation(COLUMNS)[:n_sampled]) for _ in range(trees * nodes)]).astype(np.int32),
    )


def encrypted(level: Level, n_jobs: int | None = None) -> Any:
    """Encrypt the class of every row."""
    return encrypt_rows(level.key, level.lanes, np.eye(2, dtype=np.int64)[level.y], n_jobs)


class Phe:
    """The same work with phe: key, lanes and packing as ours, its own classes for everything else."""

    def __init__(self, level: Level) -> None:
        from phe import PaillierPrivateKey, PaillierPublicKey

        self.level = level
        self.public = PaillierPublicKey(level.key.public.n)
        self.private = PaillierPrivateKey(self.public, level.key.p, level.key.q)
        self.plain = [1 << (int(y) * level.lanes.stride) for y in level.y]
        few = [(m, self.public.encrypt(m)) for m in self.plain[:PHE_ROWS]]
        of_class = {m: [c for other, c in few if other == m] for m in set(self.plain)}
        self.rows = [of_class[m][i % len(of_class[m])] for i, m in enumerate(self.plain)]

    def encrypt(self) -> float:
        """Return the seconds per row."""
        start = time.perf_counter()
        for m in self.plain[:PHE_ROWS]:
            self.public.encrypt(m)
        return (time.perf_counter() - start) / PHE_ROWS

    def histograms(self) -> list[int]:
        """Add up, pack, mask, decrypt."""
        level, packed = self.level, []
        cells = list_cells(level.plain().sum(axis=1), level.asked, level.lanes)
        nodes, columns = np.nonzero(level.features >= 0)
        for first, stop in zip(cells.first[:-1], cells.first[1:], strict=True):
            total: Any = None
            for cell in range(first, stop):
                node, column = nodes[cells.task[cell]], columns[cells.task[cell]]
                rows = level.order[level.cuts[node] : level.cuts[node + 1]]
                inside = rows[level.codes[rows, level.features[node, column]] == cells.bin[cell]].tolist()
                here = self.rows[inside[0]]
                for row in inside[1:]:
                    here = here + self.rows[row]
                total = here if total is None else total * (1 << int(cells.width[cell])) + here
            total.ciphertext(be_secure=True)
            packed.append(self.private.decrypt(total))
        return packed


def tree_costs(key: PrivateKey) -> dict[str, float]:
    """Time the parts of a tree of a forest: its share of encrypting, and of all levels at two parties."""
    clock = time.perf_counter
    first = make_level(key, ROWS, 1, 1.0, 1, 1)
    start = clock()
    sent = encrypted(first)
    took = {"encrypt": clock() - start}
    start = clock()
    rows, masks = receive_rows(key.public, first.lanes, sent), Masks(key.public)
    took |= {"check": 2 * (clock() - start), "add": 0.0, "decrypt": 0.0, "wire": 2.0 * sent.data.nbytes}
    for depth in range(DEPTH):
        for n_sampled in (FEATURES - FEATURES // 2, FEATURES // 2):
            level = make_level(key, ROWS, TREES, 1 - 1 / np.e, 2**depth, n_sampled)
            start = clock()
            counts, sums = level.sum(rows, masks)
            took["add"] += clock() - start
            took["wire"] += sums.data.nbytes + counts.astype(np.uint16).nbytes
            start = clock()
            hist = level.read(counts, sums)
            took["decrypt"] += clock() - start
            if (hist != level.plain()).any():
                raise RuntimeError("the encrypted histograms are not the plain ones")
    return {name: cost / TREES for name, cost in took.items()}


def against_phe(key: PrivateKey, n_rows: int = 8000) -> dict[str, list[float]]:
    """Time encryption, in seconds per row, and a level's packed histograms, beside phe on the same rows."""
    level = make_level(key, n_rows, 1, 1.0, 16, FEATURES)
    rows, masks = receive_rows(key.public, level.lanes, encrypted(level)), Masks(key.public)
    counts, sums = level.sum(rows, masks)
    phe = Phe(level)
    if phe.histograms() != decrypt(key, sums) or (level.read(counts, sums) != level.plain()).any():
        raise RuntimeError("phe and silvan do not add up to the same")

    def encrypt_ours(n_jobs: int | None = None) -> float:
        start = time.perf_counter()
        encrypted(level, n_jobs)
        return (time.perf_counter() - start) / len(level.y)

    def histograms(n_jobs: int | None = None) -> None:
        level.read(*level.sum(rows, masks, n_jobs), n_jobs)

    jobs: dict[str, Any] = {
        "encrypt": encrypt_ours,
        "encrypt, one thread": lambda: encrypt_ours(1),
        "encrypt, phe": phe.encrypt,
        "histograms": histograms,
        "histograms, one thread": lambda: histograms(1),
        "histograms, phe": phe.histograms,
    }
    return interleave(jobs, 3)


def phe_goals(times: dict[str, list[float]]) -> list[Goal]:
    """Return the speed-up over phe."""
    return [
        Goal("encryption, times faster than phe", ratio(times, "encrypt, phe", "encrypt")[0], least=10),
        Goal("packed histograms, times faster than phe", ratio(times, "histograms, phe", "histograms")[0], least=5),
    ]


def main() -> None:
    """Measure and report."""
    key, n_rows = generate(BITS), 8000
    times = against_phe(key, n_rows)
    costs = tree_costs(key)
    report = Report(
        "Encrypted labels",
        f"Paillier, {BITS} bits, {thread_count(None)} threads; phe has one. Encryption of two classes for "
        f"{n_rows:,} rows, the table of powers included; histograms of these rows in 16 nodes, {FEATURES} "
        f"features of {BINS} bins each: added up, packed, hidden and decrypted, phe packing as silvan does. Seconds "
        f"a tree are those of one of {TREES} trees on {ROWS:,} rows, depth {DEPTH}, {FEATURES} features a node, two "
        "parties that take turns in one process.",
        ["", "a row, ms", "times faster than phe", "one thread"],
    )
    for name in ("encrypt", "histograms"):
        ms = f"{1000 * float(np.median(times[name])):.2f}" if name == "encrypt" else ""
        alone = f"{name}, one thread"
        report.rows.append([name, ms, *(ratio(times, f"{name}, phe", own)[1] for own in (name, alone))])
    report.goals += [
        *phe_goals(times),
        Goal("encrypted labels, seconds a tree", sum(v for k, v in costs.items() if k != "wire"), most=6),
    ]
    parts = ", ".join(f"{name} {costs[name]:.2f} s" for name in ("encrypt", "check", "add", "decrypt"))
    report.notes.append(
        f"A tree: {parts}; wire {costs['wire'] / 1e6:.1f} MB, most of it the labels, which are sent once a forest. "
        f"Products modulo n^2 are made {'eight at a time by AVX-512 IFMA' if has_vectors() else 'one at a time'}."
    )
    report.publish()


if __name__ == "__main__":
    main()
