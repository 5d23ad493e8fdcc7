"""Drills: attacks that only work on small tables, run on a few rows with the settings of the release.

An audit has no time to rebuild a whole table. An attack on a few rows and columns, with the same smallest leaf,
sampling and bins, shows what the settings are worth; for comparison, the same rows are attacked without any defence.
"""

from dataclasses import replace

import numpy as np

from silvan.auditing import rebuild_from_boxes as boxes
from silvan.auditing import rebuild_from_counts as counts
from silvan.auditing.findings import ATTACKS, Finding
from silvan.auditing.release import AuditedRows, Case, Release, undefended_release
from silvan.data.schema import Feature, Label, Schema
from silvan.tree.fit import Settings, fit_forest
from silvan.tree.sampling import SamplingKeys, make_key

BOX_ROWS, BOX_COLUMNS = 40, 4


def run_drills(case: Case, schema: Schema, settings: Settings | None) -> list[Finding]:
    """Reconstruct a few rows, from boxes and from counts."""
    numeric = [f for f, feature in enumerate(schema.features) if not feature.categorical]
    why = ""
    if settings is None:
        why = "the settings of the trees are unknown"
    elif schema.n_classes < 2 or not numeric:
        why = "needs classes and numeric columns"
    elif len(case.members) < 2 * BOX_ROWS or len(case.outsiders) < BOX_ROWS:
        why = f"needs {2 * BOX_ROWS} training rows and {BOX_ROWS} others"
    findings = []
    for name, attack, n_trees, rows, columns, yes_no in _DRILLS:
        if why or settings is None:
            findings.append(ATTACKS[name].not_run(why))
            continue
        few = few_rows(case, numeric, rows, columns, yes_no)
        release = release_of(few.members, replace(settings, n_estimators=n_trees, class_weight=None), few.seed)
        control = undefended_release(few.members, int(few.members.y.max()) + 1, n_trees, few.seed, bootstrap=False)
        findings.append(attack(release, few).with_undefended(attack(control, few)))
    return findings


_DRILLS = (
    ("ranges", boxes.reconstruct_from_boxes, boxes.TREES, BOX_ROWS, BOX_COLUMNS, False),
    ("reconstruction", counts.reconstruct_from_counts, counts.TREES, counts.ROWS, counts.COLUMNS, True),
)


def release_of(members: AuditedRows, settings: Settings, seed: int) -> Release:
    """Grow trees in the same way as a site."""
    n_classes = int(members.y.max()) + 1
    features = tuple(Feature(f"x{f}") for f in range(members.X.shape[1]))
    schema = Schema(features, Label("label", tuple(range(n_classes))))
    keys = SamplingKeys(make_key(seed, "rows of a drill"), make_key(seed, "features of a drill"))
    forest = fit_forest(members.X, settings.target(schema, members.y), schema, settings, keys, n_jobs=1).forest
    return Release(forest.bare())


def few_rows(case: Case, numeric: list[int], rows: int, columns: int, yes_no: bool) -> Case:
    """Take a few rows of every class and the columns with the most values; ``yes_no`` cuts them at their medians."""
    X, y = case.members.X, case.members.y
    values = [len(np.unique(X[:, f])) for f in numeric]
    kept = [numeric[i] for i in np.argsort(values, kind="stable")[-columns:]]
    _, codes = np.unique(np.concatenate([y, case.outsiders.y]), return_inverse=True)
    middle = np.nanmedian(X[:, kept], axis=0)

    def cut(some: np.ndarray) -> np.ndarray:
        filled = np.where(np.isnan(some[:, kept]), middle, some[:, kept])
        return np.ascontiguousarray(filled > middle if yes_no else filled, np.float32)

    members = AuditedRows(cut(X), codes[: len(y)])
    some = members.some(rows, case.seed)
    if len(np.unique(some.y)) < codes.max() + 1:
        first = [np.flatnonzero(members.y == c)[:1] for c in range(codes.max() + 1)]
        chosen = np.unique(np.concatenate([*first, np.random.default_rng(case.seed).permutation(len(y))[:rows]]))[:rows]
        some = AuditedRows(members.X[chosen], members.y[chosen])
    return Case(some, AuditedRows(cut(case.outsiders.X), codes[len(y) :]), case.seed)
