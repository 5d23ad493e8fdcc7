"""Figures 1 to 3 (local against federated), 6 and 7 (noise) and 8 (bins), on Telco churn.

Rows are distributed to clients, stratified by class; a fifth of each client's rows is its test set, and a fifth of
the others tunes the depth of trees. All features are tried at every node. The text does not name the number of trees
or bins; ours have 30 trees and 16 bins.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from statistics import mean

import numpy as np
import polars as pl
from experiments.privacy.data import load as load_public
from experiments.reproduce.data import load
from experiments.reproduce.paper import Claim, Drawing, Item, Paper, Record, Run
from scipy.stats import ttest_1samp
from sklearn.metrics import f1_score, roc_auc_score

import silvan as sv
from silvan.federation.federation import Federation
from silvan.forest.forest import Forest
from silvan.privacy.noise.laplace import MAX_EPSILON

DATA = {"Telco": "telco_churn"}
OPEN = sv.Policy(messages=("*", "AdaptiveLevel"))
DEPTHS = (3, 6, 9)
FOREST = {"n_estimators": 30, "max_features": None}
BINS = 16
EPSILONS = (0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 1.0, 3.0, 5.0, 100.0)
NOISY = {"n_estimators": 10, "max_depth": 4, "max_features": None}
"""Few trees of few levels: each answer more takes its part of epsilon."""

Tables = dict[str, pl.DataFrame]


def schema_of(data: str) -> sv.Schema:
    """Return what is public about a table."""
    return load_public(data)[1]


# -- clients


@cache
def table_of(data: str, rows: int) -> pl.DataFrame:
    """Return a table, or some of its rows."""
    frame = load(DATA[data])
    return frame if not rows else frame[np.sort(np.random.default_rng(0).choice(len(frame), rows, replace=False))]


def _deal(frame: pl.DataFrame, shares: list[float], rng: np.random.Generator) -> list[pl.DataFrame]:
    """Split rows in these shares, class by class, at random."""
    label, parts = frame["label"].to_numpy(), [list[int]() for _ in shares]
    for c in np.unique(label):
        rows = rng.permutation(np.flatnonzero(label == c))
        ends = np.rint(np.cumsum([0.0, *shares]) / sum(shares) * len(rows)).astype(int)
        for part, begin, end in zip(parts, ends, ends[1:], strict=False):
            part += rows[begin:end].tolist()
    return [frame[sorted(part)] for part in parts]


@dataclass(frozen=True)
class Clients:
    """Rows of clients: training rows, a fifth of which serves for tuning, and test rows."""

    learnt: Tables
    rest: Tables
    tuning: Tables
    judged: Tables


def draw_clients(data: str, rows: int, clients: int, seed: int) -> Clients:
    """Distribute the table, or some of its rows, to clients."""
    rng = np.random.default_rng([seed, clients])
    drawn = Clients({}, {}, {}, {})
    for i, frame in enumerate(_deal(table_of(data, rows), [1.0] * clients, rng)):
        name = f"C{i + 1}"
        drawn.learnt[name], drawn.judged[name] = _deal(frame, [0.8, 0.2], rng)
        drawn.rest[name], drawn.tuning[name] = _deal(drawn.learnt[name], [0.8, 0.2], rng)
    return drawn


def _federate(data: str, tables: Tables, seed: int) -> Federation:
    return sv.federate_rows(tables, schema=schema_of(data), policy=OPEN, random_state=seed, n_jobs=1)


def f1_of(forest: Forest, rows: pl.DataFrame) -> float:
    """Return F1 of the churn class."""
    return _figures(forest, rows)[0]


def _figures(forest: Forest, rows: pl.DataFrame) -> tuple[float, float]:
    """Return F1 of the churn class, and AUC."""
    scores, y = forest.predict_proba(rows.drop("label"))[:, 1], rows["label"].to_numpy()
    return float(f1_score(y, scores > 0.5)), float(roc_auc_score(y, scores))


# -- Figures 1 to 3


def local_against_federated(data: str, clients: int, rows: int, seed: int) -> Iterator[Record]:
    """Fit each client's local forest and the federated one, with depths chosen on held-out training rows."""
    drawn = draw_clients(data, rows, clients, seed)
    small, fed = _federate(data, drawn.rest, seed), _federate(data, drawn.learnt, seed)
    tried = {
        kind: {
            depth: {c: f1_of(f, drawn.tuning[c]) for c, f in _fit(kind, small, depth, seed).items()} for depth in DEPTHS
        }
        for kind in KINDS
    }
    depths = {kind: max(DEPTHS, key=lambda depth, by=by: mean(by[depth].values())) for kind, by in tried.items()}
    alone = {c: max(DEPTHS, key=lambda depth, c=c: tried["local"][depth][c]) for c in drawn.learnt}
    local = {depth: _fit("local", fed, depth, seed) for depth in set(alone.values())}
    shared = {kind: _fit(kind, fed, depths[kind], seed) for kind in KINDS if kind != "local"}
    for c, table in drawn.judged.items():
        row: Record = {"client": c, "local_depth": alone[c], "federated_depth": depths["federated"]}
        for kind, forest in (("local", local[alone[c]][c]), *((kind, by[c]) for kind, by in shared.items())):
            row[f"{kind}_f1"], row[f"{kind}_auc"] = _figures(forest, table)
        yield row


