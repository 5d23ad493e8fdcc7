"""What settings do to two attacks: labels by least squares over leaves, and rows from boxes (TimberStrike).

    python -m experiments.audit.known_columns            # two minutes; prints the tables of docs/audit.md

Honest forests of four sites, ``HistogramForest`` and ``MergedForest``, of a table whose labels are coin flips, so that
no column predicts them, and of breast cancer. One setting differs from the defaults at a time. Rows are rebuilt as the
audit does, from a drill of few rows with the same settings.
"""

import argparse
from collections.abc import Iterator
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

PLANS: dict[str, dict[str, Any]] = {
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
    """Deal out a table whose labels no column predicts."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(ROWS, COLUMNS)).clip(-4, 4)
    frame = pl.DataFrame(X, schema=[f"x{f}" for f in range(COLUMNS)]).with_columns(label=rng.integers(0, 2, ROWS))
    features = tuple(sv.Feature(f"x{f}", bounds=(-4.0, 4.0)) for f in range(COLUMNS))
    schema = sv.Schema(features, sv.Label("label", (0, 1)))
    return {f"site {i}": frame[i::SITES] for i in range(SITES)}, schema


def read_labels(name: str, plan: dict[str, Any], seed: int) -> Iterator[Finding]:
    """Solve for labels in forests from sums, in merged ones, and in these with leaves of other sites' rows."""
    parts, schema = coin_flips(seed) if name == "coin flips" else tables(name, seed)
    fed = sv.federate_rows(parts, test=0.5, test_by="row", schema=schema, random_state=seed, n_jobs=1)
    case = case_of(fed, schema, seed)
    yield _solved(sv.HistogramForest(**plan, random_state=seed), fed, case)
    if "epsilon" not in plan:
        yield _solved(sv.MergedForest(**plan, random_state=seed), fed, case)
        yield _solved(sv.MergedForest(**plan, recount=True, random_state=seed), fed, case)


def _solved(model: Any, fed: Federation, case: Case) -> Finding:
    forest = model.fit(fed).forest_
    return labels_from_leaves(Release(forest), case, seen_by_trees(model, fed, forest))


def rebuild_rows(name: str, plan: dict[str, Any], seed: int) -> Iterator[Finding]:
    """Rebuild a few rows from bare trees, and from trees with exact counts of leaves."""
    parts, schema = coin_flips(seed) if name == "coin flips" else tables(name, seed)
    fed = sv.federate_rows(parts, test=0.5, test_by="row", schema=schema, random_state=seed, n_jobs=1)
    few = few_rows(case_of(fed, schema, seed), list(range(len(schema.features))), BOX_ROWS, BOX_COLUMNS, False)
    if "epsilon" in plan:
        frame = pl.DataFrame(few.members.X, schema=[f"x{f}" for f in range(few.members.X.shape[1])])
        bounds = [(float(column.min()), float(column.max())) for column in few.outsiders.X.T]
        features = tuple(sv.Feature(f"x{f}", bounds=ends) for f, ends in enumerate(bounds))
        known = sv.Schema(features, sv.Label("label", (0, 1)))
        alone = sv.federate_rows({"site": frame.with_columns(label=few.members.y)}, schema=known, n_jobs=1)
        release = Release(sv.HistogramForest(**plan, random_state=seed).fit(alone).forest_)
    else:
        release = release_of(few.members, Settings(**{"n_estimators": 100, **plan}), seed)
    yield reconstruct_from_boxes(release, few)


def undefended(name: str, seed: int) -> Finding:
    """Rebuild a few rows from exact counts of leaves of one row."""
    parts, schema = coin_flips(seed) if name == "coin flips" else tables(name, seed)
    fed = sv.federate_rows(parts, test=0.5, test_by="row", schema=schema, random_state=seed, n_jobs=1)
    few = few_rows(case_of(fed, schema, seed), list(range(len(schema.features))), BOX_ROWS, BOX_COLUMNS, False)
    return reconstruct_from_boxes(undefended_release(few.members, 2, 100, seed, bootstrap=False), few)


def main() -> None:
    """Print a table for each set."""
    import warnings

    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    for name in ("coin flips", "breast_cancer"):
        print(f"\n{name}\n\n| settings | from sums | merged | merged, leaves re-estimated | rows from boxes |")
        print("| --- | --- | --- | --- | --- |")
        shown = [undefended(name, seed) for seed in seeds]
        print(f"| exact counts, leaves of one row | | | | {_cell(shown)} |", flush=True)
        for label, plan in PLANS.items():
            by_seed = [[*read_labels(name, plan, seed), *rebuild_rows(name, plan, seed)] for seed in seeds]
            cells = [_cell(list(findings)) for findings in zip(*by_seed, strict=True)]
            if len(cells) == 2:
                cells[1:1] = ["", ""]
            print(f"| {label} | " + " | ".join(cells) + " |", flush=True)


def _cell(findings: list[Finding]) -> str:
    """Return the mean metric, and the raw share of cells or labels behind it."""
    values = [f.value for f in findings if f.value is not None]
    raw = [float(f.note.split("%")[0]) for f in findings]
    return f"{np.mean(values):.2f} ({np.mean(raw):.0f} %)"


if __name__ == "__main__":
    main()
