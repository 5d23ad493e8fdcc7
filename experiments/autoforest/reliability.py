"""How far probabilities can be trusted: AutoForest and BOFRF with and without calibration, beside local forests.

Sites, forests and test rows are those of the other tables. Large sets have fewer seeds, the same for every model.
"""

from collections.abc import Callable, Iterator

import numpy as np
import polars as pl
from experiments.autoforest.sites import sites_of
from experiments.reproduce.paper import Claim, Item, Record
from scipy.special import stdtr

import silvan as sv
from silvan import metrics
from silvan.algorithms.evaluation.repeats import corrected_interval
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


# -- tables and claims
MODELS = {"local": "local", "auto": "AutoForest", "bofrf": "BOFRF"}
_COLUMNS = {"local_loss": "local, log loss"} | {
    f"{model}{when}_{key}": f"{title}, {name} {told}"
    for key, name in (("loss", "log loss"), ("brier", "Brier"), ("slope", "slope"))
    for model, title in (("auto", "AutoForest"), ("bofrf", "BOFRF"))
    for when, told in (("_before", "before"), ("", "after"))
}


def by_seed(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the mean over sites for each data set and seed; a set without a slope has more than two classes."""
    return rows.group_by("data", "seed", maintain_order=True).agg(pl.col(*_COLUMNS).mean())


def _only(names: tuple[str, ...]) -> Callable[[pl.DataFrame], pl.DataFrame]:
    return lambda rows: by_seed(rows.filter(pl.col("data").is_in(names)))


def sites_of_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Return each site's gain over its local forest, with the probability of as bad a mean if there were no loss."""
    lines = []
    for (data, site), part in rows.group_by("data", "site", maintain_order=True):
        line: Record = {"data": data, "site": site, "train": float(part["rows"].mean() or 0.0), "seeds": len(part)}
        line["local_auc"] = part["local_auc"].mean()
        for model in ("auto", "bofrf", "personal"):
            gain = (part[f"{model}_auc"] - part["local_auc"]).to_numpy()
            line |= {model: float(gain.mean()), f"{model}_p": _chance_of_loss(gain)}
        kept = {f"own_{name}": (part[f"{name}strategy"] != "global").mean() for name in ("", "personal_")}
        lines.append(line | kept)
    return pl.DataFrame(lines).fill_nan(None)


def _chance_of_loss(gains: np.ndarray) -> float:
    """Return the one-sided p-value of a loss, corrected for splits that share rows; NaN with few seeds."""
    between = corrected_interval(gains, TEST / (1 - TEST))
    if between is None or between[1] == between[0]:
        return np.nan
    n, mean, spread = len(gains), float(gains.mean()), float(gains.std(ddof=1))
    return float(stdtr(n - 1, mean / (spread * np.sqrt(1.0 / n + TEST / (1 - TEST)))))


def holm(p: np.ndarray, level: float = 0.05) -> np.ndarray:
    """Return which of several hypotheses are rejected at a level for all of them together (Holm, 1979)."""
    order, rejected = np.argsort(p), np.zeros(len(p), np.bool_)
    for place, i in enumerate(order):
        if p[i] > level / (len(p) - place):
            break
        rejected[i] = True
    return rejected


def _not_below_local(model: str) -> Callable[[pl.DataFrame], tuple[bool, str] | None]:
    def check(rows: pl.DataFrame) -> tuple[bool, str] | None:
        known = rows.filter(pl.col(f"{model}_p").is_not_null())
        if not len(known):
            return None
        p = known[f"{model}_p"].to_numpy()
        below = known.filter(pl.Series(holm(p)))
        named = "".join(f"; {r['data']} {r['site']} {r[model]:+.3f}" for r in below.iter_rows(named=True))
        alone = int((p < 0.025).sum())
        least = known.sort(model).row(0, named=True)
        told = f"{len(below)} of {len(known)} sites below by Holm's correction ({alone} without it)"
        return not len(below), f"{told}, least {least[model]:+.3f} at {least['data']} {least['site']}{named}"

    return check


def _better(model: str, key: str) -> Callable[[pl.DataFrame], tuple[bool | None, str] | None]:
    """Check that calibration makes a loss smaller on average over sets, and significantly larger on none."""

    def check(rows: pl.DataFrame) -> tuple[bool, str] | None:
        sets, p, gains = [], [], []
        for (data,), part in rows.group_by("data", maintain_order=True):
            gain = (part[f"{model}_before_{key}"] - part[f"{model}_{key}"]).to_numpy()
            sets.append(str(data))
            gains.append(float(gain.mean()))
            p.append(_chance_of_loss(gain))
        if not sets:
            return None
        known = ~np.isnan(p)
        worse = [name for name, bad in zip(np.array(sets)[known], holm(np.array(p)[known]), strict=True) if bad]
        means = [float(rows.group_by("data").agg(pl.col(f"{model}{w}_{key}").mean())[f"{model}{w}_{key}"].mean())
                 for w in ("_before", "")]  # fmt: skip
        larger = [name for name, gain in zip(sets, gains, strict=True) if gain < 0]
        told = f"{means[0]:.3f} to {means[1]:.3f} on average over {len(sets)} sets"
        told += f"; larger on {', '.join(larger) or 'none'}, significantly on {', '.join(worse) or 'none'}"
        return means[1] < means[0] and not worse if known.any() else None, told

    return check


def _slope_near_one(model: str) -> Callable[[pl.DataFrame], tuple[bool, str] | None]:
    def check(rows: pl.DataFrame) -> tuple[bool, str] | None:
        means = rows.group_by("data").agg(pl.col(f"{model}_before_slope", f"{model}_slope").mean())
        known = means.filter(pl.col(f"{model}_slope").is_not_null())
        if not len(known):
            return None
        before, after = (float(known[f"{model}{when}_slope"].mean()) for when in ("_before", ""))
        inside = int(known[f"{model}_slope"].is_between(0.9, 1.1).sum())
        told = f"{before:.2f} to {after:.2f} on average over {len(known)} sets, {inside} of which within 0.9 to 1.1"
        return 0.9 <= after <= 1.1, told

    return check


def _gains_on_average(model: str, names: tuple[str, ...]) -> Callable[[pl.DataFrame], tuple[bool, str] | None]:
    """Check that the gain over local forests, averaged over sites of some sets, is above 0."""

    def check(rows: pl.DataFrame) -> tuple[bool, str] | None:
        found = rows.filter(pl.col("data").is_in(names)).group_by("data", maintain_order=True).agg(pl.col(model).mean())
        if not len(found):
            return None
        least = found.sort(model).row(0, named=True)
        mean = float(found[model].mean())
        return (
            mean > 0,
            f"AUC {mean:+.4f} on average over {len(found)} sets, least {least[model]:+.4f} on {least['data']}",
        )

    return check


def _above_at_most_sites(rows: pl.DataFrame) -> tuple[bool, str] | None:
    """Check accuracy at the eight sites of the thesis' stand-in, decided by each site's own curve."""
    if not len(rows):
        return None
    means = rows.group_by("site").agg(pl.col("local_accuracy", "bofrf_before_accuracy", "bofrf_accuracy").mean())
    local, before, after = (means[c] for c in ("local_accuracy", "bofrf_before_accuracy", "bofrf_accuracy"))
    told = f"accuracy {before.mean():.3f} to {after.mean():.3f}, local {local.mean():.3f}; above local at "
    told += f"{int((before > local).sum())} of {len(means)} sites before, {int((after > local).sum())} after"
    return int((after > local).sum()) >= 7, told


_SLOPE = "The calibration slope of {}, calibrated, is within 0.9 to 1.1 on average over {}."
_LOSS = "Calibration makes the {} of {} smaller on average over {}, and significantly larger on none."


def items(chosen_on: tuple[str, ...], claimed_on: tuple[str, ...]) -> tuple[Item, ...]:
    """Return the tables of the run: of sets to choose by, and of those that claims are about, kept apart."""

    def table(name: str, title: str, names: tuple[str, ...], claims: tuple[Claim, ...] = ()) -> Item:
        return Item(name, title, "reliability", ("data",), _COLUMNS, select=_only(names), claims=claims)

    def claims(where: str) -> tuple[Claim, ...]:
        found = []
        for model in ("auto", "bofrf"):
            title = MODELS[model]
            found.append(Claim(_SLOPE.format(title, where), _slope_near_one(model)))
            for key in ("loss", "brier"):
                measure = "log loss" if key == "loss" else "Brier score"
                found.append(Claim(_LOSS.format(measure, title, where), _better(model, key)))
        return tuple(found)

    return (
        table(
            "table 5",
            "calibration on data sets not used for any choice: before and after, means over sites",
            claimed_on,
            claims("sets not used for any choice"),
        ),
        table(
            "table 6",
            "calibration on data sets used to choose: before and after, means over sites",
            chosen_on,
            claims("sets used to choose"),
        ),
        Item(
            "table 7",
            "gain of each site over its local forest by the present rules, and how often it left the shared ensemble",
            "reliability",
            ("data", "site"),
            {
                "train": "training rows",
                "seeds": "seeds",
                "local_auc": "local, AUC",
                "auto": "AutoForest",
                "bofrf": "BOFRF",
                "personal": "BOFRF, personalised",
                "own_": "BOFRF chose local trees",
                "own_personal_": "personalised chose local trees",
            },
            select=sites_of_rows,
            claims=(
                *(
                    Claim(f"{title} is significantly below the local forest at no site.", _not_below_local(model))
                    for model, title in (("auto", "AutoForest"), ("bofrf", "BOFRF"), ("personal", "Personalised BOFRF"))
                ),
                *(
                    Claim(
                        f"On average over sets not used for any choice, {title} is above local forests.",
                        _gains_on_average(model, claimed_on),
                    )
                    for model, title in (("auto", "AutoForest"), ("bofrf", "BOFRF"), ("personal", "personalised BOFRF"))
                ),
            ),
        ),
        Item(
            "table 8",
            "accuracy at eight sites that stand in for those of the thesis, decided by each site's own curve",
            "reliability",
            ("site",),
            {
                "local_accuracy": "local",
                "bofrf_before_accuracy": "BOFRF by votes",
                "bofrf_accuracy": "BOFRF, calibrated",
                "auto_before_accuracy": "AutoForest, uncalibrated",
                "auto_accuracy": "AutoForest",
            },
            select=lambda rows: rows.filter(pl.col("data") == "occupations"),
            claims=(
                Claim(
                    "Calibrated BOFRF is more accurate than the local forest at seven of eight sites.",
                    _above_at_most_sites,
                ),
            ),
        ),
    )
