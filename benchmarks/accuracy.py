"""Are binned, category-splitting forests as good as scikit-learn's exact ones and LightGBM's on real tables?"""

import os
import sys
from collections.abc import Iterable
from typing import Any

import lightgbm
import numpy as np
import polars as pl
from scipy.stats import rankdata, wilcoxon
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.metrics import log_loss, mean_squared_error, roc_auc_score
from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit

import silvan as sv
from benchmarks.accuracy_tables import Table, chosen_by, claimed_on
from benchmarks.common import Goal, Report

SPLITS = int(os.environ.get("SILVAN_BENCH_SPLITS", "5"))
TREES = 100
LEAST = 1e-3
"""Probabilities are at least this where logarithms are taken, for all alike."""

OURS, PEERS = "silvan", ("scikit-learn", "scikit-learn, leaf 2", "LightGBM rf")
FIGURES = {"AUC": 1, "log loss": -1, "RMSE": -1}
"""Figures, and whether more (1) or less (-1) is better."""

MetricsRow = dict[str, dict[str, float]]


def one_hot(frame: pl.DataFrame) -> np.ndarray:
    """One-hot encode the categories, as a scikit-learn user would."""
    return frame.to_dummies([c for c, kind in frame.schema.items() if kind == pl.String]).to_numpy().astype(np.float32)


def by_code(frame: pl.DataFrame) -> tuple[np.ndarray, list[int]]:
    """Number the categories, as LightGBM expects them; also return which columns have any."""
    named = [i for i, kind in enumerate(frame.dtypes) if kind == pl.String]
    coded = frame.with_columns(pl.col(frame.columns[i]).cast(pl.Categorical).to_physical() for i in named)
    return coded.to_numpy().astype(np.float64), named


def models(classify: bool, n_columns: int, seed: int) -> dict[str, Any]:
    """Return all forests with their defaults, except for the number of trees; LightGBM's as deep as the others."""
    ours, theirs = (
        (sv.ForestClassifier, RandomForestClassifier) if classify else (sv.ForestRegressor, RandomForestRegressor)
    )
    boosted = lightgbm.LGBMClassifier if classify else lightgbm.LGBMRegressor
    rf = boosted(
        boosting_type="rf",
        n_estimators=TREES,
        num_leaves=4096,
        min_child_samples=2,
        min_child_weight=0.0,
        subsample=0.632,
        subsample_freq=1,
        feature_fraction_bynode=np.sqrt(n_columns) / n_columns if classify else 1.0,
        random_state=seed,
        n_jobs=2,
        verbose=-1,
    )
    common = {"n_estimators": TREES, "random_state": seed, "n_jobs": 2}
    return {
        OURS: ours(**common),
        PEERS[0]: theirs(**common),
        PEERS[1]: theirs(min_samples_leaf=2, **common),
        PEERS[2]: rf,
    }


def score(model: Any, rows: Any, y: np.ndarray, classify: bool) -> dict[str, float]:
    if not classify:
        return {"RMSE": float(np.sqrt(mean_squared_error(y, model.predict(rows))))}
    proba = np.asarray(model.predict_proba(rows))
    two = proba.shape[1] == 2
    auc = roc_auc_score(y, proba[:, 1]) if two else roc_auc_score(y, proba, multi_class="ovr", average="macro")
    clipped = np.clip(proba, LEAST, 1.0)
    return {"AUC": float(auc), "log loss": float(log_loss(y, clipped / clipped.sum(axis=1, keepdims=True)))}


