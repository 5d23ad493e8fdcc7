"""Single-record leaves: the share of leaves that hold a single training row.

Such a leaf shows a box around one person and that person's label. Only the owner of the rows can count them, so this is
a check rather than an attack. A leaf holds the sampled rows of its tree that reach it (``sampled``). If the sampling is
unknown, all rows that reach the leaf count, which may be more. All leaves are counted, so there is no interval; chance
is 0.
"""

from dataclasses import replace

import numpy as np

from silvan.auditing.findings import ATTACKS, Finding
from silvan.auditing.release import Case, Release, leaf_of
from silvan.util.readable import count_of


def single_row_leaves(release: Release, case: Case, sampled: np.ndarray | None = None) -> Finding:
    """Count leaves with one row; ``sampled`` marks the rows that each tree was grown on (trees, rows)."""
    forest = release.forest
    if forest.combine == "log_odds":
        return ATTACKS["lonely"].not_run("leaf values come from noisy counts, so none depends on a single row")
    leaves = leaf_of(forest, case.members.X)
    inside = np.ones(leaves.shape, np.bool_) if sampled is None else sampled
    held = np.bincount(leaves[inside], minlength=len(forest.value))
    asked = np.repeat(forest.weights > 0, np.add.reduceat(forest.feature < 0, forest.offsets[:-1]))
    least = int(held[asked & (held > 0)].min(initial=len(case.members)))
    unknown = "" if sampled is not None else ", counted without knowing which rows trees sampled"
    return replace(
        ATTACKS["lonely"],
        value=float((held[asked] == 1).mean()),
        n=int(asked.sum()),
        note=f"the smallest leaf holds {count_of(least, 'row')}{unknown}",
    )
