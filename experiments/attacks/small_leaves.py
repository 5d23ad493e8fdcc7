"""Leaves below a policy's minimum, and leaf values of other rows than those that reach them, with adaptive bins.

The released forest has thresholds, but the bins that it was grown from do not: with the forest, one can count how many
known rows reach a leaf.
"""

import numpy as np
import polars as pl
from experiments.attacks.outcome import Outcome

import silvan as sv
from silvan.forest.predict import leaves_of
from silvan.tree.sampling import rows_of_trees

LEAST = 20


def run(small: bool) -> list[Outcome]:
    """Grow forests under a policy of 20 rows per leaf; count smaller leaves and wrong leaf values."""
    few = odd = leaves = 0
    for seed in range(1 if small else 20):
        for rows, share, value in _leaves(seed):
            leaves += 1
            few += rows < LEAST
            odd += abs(share - value) > 1e-9
    every = f"of {leaves} leaves"
    return [
        Outcome(f"leaves under a minimum of {LEAST} rows, {every}", "26 of 1,796, down to 17 rows", few),
        Outcome(f"leaves whose value does not match their rows, {every}", "816 of 1,796", odd),
    ]


def _leaves(seed: int) -> list[tuple[int, float, float]]:
    """Grow a forest of ten trees; return the rows of each leaf, their share of the second class, and its value."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(400, 3)).round(2)
    y = (X[:, 0] + 0.5 * X[:, 1] + 0.5 * rng.normal(size=400) > 0).astype(int)
    frame = pl.DataFrame(X, schema=["a", "b", "c"]).with_columns(label=y)
    policy = sv.Policy(messages=("*", "AdaptiveLevel"), min_leaf=LEAST)
    fed = sv.federate_rows({"north": frame[:200], "south": frame[200:]}, policy=policy, n_jobs=1)
    forest = sv.HistogramForest(10, bins="adaptive", max_bins=8, min_samples_leaf=LEAST).fit(fed).forest_
    if forest is None:
        raise RuntimeError("no forest")
    parts = [fed.site(name).part(fed.schema) for name in fed.sites]
    rows, classes, keys = (np.concatenate([getattr(p, f) for p in parts]) for f in ("X", "y", "row_keys"))
    drawn = rows_of_trees(fed.site("north").sampling_key, keys, 0, 10, True)
    leaves = leaves_of(forest, rows)
    found = []
    for t in range(10):
        reached = forest.leaf[forest.offsets[t] + leaves[drawn[t], t]]
        for leaf in np.unique(forest.leaf[forest.offsets[t] : forest.offsets[t + 1]]):
            here = classes[drawn[t]][reached == leaf] if leaf >= 0 else None
            if here is not None and forest.offsets[t + 1] - forest.offsets[t] > 1:
                found.append((len(here), float(here.mean()) if len(here) else -1.0, float(forest.value[leaf, 1])))
    return found
