"""Grow forests on a simulated graphics card and compare them with those of the processor.

    NUMBA_ENABLE_CUDASIM=1 python tests/helpers/device_trees.py CASE [SEED]

On a machine with a graphics card it runs there, without the variable. Prints nothing if all is well.
"""

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import silvan as sv
from silvan.tree import device_kernels, device_rows
from silvan.util import device

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
ROWS = 90 if SIMULATED else 5000
TREES = 2 if SIMULATED else 10


def random_table(rng: np.random.Generator) -> tuple[np.ndarray, list[int]]:
    """Return a table with missing values, crowded columns and categories."""
    n, width = ROWS + int(rng.integers(ROWS)), int(rng.integers(3, 7))
    X = rng.normal(size=(n, width))
    X[:, 0] = np.round(X[:, 0])
    X[rng.random((n, width)) < 0.1] = np.nan
    X[:, -1] = rng.integers(0, 6, n)
    return X, [width - 1]


def frame(X: np.ndarray, categories: list[int]) -> Any:
    """Return the table as a data frame whose last column is text."""
    import pandas as pd

    table = pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])
    for f in categories:
        table[f"x{f}"] = [f"c{int(value)}" for value in X[:, f]]
    return table


def both(make: Callable[[str], Any]) -> None:
    """Grow a forest in both places and compare the hashes; on the device it must not fall back."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*the processor grows.*")
        there = make("cuda")
    here = make("cpu")
    assert there == here, f"{there} on the device, {here} on the processor"


def one_table(rng: np.random.Generator, **settings: Any) -> None:
    """Compare forests of one table, for classes and for numbers."""
    X, categories = random_table(rng)
    table = frame(X, categories)
    signal = np.nan_to_num(X[:, 1]) + (X[:, -1] > 2)
    classes = np.digitize(signal + rng.normal(size=len(X)), np.linspace(0, 1, int(rng.integers(1, 4))))
    common: dict[str, Any] = {
        "n_estimators": TREES,
        "random_state": int(rng.integers(1000)),
        "max_depth": 4,
        **settings,
    }
    both(lambda where: sv.ForestClassifier(**common, device=where).fit(table, classes).forest_.hash)
    numbers = signal * 10.0 ** int(rng.integers(-3, 9))
    both(lambda where: sv.ForestRegressor(**common, device=where).fit(table, numbers).forest_.hash)


def tables(rng: np.random.Generator) -> None:
    """Random tables with random settings."""
    one_table(
        rng,
        max_bins=int(rng.choice([4, 16, 64, 255])),
        max_features=[None, "sqrt", 1][int(rng.integers(3))],
        bootstrap=bool(rng.integers(2)),
        min_samples_leaf=int(rng.integers(1, 5)),
    )


def weights(rng: np.random.Generator) -> None:
    """Rows with weights, and several rows of a person."""
    X, _ = random_table(rng)
    y, weight = (np.nan_to_num(X[:, 1]) > 0).astype(int), rng.integers(1, 5, len(X))
    person = rng.integers(0, len(X) // 3, len(X))
    common: dict[str, Any] = {"n_estimators": TREES, "max_depth": 3, "max_bins": 16}
    both(lambda at: sv.ForestClassifier(**common, device=at).fit(X, y, sample_weight=weight).forest_.hash)
    both(
        lambda at: (
            sv.ForestRegressor(**common, device=at).fit(X, np.nan_to_num(X[:, 2]), sample_weight=weight).forest_.hash
        )
    )
    both(lambda at: sv.ForestClassifier(**common, device=at).fit(X, y, groups=person).forest_.hash)


def little_room(rng: np.random.Generator) -> None:
    """Histograms that do not fit the fast memory of a block, together or even alone; trees that do not fit at once."""
    for room in (1200, 16):
        device_kernels.SHARED_BYTES = room
        one_table(rng, max_bins=32, max_features=None, n_estimators=1)
    device_kernels.SHARED_BYTES = 47 << 10
    device_rows._LEVEL_BYTES = 512
    one_table(rng, max_bins=16)


def small_nodes(rng: np.random.Generator) -> None:
    """The processor goes on once nodes are small."""
    device_rows._FEW_ROWS, device_rows._MANY_NODES = ROWS, 3
    one_table(rng, max_depth=None, max_bins=16)


def _federation(rng: np.random.Generator, **more: Any) -> Callable[..., Any]:
    X, _ = random_table(rng)
    y, site = (np.nan_to_num(X[:, 1]) + X[:, -1] / 3 > 1).astype(int), rng.integers(0, 3, len(X))
    tables = {f"s{i}": (X[site == i], y[site == i]) for i in range(3)}

    def fit(devices: dict[str, str]) -> Any:
        fed = sv.federate_rows(tables, sums="masked", **more)
        for name, where in devices.items():
            fed.site(name).device = where
        model = sv.HistogramForest(n_estimators=TREES, max_depth=3, max_bins=8).fit(fed)
        return model.forest_.hash, fed

    return fit


def sites(rng: np.random.Generator) -> None:
    """One site with a graphics card among others without, masked sums; cold, so that every message begins anew."""
    fit = _federation(rng)
    both(lambda where: fit({"s1": where})[0])
    if not SIMULATED:
        fit = _federation(rng, cold=True)
        both(lambda where: fit({"s1": where})[0])


def failures(rng: np.random.Generator) -> None:
    """A device that fails in the middle of a study, one that is too small: a warning, and the same forest."""
    fit, real = _federation(rng), device_rows.DeviceRows._fill
    expected = fit({})[0]
    calls = []

    def fails(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise MemoryError("out of memory")
        return real(*args)

    device_rows.DeviceRows._fill = fails
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        found, fed = fit({"s1": "cuda"})
    device_rows.DeviceRows._fill = real
    texts = [str(note.message) for note in noted if "processor grows" in str(note.message)]
    assert found == expected, "another forest after a failure"
    assert texts == [
        "the graphics card has too little free memory; the processor grows the trees instead, which are the same"
    ], texts
    assert fed.site("s1").device == "cpu"
    assert len(calls) == 2

    X, y = rng.normal(size=(60, 3)), rng.integers(0, 2, 60)
    room, device_rows.free_bytes = device_rows.free_bytes, lambda: device_rows._SPARE
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        small = sv.ForestClassifier(n_estimators=2, device="cuda").fit(X, y).forest_.hash
    device_rows.free_bytes = room
    assert small == sv.ForestClassifier(n_estimators=2, device="cpu").fit(X, y).forest_.hash
    assert ["does not fit" in str(note.message) for note in noted] == [True], [str(n.message) for n in noted]


CASES = {case.__name__: case for case in (tables, weights, little_room, small_nodes, sites, failures)}

if __name__ == "__main__":
    assert device.why_unusable() is None, device.why_unusable()
    CASES[sys.argv[1]](np.random.default_rng(int(sys.argv[2]) if len(sys.argv) > 2 else 0))