KINDS = ("local", "federated", "exact")
"""A client's own forest, the federated one of adaptive bins, and the one of bins that all share."""


def _fit(kind: str, fed: Federation, depth: int, seed: int) -> dict[str, Forest]:
    """Return the forest of each client."""
    given = {**FOREST, "max_depth": depth, "random_state": seed}
    if kind == "local":
        return sv.LocalForest(**given).fit(fed).forests_
    bins = {"bins": "adaptive", "max_bins": BINS} if kind == "federated" else {}
    return sv.HistogramForest(**given, **bins).fit(fed).forests_


def _client_cases(quick: bool) -> list[Record]:
    counts, rows, seeds = ((2, 10), 2000, 2) if quick else ((2, 5, 10), 0, 10)
    return [{"data": "Telco", "clients": n, "rows": rows, "seed": s} for n in counts for s in range(seeds)]


# -- Figure 8


def over_bins(data: str, bins: int, rows: int, seed: int) -> Iterator[Record]:
    """Fit the federated forest of two clients with a given number of bins."""
    drawn = draw_clients(data, rows, 2, seed)
    given = {**FOREST, "max_depth": 6, "random_state": seed}
    forest = (
        sv.HistogramForest(**given, bins="adaptive", max_bins=bins).fit(_federate(data, drawn.learnt, seed)).forest_
    )
    for c, table in drawn.judged.items():
        f1, auc = _figures(forest, table)
        yield {"client": c, "f1": f1, "auc": auc}


def _bin_cases(quick: bool) -> list[Record]:
    counts, rows, seeds = ((2, 4, 16), 2000, 2) if quick else ((2, 3, 4, 6, 8, 12, 16, 32, 64), 0, 10)
    return [{"data": "Telco", "bins": b, "rows": rows, "seed": s} for b in counts for s in range(seeds)]


# -- Figures 6 and 7

READINGS = ("in all", "each")
"""What epsilon is: for all that a client ever tells of a row, or for each count or cell by itself, as in the paper."""


