"""A trial of a study with random rows of simulated sites: which kinds of messages would leave a site.

The study is run as its coordinator would run it, at a small size. The list has the kinds of messages with replies, and
those that the study announces to sites. So the list shows what the program does, not what a text says about it.
"""

import dataclasses
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl
from msgspec.structs import replace

from silvan.data.schema import Schema
from silvan.deploy.studies.new_rows import new_rows_plan
from silvan.errors import InputError, SilvanError
from silvan.federate.alignment import common_rows
from silvan.federate.by_columns import federate_columns
from silvan.federate.by_rows import federate_rows
from silvan.federation.agree import ask_rows
from silvan.federation.federation import Federation
from silvan.federation.handlers import HANDLERS
from silvan.learners.in_shares import InShares
from silvan.learners.parameters import Parameters, defaults
from silvan.privacy.announce import RequestPlan, announce
from silvan.privacy.policy import Policy
from silvan.study.listener import Listener
from silvan.study.run_folder import NotKept
from silvan.study.run_study import run_study
from silvan.study.steps import agree, request_plan_of, start_record
from silvan.study.study import Study
from silvan.study.study_file import make_learner

_ROWS = 90
_SITES = 3, 12  # minimum and maximum in a trial
_ID = "id of a row"
_TEST = 0.25
_EVENTS = 0.7  # share of rows with the event
"""The share of test rows in a trial of a study that evaluates every row, whatever its own."""

_SMALL = {"n_estimators": 3, "max_depth": 2, "max_iter": 2, "tol": 0.5}


class TrialRun(NamedTuple):
    """The result of a study's trial run: the kinds of messages that left, and the numbers of models and evaluations."""

    kinds: list[str]
    tasks: int


def try_out(study: Study, n_sites: int = _SITES[0]) -> TrialRun | None:
    """Run a study with random rows; return what left the sites, or None if it cannot be run."""
    plan, n = study, min(max(n_sites, _SITES[0]), _SITES[1])
    if plan.schema is not None:
        frames = [_random_rows(plan.schema, _n_rows(plan, n))]
    else:
        tasks = ["classification", "regression"] if plan.task is None else [plan.task]
        frames = [_some_rows(plan, n, task) for task in tasks]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # they are about rows that nobody has
        # random clusters may be too small for masked and ring sums; the kinds of messages are the same
        trials = [_try(study, n, frame, plan.sums) or _try(study, n, frame, "trusted") for frame in frames]
    passed = [trial for trial in trials if trial is not None]
    if not passed:
        return None
    kinds = dict.fromkeys(kind for trial in passed for kind in trial.kinds)
    return TrialRun(list(kinds), max(trial.tasks for trial in passed))


def _try(study: Study, n: int, frame: pl.DataFrame, sums: Any) -> TrialRun | None:
    """Run a study as the coordinator does, with small parameters and sites in this process."""
    plan = _in_small(study, frame)
    federate = _federate_parties if plan.by_columns else _federate_sites
    try:
        if study.predict is not None:
            return _try_predicting(plan, lambda test: federate(replace(plan, test=test), n, frame, sums))
        federation = federate(plan, n, frame, sums)
        if study.on_splits and federation.rows:
            ask_rows(federation)  # as for every split
        run_study(plan, federation, NotKept(), start_record(plan, ""), Listener(), secret_sampling=study.secret)
        announced = request_plan_of(plan, federation, make_learner(plan, federation.schema), sampling=study.secret)
    except SilvanError:
        return None
    return _what_left(federation, announced)


def _in_small(plan: Study, frame: pl.DataFrame) -> Study:
    """Return a study with few small trees and one split, about columns of a table."""
    column = next(name for name in frame.columns if name not in plan.label_columns)
    dependence = (column,) * bool(plan.evaluation.dependence)
    return replace(
        plan,
        positive=None,  # rows are random, and their classes have other names
        learner=_with_known(plan.learner, _SMALL),
        test=plan.test or (_TEST if plan.evaluated else 0.0),
        repeats=None,
        split=None,
        group=None,
        evaluation=replace(plan.evaluation, by=(), dependence=dependence),
    )


def _with_known(learner: Parameters, values: dict[str, Any]) -> Parameters:
    """Return a learner's parameters with other values for those that it has."""
    known = {key: value for key, value in values.items() if key in defaults(type(learner))}
    return dataclasses.replace(learner, **known)  # type: ignore[type-var]  # a dataclass


