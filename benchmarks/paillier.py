"""What do encrypted labels cost, and what would phe take for the same?"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.common import Goal, Report, interleave, ratio
from silvan.privacy.lanes import EncryptedRows, Lanes, encrypt_rows, list_cells, read_sums, receive_rows, sum_rows
from silvan.privacy.paillier import Masks, decrypt
from silvan.privacy.paillier_keys import PrivateKey, generate
from silvan.threads import thread_count
from silvan.tree.level import fill_bases

ROWS, TREES, DEPTH, FEATURES, BINS, COLUMNS, BITS = 20_000, 10, 6, 5, 64, 30, 2048
SHARE = 1 - 1 / np.e  # of the rows in a tree
PHE_ROWS = 25
"""phe encrypts so many rows; its histogram uses each of their ciphertexts many times."""


@dataclass
class Node:
    """Some rows in some nodes, and the features that those ask for."""

    key: PrivateKey
    lanes: Lanes
    y: np.ndarray
    codes: np.ndarray
    order: np.ndarray
    cuts: np.ndarray
    features: np.ndarray

    n_bins = np.full(COLUMNS, BINS)

    def sum(self, rows: EncryptedRows, masks: Masks, n_jobs: int | None = None) -> tuple[np.ndarray, Any]:
        """Do the adding party's work."""
        start, stop = self.cuts[:-1], self.cuts[1:]
        return sum_rows(rows, masks, self.codes, self.order, start, stop, self.features, self.n_bins, n_jobs)

    def read(self, counts: np.ndarray, sums: Any, n_jobs: int | None = None) -> np.ndarray:
        """Do the label holder's work."""
        one_hot = np.eye(2, dtype=np.int64)[self.y[self.order]]
        totals = np.add.reduceat(one_hot, self.cuts[:-1])
        sizes = np.diff(self.cuts)
        return read_sums(self.key, self.lanes, self.features, self.n_bins, counts, sums, sizes, totals, n_jobs)

    def plain(self) -> np.ndarray:
        """Make the histograms from the labels themselves."""
        bases = fill_bases(self.features, self.n_bins)
        hist = np.zeros((bases[-1, 0], 2), np.int64)
        for node, (a, b) in enumerate(zip(self.cuts[:-1], self.cuts[1:], strict=True)):
            rows = self.order[a:b]
            for feature, base in zip(self.features[node], bases[node], strict=True):
                np.add.at(hist, (base + self.codes[rows, feature], self.y[rows]), 1)
        return hist


def make_nodes(key: PrivateKey, rows: int, used: int, nodes: int, handful: int) -> Node:
    """Draw rows of two classes and sort some of them into nodes of about the same size."""
    rng = np.random.default_rng(nodes)
    return Node(
        key,
        Lanes(key.public.bits, rows, 2, one_hot=True),
        rng.integers(0, 2, rows),
        rng.integers(0, BINS, (rows, COLUMNS)).astype(np.uint8),
        rng.permutation(rows)[:used],
        np.linspace(0, used, nodes + 1).astype(np.int64),
        np.stack([np.sort(rng.permutation(COLUMNS)[:handful]) for _ in range(nodes)]).astype(np.int32),
    )


def encrypted(node: Node, n_jobs: int | None = None) -> Any:
    """Encrypt the class of every row."""
    return encrypt_rows(node.key, node.lanes, np.eye(2, dtype=np.int64)[node.y], n_jobs)


class Phe:
    """The same work with phe: one key, lanes and packing as ours, its own classes for everything else."""

    def __init__(self, node: Node) -> None:
        from phe import PaillierPrivateKey, PaillierPublicKey

        self.node = node
        self.public = PaillierPublicKey(node.key.public.n)
        self.private = PaillierPrivateKey(self.public, node.key.p, node.key.q)
        self.plain = [1 << (int(y) * node.lanes.stride) for y in node.y]
        self.few = [self.public.encrypt(m) for m in self.plain[:PHE_ROWS]]
        self.of_class = {m: [c for c, p in zip(self.few, self.plain, strict=False) if p == m] for m in self.plain}

    def encrypt(self) -> float:
        """Give the seconds a row takes."""
        start = time.perf_counter()
        for m in self.plain[:PHE_ROWS]:
            self.public.encrypt(m)
        return (time.perf_counter() - start) / PHE_ROWS

    def histogram(self) -> list[int]:
        """Add up, pack, hide, decrypt."""
        node, packed = self.node, []
        rows = [self.of_class[m][i % len(self.of_class[m])] for i, m in enumerate(self.plain)]
        counts = node.plain().sum(axis=1)
        cells = list_cells(counts, node.features, node.n_bins, node.lanes)
        for first, stop in zip(cells.first[:-1], cells.first[1:], strict=True):
            total: Any = None
            for cell in range(first, stop):
                inside = node.order[node.codes[node.order, node.features[0, cells.task[cell]]] == cells.bin[cell]]
                here = rows[inside[0]]
                for row in inside[1:]:
                    here = here + rows[row]
                total = here if total is None else total * (1 << int(cells.width[cell])) + here
            total.ciphertext(be_secure=True)
            packed.append(self.private.decrypt(total))
        return packed


