"""All 247 combinations of eight sites, on a substitute for nursing-home data of eight countries, which are not public.

The substitute: people of eight occupations in Adult, with as many rows and positives (an income above 50,000 dollars)
as the publication has for each country. So sites differ as real ones do; ``occupation`` is left out.
"""

import math
from collections.abc import Iterator
from functools import cache
from itertools import combinations

import numpy as np
import polars as pl
from experiments.reproduce.data import load
from experiments.reproduce.paper import Record, Run
from sklearn.metrics import roc_auc_score

import silvan as sv
from silvan.forest.forest import Forest

SITES = {
    "CZ": ("craft", "Craft-repair", 500, 170),
    "DE": ("sales", "Sales", 490, 173),
    "EN": ("professional", "Prof-specialty", 507, 179),
    "FI": ("managerial", "Exec-managerial", 448, 299),
    "FR": ("clerical", "Adm-clerical", 490, 209),
    "IL": ("transport", "Transport-moving", 579, 131),
    "IT": ("service", "Other-service", 540, 89),
    "NL": ("machines", "Machine-op-inspct", 548, 157),
}
"""Of each country: the occupation that stands for it, its name in Adult, rows and positives."""
LEFT_OUT = ("occupation", "fnlwgt", "education", "native-country")
FOREST = {"n_estimators": 100, "max_depth": 6}
TEST = 0.3
SEEDS = 3
N = 127
"""Environments that a country is part of."""


@cache
def eight_sites(data: str, seed: int) -> dict[str, tuple[pl.DataFrame, pl.DataFrame]]:
    """Sample the training and test rows of every site."""
    frame, rng = load(data.lower()), np.random.default_rng(seed)
    found = {}
    for site, (_, occupation, rows, positives) in SITES.items():
        there = frame.filter(pl.col("occupation") == occupation).drop(LEFT_OUT)
        label = there["label"].to_numpy()
        taken = [rng.permutation(np.flatnonzero(label == c))[:n] for c, n in ((0, rows - positives), (1, positives))]
        cut = [round(TEST * len(part)) for part in taken]
        judged, learnt = (
            np.sort(np.concatenate([part[one] for part, one in zip(taken, ends, strict=True)]))
            for ends in ([slice(c) for c in cut], [slice(c, None) for c in cut])
        )
        found[site] = there[learnt], there[judged]
    return found


def judge(forest: Forest, rows: pl.DataFrame) -> tuple[float, float]:
    """Return AUC and accuracy."""
    y, score = rows["label"].to_numpy(), forest.predict_proba(rows.drop("label"))[:, 1]
    return float(roc_auc_score(y, score)), float((forest.predict(rows.drop("label")) == y).mean())


def together(data: str, sites: int, seed: int) -> Iterator[Record]:
    """Fit all combinations of a given number of sites; one row for each combination and site."""
    drawn = eight_sites(data, seed)
    everyone = sv.federate_rows({site: learnt for site, (learnt, _) in drawn.items()}, random_state=seed, n_jobs=1)
    local = sv.LocalForest(**FOREST, random_state=seed).fit(everyone).forests_
    alone = {site: judge(local[site], test) for site, (_, test) in drawn.items()}
    for members in combinations(SITES, sites):
        fed = sv.federate_rows({site: drawn[site][0] for site in members}, random_state=seed, n_jobs=1)
        models = {
            "bofrf": sv.BOFRF(**FOREST, random_state=seed).fit(fed).forests_,
            "boppid": sv.BOPPID(random_state=seed).fit(fed).forests_,
            "printed": sv.BOPPID(printed=True, random_state=seed).fit(fed).forests_,
        }
        for site in members:
            row: Record = {"members": " ".join(members), "site": site, "stand_in": SITES[site][0]}
            figures = {"local": alone[site]} | {m: judge(by[site], drawn[site][1]) for m, by in models.items()}
            yield row | {
                f"{m}_{k}": round(v, 4) for m, p in figures.items() for k, v in zip(("auc", "acc"), p, strict=True)
            }


def cases(quick: bool) -> list[Record]:
    """List the numbers of sites that train together; in a quick run two or all."""
    sizes, seeds = ((2, 8), 1) if quick else (range(2, 9), SEEDS)
    return [{"data": "Adult", "sites": n, "seed": s} for s in range(seeds) for n in sizes]


RUN = Run("combinations", cases, together, kept="bofrf", version=2)


def z_scores(first: tuple[float, float], second: tuple[float, float], n: int) -> tuple[float, float]:
    """Return Z of two means (each with its standard deviation) by Eq. 7.2 of the thesis, and of two samples."""
    gain = first[0] - second[0]
    one, two = first[1] / math.sqrt(n), math.hypot(first[1], second[1]) / math.sqrt(n)
    return gain / one if one else math.nan, gain / two if two else math.nan


def p_value(z: float) -> float:
    """Return the p-value of a right-tailed Z test."""
    return 0.5 * math.erfc(z / math.sqrt(2))


def tested(rows: pl.DataFrame, against: str, figure: str) -> pl.DataFrame:
    """Test BOFRF against a reading of BOPPID at each site and seed, by means over combinations: both Z, and p."""
    lines = []
    for (site, stand_in, seed), part in rows.group_by("site", "stand_in", "seed", maintain_order=True):
        (a, s), (b, t) = (
            (float(c.mean()), float(c.std() or 0.0)) for c in (part[f"bofrf_{figure}"], part[f"{against}_{figure}"])
        )
        one, two = z_scores((a, s), (b, t), len(part))
        lines.append(
            {
                "site": site,
                "stand_in": stand_in,
                "seed": seed,
                "gain": a - b,
                "eq_7_2": one,
                "z": two,
                "p": p_value(two),
            }
        )
    return pl.DataFrame(lines)
