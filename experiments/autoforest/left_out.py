"""Sites that did not take part: each is left out in turn, all learners are trained at the others and evaluated there.

The site left out keeps 30 % of its rows as test rows. A learner of sites is evaluated by its forest for all sites.
"Adopted" is AutoForest's forest fitted to the other 70 % (``AutoForest.adopt``), "local" a forest of these alone.
"""

from collections.abc import Iterator

import numpy as np
import polars as pl
from experiments.autoforest.reliability import DEPTH, TEST, TREES
from experiments.autoforest.sites import sites_of
from experiments.reproduce.paper import Claim, Item, Record, Run

import silvan as sv
from silvan.algorithms.evaluation.score_quality import score_quality
from silvan.errors import InputError
from silvan.forest import predict

LEARNERS = {
    "histogram": sv.HistogramForest,
    "merged": sv.MergedForest,
    "bofrf": sv.BOFRF,
    "auto": sv.AutoForest,
}
BOOSTING = {"boosting_pl": sv.AdaBoostPL, "multboost": sv.MultBoost}
TITLES = {
    "local": "local forest",
    "adopted": "AutoForest, adopted",
    "auto": "AutoForest",
    "histogram": "HistogramForest",
    "merged": "MergedForest",
    "bofrf": "BOFRF",
    "boosting_pl": "AdaBoost.PL",
    "multboost": "MultBoost",
}
SETS = {"heart": 5, "E2": 5, "E10": 5}
"""Data sets, and seeds of each."""


def without_each(data: str, seed: int) -> Iterator[Record]:
    """Leave each site out; yield the AUC of all learners on the test rows of the site that was left out."""
    tables, given = sites_of(data, seed), {"n_estimators": TREES, "max_depth": DEPTH, "random_state": seed}
    for site, table in tables.items():
        others = {name: one for name, one in tables.items() if name != site}
        fed = sv.federate_rows(others, label="label", random_state=seed, n_jobs=1)
        try:
            here = sv.federate_rows({site: table}, schema=fed.schema, test=TEST, random_state=seed, n_jobs=1)
        except InputError:
            continue  # a class that no other site knows
        part = here.site(site).part(fed.schema, test=True)
        models = {name: kind(**given).fit(fed).forest_ for name, kind in LEARNERS.items()}
        models |= {name: kind(random_state=seed).fit(fed).forest_ for name, kind in BOOSTING.items()}
        models["adopted"] = sv.AutoForest(**given).adopt(models["auto"], here).forests_[site]
        models["local"] = sv.LocalForest(**given).fit(here).forests_[site]
        row: Record = {"site": site, "rows": here.site(site).n_train}
        for name, forest in models.items():
            scores, decided = predict.scores_and_decisions(forest, part.X, 1)
            found = score_quality(scores, part.y, fed.schema.n_classes)
            row[name] = found.value if found.metric == "auc" else np.nan
            row[f"{name}_accuracy"] = float((decided == part.y).mean())
        if not np.isnan(row["local"]):
            yield row


def _cases(quick: bool) -> list[Record]:
    if quick:
        return [{"data": "heart", "seed": 0}, {"data": "E10", "seed": 0}]
    return [{"data": d, "seed": s} for d, seeds in SETS.items() for s in range(seeds)]


def _helps(better: str, worse: str, key: str = ""):
    def check(rows: pl.DataFrame) -> tuple[bool | None, str] | None:
        gains = rows.group_by("data", "site").agg((pl.col(better + key) - pl.col(worse + key)).mean().alias("g"))["g"]
        mean, error = float(gains.mean() or 0.0), float(gains.std() or 0.0) / len(gains) ** 0.5
        held = mean > 0 if len(gains) > 5 and abs(mean) > 2 * error else None
        what = "accuracy" if key else "AUC"
        return held, f"{what} {mean:+.4f} with a standard error of {error:.4f} over {len(gains)} sites"

    return check


RUN = Run("left_out", _cases, without_each)
ITEM = Item(
    "table 9",
    "AUC at sites that did not take part, each left out in turn",
    "left_out",
    ("data", "site"),
    {**TITLES, "adopted_accuracy": "accuracy, adopted", "auto_accuracy": "accuracy, AutoForest",
     "local_accuracy": "accuracy, local"},
    claims=(
        Claim("At a site that joins after training, the adopted forest ranks better than the shared one.",
              _helps("adopted", "auto")),
        Claim("It ranks better than a local forest.", _helps("adopted", "local")),
        Claim("It is more accurate than the shared forest.", _helps("adopted", "auto", "_accuracy")),
        Claim("It is more accurate than a local forest.", _helps("adopted", "local", "_accuracy")),
    ),
)  # fmt: skip
