"""The effect of settings on two attacks: labels by least squares over leaves, and rows from boxes (TimberStrike).

    python -m experiments.audit.known_columns            # a few minutes; prints the tables of docs/audit.md

Honest forests of four sites, ``HistogramForest`` and ``MergedForest``, on a table whose labels are coin flips, so
that no column predicts them, and on breast cancer. One setting at a time differs from the defaults. Rows are rebuilt
as the audit does, from a small table with the same settings.
"""

import argparse
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl
from experiments.audit.run import tables

import silvan as sv
from silvan.auditing.drill import BOX_COLUMNS, BOX_ROWS, few_rows, release_of
from silvan.auditing.findings import Finding
from silvan.auditing.labels_from_leaves import labels_from_leaves
from silvan.auditing.rebuild_from_boxes import reconstruct_from_boxes
from silvan.auditing.release import Case, Release, case_of, undefended_release
from silvan.auditing.run_audit import seen_by_trees
from silvan.federation.federation import Federation
from silvan.tree.fit import Settings

ROWS, COLUMNS, SITES = 1600, 5, 4

PLANS: dict[str, dict[str, Any] | None] = {
    "undefended: exact counts, leaves of one row": None,
    "defaults": {},
    "leaves of 10": {"min_samples_leaf": 10},
    "leaves of 20": {"min_samples_leaf": 20},
    "leaves of 50": {"min_samples_leaf": 50},
    "20 trees": {"n_estimators": 20},
    "400 trees": {"n_estimators": 400},
    "8 bins": {"max_bins": 8},
    "`bootstrap=False`": {"bootstrap": False},
    "`bootstrap=False`, leaves of 50": {"bootstrap": False, "min_samples_leaf": 50},
    "20 trees, leaves of 20": {"n_estimators": 20, "min_samples_leaf": 20},
    "20 trees, leaves of 50": {"n_estimators": 20, "min_samples_leaf": 50},
    "epsilon 10": {"epsilon": 10.0},
    "epsilon 1": {"epsilon": 1.0},
}


def coin_flips(seed: int) -> tuple[dict[str, pl.DataFrame], sv.Schema]:
    """Distribute a table whose labels no column predicts."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(ROWS, COLUMNS)).clip(-4, 4)
    frame = pl.DataFrame(X, schema=[f"x{f}" for f in range(COLUMNS)]).with_columns(label=rng.integers(0, 2, ROWS))
    features = tuple(sv.Feature(f"x{f}", bounds=(-4.0, 4.0)) for f in range(COLUMNS))
    schema = sv.Schema(features, sv.Label("label", (0, 1)))
    return {f"site {i}": frame[i::SITES] for i in range(SITES)}, schema


def attacked(name: str, plan: dict[str, Any] | None, seed: int) -> Iterator[Finding | None]:
    """Attack labels of forests from sums, merged, and merged and re-estimated; then rebuild rows. No plan: undefended.

    An epsilon is for forests from sums.
    """
    parts, schema = coin_flips(seed) if name == "coin flips" else tables(name, seed)
    fed = sv.federate_rows(parts, test=0.5, test_by="row", schema=schema, random_state=seed, n_jobs=1)
    case = case_of(fed, schema, seed)
    few = few_rows(case, list(range(len(schema.features))), BOX_ROWS, BOX_COLUMNS, False)
    if plan is None:
        yield labels_from_leaves(undefended_release(case.members, 2, 100, seed), case)
        yield from (None, None)
        yield reconstruct_from_boxes(undefended_release(few.members, 2, 100, seed, bootstrap=False), few)
        return
    yield _solved(sv.HistogramForest(**plan, random_state=seed), fed, case)
    if "epsilon" in plan:
        yield from (None, None)
        yield reconstruct_from_boxes(_private(few, plan, seed), few)
        return
    yield _solved(sv.MergedForest(**plan, random_state=seed), fed, case)
    yield _solved(sv.MergedForest(**plan, refit_leaves=True, random_state=seed), fed, case)
    yield reconstruct_from_boxes(release_of(few.members, Settings(**{"n_estimators": 100, **plan}), seed), few)


def _solved(model: Any, fed: Federation, case: Case) -> Finding:
    forest = model.fit(fed).forest_
    return labels_from_leaves(Release(forest), case, seen_by_trees(model, fed, forest))


def _private(few: Case, plan: dict[str, Any], seed: int) -> Release:
    """Grow a private forest on a small table."""
    frame = pl.DataFrame(few.members.X, schema=[f"x{f}" for f in range(few.members.X.shape[1])])
    features = tuple(
        sv.Feature(f"x{f}", bounds=(float(column.min()), float(column.max())))
        for f, column in enumerate(few.outsiders.X.T)
    )
    schema = sv.Schema(features, sv.Label("label", (0, 1)))
    alone = sv.federate_rows({"site": frame.with_columns(label=few.members.y)}, schema=schema, n_jobs=1)
    return Release(sv.HistogramForest(**plan, random_state=seed).fit(alone).forest_)


def main() -> None:
    """Print a table for each set."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    for name in ("coin flips", "breast_cancer"):
        print(f"\n{name}\n\n| settings | from sums | merged | merged, leaves re-estimated | rows from boxes |")
        print("| --- | --- | --- | --- | --- |")
        for label, plan in PLANS.items():
            cells = [_cell(found) for found in zip(*(attacked(name, plan, seed) for seed in seeds), strict=True)]
            print(f"| {label} | " + " | ".join(cells) + " |", flush=True)


def _cell(findings: Sequence[Finding | None]) -> str:
    """Return the mean metric and the share of cells or labels behind it; a star if all intervals are above chance."""
    there = [f for f in findings if f is not None and f.value is not None and f.low is not None]
    if not there:
        return ""
    surely = "*" if all(f.low > 0 for f in there) else ""
    share = np.mean([float(f.note.split("%")[0]) for f in there])
    return f"{np.mean([f.value for f in there]):.2f}{surely} ({share:.0f}%)"


if __name__ == "__main__":
    main()
