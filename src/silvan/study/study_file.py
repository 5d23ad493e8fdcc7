"""Reads study files (docs/study.md), and makes the federation and the learner that they describe.

Everything is checked before any work starts, and one error lists all problems with their lines.
"""

import hashlib
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from silvan.data.partition_files import Partitions
from silvan.data.readers.table_file import Table
from silvan.data.schema import Schema
from silvan.errors import InputError, SiteError
from silvan.federate.by_columns import federate_columns
from silvan.federate.by_rows import federate_rows
from silvan.federation.federation import Federation
from silvan.federation.members import OVERALL
from silvan.learners.federated_estimator import FederatedEstimator
from silvan.study.parse import parse_remote_study, parse_study
from silvan.study.study import Study
from silvan.study.toml_lines import read_toml


def make_federation(study: Study, journal: Path | None = None, schema: Schema | None = None) -> Federation:
    """Return a study's federation; its sites or parties read their tables and agree on a schema."""
    with with_lines(study), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # they are among the differences, which are shown
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
    """Return a study's learner; class weights are matched with the label's classes by text, if these are known."""
    parameters = study.parameters
    weights = parameters.get("class_weight")
    if isinstance(weights, dict):
        classes = () if schema is None else schema.label.classes or ()
        by_text = {str(c).lower() if isinstance(c, bool) else str(c): c for c in classes}
        parameters["class_weight"] = {by_text.get(text, text): w for text, w in weights.items()}
    return study.spec.load()(**parameters)


def read_study(path: str | Path) -> Study:
    """Read a study file; raise one error that lists all problems."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder; name the study file in it")
    if not path.is_file():
        raise InputError(f"there is no study file {str(path)!r}; check the path, or see docs/study.md for an example")
    text, data = read_toml(path)
    return parse_study(text, data, path)


def read_remote_study(path: Path) -> Study:
    """Read a study file for sites on other machines; the learner checks its parameters as well."""
    return parse_remote_study(read_toml(path)[0], path, check=True)


def fingerprint_of(study: Study, version: str) -> str:
    """Return a hash of everything that decides the result: settings, the bytes of the tables, the program's version.

    For a table in a database it covers the address and the query; the journal records the rows.
    """
    text = json.dumps([version, study.settings(), list(study.tables)], sort_keys=True)
    digest = hashlib.sha256(text.encode())
    for table in study.tables.values():
        if isinstance(table, Partitions):
            files = table.paths()
        else:
            files = [table] if isinstance(table, Path) else [table.file] if isinstance(table, Table) else []
        if not isinstance(table, Path | Partitions):
            digest.update(repr(table.options if isinstance(table, Table) else table).encode())
        for path in files:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


@contextmanager
def with_lines(study: Study) -> Iterator[None]:
    """Add the line of the study file to errors about its settings."""
    try:
        yield
    except SiteError as error:
        section, who = ("sites", "site") if study.id is None else ("parties", "party")
        line = study.lines.get((section, error.site), study.lines.get(("table",)))
        cause = error.__cause__
        text = str(cause) if isinstance(cause, InputError) else str(error).split(": ", 1)[-1]
        raise InputError(f"{study.path}:{line}: {who} {error.site!r}: {text}") from cause
    except InputError as error:
        keys = [key for key in study.lines if key[-1] == error.parameter and key[0] not in ("sites", "parties")]
        if not keys or str(error).startswith(f"{study.path}:"):
            raise
        raise InputError(f"{study.path}:{study.lines[keys[0]]}: {error}") from error
