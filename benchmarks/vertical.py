"""What does it cost that columns stay with their parties, and that labels are encrypted?"""

import os
import time
from collections import Counter
from typing import Any

import numpy as np
import polars as pl
from experiments.federated_forest.node_by_node import NodeByNode

import silvan as sv
from benchmarks import paillier, xgboost_federated
from benchmarks.common import Goal, Report, interleave, ratio, synthetic
from benchmarks.stopwatch import Stopwatch
from silvan.algorithms.vertical.encrypted_labels import private_key
from silvan.federation.federation import Federation
from silvan.privacy.paillier.paillier_keys import generate

SCALE = float(os.environ.get("SILVAN_BENCH_SCALE", "1"))
"""Share of the rows; below 1 to see that it runs."""

ROWS, TREES, DEPTH, FEATURES, BINS = int(200_000 * SCALE), 100, 8, 5, 64
SECRET_ROWS, SECRET_TREES, SECRET_DEPTH, BITS = int(20_000 * SCALE), 10, 6, 2048
SCORED = int(20_000 * SCALE)
PHE_ROWS = max(int(8_000 * SCALE), 1_000)

STEPS = {
    "EncryptLabels": "encrypt",
    "SumLabels": "add",
    "DecideNodes": "decrypt",
    "SplitChosen": "partitions",
    "KeepChosen": "leaves",
}
"""What the messages of encrypted labels are for."""


def federation(rows: int, parties: int, labelled: bool = True) -> Federation:
    """Distribute the columns of the usual table, the label to the first party."""
    X, y = synthetic(rows)
    id_ = pl.Series("id", np.random.default_rng(0).permutation(rows))
    tables = {}
    for k in range(parties):
        names = [f"x{i}" for i in range(k, X.shape[1], parties)]
        table = pl.DataFrame(X[:, k::parties], schema=names).with_columns(id_)
        tables[f"party{k}"] = table.with_columns(label=pl.Series(y)) if k == 0 and labelled else table
    return sv.federate_columns(tables, id="id", label="label" if labelled else None, match="keyed", n_jobs=2)


def learner(trees: int = TREES, depth: int = DEPTH, kind: type = sv.VerticalForest, **more: Any) -> Any:
    """Create the learner under test, or the equivalent on the joined table."""
    return kind(trees, max_depth=depth, max_features=FEATURES, max_bins=BINS, **more)


def encoded() -> Report:
    """Compare with the joined table, and with XGBoost's federated column split."""
    two, four = federation(ROWS, 2), federation(ROWS, 4)
    models = {"silvan, 2 parties": learner().fit(two), "silvan, 4 parties": learner().fit(four)}
    model = models["silvan, 2 parties"]
    if model.forest_ != learner(kind=sv.PooledForest).fit(two).forest_:
        raise RuntimeError("the vertical forest is not the pooled one")
    peer = "XGBoost federated by columns, 2 workers"
    jobs: dict[str, Any] = {
        "silvan, 2 parties": lambda: learner().fit(two),
        "silvan, 4 parties": lambda: learner().fit(four),
        "silvan, joined table": lambda: learner(kind=sv.PooledForest).fit(two),
        peer: lambda: xgboost_federated.run(ROWS, 2, by_columns=True),
    }
    times = interleave(jobs, {**dict.fromkeys(jobs, 5), peer: 2})
    only = "" if SCALE == 1 else f"**Only {SCALE:g} of the rows: a trial, whose goals mean nothing.** "
    report = Report(
        "Columns at several parties",
        only
        + f"{ROWS:,} x 30 synthetic rows, {TREES} trees of depth {DEPTH}, {FEATURES} features a node, {BINS} bins, "
        "labels encoded; messages serialised as on a wire, parties in one process that take turns with two threads; "
        "matching rows comes before and is not in it. Times as multiples of silvan's own on the joined table, in the "
        "same round, median (smallest-largest). XGBoost's federated mode (plain) has a process and a thread a worker, "
        "and every worker has the label: without it 3.2 fails.",
        ["", "time", "rounds", "sent by a party, MB", "received, MB"],
    )
    base = "silvan, joined table"
    for name in jobs:
        cells = ["", "", ""]
        if name in models:
            moved = [max(b[way] for b in models[name].bytes_.values()) / 1e6 for way in ("sent", "received")]
            cells = [str(models[name].rounds_), *(f"{n:.1f}" for n in moved)]
        report.rows.append([name, ratio(times, name, base)[1], *cells])
    report.goals = [
        Goal("2 parties: time, times the joined table's", ratio(times, "silvan, 2 parties", base)[0], most=1.3),
        Goal("times faster than XGBoost's column split", ratio(times, peer, "silvan, 2 parties")[0], least=5),
        Goal("rounds", float(model.rounds_), most=2 * DEPTH + 3),
    ]
    watch = Stopwatch(two)
    start = time.perf_counter()
    learner().fit(two)
    whole = time.perf_counter() - start
    parts = ", ".join(f"{kind} {100 * s / whole:.0f} %" for kind, s in watch.seconds.most_common())
    own = 100 * (1 - sum(watch.seconds.values()) / whole)
    report.notes.append(f"Where the time of two parties goes, by message: {parts}; the coordinator's own {own:.0f} %.")
    return report


