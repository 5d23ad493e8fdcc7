"""Tables 3 and 4 and Figures 4 to 8 of Federated Forest: parties alone, together, and with all columns in one place.

    SILVAN_DATA=folder python -m experiments.federated_forest.run [tables] [parties] [trees] [prediction]

Columns are dealt out to two parties at random, a fifth of the rows is the test part, both anew for each of ten
seeds. What is in ``results`` already is not run again. Nothing is tuned: all forests have the same parameters, and no
figure of a test part was used to choose anything. The federated forest is compared with the pooled one of the same
draws (equal, node for node), and with pooled forests of other draws by the paper's Z test.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import polars as pl
from experiments.federated_forest.data import DOMAINS, ID, NAMES, dealt, domains, load

import silvan as sv
from silvan.algorithms.baselines.in_one_place import rows_for_judging
from silvan.algorithms.evaluation.figures import answer_of, figures_of
from silvan.federation.federation import Federation
from silvan.forest.forest import Forest

HERE = Path(__file__).parent
RESULTS = HERE / "results"
FOREST: dict[str, Any] = {"n_estimators": 100, "max_depth": 10}
TEST = 0.2
LINEAR = {"kdd cup 99": 1e-3}
"""Tolerance of the linear model where the usual one would take long."""
LINEAR_SEEDS = {"kdd cup 99": 2}
"""On how many seeds the linear model is fitted where that takes long; five otherwise."""

KEYS = {
    "tables": ("data", "seed", "draw"),
    "parties": ("parties", "seed"),
    "trees": ("data", "seed", "trees"),
    "prediction": ("data", "over", "trees", "depth", "share", "seed"),
}
"""What a line of each file is about."""

Known = Callable[..., bool]
"""Whether there is a line already about something."""


def federate(tables: dict[str, pl.DataFrame], seed: int, test: float = TEST) -> Federation:
    """Make a federation; one thread, so that times can be compared."""
    return sv.federate_columns(tables, id=ID, label="label", test=test, random_state=seed, match="keyed", n_jobs=1)


def score(fed: Federation, forest: Forest) -> float:
    """Judge a forest on the test rows: accuracy, or root mean squared error."""
    rows = rows_for_judging(fed)
    absent = np.zeros(len(fed.schema.features), np.bool_)
    figures = figures_of(fed.schema, answer_of(forest, rows.X, absent, 1), rows.y)
    return float(figures["accuracy" if fed.schema.n_classes else "rmse"])


def tables(seeds: int, draws: int, known: Known) -> Iterator[dict[str, Any]]:
    """Tables 3 and 4."""
    for name in NAMES:
        frame = load(name)
        for seed in range(seeds):
            lacking = [draw for draw in range(draws) if not known(data=name, seed=seed, draw=draw)]
            if not lacking:
                continue
            fed = federate(dealt(frame, 2, seed), seed)
            for draw in lacking:
                how = {**FOREST, "random_state": draw}
                replies = {"data": name, "seed": seed, "draw": draw, "rows": fed.rows["party 1"]}
                model = sv.VerticalForest(**how).fit(fed)
                twin = sv.PooledForest(**how).fit(fed).forest_
                other = sv.PooledForest(**{**how, "random_state": 1000 + draw}).fit(fed).forest_
                replies["equal"] = model.forest_.hash == twin.hash
                replies |= {
                    "ff": score(fed, model.forest_),
                    "nonff": score(fed, twin),
                    "nonff_other": score(fed, other),
                }
                replies |= {"rounds": model.rounds_, "sent": max(b["sent"] for b in model.bytes_.values())}
                if draw == 0:
                    replies |= alone(fed, model)
                if draw == 0 and seed < LINEAR_SEEDS.get(name, 5):
                    replies |= linear(fed, LINEAR.get(name, 1e-4))
                yield replies
            print(f"{name}, seed {seed}", file=sys.stderr, flush=True)


def alone(fed: Federation, model: sv.VerticalForest) -> dict[str, float]:
    """Judge the parties' own forests, were they told the label."""
    shown = model.evaluate(fed).filter(pl.col("model") == "local")
    figure = "accuracy" if fed.schema.n_classes else "rmse"
    by_party = dict(zip(shown["site"].to_list(), shown[figure].to_list(), strict=True))
    return {"rf1": by_party["party 1"], "rf2": by_party["party 2"]}


def linear(fed: Federation, tol: float) -> dict[str, Any]:
    """Judge a linear model across the parties, and compare it with that of the joined table."""
    model = sv.VerticalLinear(tol=tol).fit(fed)
    shown = model.evaluate(fed).filter(pl.col("site") == "all")
    figure = "accuracy" if fed.schema.n_classes else "rmse"
    by_model = dict(zip(shown["model"].to_list(), shown[figure].to_list(), strict=True))
    return {"flr": by_model["federated"], "lr": by_model["pooled"], "flr_rounds": model.rounds_}


