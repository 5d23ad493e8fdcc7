"""How often the corrected intervals of ``sv.compare`` hold the true gain, in draws from a known world.

Three sites draw 100 rows each from the same distribution (two classes, six features, AUC about 0.8). The true gain is
that of models of 80 rows a site, judged on 4,000 fresh rows, over many draws: what splits in five folds estimate. Run:
``python experiments/repeats/coverage.py [draws]``.
"""

import sys

import numpy as np
import polars as pl

import silvan as sv

REPEATS = 2


def draw(rng: np.random.Generator, n: int) -> pl.DataFrame:
    """Return rows of the world."""
    X = rng.normal(size=(n, 6))
    p = 1.0 / (1.0 + np.exp(-(X[:, 0] + X[:, 1] * X[:, 2] + 0.7 * X[:, 3])))
    return pl.DataFrame(X, schema=[f"x{i}" for i in range(6)]).with_columns(
        label=pl.Series((rng.random(n) < p).astype(int))
    )


def main(draws: int) -> None:
    """Print how often intervals hold the true gain."""
    rng = np.random.default_rng(0)
    learner = sv.MergedForest(n_estimators=15, max_depth=4)
    world = draw(rng, 4000)
    true, found = [], []
    for _ in range(draws):
        fed = sv.federate_rows({name: draw(rng, 80) for name in "abc"})
        judged = (
            learner.fit(fed).evaluate(fed, world).filter((pl.col("model") == "federated") & (pl.col("site") != "all"))
        )
        true += judged["gain"].to_list()
        fed = sv.federate_rows({name: draw(rng, 100) for name in "abc"}, test=0.2)
        frame = sv.compare(fed, [learner], repeats=REPEATS).frame.filter(pl.col("model") != "local")
        found.append(frame.select("site", "gain", "gain_low", "gain_high"))
    gain, every = float(np.mean(true)), pl.concat(found)
    print(f"true gain {gain:.4f}, from {len(true)} models")
    for name, some in (("a site", every.filter(pl.col("site") != "all")), ("mean of all", every.filter(site="all"))):
        held = some.select(pl.col("gain_low").le(gain) & pl.col("gain_high").ge(gain)).to_series()
        wide = (some["gain_high"] - some["gain_low"]).mean()
        print(
            f"{name}: held in {held.mean():.1%} of {len(held)}, mean width {wide:.3f}, mean {some['gain'].mean():.4f}"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 150)
