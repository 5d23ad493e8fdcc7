"""Forests on a graphics card: how long they take from codes in memory to the finished forest, and where time goes.

    python -m benchmarks.gpu --rows 1e6 1e7 1e8 --depth 8 --peer

``--peer`` grows the same forest on the processor as well, and compares hashes. Nothing but NumPy, numba-cuda and
msgspec is needed.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from silvan.data.bins.bins import find_bins
from silvan.data.schema import Feature, Label, Schema
from silvan.tree import device_rows, rows
from silvan.tree.fit import Settings, grow_forest
from silvan.tree.node_rows import Binned
from silvan.tree.sampling import SamplingKeys, make_key
from silvan.util.device import describe_device
from silvan.util.threads import thread_count, thread_map

_COLUMNS = 30
_PIECE = 1 << 20


def make_table(n: int, kind: str, seed: int = 0) -> tuple[Binned, Schema, Any, Settings]:
    """Return a table of ``n`` rows whose values are spread evenly over the codes, or crowd in a few of them."""
    rng = np.random.default_rng(seed)
    schema = Schema(
        tuple(Feature(f"x{i}") for i in range(_COLUMNS)), Label("y", ("a", "b") if kind != "number" else None)
    )
    sample = rng.normal(size=(100_000, _COLUMNS)).astype(np.float32)
    bins, _ = find_bins(sample, schema, 64, staggered=True)
    codes = np.empty((n, _COLUMNS), np.uint8)
    y = np.empty(n)

    def piece(first: int) -> None:
        here = np.random.default_rng([seed, first])
        stop = min(first + _PIECE, n)
        some = here.integers(4, 255, (stop - first, _COLUMNS), np.uint8)
        if kind == "crowded":  # a third of the columns is nearly always one value, a third has two
            some[:, ::3] = np.where(here.random((stop - first, _COLUMNS // 3)) < 0.95, 60, some[:, ::3])
            some[:, 1::3] = np.where(some[:, 1::3] < 128, 60, 180)
        codes[first:stop] = some
        signal = (some[:, 0] > 128).astype(float) + (some[:, 1] > 100) * (some[:, 2] > 60) + some[:, 5] / 255
        y[first:stop] = signal + here.normal(size=stop - first)

    thread_map(piece, range(0, n, _PIECE), thread_count(None))
    settings = Settings(max_depth=8, max_features=5, criterion="squared_error" if kind == "number" else "gini")
    label = y if kind == "number" else (y > np.median(y[:100_000])).astype(np.uint16)
    target = settings.target(schema, label)
    table = Binned(codes, target.rows, np.arange(n, dtype=np.uint64), bins, target.measure.n_stats)
    return table, schema, target.measure, settings


@contextmanager
def timed(spent: Counter[str]) -> Iterator[None]:
    """Add up the seconds that parts of growing take."""
    parts: list[tuple[Any, str, str]] = [
        (device_rows, "_send", "send the table"),
        (device_rows, "_sample", "sample rows"),
        (device_rows.DeviceRows, "_fill", "count, and fetch the counts"),
        (device_rows.DeviceRows, "_sort", "sort rows"),
        (rows, "choose_level", "choose splits"),
        (device_rows, "sample_level", "sample features"),
    ]
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in parts]

    def wrap(function: Callable[..., Any], what: str) -> Callable[..., Any]:
        def run(*args: Any, **more: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*args, **more)
            finally:
                spent[what] += time.perf_counter() - begin

        return run

    for (owner, name, function), (_, _, what) in zip(kept, parts, strict=True):
        setattr(owner, name, wrap(function, what))
    try:
        yield
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)


def main() -> None:
    """Grow forests and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, nargs="+", default=[1e6])
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--kind", choices=("even", "crowded", "number"), default="even")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--peer", action="store_true")
    given = parser.parse_args()
    print(describe_device())
    keys = SamplingKeys(make_key(0, "rows"), make_key(0, "features"))
    for n in map(int, given.rows):
        table, schema, measure, settings = make_table(n, given.kind)
        settings = Settings(**{**vars(settings), "max_depth": given.depth, "n_estimators": given.trees})
        plan = settings.plan(_COLUMNS)
        devices = (["cuda", "cpu"] if given.peer else ["cuda"]) * given.times
        hashes = {}
        for device in devices:
            spent: Counter[str] = Counter()
            with timed(spent):
                begin = time.perf_counter()
                forest = grow_forest(table, measure, schema, settings, plan, keys, thread_count(None), device)
                seconds = time.perf_counter() - begin
            hashes[device] = forest.hash
            parts = ", ".join(f"{what} {part:.2f}" for what, part in spent.most_common()) if device == "cuda" else ""
            print(f"{n:>11,} rows, depth {given.depth}, {given.kind}, {device}: {seconds:.2f} s  {parts}", flush=True)
        if len(set(hashes.values())) > 1:
            sys.exit(f"the hashes differ: {hashes}")
        print(f"hash {forest.hash[:16]}, {len(forest.feature):,} nodes", flush=True)


if __name__ == "__main__":
    main()
