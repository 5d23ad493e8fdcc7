"""A publication with a few quick cases, for tests of the framework."""

import polars as pl
from experiments.reproduce.paper import Claim, Drawing, Item, NotHere, Paper, Run


def _cases(quick):
    data = ["here", "elsewhere"]
    return [{"data": d, "sites": n, "seed": s} for d in data for n in (2, 5) for s in range(1 if quick else 3)]


def _make(data, sites, seed):
    yield {"auc": 0.9 - 0.05 * sites + 0.001 * seed, "rounds": 2 * sites}


def _odd_cases(quick):
    return [{"kind": kind} for kind in ("peer", "package", "mistake", "fine")]


def _odd(kind):
    if kind == "peer":
        raise NotHere("the peer rival is not here: pip install rival")
    if kind == "package":
        import no_such_package_anywhere  # noqa: F401
    if kind == "mistake":
        raise ZeroDivisionError("a case that cannot be run")
    yield {"auc": 1.0}


def _falls(rows):
    means = dict(rows.group_by("sites").agg(pl.col("auc").mean()).rows())
    return means[5] < means[2], f"AUC {means[2]:.3f} with 2 sites, {means[5]:.3f} with 5"


PAPER = Paper(
    "small",
    "A small paper <of ours>",
    __name__,
    (Run("sites", _cases, _make), Run("odd", _odd_cases, _odd)),
    (
        Item(
            "figure 1",
            "AUC over sites",
            "sites",
            ("data", "sites"),
            {"auc": "AUC", "rounds": "rounds"},
            claims=(Claim("AUC falls.", _falls), Claim("AUC rises.", lambda rows: (not _falls(rows)[0], "it fell"))),
            drawing=Drawing("sites", "AUC", "data", ("auc",)),
        ),
        Item("table 2", "odd cases", "odd", ("kind",), {"auc": "AUC"}, claims=(Claim("Open.", lambda rows: None),)),
    ),
    {"here": "breast_cancer", "elsewhere": "no_such_table"},
)
