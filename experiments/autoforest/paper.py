"""AutoForest compared with its parts: local forests, the federated and the merged one, and BOFRF, site by site.

Every site holds out 30% of its rows, resampled for each seed, as its test set. The federated forest is, tree for
tree, the one of pooled rows. Forests have 100 trees with a depth of at most 10; merged forests have 100 of every
site, as many as AutoForest has of them, and so does BOFRF. The federated and the merged forests are the halves of
AutoForest: with re-estimated leaves by default, and as sites grew them without re-estimation.
"""

from collections.abc import Iterator

import numpy as np
import polars as pl
from experiments.autoforest import left_out, reliability
from experiments.autoforest.sites import DATA, sites_of
from experiments.reproduce.paper import Claim, Drawing, Item, Paper, Record, Run
from scipy.special import stdtrit

import silvan as sv
from silvan.algorithms.evaluation.repeats import corrected_interval
from silvan.algorithms.evaluation.score_quality import score_quality
from silvan.algorithms.horizontal.weigh_halves import join_halves
from silvan.federation.federation import Federation
from silvan.forest import predict
from silvan.forest.forest import Forest

TREES, DEPTH, TEST, SEEDS = 100, 10, 0.3, 20

FURTHER = (
    "liver",
    "HCC",
    "ionosphere",
    "spam",
    "waveform",
    "Parkinson",
    "airfoil",
    "superconductors",
    "education",
    "moved",
)
"""Data sets of tables that no claim is about, to choose by."""

CLASSES = ("land", "yeast", "accidents", "chess", "abalone")
"""Data sets with five to eighteen classes at sites that differ, to choose by."""

LARGE = (
    "adult x 4",
    "accidents x 4",
    "chess x 4",
    "land x 3",
    "moved x 5",
    "moved spam",
    "moved superconductors",
    "moved protein",
)
"""Data sets with some thousand rows a site, to choose by: at those that are moved own forests are best."""

CHOSEN_ON = ("heart", "E1", "E2", "E3", "E4", "turned", "adult", "telco", *FURTHER, *CLASSES, *LARGE)
"""Data sets by which the method was chosen."""

CLAIMED_ON = ("TCGA", "covertype", "covertype x 4", *(f"E{n}" for n in range(5, 13)))
"""Data sets that nothing was chosen by."""

TOGETHER = {"E1 to E4": tuple(f"E{n}" for n in range(1, 5)), "E5 to E12": tuple(f"E{n}" for n in range(5, 13))}
"""Environments that also count as one set, by their mean."""

SINGLE = ("local", "federated", "merged", "recounted", "bofrf")


RELIABILITY_SEEDS = 5
"""Seeds of the run of reliability, the same for all its sets and models: set by the time that runs take."""

_LONG = ("Parkinson", "superconductors", "education")
RELIABILITY_CHOSEN = tuple(name for name in (*CHOSEN_ON[:6], *FURTHER) if name not in _LONG)
RELIABILITY_CLAIMED = ("covertype", *(f"E{n}" for n in range(5, 13)))
"""Data sets of that run: the small ones, and covertype."""


# -- a case


def at_sites(data: str, seed: int) -> Iterator[Record]:
    """Fit AutoForest and BOFRF; yield the AUC of every model on each site's test rows."""
    fed = sv.federate_rows(sites_of(data, seed), label="label", test=TEST, random_state=seed, n_jobs=1)
    given = {"n_estimators": TREES, "max_depth": DEPTH, "random_state": seed}
    auto, bofrf = sv.AutoForest(**given).fit(fed), sv.BOFRF(**given).fit(fed)
    plain = sv.AutoForest(**given, refit_leaves=False).fit(fed)
    rest = np.arange(TREES, len(auto.forest_))
    trees = auto.forest_.plain()  # forests with calibration curves cannot be joined
    federated, merged = trees.take(np.arange(TREES)), plain.forest_.plain().take(rest)
    models: dict[str, Forest | dict[str, Forest]] = {
        "federated": federated,
        "merged": merged,
        "recounted": trees.take(rest),
        "bofrf": bofrf.forests_,
        "mean": join_halves((federated, merged), 0.5),
        "shared": auto.forest_,
        "auto": auto.forests_,
        "without": plain.forests_,
        "local": {site: merged.take(np.arange(TREES) + TREES * i) for i, site in enumerate(fed.active)},
    }
    for site in fed.active:
        found = {name: _auc(fed, site, of[site] if isinstance(of, dict) else of) for name, of in models.items()}
        if not np.isnan(list(found.values())).any():
            row = {f"{name}_auc": value for name, value in found.items()}
            chosen = {"share": auto.shares_[site], "fitted": auto.fitted_[site], "of_sites": auto.weights_["sites"]}
            yield {"site": site, "rows": fed.site(site).n_train, **chosen, **row}


def _auc(fed: Federation, site: str, forest: Forest) -> float:
    """Return the AUC on a site's test rows: for several classes, the mean over those that occur."""
    part = fed.site(site).part(fed.schema, test=True)
    found = score_quality(predict.scores(forest, part.X, 1), part.y, fed.schema.n_classes)
    return found.value if found.metric == "auc" else np.nan


