"""Survival forests beside scikit-survival's and comprisk's: accuracy, sites, speed. Results: docs/results/survival.md.

Run with the environment of peers: ``.venv-peers/bin/python -m benchmarks.survival accuracy``. Splits are paired: every
forest learns from the same rows and is evaluated on the same others.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl

import silvan as sv
from silvan.data.survival import signed_times
from silvan.survival_metrics import concordance

TREES = 100
SPLITS = 20
Data = tuple[pl.DataFrame, np.ndarray, np.ndarray]  # columns, events, times


def small_sets() -> dict[str, Data]:
    """Return the tables that scikit-survival ships: columns as they are, categories as text."""
    from sksurv import datasets

    loaders: dict[str, Callable[[], tuple[object, np.ndarray]]] = {
        "GBSG2": datasets.load_gbsg2,
        "WHAS500": datasets.load_whas500,
        "veterans": datasets.load_veterans_lung_cancer,
        "AIDS": datasets.load_aids,
        "FLCHAIN": datasets.load_flchain,
    }
    found = {}
    for name, load in loaders.items():
        X, y = load()
        columns = {c: X[c].astype(str).replace("nan", None) if X[c].dtype.name == "category" else X[c] for c in X}
        frame = pl.DataFrame({c: pl.Series(c, v.to_list(), strict=False) for c, v in columns.items()})
        if name == "FLCHAIN":
            frame = frame.drop("chapter")  # the cause of death
        event, times = (np.asarray(y[field]) for field in y.dtype.names)
        found[name] = (frame, event.astype(bool), times.astype(np.float64))
    return found


def one_hot(frame: pl.DataFrame) -> np.ndarray:
    """Return categories as columns of zeros and ones, and medians for what is missing: peers take numbers alone."""
    texts = [name for name, kind in frame.schema.items() if kind == pl.String]
    numbers = frame.to_dummies(texts, drop_first=True) if texts else frame
    return np.column_stack([c.cast(pl.Float64).fill_nan(None).fill_null(c.cast(pl.Float64).median()) for c in numbers])


def splits(event: np.ndarray, n: int = SPLITS) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield training and test rows, a quarter for testing, with the same share of events."""
    from sklearn.model_selection import StratifiedShuffleSplit

    yield from StratifiedShuffleSplit(n, test_size=0.25, random_state=0).split(event, event)


def structured(event: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the labels as all three libraries take them."""
    return np.array(list(zip(event, times, strict=True)), dtype=[("event", bool), ("time", float)])


def integrated_brier(train: np.ndarray, test: np.ndarray, curves: Callable[[np.ndarray], np.ndarray]) -> float:
    """Return scikit-survival's IBS between the 10th and 90th percentile of the test rows' times."""
    from sksurv.metrics import integrated_brier_score

    inside = test["time"] < train["time"].max()
    at = np.unique(np.percentile(test["time"][inside], np.linspace(10, 90, 50)))
    return float(integrated_brier_score(train, test[inside], curves(at)[inside], at))


def of_silvan(data: Data, train: np.ndarray, test: np.ndarray, seed: int, **given: object) -> tuple[float, float]:
    """Return C-index and IBS of our forest."""
    frame, event, times = data
    y = structured(event, times)
    model = sv.SurvivalForest(n_estimators=TREES, random_state=seed, n_jobs=2, **given).fit(frame[train], y[train])
    curves = model.predict_survival_function(frame[test])
    return model.score(frame[test], y[test]), integrated_brier(y[train], y[test], curves)


def of_sksurv(data: Data, train: np.ndarray, test: np.ndarray, seed: int) -> tuple[float, float]:
    """Return C-index and IBS of scikit-survival's forest."""
    from sksurv.ensemble import RandomSurvivalForest

    frame, event, times = data
    X, y = one_hot(frame), structured(event, times)
    model = RandomSurvivalForest(TREES, random_state=seed, n_jobs=2).fit(X[train], y[train])
    found = model.predict_survival_function(X[test], return_array=True)
    known = model.unique_times_

    def curves(at: np.ndarray) -> np.ndarray:
        return found[:, np.maximum(np.searchsorted(known, at, side="right") - 1, 0)]

    labels = signed_times(times[test], event[test])
    return concordance(labels, model.predict(X[test])), integrated_brier(y[train], y[test], curves)


def of_comprisk(data: Data, train: np.ndarray, test: np.ndarray, seed: int) -> tuple[float, float]:
    """Return C-index and IBS of comprisk's forest, with its defaults."""
    from comprisk import CompetingRiskForest

    frame, event, times = data
    X, y = one_hot(frame), structured(event, times)
    model = CompetingRiskForest(TREES, random_state=seed, n_jobs=2, device="cpu")
    model.fit(X[train], times[train], event[train].astype(np.int64))
    hazard = model.predict_cif(X[test])[:, 0]
    known = model.time_grid_ if hasattr(model, "time_grid_") else model.unique_times_

    def curves(at: np.ndarray) -> np.ndarray:
        return 1.0 - hazard[:, np.maximum(np.searchsorted(known, at, side="right") - 1, 0)]

    labels = signed_times(times[test], event[test])
    return concordance(labels, hazard.sum(axis=1)), integrated_brier(y[train], y[test], curves)


LIBRARIES = {"silvan": of_silvan, "scikit-survival": of_sksurv, "comprisk": of_comprisk}


def paired(a: np.ndarray, b: np.ndarray) -> str:
    """Return a mean difference with its interval, corrected for overlapping training rows (Nadeau and Bengio)."""
    gap = a - b
    error = np.sqrt(np.var(gap, ddof=1) * (1 / len(gap) + 1 / 3))
    return f"{gap.mean():+.4f} ({gap.mean() - 2.09 * error:+.4f} to {gap.mean() + 2.09 * error:+.4f})"


def accuracy(names: list[str], n: int, libraries: list[str], out: Path | None) -> None:
    """Print C-index and IBS of all libraries on all tables, and our gain over each."""
    for name, data in small_sets().items():
        if names and name not in names:
            continue
        found = {library: [] for library in libraries}
        for seed, (train, test) in enumerate(splits(data[1], n)):
            for library in libraries:
                found[library].append(LIBRARIES[library](data, train, test, seed))
        scores = {library: np.array(rows) for library, rows in found.items()}
        for library, rows in scores.items():
            c, ibs = rows.mean(axis=0)
            gains = "" if library == "silvan" else "  silvan: C " + paired(scores["silvan"][:, 0], rows[:, 0])
            gains += "" if library == "silvan" else "  IBS " + paired(scores["silvan"][:, 1], rows[:, 1])
            print(f"{name:9} {library:16} C {c:.4f}  IBS {ibs:.4f}{gains}", flush=True)
            if out is not None:
                with out.open("a") as file:
                    file.write(json.dumps({"data": name, "library": library, "rows": rows.tolist()}) + "\n")


def main(arguments: list[str]) -> None:
    """Run a part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["accuracy"])
    parser.add_argument("--data", nargs="*", default=[])
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--libraries", nargs="*", default=list(LIBRARIES))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    began = time.process_time()
    accuracy(given.data, given.splits, given.libraries, given.out)
    print(f"{time.process_time() - began:.0f} s of CPU")


if __name__ == "__main__":
    main(sys.argv[1:])