def parties(seeds: int, known: Known) -> Iterator[dict[str, Any]]:
    """Figure 4: the eight domains of the Parkinson columns, one more at a time; rows ten times over to time it."""
    frame = load("parkinson")
    tenfold = pl.concat([frame.with_columns(pl.col(ID) + len(frame) * i) for i in range(10)])
    for n in range(1, len(DOMAINS) + 1):
        for seed in range(seeds):
            if known(parties=n, seed=seed):
                continue
            fed = federate(domains(frame, n), seed)
            model = sv.VerticalForest(**FOREST, random_state=seed).fit(fed)
            equal = model.forest_.hash == sv.PooledForest(**FOREST, random_state=seed).fit(fed).forest_.hash
            replies = {"parties": n, "seed": seed, "accuracy": score(fed, model.forest_), "equal": equal}
            large = federate(domains(tenfold, n), seed, test=0.0)
            large_model = sv.VerticalForest(**FOREST, random_state=seed)
            replies["fit"] = seconds(lambda m=large_model, f=large: m.fit(f), 1)
            replies["predict"] = seconds(lambda m=large_model, f=large: m.predict(f), 3)
            yield replies | {"rounds": large_model.rounds_}
        print(f"{n} parties", file=sys.stderr, flush=True)


def trees(seeds: int, known: Known) -> Iterator[dict[str, Any]]:
    """Figure 5: accuracy over the number of trees, depth 6."""
    for name in ("spambase", "waveform"):
        frame = load(name)
        for seed in range(seeds):
            fed = federate(dealt(frame, 2, seed), seed)
            for n in (1, 2, 5, 10, 20, 50, 100):
                if known(data=name, seed=seed, trees=n):
                    continue
                how = {"n_estimators": n, "max_depth": 6, "random_state": seed}
                model, twin = sv.VerticalForest(**how).fit(fed), sv.PooledForest(**how).fit(fed)
                equal = model.forest_.hash == twin.forest_.hash
                accuracy = score(fed, model.forest_)
                yield {"data": name, "seed": seed, "trees": n, "accuracy": accuracy, "equal": equal}
        print(f"{name}, trees", file=sys.stderr, flush=True)


def prediction(seeds: int, known: Known) -> Iterator[dict[str, Any]]:
    """Figures 6 to 8: the two ways to predict, over trees, depth and test rows."""
    settings = [("trees", n, 4, 0.2) for n in (8, 16, 24, 32)]
    settings += [("depth", 8, d, 0.2) for d in (4, 8, 12, 16)]
    settings += [("rows", 8, 4, share) for share in (0.1, 0.2, 0.3, 0.4)]
    for name in ("spambase", "waveform"):
        frame = load(name)
        for what, n, depth, share in settings:
            for seed in range(seeds):
                replies: dict[str, Any] = {"data": name, "over": what, "trees": n, "depth": depth}
                replies |= {"share": share, "seed": seed}
                if known(**replies):
                    continue
                split = np.random.default_rng(seed).permutation(len(frame))
                cut = int(share * len(frame))
                fed = federate(dealt(frame[split[cut:]], 2, seed), seed, test=0.0)
                model = sv.VerticalForest(n_estimators=n, max_depth=depth, random_state=seed).fit(fed)
                new = {k: t.drop("label", strict=False) for k, t in dealt(frame[split[:cut]], 2, seed).items()}
                scored = sv.federate_columns(new, id=ID, random_state=seed, match="keyed", n_jobs=1)
                quick = model.predict(scored)
                before = scored.rounds
                same = quick.equals(model.predict(scored, method="classical"))
                replies |= {"rows": len(quick), "same": same, "classical_rounds": scored.rounds - before}
                replies["one_round"] = seconds(lambda m=model, f=scored: m.predict(f), 3)
                replies["classical"] = seconds(lambda m=model, f=scored: m.predict(f, method="classical"), 1)
                yield replies
        print(f"{name}, prediction", file=sys.stderr, flush=True)


def seconds(job: Any, times: int) -> float:
    """Time a job: processor time, which other programs on the machine disturb less."""
    took = []
    for _ in range(times):
        start = time.process_time()
        job()
        took.append(time.process_time() - start)
    return mean(took)


def main() -> None:
    """Run what is asked for, or everything, and write the figures line by line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["tables", "parties", "trees", "prediction"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--draws", type=int, default=4, help="forests a seed, for the Z test")
    options = parser.parse_args()
    jobs: dict[str, Callable[[Known], Iterator[dict[str, Any]]]] = {
        "tables": lambda known: tables(options.seeds, options.draws, known),
        "parties": lambda known: parties(options.seeds, known),
        "trees": lambda known: trees(options.seeds, known),
        "prediction": lambda known: prediction(options.seeds, known),
    }
    RESULTS.mkdir(exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for what in options.what:
            path = RESULTS / f"{what}.csv"
            rows = pl.read_csv(path, infer_schema_length=None).rows(named=True) if path.exists() else []
            there = {tuple(row[key] for key in KEYS[what]) for row in rows}

            def known(_keys: tuple[str, ...] = KEYS[what], _there: set[Any] = there, **about: Any) -> bool:
                return tuple(about[key] for key in _keys) in _there

            for row in jobs[what](known):
                rows.append(row)
                pl.DataFrame(rows, infer_schema_length=None).write_csv(path)


if __name__ == "__main__":
    main()