def _try_predicting(plan: Study, federate: Callable[[float], Federation]) -> TrialRun:
    """Predict new rows with a model of other rows; the requests do not depend on the labels."""
    trained = federate(plan.test)
    encoded = replace(plan, learner=_with_known(plan.learner, {"labels": "encoded"}))
    model = make_learner(encoded, trained.schema).fit(trained)
    if not isinstance(model, InShares):
        raise InputError("predictions of new rows are for studies over columns")
    federation, holder = federate(0.0), model.kept.label_holder
    announced = new_rows_plan(plan, model)
    announce(federation, announced)
    with tempfile.TemporaryDirectory() as folder:
        federation.party(holder).predictions = Path(folder) / "predictions.csv"
        model.send_predictions(federation, common_rows(federation, plan.match, holder))
    return _what_left(federation, announced)


def _what_left(federation: Federation, announced: RequestPlan) -> TrialRun:
    lines = [line for site in federation.local_sites.values() for line in site.outbox.ledger.lines()]  # type: ignore[union-attr]
    answered = [line.kind for line in lines if line.outcome == "answered"]
    kinds = dict.fromkeys([*answered, *(kind.kind() for kind in announced.kinds)])
    return TrialRun(list(kinds), max(announced.tasks, len({line.task for line in lines if line.task})))


# -- simulated sites


def _options(plan: Study, sums: Any) -> dict[str, Any]:
    policy = Policy(approve=True, messages=tuple(HANDLERS), min_leaf=1)
    given = {"label": plan.label, "test": plan.test, "task": plan.task, "schema": plan.schema}
    return {**given, "sums": sums, "policy": policy, "signed": True}


def _federate_sites(plan: Study, n: int, frame: pl.DataFrame, sums: Any) -> Federation:
    """Distribute rows to sites."""
    tables = {f"site {i}": frame[i::n] for i in range(n)}
    test_by: Literal["row"] | None = "row" if plan.private else None
    made = federate_rows(tables, time=plan.time, event=plan.event, test_by=test_by, **_options(plan, sums))
    made.agree_later = lambda: agree(made, plan)
    return _approved(made)


def _federate_parties(plan: Study, n: int, frame: pl.DataFrame, sums: Any) -> Federation:
    """Assign columns to parties; the first party holds the label."""
    names, ids = [name for name in frame.columns if name != plan.label], pl.Series(_ID, range(len(frame)))
    tables = {
        f"party {k}": frame.select(*names[k::n], *([plan.label] if k == 0 else [])).with_columns(ids) for k in range(n)
    }
    return _approved(federate_columns(tables, id=_ID, match=plan.match, names=plan.names, **_options(plan, sums)))


def _approved(federation: Federation) -> Federation:
    for site in federation.local_sites.values():
        site.outbox.approve(federation.study, list(HANDLERS))  # type: ignore[union-attr]
    return federation


# -- random rows


def _n_rows(plan: Study, n: int) -> int:
    """Return the number of rows needed to grow trees with large leaves."""
    if plan.by_columns:
        return max(_ROWS, 8 * int(plan.parameters.get("min_samples_leaf", 1)))
    return n * _ROWS


def _some_rows(plan: Study, n: int, task: str) -> pl.DataFrame:
    """Sample rows of a number and a category, per party if there are parties; the numbers depend on the label."""
    rng, n_rows, weights = np.random.default_rng(0), _n_rows(plan, n), plan.parameters.get("class_weight")
    classes = list(weights) if isinstance(weights, dict) and len(weights) > 1 else ["no", "yes"]
    code = rng.permuted(np.arange(n_rows) % len(classes))
    columns: dict[str, Any] = {}
    for number in range(n if plan.by_columns else 1):
        columns[f"{plan.label} (number {number})"] = code + rng.normal(size=n_rows)
        columns[f"{plan.label} (text {number})"] = rng.choice(["some", "more"], n_rows)
    columns[plan.label] = np.array(classes)[code]
    if task == "regression":
        columns[plan.label] = code + rng.normal(size=n_rows)
    if plan.event is not None:
        columns |= {plan.label: rng.exponential(1.0 + code), plan.event: rng.random(n_rows) < _EVENTS}
    return pl.DataFrame(columns)


def _random_rows(schema: Schema, n: int) -> pl.DataFrame:
    """Sample rows of a schema."""
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
    if label.event is not None:
        columns |= {label.name: rng.exponential(size=n), label.event: rng.random(n) < _EVENTS}
    return pl.DataFrame(columns)
