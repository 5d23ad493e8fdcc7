"""Reads study files, described in docs/study.md, and makes what they name: the federation and the learner.

Everything is checked before any work starts, and one error lists all that is wrong, each with its line.
"""

import warnings
from pathlib import Path
from typing import Any

from silvan.data.schema import Schema
from silvan.errors import InputError
from silvan.federate.by_columns import federate_columns
from silvan.federate.by_rows import federate_rows
from silvan.federation.federation import OVERALL, Federation
from silvan.learners.federated_estimator import FederatedEstimator
from silvan.study.parse import parse_remote_study, parse_study
from silvan.study.study import Study
from silvan.study.toml_lines import read_toml


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
            "policy": study.policy,
            "journal": None if journal is None else str(journal),
        }
        if study.id is not None:
            return federate_columns(study.tables, id=study.id, match=study.match, names=study.names, **settings)
        tables = study.tables if study.site is None else study.tables[""]
        settings["split"] = study.date_split
        settings |= {"group": study.group, "absent": study.absent, "time": study.time, "event": study.event}
        settings["positive"] = study.positive
        settings["test_by"] = "row" if study.private and settings["schema"] is not None else None
        federation = federate_rows(tables, site=study.site, memory=study.memory, **settings)
        if OVERALL in federation.sites:
            raise InputError(f"site must not have a value {OVERALL!r}: overall metrics have that name")
    return federation


def make_learner(study: Study, schema: Schema | None) -> FederatedEstimator:
    """Return a study's learner; class weights are matched with the label's classes, if known, by their text."""
    parameters = study.parameters
    weights = parameters.get("class_weight")
    if isinstance(weights, dict):
        classes = () if schema is None else schema.label.classes or ()
        by_text = {str(c).lower() if isinstance(c, bool) else str(c): c for c in classes}
        parameters["class_weight"] = {by_text.get(text, text): w for text, w in weights.items()}
    return study.spec.load()(**parameters)


def read_study(path: str | Path) -> Study:
    """Read a study file; raise one error that lists all that is wrong with it."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder; name the study file in it")
    if not path.is_file():
        raise InputError(f"there is no study file {str(path)!r}; check the path, or see docs/study.md for an example")
    text, data = read_toml(path)
    return parse_study(text, data, path)


def read_remote_study(path: Path) -> Study:
    """Read a study file for sites on other machines; the learner checks its parameters together, too."""
    return parse_remote_study(read_toml(path)[0], path, check=True)