def with_noise(data: str, form: str, reading: str, epsilon: float, rows: int, seed: int) -> Iterator[Record]:
    """Fit a private forest of two clients, and evaluate it on the rows of the first."""
    drawn = draw_clients(data, rows, 2, seed)
    fed = _federate(data, drawn.learnt, seed)
    n_rows = sum(map(len, drawn.learnt.values()))
    features = len(fed.schema.features)
    # into how many parts a forest of this kind divides its epsilon
    parts = {"levels": NOISY["n_estimators"] * NOISY["max_depth"] * features, "input": features + 1, "tables": 1}[form]
    total = min(epsilon * (parts if reading == "each" else 1), MAX_EPSILON)
    given = {"noise": "site", "n_rows": n_rows} if form != "input" else {"n_rows": n_rows}
    noisy = sv.HistogramForest(**NOISY, random_state=seed, epsilon=total, private=form, bootstrap=False, **given)
    f1, auc = _figures(noisy.fit(fed).forest_, drawn.judged["C1"])
    yield {"total": total, "f1": f1, "auc": auc}


def _noise_cases(quick: bool) -> list[Record]:
    some, rows, seeds = ((0.01, 1.0, 100.0), 2000, 1) if quick else (EPSILONS, 0, 5)
    kinds = [(form, reading) for form in ("input", "levels") for reading in READINGS] + [("tables", "in all")]
    return [
        {"data": "Telco", "form": form, "reading": reading, "epsilon": e, "rows": rows, "seed": s}
        for form, reading in kinds
        for e in some
        for s in range(seeds)
    ]


# -- the publication's claims


def _federated_above_local(rows: pl.DataFrame) -> tuple[bool, str]:
    columns = ("local_f1", "federated_f1", "local_auc", "federated_auc")
    by = rows.group_by("client", maintain_order=True).agg(pl.col(columns).mean())
    gains = (by["federated_f1"] - by["local_f1"]).to_numpy()
    local, federated, local_auc, federated_auc = (float(by[c].mean()) for c in columns)
    told = f"mean F1 {federated:.3f} against {local:.3f}, higher for {int((gains > 0).sum())} of {len(gains)} clients"
    return federated > local, f"{told}; AUC {federated_auc:.3f} against {local_auc:.3f}"


def _each_client_gains(rows: pl.DataFrame) -> tuple[bool, str]:
    """Check each client by a paired t test over repetitions, corrected for the number of clients (Holm)."""
    tests = []
    for (client,), part in rows.group_by("client", maintain_order=True):
        gains = (part["federated_f1"] - part["local_f1"]).to_numpy()
        if len(gains) > 2 and gains.std() > 0:
            tests.append((float(ttest_1samp(gains, 0.0, alternative="greater").pvalue), str(client)))
    sure: list[str] = []
    for i, (p, client) in enumerate(sorted(tests)):
        if p > 0.05 / (len(tests) - i):
            break
        sure.append(client)
    named = f" ({', '.join(sure)})" if sure else ""
    return bool(tests) and len(sure) == len(tests), f"significant for {len(sure)} of {len(tests)} clients{named}"


def _at(rows: pl.DataFrame, column: str, low: float, high: float) -> float:
    return float(rows.filter(pl.col(column).is_between(low, high))["f1"].mean() or np.nan)


def _rises_to_eight(rows: pl.DataFrame) -> tuple[bool, str]:
    few, enough = _at(rows, "bins", 2, 2), _at(rows, "bins", 8, 1000)
    return enough > few + 0.01, f"F1 {few:.3f} with 2 bins, {enough:.3f} with 8 or more"


def _flat_from_eight(rows: pl.DataFrame) -> tuple[bool, str] | None:
    if rows.filter(pl.col("bins") > 8)["bins"].n_unique() < 2:
        return None
    eight, more = _at(rows, "bins", 8, 8), _at(rows, "bins", 12, 1000)
    return abs(more - eight) < 0.01, f"F1 {eight:.3f} with 8, {more:.3f} on average with more"


def _auc(rows: pl.DataFrame, reading: str, low: float, high: float) -> float:
    here = rows.filter((pl.col("reading") == reading) & pl.col("epsilon").is_between(low, high))
    return float(here["auc"].mean() or np.nan)


def _falls_with_noise(rows: pl.DataFrame) -> tuple[bool, str]:
    little, much = _auc(rows, "each", 100, 100), _auc(rows, "each", 0, 0.01)
    return little > much + 0.05, f"AUC {little:.3f} at epsilon 100, {much:.3f} at 0.01 or less"


