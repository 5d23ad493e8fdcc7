"""Does weighting all trees at all sites cost less than growing them?"""

from collections.abc import Callable

import numpy as np

import silvan as sv
from benchmarks.common import Goal, Report, interleave, ratio, synthetic
from silvan.algorithms.bofrf.weigh import choosing_rows
from silvan.forest.forest import join_forests
from silvan.forest.noted_leaves import make_noted
from silvan.forest.score import score_trees

SITES, TREES, ROWS, DEPTH = 10, 100, 20_000, 8


def main() -> None:
    """Measure and report."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.metrics import confusion_matrix

    X, y = synthetic(SITES * ROWS)
    tables = {f"site {i}": (X[i * ROWS : (i + 1) * ROWS], y[i * ROWS : (i + 1) * ROWS]) for i in range(SITES)}
    fed = sv.federate_rows(tables, n_jobs=2)
    local = sv.LocalForest(TREES, max_depth=DEPTH)
    bofrf = sv.BOFRF(TREES, max_depth=DEPTH)
    found: dict[str, sv.Forest] = {}

    def grow() -> object:
        return found.update(local.fit(fed).forests_)

    def score(noting: bool = False) -> object:
        """Score all trees at all sites: the work of one round, without its messages."""
        together = join_forests(list(found.values()))
        noted = make_noted(together, choosing_rows(ROWS)) if noting else None
        parts = [fed.site(name).part(fed.schema) for name in tables]
        return [score_trees(together, part.X, part.y, n_jobs=2, noted=noted) for part in parts]

    def whole() -> object:
        """Fit at sites without cached trees."""
        for name in tables:
            cache = fed.site(name).cache
            for key in [key for key in cache if "trees" in key[0]]:
                del cache[key]
        return bofrf.fit(fed)

    peer = RandomForestClassifier(TREES, max_depth=DEPTH, n_jobs=2, random_state=0).fit(*tables["site 0"])
    as_ours = sv.Forest.from_sklearn(peer)
    rows, truth = tables["site 1"]

    def loop() -> object:
        return [confusion_matrix(truth, tree.predict(rows).astype(np.int64)) for tree in peer.estimators_]

    def batch() -> np.ndarray:
        return score_trees(as_ours, rows, truth, n_jobs=2)

    if not np.array_equal(batch(), loop()):
        raise SystemExit("the batch kernel and the loop disagree")
    jobs: dict[str, Callable[[], object]] = {
        "growing the local forests": grow,
        "scoring all trees at all sites": score,
        "the same, noting leaves to choose by": lambda: score(noting=True),
        "whole BOFRF, three rounds": whole,
    }
    grow()
    score()
    whole()
    times = interleave(jobs, 5)
    loops = interleave({"scikit-learn, tree by tree": loop, "one batch": batch}, 5)
    report = Report(
        "Scoring trees for BOFRF",
        f"{SITES} sites x {TREES} trees x {ROWS:,} rows a site (30 columns, depth {DEPTH}, two threads): "
        f"{SITES * SITES * TREES * ROWS:,} walks. Times as multiples of growing the local forests in the same round, "
        "median (smallest-largest). What the whole takes beyond growing and scoring is choosing, messages, and reading "
        "and checking trees at ten sites. Against scikit-learn: one site's rows and one forest of its own trees.",
        ["", "time"],
    )
    for name in jobs:
        report.rows.append([name, ratio(times, name, "growing the local forests")[1]])
    speed, text = ratio(loops, "scikit-learn, tree by tree", "one batch")
    report.rows.append(["scikit-learn tree by tree, times one batch", text])
    cost, _ = ratio(times, "scoring all trees at all sites", "growing the local forests")
    whole, _ = ratio(times, "whole BOFRF, three rounds", "growing the local forests")
    report.goals += [
        Goal("scoring, times growing the local forests", cost, most=1),
        Goal("whole BOFRF, times growing the local forests", whole, most=2.5),
        Goal("times faster than looping over scikit-learn trees", speed, least=10),
        Goal("rounds", bofrf.rounds_, most=5),
    ]
    report.publish()


if __name__ == "__main__":
    main()