def encrypted(report: Report) -> None:
    """Time a forest with encrypted labels, part by part."""
    fed = federation(SECRET_ROWS, 2)
    plain = learner(SECRET_TREES, SECRET_DEPTH).fit(fed)
    secret = {"labels": "encrypted", "key_bits": BITS}
    learner(1, 1, **secret).fit(federation(500, 2))  # compiles; other rows, so that no labels are reused
    holder = fed.party(fed.label_holder or "")
    key_seconds = _timed(lambda: private_key(holder, BITS))
    watch = Stopwatch(fed)
    before = Counter(fed.traffic)
    start = time.perf_counter()
    model = learner(SECRET_TREES, SECRET_DEPTH, **secret).fit(fed)
    whole = time.perf_counter() - start
    if model.forest_ != plain.forest_:
        raise RuntimeError("encrypted labels gave another forest")
    parts = {name: watch.seconds[kind] / SECRET_TREES for kind, name in STEPS.items()}
    parts["everything else"] = whole / SECRET_TREES - sum(parts.values())
    moved: Counter[str] = Counter()
    for (_, way, kind), n in fed.traffic.items():
        moved[way] += n - before[_, way, kind]
    report.goals += [
        Goal("encrypted labels: seconds a tree", whole / SECRET_TREES, most=6),
        Goal("encrypted labels: rounds", float(model.rounds_), most=3 * SECRET_DEPTH + 4),
    ]
    said = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in parts.items())
    report.notes.append(
        f"Encrypted labels, {BITS} bits, {SECRET_ROWS:,} x 30, {SECRET_TREES} trees of depth {SECRET_DEPTH}, the same "
        f"forest; a tree: {said}; wire {moved['sent'] / SECRET_TREES / 1e6:.1f} MB sent by the parties, "
        f"{moved['received'] / SECRET_TREES / 1e6:.1f} MB received. "
        f"The label holder's key, drawn once for all forests ({key_seconds:.1f} s), is not in it."
    )
    phe = paillier.against_phe(generate(BITS), PHE_ROWS)
    report.goals += paillier.phe_goals(phe)
    quicker = {
        name: (ratio(phe, f"{name}, phe", name)[1], ratio(phe, f"{name}, phe", f"{name}, one thread")[1])
        for name in ("encrypt", "histograms")
    }
    said = "; ".join(f"{name} {all_} times faster, with one thread {one}" for name, (all_, one) in quicker.items())
    report.notes.append(f"Beside phe, in the same run, {PHE_ROWS:,} rows (see Encrypted labels for how): {said}.")


def predictions(report: Report) -> None:
    """Score rows in one round and node by node, for several trees, depths and rows, as in Figs 6 to 8."""
    fed = federation(SCORED, 2)
    lines = [
        "Prediction in one round against the classical way, node by node (two parties in one process; between machines "
        "it is rounds that cost):",
        "",
        "| trees | depth | rows | one round, s | classical, s | rounds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for trees, depth, share in (
        *((n, 4, 0.2) for n in (8, 16, 32)),
        *((8, d, 0.2) for d in (8, 12, 16)),
        *((8, 4, s) for s in (0.1, 0.3, 0.4)),
    ):
        model = learner(trees, depth).fit(fed)
        new = federation(int(share * SCORED), 2, labelled=False)
        slow = NodeByNode.of(model)
        if not model.predict(new).equals(slow.predict(new)):
            raise RuntimeError("the two ways to predict disagree")
        rounds = new.rounds
        slow.predict(new)
        rounds = new.rounds - rounds
        one, many = (min(_timed(lambda m=way: m.predict(new)) for _ in range(3)) for way in (model, slow))  # noqa: B023
        lines.append(f"| {trees} | {depth} | {len(new.columns.common):,} | {one:.3f} | {many:.3f} | 1 and {rounds} |")
    report.notes.append("\n".join(lines))


def _timed(job: Any) -> float:
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


def main() -> None:
    """Measure and report."""
    report = encoded()
    encrypted(report)
    predictions(report)
    report.publish()


if __name__ == "__main__":
    main()
