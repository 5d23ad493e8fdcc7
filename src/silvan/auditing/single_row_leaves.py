"""Single-record leaves: how many leaves rest on one row that was trained on.

Whoever sees such a leaf sees a box around one person and that person's label. Only the owner, who has the rows, can
count them: this is a check more than an attack. A leaf is counted by all rows that end there; it was grown on those
of them that its tree drew, which may be fewer. With the draws known (``drawn``) it is counted by these. All leaves
are looked at, so there is no interval; chance is 0.
"""

from dataclasses import replace

import numpy as np

from silvan.auditing.findings import ATTACKS, Finding
from silvan.auditing.release import Case, Release, leaf_of
from silvan.util.readable import count_of


def single_row_leaves(release: Release, case: Case, drawn: np.ndarray | None = None) -> Finding:
    """Count leaves with one row; ``drawn`` marks the rows each tree was grown on (trees, rows)."""
    forest = release.forest
    if forest.combine == "log_odds":
        return ATTACKS["lonely"].not_run("leaf values come from noisy counts, so none depends on a single row")
    leaves = leaf_of(forest, case.members.X)
    inside = np.ones(leaves.shape, np.bool_) if drawn is None else drawn
    held = np.bincount(leaves[inside], minlength=len(forest.value))
    asked = np.repeat(forest.weights > 0, np.add.reduceat(forest.feature < 0, forest.offsets[:-1]))
    least = int(held[asked & (held > 0)].min(initial=len(case.members)))
    unknown = "" if drawn is not None else ", counted without knowing what trees drew"
    return replace(
        ATTACKS["lonely"],
        value=float((held[asked] == 1).mean()),
        n=int(asked.sum()),
        note=f"the smallest leaf holds {count_of(least, 'row')}{unknown}",
    )
