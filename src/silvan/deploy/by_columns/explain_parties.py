"""Explains a study over columns to a party's owner: what the others learn of its rows, and a trial of what leaves."""

import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from silvan.data.schema import Schema
from silvan.deploy.by_columns.new_rows import questions_of_new_rows
from silvan.errors import SilvanError
from silvan.federate.alignment import common_rows
from silvan.federate.by_columns import federate_columns
from silvan.federation.federation import Federation
from silvan.federation.site import HANDLERS
from silvan.privacy.gate.announce import Questions, announce
from silvan.privacy.gate.gate import Policy
from silvan.study import column_steps, steps
from silvan.study.plan import Study
from silvan.study.remote_study import RemoteStudy
from silvan.study.study_file import make_learner
from silvan.tree.fit import Settings
from silvan.util.readable import count_of

_ROWS = 90
_ID = "id of a row"
_SECRET_LEAF = 20
"""Rows of a leaf from which on partitions tell hardly more of labels than columns do, see docs/vertical.md."""

_SMALL = {"n_estimators": 3, "max_depth": 2, "max_iter": 2, "tol": 0.5}


def lines_for_party(study: RemoteStudy, parties: list[str]) -> list[str]:
    """Describe what a study over columns learns, and what others are told of a party's rows."""
    plan = study.study
    parameters = ", ".join(f"{key} {value}" for key, value in plan.parameters.items()) or "all parameters as they are"
    among = f"columns of the rows that {', '.join(parties)} all have"
    if study.predict is not None:
        return [
            f"Predicts {plan.label!r} with model {study.predict.model[:12]} of the study {plan.name!r}, from {among}.",
            f"It is prediction {study.predict.number} with this model; nothing is learnt.",
            _MATCHED[plan.match],
            _scored(plan),
            "The label holder keeps the predictions, with ids, in its own folder.",
        ]
    lines = [
        f"Learns to predict {plan.label!r} by {plan.kind} ({parameters}), from {among}.",
        _MATCHED[plan.match],
        "The coordinator is told what your columns, categories and classes are called."
        if plan.names == "shown"
        else "The coordinator is told kinds of your columns and how many categories they have; names stay with you.",
        *(_of_forest(plan) if plan.kind == "VerticalForest" else _of_linear(plan)),
    ]
    if plan.test:
        lines.append(
            f"{plan.test:.0%} of the rows in common are kept for judging. {_scored(plan)} The label holder compares "
            "the scores with its labels, and only figures of merit leave it."
        )
    return lines


_MATCHED = {
    "keyed": "Rows are matched by keyed digests of ids: the coordinator sees how many rows you have and which of them "
    "others have too, not whose they are. No id leaves.",
    "psi": "Rows are matched by private set intersection: the label holder learns which of its ids you have, and the "
    "coordinator sees keyed digests of the rows in common. No id leaves.",
}


def _of_forest(plan: Study) -> list[str]:
    smallest = plan.parameters.get("min_samples_leaf", Settings.min_samples_leaf)
    encrypted = plan.parameters.get("labels") == "encrypted"
    lines = [
        "Labels travel encrypted: the parties see no label and the label holder sees sums of them."
        if encrypted
        else "Labels travel in code: every party learns which rows are of one class, and soon which class is which.",
        "Partitions: at each split, who goes left is told to all parties and to the coordinator. So the others learn "
        "which of the rows are alike by your columns, and you by theirs; no value and no threshold is told.",
    ]
    if smallest < _SECRET_LEAF:
        lines.append(
            f"Leaves may have {count_of(smallest, 'row')}: partitions then tell which rows share a label, encrypted or "
            "not. Where "
            f"labels must stay secret, min_samples_leaf should be {_SECRET_LEAF} or more (min_leaf in your policy)."
        )
    if plan.parameters.get("auditor"):
        lines.append("Your splits, column by number and threshold, are shown to the coordinator (auditor = true).")
    else:
        lines.append("Your splits, column and threshold, are your share of the forest and stay with you.")
    return lines


def _of_linear(plan: Study) -> list[str]:
    seen = "the coordinator and the label holder see" if plan.sums == "trusted" else "the label holder sees, as a sum,"
    return [
        "All parties learn the label: the sign of a residual is the class.",
        f"In every step {seen} one combination of your columns for each row; of a single column, that column up "
        "to its scale. Your coefficients stay with you.",
    ]


def _scored(plan: Study) -> str:
    if plan.kind == "VerticalForest":
        return "To score a row you tell the coordinator which leaves it can reach, as far as your columns tell."
    return "To score a row you tell what your columns add to its predictor, as part of a sum."


# -- a trial