def tree_costs(key: PrivateKey) -> dict[str, float]:
    """Time what a tree of a forest needs: its share of encryption, and all its levels at two parties."""
    clock = time.perf_counter
    took = dict.fromkeys(["encrypt", "check", "add", "decrypt", "wire"], 0.0)
    first = make_nodes(key, ROWS, ROWS, 1, 1)
    start = clock()
    sent = encrypted(first)
    took["encrypt"] = (clock() - start) / TREES
    took["wire"] += 2 * sent.data.nbytes / TREES  # to two parties
    start = clock()
    rows = receive_rows(key.public, first.lanes, sent)
    masks = Masks(key.public)
    took["check"] = 2 * (clock() - start) / TREES
    for depth in range(DEPTH):
        for handful in (FEATURES - FEATURES // 2, FEATURES // 2):
            level = make_nodes(key, ROWS, int(SHARE * ROWS), 2**depth, handful)
            level.y = first.y
            start = clock()
            counts, sums = level.sum(rows, masks)
            took["add"] += clock() - start
            took["wire"] += sums.data.nbytes + counts.astype(np.uint16).nbytes
            start = clock()
            hist = level.read(counts, sums)
            took["decrypt"] += clock() - start
            if (hist != level.plain()).any():
                raise RuntimeError("the encrypted histograms are not the plain ones")
    return took


def main() -> None:
    """Measure and report."""
    key = generate(BITS)
    node = make_nodes(key, 4000, 4000, 1, FEATURES)
    sent = encrypted(node)
    rows, masks = receive_rows(key.public, node.lanes, sent), Masks(key.public)
    counts, sums = node.sum(rows, masks)
    node.read(counts, sums)
    phe = Phe(node)
    if phe.histogram() != decrypt(key, sums):
        raise RuntimeError("phe and silvan do not add up to the same")

    def encrypt_ours(n_jobs: int | None = None) -> float:
        start = time.perf_counter()
        encrypted(node, n_jobs)
        return (time.perf_counter() - start) / len(node.y)

    def histogram(n_jobs: int | None = None) -> None:
        node.read(*node.sum(rows, masks, n_jobs), n_jobs)

    jobs: dict[str, Any] = {
        "encrypt": encrypt_ours,
        "encrypt, one thread": lambda: encrypt_ours(1),
        "encrypt, phe": phe.encrypt,
        "histograms": histogram,
        "histograms, one thread": lambda: histogram(1),
        "histograms, phe": phe.histogram,
    }
    times = interleave(jobs, 3)
    costs = tree_costs(key)
    report = Report(
        "Encrypted labels",
        f"Paillier, {BITS} bits, {thread_count(None)} threads; phe has one. Encryption of two classes for "
        f"{len(node.y):,} rows, the table of powers included; histograms of a node of these rows, {FEATURES} features of "
        f"{BINS} bins: added up, packed, hidden and decrypted, phe packing as silvan does. Seconds a tree are those of "
        f"one of {TREES} trees on {ROWS:,} rows, depth {DEPTH}, {FEATURES} features a node, two parties that take turns in "
        "one process.",
        ["", "a row, ms", "times faster than phe", "one thread"],
    )
    for name in ("encrypt", "histograms"):
        ms = f"{1000 * float(np.median(times[name])):.2f}" if name == "encrypt" else ""
        alone = f"{name}, one thread"
        report.rows.append([name, ms, *(ratio(times, f"{name}, phe", own)[1] for own in (name, alone))])
    faster = {name: ratio(times, f"{name}, phe", name)[0] for name in ("encrypt", "histograms")}
    report.goals += [
        Goal("encryption, times faster than phe", faster["encrypt"], least=10),
        Goal("packed histograms, times faster than phe", faster["histograms"], least=5),
        Goal("encrypted labels, seconds a tree", sum(v for k, v in costs.items() if k != "wire"), most=6),
    ]
    parts = ", ".join(f"{name} {costs[name]:.2f} s" for name in ("encrypt", "check", "add", "decrypt"))
    report.notes.append(
        f"A tree: {parts}; wire {costs['wire'] / 1e6:.1f} MB, of which the labels, once a forest, most."
    )
    report.publish()


if __name__ == "__main__":
    main()
