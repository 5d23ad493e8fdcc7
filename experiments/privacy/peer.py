"""The same tables and splits with diffprivlib's random forest, with its defaults and tuned on other splits.

    python experiments/privacy/peer.py FOLDER --splits 10

It needs its own environment (diffprivlib 0.6.6, scikit-learn 1.5.2), and FOLDER is the output of ``accuracy.py
--export``. Bounds and classes are given, the same as ours. Categories are codes by default; the tuned forest may have
columns of zeros and ones instead.
"""

import argparse
import sys
import warnings
from pathlib import Path

import numpy as np
from diffprivlib.models import RandomForestClassifier
from sklearn.metrics import roc_auc_score

sys.path.insert(0, str(Path(__file__).parents[2]))
from experiments.privacy.lines import EPSILONS, TUNED_ON, Lines

RESULTS = Path(__file__).parent / "peer.csv"
GRID = {
    "codes": ((10, 5), (30, 5), (30, 8), (100, 3), (100, 5), (300, 3)),
    "ones": ((30, 8), (100, 3), (300, 3)),
}
"""Trees and their depth, by how categories are shown."""


def auc(data: dict[str, np.ndarray], shape: str, trees: int, depth: int, epsilon: float, seed: int) -> float:
    """Fit a forest and evaluate it."""
    X, y, (low, high) = data[shape], data["y"], data[f"{shape[:-1]}_bounds"].T
    learnt, judged = data[f"learnt {seed}"], data[f"judged {seed}"]
    model = RandomForestClassifier(
        trees, epsilon=epsilon, bounds=(low, high), classes=[0, 1], max_depth=depth, random_state=seed, n_jobs=1
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X[learnt], y[learnt])
    return float(roc_auc_score(y[judged], model.predict_proba(X[judged])[:, 1]))


def main() -> None:
    """Run what is missing: defaults, tuning, then the best setting, split after split."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--sets", nargs="+")
    given = parser.parse_args()
    lines = Lines(RESULTS)
    names = given.sets or sorted(path.stem for path in given.folder.glob("*.npz"))
    tables = {name: dict(np.load(given.folder / f"{name}.npz")) for name in names}
    grids = {}
    for name, data in tables.items():
        shapes = list(GRID) if data["codes"].shape != data["ones"].shape else ["codes"]
        grids[name] = [(shape, *forest) for shape in shapes for forest in GRID[shape]]
        for epsilon in EPSILONS:
            for seed in range(given.splits):
                with lines.new(name, "default", epsilon, seed) as line:
                    if line is not None:
                        line.auc = auc(data, "codes", 10, 5, epsilon, seed)
    for name, data in tables.items():
        for epsilon in EPSILONS:
            for shape, trees, depth in grids[name]:
                for seed in TUNED_ON:
                    with lines.new(name, f"{shape} {trees} x {depth}", epsilon, seed) as line:
                        if line is not None:
                            line.auc = auc(data, shape, trees, depth, epsilon, seed)
            means = [lines.mean(name, f"{s} {t} x {d}", epsilon, TUNED_ON) for s, t, d in grids[name]]
            shape, trees, depth = grids[name][int(np.argmax(means))]
            for seed in range(given.splits):
                with lines.new(name, "tuned", epsilon, seed) as line:
                    if line is not None:
                        line.chosen = f"{trees} trees of depth {depth}, categories as {shape}"
                        line.auc = auc(data, shape, trees, depth, epsilon, seed)


if __name__ == "__main__":
    main()
