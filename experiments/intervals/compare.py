"""Intervals on 30 tables compared with MAPIE's jackknife+-after-bootstrap on the same forest, and quantile-forest.

Needs the packages of benchmarks/peers.txt, and SILVAN_DATA. Writes coverage and mean width, in standard deviations of
the target, to results.csv:

    python -m experiments.intervals.compare
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
from mapie.regression import JackknifeAfterBootstrapRegressor
from mapie.subsample import Subsample
from quantile_forest import RandomForestQuantileRegressor
from sklearn.datasets import load_diabetes, make_friedman1, make_friedman2, make_friedman3

import silvan as sv

FOREST = {"n_estimators": 100, "max_depth": 10, "max_features": "sqrt"}
COVERAGE, ROWS = 0.9, 900
FILES = {"airfoil_regression.csv": 3, "protein_casp_regression.csv.gz": 5, "superconductivity_20pct.csv.gz": 5}

Table = tuple[str, np.ndarray, np.ndarray]


def tables() -> Iterator[Table]:
    """Yield names, rows and targets."""
    for name, samples in FILES.items():
        frame = pl.read_csv(Path(os.environ["SILVAN_DATA"]) / name)
        X, y = frame[:, :-1].to_numpy(), frame[:, -1].to_numpy()
        for seed in range(samples):
            rows = np.random.default_rng(seed).permutation(len(y))[:ROWS]
            yield f"{name.split('_')[0]} {seed}", X[rows], y[rows]
    yield "diabetes", *load_diabetes(return_X_y=True)
    for k in range(4):
        yield f"friedman1 {k}", *make_friedman1(700, noise=0.5 + k, random_state=k)
        yield f"friedman2 {k}", *make_friedman2(700, noise=20 * (k + 1), random_state=k)
        yield f"friedman3 {k}", *make_friedman3(700, noise=0.1 * (k + 1), random_state=k)
    rng = np.random.default_rng(0)
    for k in range(4):  # heavy tails; in the last two, noise that depends on a column
        X = rng.normal(size=(700, 6))
        yield f"heavy {k}", X, X[:, 0] * (1 + k) + rng.standard_t(3, 700) * (1 if k < 2 else np.exp(X[:, 1] / 2))


def intervals(X: np.ndarray, y: np.ndarray, new: np.ndarray) -> dict[str, np.ndarray]:
    """Return the intervals of new rows by method; silvan's rows are at three sites."""
    rng, names = np.random.default_rng(1), [f"x{f}" for f in range(X.shape[1])]
    frame = pl.DataFrame(X.astype(np.float64), schema=names)
    sites = pl.Series(rng.integers(0, 3, len(y)).astype(str))
    frame = frame.with_columns(label=pl.Series(y, dtype=pl.Float64), site=sites)
    fed = sv.federate_rows(frame, site="site", label="label", task="regression", n_jobs=1)
    ours = sv.HistogramForest(**FOREST, intervals=True).fit(fed)
    peer = JackknifeAfterBootstrapRegressor(
        estimator=sv.ForestRegressor(**FOREST, n_jobs=1),
        confidence_level=COVERAGE,
        resampling=Subsample(n_resamplings=30, random_state=0),
    ).fit_conformalize(X, y)
    quantiles = RandomForestQuantileRegressor(**FOREST, min_samples_leaf=2, random_state=0).fit(X, y)
    return {
        "silvan": ours.predict_interval(pl.DataFrame(new.astype(np.float64), schema=names), COVERAGE),
        "mapie": peer.predict_interval(new)[1][:, :, 0],
        "quantile_forest": quantiles.predict(new, quantiles=[0.05, 0.95]),
    }


def main() -> None:
    """Compare on all tables, with 60% of the rows for training."""
    lines = []
    for name, features, y in tables():
        X = features.astype(np.float32)
        order = np.random.default_rng(1).permutation(len(y))
        train, test = np.split(order, [int(0.6 * len(y))])
        line: dict[str, object] = {"table": name, "rows": len(train)}
        for method, found in intervals(X[train], y[train], X[test]).items():
            low, high = found.T
            line[f"{method}_coverage"] = round(float(np.mean((low <= y[test]) & (y[test] <= high))), 4)
            line[f"{method}_width"] = round(float(np.mean(high - low) / np.std(y)), 4)
        lines.append(line)
        print(line, flush=True)
    pl.DataFrame(lines).write_csv(Path(__file__).parent / "results.csv")


if __name__ == "__main__":
    main()