def try_parties(study: RemoteStudy, n_parties: int) -> tuple[list[str], int] | None:
    """Run a study with random rows of simulated parties; return the kinds of messages that left, and the tasks."""
    plan = study.study
    if plan.schema is not None:
        tables = [_deal(random_rows(plan.schema, _n_rows(plan)), plan.label, n_parties)]
    else:
        tasks = ["classification", "regression"] if plan.task is None else [plan.task]
        tables = [_some_columns(plan, n_parties, task) for task in tasks]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # they are about rows that nobody has
        passed = [found for table in tables if (found := _try(study, table)) is not None]
    if not passed:
        return None
    return list(dict.fromkeys(kind for kinds, _ in passed for kind in kinds)), max(tasks for _, tasks in passed)


def _try(study: RemoteStudy, tables: dict[str, pl.DataFrame]) -> tuple[list[str], int] | None:
    """Train, judge and predict as the coordinator does, in small."""
    plan = study.study
    try:
        federation = _federate(plan, tables, plan.test)
        model = make_learner(plan, federation.schema)
        announced = steps.questions_of(plan, federation, model)
        if study.predict is None:
            announce(federation, announced)
        # predicting asks the same whatever became of the labels
        small = {**_SMALL, "labels": "encoded"} if study.predict is not None else _SMALL
        model.set_params(**{key: value for key, value in small.items() if key in model.get_params()})
        model.fit(federation)
        if study.predict is not None:
            return _try_predicting(plan, tables, model)
        if plan.test:
            model.evaluate(federation)
    except SilvanError:
        return None
    return _what_left(federation, announced)


def _try_predicting(plan: Study, tables: dict[str, pl.DataFrame], model: Any) -> tuple[list[str], int]:
    federation = _federate(plan, tables, 0.0)
    announced = questions_of_new_rows(plan, model)
    announce(federation, announced)
    holder = column_steps.coordinators_part(model).label_holder
    with tempfile.TemporaryDirectory() as folder:
        federation.party(holder).predictions = Path(folder) / "predictions.csv"
        model.send_predictions(federation, common_rows(federation, plan.match, holder))
    return _what_left(federation, announced)


def _federate(plan: Study, tables: dict[str, pl.DataFrame], test: float) -> Federation:
    federation = federate_columns(
        tables,
        id=_ID,
        label=plan.label,
        test=test,
        task=plan.task,
        schema=plan.schema,
        match=plan.match,
        names=plan.names,
        sums=plan.sums,
        policy=Policy(approve=True, messages=tuple(HANDLERS), min_leaf=1),
        signed=True,
    )
    for site in federation.local_sites.values():
        site.outbox.approve(federation.study, list(HANDLERS))  # type: ignore[union-attr]
    return federation


def _what_left(federation: Federation, announced: Questions) -> tuple[list[str], int]:
    lines = [line for site in federation.local_sites.values() for line in site.outbox.ledger.lines()]  # type: ignore[union-attr]
    answered = [line.kind for line in lines if line.outcome == "answered"]
    kinds = dict.fromkeys([*answered, *(kind.kind() for kind in announced.kinds)])
    return list(kinds), max(announced.tasks, len({line.task for line in lines if line.task}))


def _n_rows(plan: Study) -> int:
    """Return how many rows let trees grow that must have large leaves."""
    return max(_ROWS, 8 * int(plan.parameters.get("min_samples_leaf", 1)))


def _some_columns(plan: Study, n: int, task: str) -> dict[str, pl.DataFrame]:
    """Draw a number and a text a party, where numbers tell something of the label."""
    rng, weights, n_rows = np.random.default_rng(0), plan.parameters.get("class_weight"), _n_rows(plan)
    classes = list(weights) if isinstance(weights, dict) and len(weights) > 1 else ["no", "yes"]
    code = rng.permuted(np.arange(n_rows) % len(classes))
    columns: dict[str, Any] = {}
    for party in range(n):
        columns[f"{plan.label} (number {party})"] = code + rng.normal(size=n_rows)
        columns[f"{plan.label} (text {party})"] = rng.choice(["some", "more"], n_rows)
    columns[plan.label] = code + rng.normal(size=n_rows) if task == "regression" else np.array(classes)[code]
    return _deal(pl.DataFrame(columns), plan.label, n)


def _deal(frame: pl.DataFrame, label: str, n: int) -> dict[str, pl.DataFrame]:
    """Deal columns out to parties, of which the first holds the label."""
    names = [name for name in frame.columns if name != label]
    ids = pl.Series(_ID, range(len(frame)))
    return {f"party {k}": frame.select(*names[k::n], *([label] if k == 0 else [])).with_columns(ids) for k in range(n)}


def random_rows(schema: Schema, n: int) -> pl.DataFrame:
    """Draw rows of a schema."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {}
    for feature in schema.features:
        if feature.categorical:
            columns[feature.name] = rng.choice(feature.categories or ("some", "more"), n)
        else:
            columns[feature.name] = rng.uniform(*(feature.bounds or (0.0, 1.0)), n)
    label, classes = schema.label, schema.label.classes
    columns[label.name] = (
        rng.uniform(*(label.bounds or (0.0, 1.0)), n)
        if classes is None
        else [classes[i] for i in rng.permuted(np.arange(n) % len(classes))]
    )
    return pl.DataFrame(columns)
