"""Survival forests beside scikit-survival's and comprisk's: accuracy, sites, speed. Results: docs/results/survival.md.

Run with the environment of peers: ``.venv-peers/bin/python -m benchmarks.survival accuracy``, or ``sites``, ``brca``,
``speed``. Splits are paired: every forest learns from the same rows and is evaluated on the same others.
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


def sites(names: list[str], n: int) -> None:
    """Print the C-index of ten clients' local, merged and exact forests, with rows dealt out evenly or unevenly."""
    rng = np.random.default_rng(0)
    for name, (frame, event, times) in small_sets().items():
        if names and name not in names:
            continue
        table = frame.with_columns(time=pl.Series(times), event=pl.Series(event))
        for way in ("uniform", "skewed"):
            found = []
            for seed, (train, test) in enumerate(splits(event, n)):
                shares = np.full(10, 0.1) if way == "uniform" else rng.dirichlet(np.full(10, 1.0))
                client = np.array([f"client {i}" for i in rng.choice(10, len(train), p=shares)])
                rows = table[train].with_columns(site=pl.Series(client))
                fed = sv.federate_rows(rows, site="site", time="time", event="event", random_state=seed, n_jobs=1)
                given = {"n_estimators": TREES, "max_depth": None, "min_samples_leaf": 5, "min_samples_split": 10}
                exact = sv.HistogramForest(**given).fit(fed)
                same = exact.forest_ == sv.PooledForest(**given).fit(fed).forest_
                merged = sv.MergedForest(**given, weights="trees").fit(fed)
                local = sv.LocalForest(**given).fit(fed)
                y = signed_times(times[test], event[test])
                alone = [concordance(y, forest.predict(frame[test])) for forest in local.forests_.values()]
                scores = [concordance(y, model.predict(frame[test])) for model in (merged, exact)]
                found.append([float(np.mean(alone)), *scores, float(same)])
            local_c, merged_c, exact_c, same_share = np.mean(found, axis=0)
            print(
                f"{name:9} {way:8} local {local_c:.3f}  merged {merged_c:.3f}  exact {exact_c:.3f}  "
                f"equal to pooled: {same_share:.0%}",
                flush=True,
            )


def brca(path: Path, repeats: int) -> None:
    """Print the C-index at each region of Fed-TCGA-BRCA, local and exact, out of fold, with bootstrap intervals."""
    from sklearn.model_selection import StratifiedKFold

    table, site, time_column, event_column = pl.read_csv(path), "site", "survival_time_days", "label"
    region, event = table[site].to_numpy(), table[event_column].to_numpy().astype(bool)
    y = signed_times(table[time_column].to_numpy(), event)
    risks = {name: np.zeros((repeats, len(table))) for name in ("local", "exact")}
    for repeat in range(repeats):
        for train, test in StratifiedKFold(5, shuffle=True, random_state=repeat).split(region, event):
            rows = table[train].with_columns(pl.col(site).cast(pl.String))
            fed = sv.federate_rows(rows, site=site, time=time_column, event=event_column, random_state=repeat, n_jobs=1)
            given = {"n_estimators": TREES, "max_depth": None, "min_samples_leaf": 5, "min_samples_split": 10}
            exact, local = sv.HistogramForest(**given).fit(fed), sv.LocalForest(**given).fit(fed)
            X = table[test]
            risks["exact"][repeat, test] = exact.predict(X)
            for name, forest in local.forests_.items():
                here = region[test].astype(str) == name
                risks["local"][repeat, test[here]] = forest.predict(X.filter(pl.Series(here)))
    rng = np.random.default_rng(0)
    for name in [*np.unique(region), "all"]:
        rows = np.flatnonzero(region == name) if name != "all" else np.arange(len(region))
        line = f"{name!s:>6} rows {len(rows):5} events {int(event[rows].sum()):4}"
        for model, found in risks.items():
            of = lambda some, found=found: np.nanmean([concordance(y[some], one[some]) for one in found])  # noqa: E731
            drawn = [of(rng.choice(rows, len(rows))) for _ in range(200)]
            low, high = np.nanpercentile(drawn, [2.5, 97.5])
            line += f"  {model} {of(rows):.3f} ({low:.3f} to {high:.3f})"
        print(line, flush=True)


def speed(rows: int, columns: int, trees: int, library: str) -> None:
    """Print the CPU time of one library's fit on one thread, after a first fit that compiles."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, columns)).astype(np.float32)
    times = rng.exponential(np.exp(-X[:, 0] - 0.5 * X[:, 1] * X[:, 2])) * 100
    censored = rng.exponential(100, rows)
    event, times = times < censored, np.minimum(times, censored)
    y = structured(event, times)

    def fit(n: int) -> None:
        if library == "silvan":
            sv.SurvivalForest(n_estimators=n, n_jobs=1, random_state=0).fit(X, y)
        elif library == "comprisk":
            from comprisk import CompetingRiskForest

            model = CompetingRiskForest(n, n_jobs=1, device="cpu", random_state=0)
            model.fit(X, times, event.astype(np.int64))
        else:
            from sksurv.ensemble import RandomSurvivalForest

            RandomSurvivalForest(n, n_jobs=1, random_state=0, low_memory=True).fit(X, y)

    if library != "scikit-survival":
        fit(1)
    began = time.process_time()
    fit(trees)
    print(f"{library:16} {rows} x {columns}, {trees} trees: {time.process_time() - began:.1f} s of CPU", flush=True)


def main(arguments: list[str]) -> None:
    """Run a part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["accuracy", "sites", "brca", "speed"])
    parser.add_argument("--data", nargs="*", default=[])
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--libraries", nargs="*", default=list(LIBRARIES))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--path", type=Path, default=Path("../shared/data/fed_tcga_brca_survival.csv"))
    parser.add_argument("--size", nargs=3, type=int, default=[50_000, 58, 100], help="rows, columns, trees")
    given = parser.parse_args(arguments)
    began = time.process_time()
    if given.part == "accuracy":
        accuracy(given.data, given.splits, given.libraries, given.out)
    elif given.part == "sites":
        sites(given.data, given.splits)
    elif given.part == "brca":
        brca(given.path, given.splits)
    else:
        for library in given.libraries:
            speed(*given.size, library)
    print(f"{time.process_time() - began:.0f} s of CPU")


if __name__ == "__main__":
    main(sys.argv[1:])
