"""Coverage of sets of classes at sites whose shares of positives differ from 10 to 90 per cent.

Needs SILVAN_DATA (Adult). Shared sets hold over all sites together; a site's own curve and errors hold at the site.
Writes coverage and mean size of 90% sets by site to label_shift.csv:

    python -m experiments.intervals.label_shift
"""

from pathlib import Path

import numpy as np
import polars as pl
from experiments.reproduce.data import load

import silvan as sv

SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
TRAIN, TEST, SEEDS, COVERAGE = 400, 1000, 4, 0.9
FOREST = {"n_estimators": 100, "max_depth": 10}


def sites(seed: int) -> dict[str, tuple[pl.DataFrame, pl.DataFrame]]:
    """Draw training and test rows of a site for each share of positives."""
    frame, rng = load("adult"), np.random.default_rng(seed)
    label = frame["label"].to_numpy()
    left = [rng.permutation(np.flatnonzero(label == c)).tolist() for c in (0, 1)]
    found = {}
    for share in SHARES:
        parts = []
        for n in (TRAIN, TEST):
            wanted = (n - round(share * n), round(share * n))
            parts.append(frame[[left[c].pop() for c in (0, 1) for _ in range(wanted[c])]])
        found[f"{share:.0%}"] = parts[0], parts[1]
    return found


def main() -> None:
    """Fit AutoForest with intervals, and measure shared and own sets at each site."""
    lines = []
    for seed in range(SEEDS):
        tables = sites(seed)
        fed = sv.federate_rows({name: train for name, (train, _) in tables.items()}, random_state=seed, n_jobs=1)
        model = sv.AutoForest(**FOREST, intervals=True, random_state=seed).fit(fed)
        for name, (_, test) in tables.items():
            y, line = test["label"].to_numpy(), {"positives": name, "seed": seed}
            for kind, forest in (("shared", model.forest_), ("own", model.forests_[name])):
                sets = forest.predict_set(test.drop("label"), COVERAGE)
                line[f"{kind}_coverage"] = round(float(sets[np.arange(len(y)), y].mean()), 4)
                line[f"{kind}_size"] = round(float(sets.sum(axis=1).mean()), 4)
            lines.append(line)
        print(lines[-len(SHARES) :], flush=True)
    frame = pl.DataFrame(lines)
    frame.write_csv(Path(__file__).parent / "label_shift.csv")
    print(frame.group_by("positives", maintain_order=True).agg(pl.exclude("seed").mean()))


if __name__ == "__main__":
    main()
