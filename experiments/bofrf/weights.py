"""Trees weighted by MCC, accuracy or F1, which the BOFRF paper (III-A) names as alternatives."""

from collections.abc import Iterator

import polars as pl
from experiments.bofrf.checks import by_draw, sure
from experiments.bofrf.environments import DATA, ENVIRONMENTS, FOREST, TEST, draw_environment
from experiments.reproduce.paper import Claim, Item, Record, Run

import silvan as sv

SEEDS = 5
METRICS = {"mcc": "MCC", "accuracy": "accuracy", "f1": "F1"}


def weighted(data: str, environment: str, seed: int) -> Iterator[Record]:
    """Fit BOFRF with each metric as weight, and merged trees; a row with the AUC of global ensembles at each site."""
    sites = ENVIRONMENTS.filter(environment=int(environment[1:]))
    fed = sv.federate_rows(draw_environment(sites, seed), label="label", test=TEST, random_state=seed, n_jobs=1)
    found: dict[str, Record] = {site: {"site": site} for site in fed.active}
    for key in METRICS:
        model = sv.BOFRF(**FOREST, random_state=seed, weigh_by=key).fit(fed)
        for row in model.evaluate(fed).iter_rows(named=True):
            if row["site"] in found and row["model"] in ("global", "federated"):
                found[row["site"]][f"{key}_{row['model']}"] = row["auc"]
    yield from found.values()


def _cases(quick: bool) -> list[Record]:
    names = {name: called for called, name in DATA.items()}
    listed = ENVIRONMENTS.unique("environment", maintain_order=True)
    every = [(f"E{n}", names[name]) for n, name in listed.select("environment", "dataset").iter_rows()]
    some = [pair for pair in every if pair[0] in ("E1", "E8", "E11")] if quick else every
    return [{"data": d, "environment": e, "seed": s} for e, d in some for s in range(2 if quick else SEEDS)]


def _better_than(other: str):
    def check(rows: pl.DataFrame) -> tuple[bool | None, str] | None:
        told, verdicts = [], []
        for model in ("global", "federated"):
            gains = by_draw(rows, pl.col(f"mcc_{model}") - pl.col(f"{other}_{model}"))
            held, error = sure(gains)
            verdicts.append(held)
            told.append(f"{model} AUC {float(gains.mean()):+.4f} with a standard error of {error:.4f}")
        return verdicts[1], f"{'; '.join(told)} over {len(gains)} draws"

    return check


RUN = Run("weights", _cases, weighted)
ITEM = Item(
    "table weights",
    "AUC of BOFRF with trees weighted by MCC, accuracy or F1: all trees, and what sites choose",
    "weights",
    ("environment",),
    {
        f"{key}_{model}": f"{title}, {told}"
        for model, told in (("global", "all trees"), ("federated", "chosen"))
        for key, title in METRICS.items()
    },
    claims=(
        Claim("MCC is a better weight than accuracy.", _better_than("accuracy")),
        Claim("MCC is a better weight than F1.", _better_than("f1")),
    ),
)