def _stable(rows: pl.DataFrame) -> tuple[bool, str]:
    little, middle = _auc(rows, "each", 100, 100), _auc(rows, "each", 0.1, 1.0)
    return abs(little - middle) < 0.02, f"AUC {little:.3f} at epsilon 100, {middle:.3f} on average from 0.1 to 1"


def _stable_in_all(rows: pl.DataFrame) -> tuple[bool, str]:
    little, middle = _auc(rows, "in all", 100, 100), _auc(rows, "in all", 0.1, 1.0)
    return abs(little - middle) < 0.02, f"AUC {little:.3f} at epsilon 100, {middle:.3f} on average from 0.1 to 1"


def _with_form(*forms: str) -> Callable[[pl.DataFrame], pl.DataFrame]:
    return lambda rows: rows.filter(pl.col("form").is_in(forms))


_F1 = {"local_f1": "local F1", "federated_f1": "federated F1", "exact_f1": "shared bins F1"}
_AUC = {"local_auc": "local AUC", "federated_auc": "federated AUC"}


def _clients_figure(number: int, clients: int) -> Item:
    return Item(
        f"figure {number}",
        f"F1 of {clients} clients on Telco churn",
        "clients",
        ("client",),
        {**_F1, **_AUC},
        select=lambda rows: rows.filter(clients=clients),
        claims=(
            Claim("The federated forest has a higher F1 than the clients' local forests.", _federated_above_local),
            Claim("Each client's gain in F1 is significant.", _each_client_gains),
        ),
        drawing=Drawing("client", "F1", figures=("local_f1", "federated_f1")),
    )


PAPER = Paper(
    "histogram",
    "Cross-Silo Federated Learning based Decision Trees (Kalloori and Klingler, 2022)",
    __name__,
    (
        Run("clients", _client_cases, local_against_federated),
        Run("bins", _bin_cases, over_bins),
        Run("noise", _noise_cases, with_noise),
    ),
    (
        _clients_figure(1, 10),
        _clients_figure(2, 5),
        _clients_figure(3, 2),
        Item(
            "figure 6",
            "noise on the rows before training (input perturbation), client C1 of two",
            "noise",
            ("reading", "epsilon"),
            {"f1": "F1", "auc": "AUC"},
            select=_with_form("input"),
            claims=(
                Claim("With noise on the rows the model gets much worse the more noise there is.", _falls_with_noise),
            ),
            drawing=Drawing("epsilon", "AUC", figures=("auc",)),
        ),
        Item(
            "figure 7",
            "noise on the histograms during training (in process), client C1 of two",
            "noise",
            ("form", "reading", "epsilon"),
            {"f1": "F1", "auc": "AUC"},
            select=_with_form("levels", "tables"),
            claims=(
                Claim(
                    "With noise on histograms the model is stable from 0.1 on, if epsilon holds for each count.",
                    lambda rows: _stable(_with_form("levels")(rows)),
                ),
                Claim(
                    "With noise on histograms the model is stable from 0.1 on, if epsilon bounds everything disclosed "
                    "about a row.",
                    lambda rows: _stable_in_all(_with_form("levels")(rows)),
                ),
                Claim(
                    "With noise on histograms performance drops at epsilon 0.01.",
                    lambda rows: _falls_with_noise(_with_form("levels")(rows)),
                ),
            ),
            drawing=Drawing("epsilon", "AUC", figures=("auc",)),
        ),
        Item(
            "figure 8",
            "number of bins, two clients",
            "bins",
            ("client", "bins"),
            {"f1": "F1", "auc": "AUC"},
            claims=(
                Claim("Few bins make a poor model.", _rises_to_eight),
                Claim("From about 8 bins on there is no significant improvement.", _flat_from_eight),
            ),
            drawing=Drawing("bins", "F1", figures=("f1",)),
        ),
    ),
    DATA,
)
