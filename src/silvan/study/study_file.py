"""Reads study files, described in docs/study.md, and makes what they name: the federation and the learner.

Everything is checked before any work starts, and one error lists all that is wrong, each with its line.
"""

import os
import warnings
from pathlib import Path
from typing import Any

from silvan import learners
from silvan.data.schema import Schema
from silvan.errors import InputError
from silvan.federate.by_columns import federate_columns
from silvan.federate.by_rows import federate_rows
from silvan.federation.federation import OVERALL, Federation
from silvan.privacy.gate.gate import Policy
from silvan.study.learner_section import check_learner, check_parameters
from silvan.study.plan import Study
from silvan.study.remote_study import RemoteStudy, parse_remote_study
from silvan.study.study_sections import (
    SECTIONS,
    check_column_kinds,
    check_evaluation,
    check_policy,
    check_repeats,
    check_schema,
    check_sites,
    check_top,
)
from silvan.study.study_values import KEYS, parameters_of
from silvan.study.toml_lines import Problems, key_lines, read_toml


def make_federation(study: Study, journal: Path | None = None, schema: Schema | None = None) -> Federation:
    """Return a study's federation; its sites or parties read their tables and agree on a schema."""
    with study.pointing(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # they are in the differences, which are shown
        settings: dict[str, Any] = {
            "label": study.label,
            "test": study.test,
            "random_state": study.random_state,
            "task": study.task,
            "schema": study.schema if schema is None else schema,
            "exclude": study.exclude,
            "kinds": study.kinds,
            "sums": study.sums,
            "policy": Policy(**study.policy),
            "journal": None if journal is None else str(journal),
        }
        if study.id is not None:
            return federate_columns(study.tables, id=study.id, match=study.match, names=study.names, **settings)
        tables = study.tables if study.site is None else study.tables[""]
        settings["test_by"] = "row" if study.private and settings["schema"] is not None else None
        federation = federate_rows(tables, site=study.site, memory=study.memory, **settings)
        if OVERALL in federation.sites:
            raise InputError(f"site must not have a value {OVERALL!r}: overall figures are called that")
    return federation


def make_learner(study: Study, schema: Schema | None) -> Any:
    """Return a study's learner; class weights are matched with the label's classes, if known, by their text."""
    learner = getattr(learners, study.kind)
    seed = {"random_state": study.random_state} if "random_state" in parameters_of(learner) else {}
    parameters = {**seed, **study.parameters}
    weights = parameters.get("class_weight")
    if isinstance(weights, dict):
        classes = () if schema is None else schema.label.classes or ()
        by_text = {str(c).lower() if isinstance(c, bool) else str(c): c for c in classes}
        parameters["class_weight"] = {by_text.get(text, text): w for text, w in weights.items()}
    return learner(**parameters)


def read_study(path: str | Path) -> Study:
    """Read a study file; raise one error that lists all that is wrong with it."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder; name the study file in it")
    if not path.is_file():
        raise InputError(f"there is no study file {str(path)!r}; check the path, or see docs/study.md for an example")
    text, data = read_toml(path)
    problems = Problems(path, key_lines(text))
    top = check_top({key: data[key] for key in data if key in KEYS or not isinstance(data[key], dict)}, problems)
    for key in data.keys() - KEYS.keys() - set(SECTIONS):
        if isinstance(data[key], dict):
            problems.unknown((key,), SECTIONS, f"unknown section [{key}]")
    tables = check_sites(data, path.parent, problems)
    kind, parameters = check_learner(data.get("learner", {}), "parties" in data, problems)
    evaluation = check_evaluation(data, parameters, problems)
    check_repeats(data, parameters, problems)
    policy = check_policy(data.get("policy", {}), problems)
    schema = check_schema(data.get("schema"), top.get("label", "label"), problems)
    kinds = check_column_kinds(data.get("kinds", {}), "parties" in data, problems)
    problems.stop()
    output = path.parent / top.pop("output", Path("runs") / path.stem)
    name = top.pop("name", path.stem)
    for key in ("table", "query"):
        top.pop(key, None)
    return Study(
        path,
        name,
        tables,
        kind,
        parameters,
        policy,
        Path(os.path.normpath(output)),
        schema=schema,
        reading=data.get("reading", {}),
        kinds=kinds,
        **evaluation,
        lines=problems.lines,
        **top,
    )


def read_remote_study(path: Path) -> RemoteStudy:
    """Read a study file for sites on other machines; the learner's parameters are checked with the rest."""
    try:
        return parse_remote_study(path.read_bytes().decode(), path, check_parameters)
    except FileNotFoundError:
        raise InputError(f"there is no study file {str(path)!r}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; save it as such") from None
