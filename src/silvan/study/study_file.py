"""Reads study files: the sites and their tables, what is predicted, the learner. Described in docs/study.md.

Everything is checked before any work starts, and one error lists all that is wrong, each with its line.
"""

import hashlib
import json
import os
import tomllib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from silvan import learners
from silvan.data.column_types import Kinds
from silvan.data.schema import Schema
from silvan.data.sources.query import Query
from silvan.errors import InputError, SiteError
from silvan.federate.by_columns import federate_columns
from silvan.federate.by_rows import federate_rows
from silvan.federation.federation import OVERALL, Federation
from silvan.privacy.gate.gate import Policy
from silvan.study.study_sections import (
    COLUMN_LEARNERS,
    SECTIONS,
    check_column_kinds,
    check_evaluation,
    check_learner,
    check_policy,
    check_repeats,
    check_schema,
    check_sites,
    check_top,
)
from silvan.study.study_values import KEYS, parameters_of
from silvan.study.toml_lines import Key, Problems, key_lines


@dataclass(frozen=True)
class Study:
    """A study file, read and checked."""

    path: Path
    name: str
    tables: dict[str, Path | Query]  # by site or party, or the one table under ""
    kind: str
    parameters: dict[str, Any]
    policy: dict[str, Any]
    output: Path
    label: str = "label"
    site: str | None = None  # the column that names the site, if there is one table
    test: float = 0.0
    repeats: int = 0  # how often every row is judged; 0: the test rows are, once
    random_state: int = 0
    task: Any = None
    sums: Any = "trusted"
    exclude: tuple[str, ...] = ()
    id: str | None = None  # the column that tells rows apart, if parties hold columns of the same rows
    match: Any = None
    names: Any = "coded"  # whether the coordinator is told names of columns
    memory: Any = None  # how much of a site's rows may be in memory
    schema: Schema | None = None  # of the columns, if the study sets it
    evaluation_epsilon: float | None = None  # epsilon of the figures; None: they are exact
    kinds: Kinds = field(default_factory=dict)  # what columns are, where the study says so
    lines: dict[Key, int] = field(default_factory=dict, repr=False)

    @property
    def by_columns(self) -> bool:
        """Whether parties hold columns of the same rows."""
        return self.kind in COLUMN_LEARNERS

    def settings(self) -> dict[str, Any]:
        """Return all settings that decide the result, as plain data."""
        more = {"id": self.id, "match": self.match, "names": self.names} if self.by_columns else {}
        if self.repeats:
            more["repeats"] = self.repeats
        if self.schema is not None:
            more["schema"] = self.schema.to_json()
        if self.kinds:
            more["kinds"] = dict(self.kinds)
        if self.evaluation_epsilon is not None:
            more["evaluation"] = {"epsilon": self.evaluation_epsilon}
        return {
            **more,
            "label": self.label,
            "site": self.site,
            "test": self.test,
            "random_state": self.random_state,
            "task": self.task,
            "sums": self.sums,
            "exclude": list(self.exclude),
            "learner": {"kind": self.kind, **self.parameters},
            "policy": self.policy,
        }

    def fingerprint(self, version: str) -> str:
        """Return a hash of all that decides the result: settings, the bytes of the tables, the program's version.

        Of a table in a database it covers the address and the query; the journal knows the rows.
        """
        text = json.dumps([version, self.settings(), list(self.tables)], sort_keys=True)
        digest = hashlib.sha256(text.encode())
        for path in self.tables.values():
            if not isinstance(path, Path):
                digest.update(repr(path).encode())
                continue
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def federation(self, journal: Path | None = None, schema: Schema | None = None) -> Federation:
        """Return the federation; its sites or parties read their tables and agree on a schema."""
        with self.pointing(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # they are in the differences, which are shown
            settings: dict[str, Any] = {
                "label": self.label,
                "test": self.test,
                "random_state": self.random_state,
                "task": self.task,
                "schema": self.schema if schema is None else schema,
                "exclude": self.exclude,
                "kinds": self.kinds,
                "sums": self.sums,
                "policy": Policy(**self.policy),
                "journal": None if journal is None else str(journal),
            }
            if self.id is not None:
                return federate_columns(self.tables, id=self.id, match=self.match, names=self.names, **settings)
            tables = self.tables if self.site is None else self.tables[""]
            federation = federate_rows(tables, site=self.site, memory=self.memory, **settings)
            if OVERALL in federation.sites:
                raise InputError(f"site must not have a value {OVERALL!r}: overall figures are called that")
        return federation

    def learner(self, schema: Schema) -> Any:
        """Return the learner; class weights are matched with the label's classes by their text."""
        learner = getattr(learners, self.kind)
        seed = {"random_state": self.random_state} if "random_state" in parameters_of(learner) else {}
        parameters = {**seed, **self.parameters}
        weights = parameters.get("class_weight")
        if isinstance(weights, dict):
            by_text = {str(c).lower() if isinstance(c, bool) else str(c): c for c in schema.label.classes or ()}
            parameters["class_weight"] = {by_text.get(text, text): w for text, w in weights.items()}
        return learner(**parameters)

    @contextmanager
    def pointing(self) -> Iterator[None]:
        """Add the line of the study file to errors that are about something it sets."""
        try:
            yield
        except SiteError as error:
            section, who = ("sites", "site") if self.id is None else ("parties", "party")
            line = self.lines.get((section, error.site), self.lines.get(("table",)))
            cause = error.__cause__
            text = str(cause) if isinstance(cause, InputError) else str(error).split(": ", 1)[-1]
            raise InputError(f"{self.path}:{line}: {who} {error.site!r}: {text}") from cause
        except InputError as error:
            word = str(error).split(" ", 1)[0].strip("'\",:")
            keys = [key for key in self.lines if key[-1] == word and key[0] not in ("sites", "parties")]
            if not keys or str(error).startswith(f"{self.path}:"):
                raise
            raise InputError(f"{self.path}:{self.lines[keys[0]]}: {error}") from error


def read_study(path: str | Path) -> Study:
    """Read a study file; raise one error that lists all that is wrong with it."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder; name the study file in it")
    if not path.is_file():
        raise InputError(f"there is no study file {str(path)!r}; check the path, or see docs/study.md for an example")
    try:
        text = path.read_bytes().decode()
        data = tomllib.loads(text)
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; save it as such") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(_not_toml(path, str(error))) from None
    problems = Problems(path, key_lines(text))
    top = check_top({key: data[key] for key in data if key in KEYS or not isinstance(data[key], dict)}, problems)
    for key in data.keys() - KEYS.keys() - set(SECTIONS):
        if isinstance(data[key], dict):
            problems.unknown((key,), SECTIONS, f"unknown section [{key}]")
    tables = check_sites(data, path.parent, problems)
    kind, parameters = check_learner(data.get("learner", {}), "parties" in data, problems)
    evaluation_epsilon = check_evaluation(data, parameters, problems)
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
        evaluation_epsilon=evaluation_epsilon,
        kinds=kinds,
        lines=problems.lines,
        **top,
    )


def _not_toml(path: Path, message: str) -> str:
    """Put the line of tomllib's message where an editor looks for it."""
    text, _, place = message.partition(" (at ")
    line = next((word for word in place.replace(",", " ").split() if word.isdigit()), "")
    where = f"{path}:{line}" if line else f"{path} (at the end)"
    return f"{where}: not valid TOML: {text[:1].lower()}{text[1:]}"