def _cases(quick: bool) -> list[Record]:
    if quick:
        return [{"data": d, "seed": s} for s in range(2) for d in ("heart", "E2", "E10", "turned")]
    return [{"data": d, "seed": s} for s in range(SEEDS) for d in (*CHOSEN_ON, *CLAIMED_ON)]


def _reliability_cases(quick: bool) -> list[Record]:
    if quick:
        return [{"data": d, "seed": s} for s in range(2) for d in ("heart", "E2", "E10")]
    sets = (*RELIABILITY_CHOSEN, *RELIABILITY_CLAIMED, "occupations")
    return [{"data": d, "seed": s} for d in sets for s in range(RELIABILITY_SEEDS)]


# -- tables

_MODELS = {
    "local": "local",
    "federated": "federated (= pooled)",
    "merged": "merged",
    "recounted": "merged, leaves re-estimated",
    "bofrf": "BOFRF",
    "mean": "mean of federated and merged",
    "shared": "shared forest",
    "auto": "AutoForest",
    "without": "AutoForest without re-estimated leaves",
}
_AUC = [f"{name}_auc" for name in _MODELS]


def _by_seed(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the mean over sites for each data set and seed."""
    return rows.group_by("data", "seed", maintain_order=True).agg(pl.col(*_AUC, "of_sites").mean())


def _only(names: tuple[str, ...]):
    def select(rows: pl.DataFrame) -> pl.DataFrame:
        found = _by_seed(rows.filter(pl.col("data").is_in(names)))
        return found.sort(pl.col("data").replace_strict({n: i for i, n in enumerate(names)}, default=99), "seed")

    return select


def _interval(differences: pl.Series) -> tuple[float, float]:
    """Return the 95% interval of a mean difference over splits that share rows (Nadeau and Bengio)."""
    return corrected_interval(differences.to_numpy(), TEST / (1 - TEST)) or (np.nan, np.nan)


def _gains(rows: pl.DataFrame) -> pl.DataFrame:
    """Return AutoForest's gains with intervals, one line per data set."""
    lines = []
    for names in (CHOSEN_ON, CLAIMED_ON):
        found = _only(names)(rows)
        parts = {str(data): part for (data,), part in found.group_by("data", maintain_order=True)}
        for name, group in TOGETHER.items():
            together = found.filter(pl.col("data").is_in(group))
            parts |= {name: together.group_by("seed").agg(pl.col(*_AUC, "of_sites").mean())} if len(together) else {}
        for data, part in parts.items():
            best = max(SINGLE, key=lambda name: float(part[f"{name}_auc"].mean()))
            line: Record = {"data": data, "used": "choosing" if names is CHOSEN_ON else "claim"}
            for other, against in (("federated", "federated"), ("best", best), ("local", "local")):
                gain = part["auto_auc"] - part[f"{against}_auc"]
                low, high = _interval(gain)
                line |= {f"over_{other}": float(gain.mean()), f"{other}_low": low, f"{other}_high": high}
            lines.append(line | {"best": _MODELS[best], "of_sites": part["of_sites"].mean()})
    return pl.DataFrame(lines).fill_nan(None)


def _sites(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the gain of sites over their local forests, one line per site, and how often each used another."""
    order = {name: i for i, name in enumerate((*CHOSEN_ON, *CLAIMED_ON))}
    lines = []
    for (data, site), part in rows.group_by("data", "site", maintain_order=True):
        line = {"data": data, "site": site, "train": float(part["rows"].mean() or 0.0)}
        line |= {"local_auc": part["local_auc"].mean(), "auto_auc": part["auto_auc"].mean()}
        for name in ("auto", "bofrf"):
            gain = part[f"{name}_auc"] - part["local_auc"]
            low, high = _interval(gain)
            line |= {name: gain.mean(), f"{name}_low": low, f"{name}_high": high}
        shares = {"own": part["share"].mean(), "fitted": part["fitted"].mean()}
        lines.append(line | {"left": (part["share"] + part["fitted"] > 0).mean(), **shares})
    return pl.DataFrame(lines).fill_nan(None).sort(pl.col("data").replace_strict(order, default=99), "site")


# -- claims


def _bofrf_above_merged(rows: pl.DataFrame) -> tuple[bool | None, str] | None:
    """Compare weights and votes with plain merging on the environments of the BOFRF paper."""
    if rows["seed"].n_unique() < 3:
        return None
    gains = rows["bofrf_auc"] - rows["merged_auc"]
    error = float(gains.std() or 0.0) / len(gains) ** 0.5
    mean = float(gains.mean() or 0.0)
    held = mean > 0 if abs(mean) > 2 * error else None
    return held, f"AUC {mean:+.4f} with a standard error of {error:.4f} over {len(gains)} draws"


def _near_the_best(names: tuple[str, ...]):
    def check(rows: pl.DataFrame) -> tuple[bool, str] | None:
        found = rows.filter(pl.col("data").is_in(names))
        if not len(found):
            return None
        worst = found.sort("over_best").row(0, named=True)
        held = worst["over_best"] >= -0.002
        return held, f"least at {worst['data']}: {worst['over_best']:+.4f} against {worst['best']}"

    return check


def _above_pooled(names: tuple[str, ...]):
    def check(rows: pl.DataFrame) -> tuple[bool, str] | None:
        found = rows.filter(pl.col("data").is_in(names))
        if not len(found):
            return None
        gain = float(found["over_federated"].mean())
        return gain > 0, f"AUC {gain:+.4f} on average over {len(found)} sets"

    return check


def _not_below_local(gain: str):
    """Check that no site is below its local forest, by intervals corrected for the number of sites (Bonferroni)."""

    def check(rows: pl.DataFrame) -> tuple[bool, str] | None:
        known = rows.filter(pl.col(f"{gain}_high").is_not_null())
        if not len(known):
            return None
        wider = float(stdtrit(SEEDS - 1, 1 - 0.025 / len(known)) / stdtrit(SEEDS - 1, 0.975))
        reach = (pl.col(f"{gain}_high") - pl.col(gain)) * wider
        below, above = known.filter(pl.col(gain) + reach < 0), known.filter(pl.col(gain) - reach > 0)
        named = "".join(f"; {r['data']} {r['site']} {r[gain]:+.3f}" for r in below.iter_rows(named=True))
        alone = len(known.filter(pl.col(f"{gain}_high") < 0))
        told = f"{len(below)} of {len(known)} sites below, {len(above)} above ({alone} below without the correction)"
        return not len(below), told + named

    return check


PAPER = Paper(
    "autoforest",
    "AutoForest beside the forests that it is made of",
    __name__,
    (
        Run("sites", _cases, at_sites, version=7),
        Run("reliability", _reliability_cases, reliability.at_sites),
        left_out.RUN,
    ),
    (
        Item(
            "table 1",
            "mean AUC over sites, on data sets not used for any choice",
            "sites",
            ("data",),
            {f"{name}_auc": title for name, title in _MODELS.items()},
            select=_only(CLAIMED_ON),
            drawing=Drawing("data", "mean AUC", figures=("local_auc", "federated_auc", "auto_auc")),
        ),
        Item(
            "table environments",
            "BOFRF beside plain merging, on the environments of the BOFRF paper: mean AUC over sites",
            "sites",
            ("data",),
            {name: _MODELS[name.removesuffix("_auc")] for name in ("local_auc", "merged_auc", "bofrf_auc")},
            select=_only(tuple(f"E{n}" for n in range(1, 13))),
            claims=(Claim("BOFRF is better than plain merging.", _bofrf_above_merged),),
        ),
        Item(
            "table 2",
            "mean AUC over sites, on data sets used to choose the method",
            "sites",
            ("data",),
            {f"{name}_auc": title for name, title in _MODELS.items()},
            select=_only(CHOSEN_ON),
        ),
        Item(
            "table 3",
            "gain of AutoForest, with 95% confidence intervals corrected for splits that share rows",
            "sites",
            ("used", "data", "best"),
            {
                "over_federated": "over federated (= pooled)",
                "federated_low": "from",
                "federated_high": "to",
                "over_best": "over the best single learner",
                "best_low": "from",
                "best_high": "to",
                "over_local": "over local",
                "local_low": "from",
                "local_high": "to",
                "of_sites": "weight of the sites' trees",
            },
            select=_gains,
            digits=4,
            claims=(
                Claim(
                    "On each set not used for any choice, AutoForest is at most 0.002 below the best single "
                    "learner: local, federated, merged (also recounted) or BOFRF; environments 5 to 12 are one set.",
                    _near_the_best(("TCGA", "covertype", "E5 to E12")),
                ),
                Claim(
                    "On average over these sets it is above the pooled forest.",
                    _above_pooled(("TCGA", "covertype", "E5 to E12")),
                ),
                Claim(
                    "Also on each set used to choose the method, AutoForest is at most 0.002 below the best single "
                    "learner.",
                    _near_the_best(("heart", "E1 to E4", "turned", "adult", "telco", *FURTHER, *CLASSES, *LARGE)),
                ),
                Claim(
                    "Also on average over the sets used to choose the method, it is above the pooled forest.",
                    _above_pooled(("heart", "E1 to E4", "turned", "adult", "telco", *FURTHER, *CLASSES, *LARGE)),
                ),
            ),
        ),
        Item(
            "table 4",
            "gain of each site over its local forest, and how often it left the shared forest",
            "sites",
            ("data", "site"),
            {
                "train": "training rows",
                "local_auc": "local, AUC",
                "auto_auc": "AutoForest, AUC",
                "auto": "gain",
                "auto_low": "from",
                "auto_high": "to",
                "bofrf": "gain of BOFRF",
                "bofrf_low": "from",
                "bofrf_high": "to",
                "left": "left the shared forest",
                "own": "weight of local trees",
                "fitted": "weight of local leaf values",
            },
            select=_sites,
            claims=(Claim("AutoForest is significantly below the local forest at no site.", _not_below_local("auto")),),
        ),
        *reliability.items(RELIABILITY_CHOSEN, RELIABILITY_CLAIMED),
        left_out.ITEM,
    ),
    DATA,
)