def compare(table: Table) -> MetricsRow:
    """Fit all forests to the same splits of a table; return the mean of each metric by forest."""
    wide, (coded, named) = one_hot(table.frame), by_code(table.frame)
    frame = table.frame.with_columns(pl.col(pl.String).cast(pl.Categorical))
    kind = StratifiedShuffleSplit if table.classify else ShuffleSplit
    found: dict[str, dict[str, list[float]]] = {}
    for seed, (train, test) in enumerate(kind(SPLITS, test_size=0.2, random_state=0).split(wide, table.y)):
        for name, model in models(table.classify, table.frame.width, seed).items():
            if name == OURS:
                model.fit(frame[train], table.y[train])
                figures = score(model, frame[test], table.y[test], table.classify)
            elif name == PEERS[2]:
                model.fit(coded[train], table.y[train], categorical_feature=named)
                figures = score(model, coded[test], table.y[test], table.classify)
            else:
                model.fit(wide[train], table.y[train])
                figures = score(model, wide[test], table.y[test], table.classify)
            for figure, value in figures.items():
                found.setdefault(figure, {}).setdefault(name, []).append(value)
    means = {figure: {name: float(np.mean(v)) for name, v in by.items()} for figure, by in found.items()}
    print(f"  {table.name} {table.frame.shape}: {means}", file=sys.stderr, flush=True)
    return means


def summarise(found: dict[str, MetricsRow], figure: str) -> tuple[list[list[str]], list[Goal]]:
    """Compare with each peer over all tables; the goal is not to be significantly behind."""
    better = FIGURES[figure]
    tables = [figures[figure] for figures in found.values() if figure in figures]
    ranks = np.array([rankdata([-better * by[name] for name in (OURS, *PEERS)]) for by in tables]).mean(axis=0)
    lines, goals = [], []
    for k, peer in enumerate(PEERS, start=1):
        ours, theirs = np.array([[by[OURS], by[peer]] for by in tables]).T
        gain = better * (ours - theirs) if figure == "AUC" else np.log(theirs / ours)
        by_how_much = f"{gain.mean():+.4f}" if figure == "AUC" else f"x {np.exp(-gain.mean()):.3f}"
        behind = float(wilcoxon(gain, alternative="less").pvalue)
        ahead = float(wilcoxon(gain, alternative="greater").pvalue)
        wins = f"{(gain > 0).sum()} / {(gain == 0).sum()} / {(gain < 0).sum()}"
        chances = f"{ahead:.3f}", f"{behind:.3f}"
        lines.append(
            [figure, str(len(tables)), peer, by_how_much, wins, f"{ranks[0]:.2f}", f"{ranks[k]:.2f}", *chances]
        )
        goals.append(Goal(f"{figure}: chance of such a result if level with {peer}, behind", behind, least=0.05))
    return lines, goals


def run(tables: Iterable[Table]) -> dict[str, MetricsRow]:
    """Compare on every table."""
    return {table.name: compare(table) for table in tables}


def main() -> None:
    """Measure and report."""
    claimed = run(claimed_on())
    chosen = run(chosen_by()) if "--claim" not in sys.argv else {}
    report = Report(
        "Accuracy on real tables",
        f"{TREES} trees, defaults of all (LightGBM: boosting type rf, leaves of two rows, as many columns a node), "
        f"{SPLITS} random splits 80/20 a table, the same for all; scikit-learn on one-hot categories, LightGBM and "
        f"silvan on categories. Over tables: mean difference of AUC, geometric mean of our log loss and RMSE over "
        f"theirs, tables won / even / lost, mean ranks among the four, Wilcoxon's signed ranks, one-sided. "
        f"Probabilities are at least {LEAST:g} in logarithms.",
        ["figure", "tables", "against", "silvan", "won / even / lost", "rank", "theirs", "p ahead", "p behind"],
    )
    for figure in FIGURES:
        lines, goals = summarise(claimed, figure)
        report.rows += lines
        report.goals += goals
    report.notes.append(f"Tables of the claim, by none of which anything was chosen: {', '.join(claimed)}.")
    if chosen:
        report.notes.append(f"Tables that settings were chosen by, shown apart: {', '.join(chosen)}.")
        for figure in FIGURES:
            for line in summarise(chosen, figure)[0]:
                report.notes.append(f"Chosen by: {' | '.join(line)}")
    report.publish()


if __name__ == "__main__":
    main()
