"""How far probabilities can be trusted: AutoForest and BOFRF with and without calibration, beside local forests.

Sites, forests and test rows are those of the other tables. Large sets have fewer seeds, the same for every model.
"""

from collections.abc import Iterator

import numpy as np
from experiments.autoforest.sites import sites_of
from experiments.reproduce.paper import Record

import silvan as sv
from silvan import metrics
from silvan.algorithms.evaluation.score_quality import score_quality
from silvan.federation.federation import Federation
from silvan.forest import predict
from silvan.forest.forest import Forest

TREES, DEPTH, TEST = 100, 10, 0.3

Forests = dict[str, Forest]


def at_sites(data: str, seed: int) -> Iterator[Record]:
    """Fit AutoForest and BOFRF; yield metrics of every model on each site's test rows."""
    fed = sv.federate_rows(sites_of(data, seed), label="label", test=TEST, random_state=seed, n_jobs=1)
    given = {"n_estimators": TREES, "max_depth": DEPTH, "random_state": seed}
    local = sv.LocalForest(**given).fit(fed)
    auto, bofrf = sv.AutoForest(**given).fit(fed), sv.BOFRF(**given, calibrate=True).fit(fed)
    personal = sv.BOFRF(**given, personal=True).fit(fed)
    models: dict[str, Forests] = {
        "local": local.forests_,
        "auto_before": _plain(auto.forests_),
        "auto": auto.forests_,
        "bofrf_before": _plain(bofrf.forests_),
        "bofrf": bofrf.forests_,
        "personal": personal.forests_,
    }
    slopes = {f"{name}_slope": _slope(fed, of) for name, of in models.items()}
    for site in fed.active:
        row: Record = {"site": site, "rows": fed.site(site).n_train}
        row |= {"strategy": bofrf.strategies_[site], "personal_strategy": personal.strategies_[site]}
        for name, of in models.items():
            row |= {f"{name}_{key}": round(value, 6) for key, value in _metrics(fed, site, of[site]).items()}
        if not np.isnan([row[f"{name}_auc"] for name in models]).any():
            yield row | {name: round(value, 6) for name, value in slopes.items()}


def _plain(forests: Forests) -> Forests:
    return {site: forest.plain() for site, forest in forests.items()}


def _metrics(fed: Federation, site: str, forest: Forest) -> Record:
    """Return AUC (of several classes, the mean over those that are there), log loss, Brier score and accuracy."""
    part = fed.site(site).part(fed.schema, test=True)
    proba, decided = predict.scores_and_decisions(forest, part.X, 1)
    found = score_quality(proba, part.y, fed.schema.n_classes)
    return {
        "auc": found.value if found.metric == "auc" else np.nan,
        "loss": metrics.log_loss(proba, part.y),
        "brier": metrics.brier(proba, part.y),
        "accuracy": float((decided == part.y).mean()),
    }


def _slope(fed: Federation, forests: Forests) -> float:
    """Return the calibration slope over all sites' test rows, of two classes."""
    if fed.schema.n_classes != 2:
        return np.nan
    parts = {site: fed.site(site).part(fed.schema, test=True) for site in fed.active}
    proba = np.concatenate([predict.scores(forests[site], part.X, 1) for site, part in parts.items()])
    y = np.concatenate([part.y for part in parts.values()])
    [(negatives, positives)] = metrics.count_scores(proba, y, exact=True)
    return metrics.calibration_line(np.unique(proba[:, 1])[::-1], negatives, positives)[1]
