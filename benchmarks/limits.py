"""Where does the time of a fit go, and how far from the limit is it?"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

import silvan as sv
from benchmarks.common import Goal, Report, synthetic
from benchmarks.forest import BINS, DEPTH, FEATURES, ROWS, TREES
from silvan.tree import fit, rows
from silvan.tree.stream import Counted

TURNS, BARE_UPDATES = 5, 1 << 20
BEYOND_CACHE = 1 << 28
"""Bytes of an array that no cache holds."""


class Profile:
    """CPU time of the parts of a fit; for counting, also by level of the trees, with the number of counted values.

    The functions that a fit calls are replaced by ones that time them.
    """

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.by_level: Counter[int] = Counter()
        self.updates: Counter[int] = Counter()
        self.level = 0
        self._time(fit, "find_bins", "putting values into bins")
        self._time(rows, "rows_of_trees", "drawing rows")
        self._time(rows, "list_rows", "drawing rows")
        self._time(rows, "choose_level", "choosing splits")
        fill, stream = rows.Rows.fill, rows.stream

        def levelled(self_: rows.Rows, *args: Any) -> np.ndarray:
            self.level = self_.rounds
            return fill(self_, *args)

        def timed(
            codes: Any, target: Any, order: Any, places: Any, made: Any, kinds: Any, counted: Any, hist: Any
        ) -> None:
            begun = time.process_time()
            none = Counted(np.full_like(counted.slots, -1), counted.entries, counted.sizes)
            stream(codes, target, order, places, made, kinds, none, hist)
            moved = time.process_time()
            stream(codes, target, order, places, made, kinds, counted, hist)
            # the second time no row moves any more
            ended = time.process_time()
            self.seconds["moving rows to their nodes"] += moved - begun
            self.seconds["filling histograms"] += ended - moved
            self.by_level[self.level] += ended - moved
            self.updates[self.level] += FEATURES * int((counted.slots[places] >= 0).sum())

        rows.Rows.fill, rows.stream = levelled, timed  # type: ignore[method-assign, assignment]

    def _time(self, module: Any, name: str, part: str) -> None:
        work = getattr(module, name)

        def timed(*args: Any, **more: Any) -> Any:
            begun = time.process_time()
            try:
                return work(*args, **more)
            finally:
                self.seconds[part] += time.process_time() - begun

        setattr(module, name, timed)


@njit(nogil=True)
def _add_ones(places: np.ndarray, out: np.ndarray) -> None:
    for i in range(places.shape[0]):
        out[places[i]] += 1


@njit(nogil=True)
def _read_and_add(codes: np.ndarray, y: np.ndarray, rows: np.ndarray, begin: np.ndarray, out: np.ndarray) -> None:
    """Add to the histograms, side by side, of the first columns; two counters per bin."""
    for i in range(rows.shape[0]):
        at = begin[i] + y[rows[i]]
        for j in range(FEATURES):
            out[at + np.uint32(2 * BINS * j) + np.uint32(codes[rows[i], j] << 1)] += 1


def bare_updates(n_bytes: int) -> float:
    """Return the additions per second, at random positions of an array, of a loop that does nothing else."""
    out = np.zeros(n_bytes // 4, np.int32)
    places = np.random.default_rng(0).integers(0, len(out), BARE_UPDATES).astype(np.uint32)
    return BARE_UPDATES / _least(lambda: _add_ones(places, out))


def reading_updates(n_bytes: int) -> float:
    """Return the same for a loop that reads a row's number, node, class and values for its additions, as a fit does."""
    rng, out = np.random.default_rng(0), np.zeros(n_bytes // 4, np.int32)
    codes, y = rng.integers(0, BINS, (ROWS, 30)).astype(np.uint8), rng.integers(0, 2, ROWS).astype(np.uint16)
    rows = np.flatnonzero(rng.random(ROWS) < 0.632).astype(np.uint32)
    node = 2 * BINS * FEATURES
    begin = (node * rng.integers(0, len(out) // node, len(rows))).astype(np.uint32)
    return FEATURES * len(rows) / _least(lambda: _read_and_add(codes, y, rows, begin, out))


def _least(job: Callable[[], object]) -> float:
    job()
    return min(_seconds(job) for _ in range(4 * TURNS))


def _seconds(job: Callable[[], object]) -> float:
    begun = time.process_time()
    job()
    return time.process_time() - begun


def main() -> None:
    """Measure and report."""
    X, y = synthetic(ROWS)

    def grow(trees: int = TREES) -> object:
        return sv.ForestClassifier(trees, max_depth=DEPTH, max_features=FEATURES, max_bins=BINS, n_jobs=1).fit(X, y)

    grow(4)
    whole = min(_seconds(grow) for _ in range(TURNS))
    profile = Profile()
    fills: dict[int, float] = {}
    parts: Counter[str] = Counter()
    for turn in range(TURNS):
        profile.seconds.clear(), profile.by_level.clear(), profile.updates.clear()
        grow()
        # the minimum of several runs, part by part, because other load only adds time
        parts = Counter({k: v if turn == 0 else min(v, parts[k]) for k, v in profile.seconds.items()})
        fills = {k: min(v, fills.get(k, v)) for k, v in profile.by_level.items()}
    report = Report(
        "Where the time of a fit goes",
        f"{ROWS:,} x 30 synthetic rows, {TREES} trees of depth {DEPTH}, {FEATURES} features a node, {BINS} bins, two "
        f"classes, one thread; processor time, the least of {TURNS} turns. Most of it goes into histograms: for each "
        "row of a tree, at each level, one is added to a count for each feature that the row's node has drawn. An "
        "update is one such addition. How fast can that be? The bare loop knows the places beforehand and does nothing "
        "but add one there, at random in as much memory as the histograms of a tree's level take. The reading loop "
        "reads what a fit has to read as well: a row's number, node, class and values. Both use the same columns for "
        "all nodes; a fit has to look up those of each node, and their bins.",
        ["level", "nodes of a tree", "histograms, KB", "updates a second, millions", "reading loop", "bare loop"],
    )
    spent = reached = 0.0
    for level, seconds in sorted(fills.items()):
        size, updates = 2**level * FEATURES * BINS * 2 * 4, profile.updates[level]
        speeds = updates / seconds, reading_updates(size), bare_updates(size)
        spent, reached = spent + seconds, reached + updates / speeds[1]
        report.rows.append(
            [str(level + 1), str(2**level), f"{size / 1000:.0f}", *(f"{speed / 1e6:.0f}" for speed in speeds)]
        )
    report.goals.append(Goal("filling histograms: speed, share of the reading loop's", reached / spent, least=0.5))
    whole = max(whole, sum(parts.values()))
    rest = whole - sum(parts.values())
    shares = ", ".join(f"{part} {100 * s / whole:.0f} %" for part, s in parts.most_common())
    report.notes += [
        f"Of {whole:.2f} s: {shares}, the rest {100 * rest / whole:.0f} %.",
        f"{sum(profile.updates.values()) / 1e6:.0f} million updates take {spent:.2f} s; the reading loop would take "
        f"{reached:.2f} s. In {BEYOND_CACHE >> 20} MB, which no cache holds, the bare loop makes "
        f"{bare_updates(BEYOND_CACHE) / 1e6:.0f} million updates a second: so a tree's level is counted in one walk "
        "along the rows, with its histograms in the cache.",
    ]
    report.publish()


if __name__ == "__main__":
    main()
