"""What a study is: its tables, what is predicted, the learner by name, and all other settings; as plain data.

Sites read studies too. They need neither learners nor federations in one process, so nothing of these is imported here.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from silvan.algorithms.evaluation.repeats import folds_of
from silvan.data.column_types import Kinds
from silvan.data.holdout import Fold
from silvan.data.partitions.partition_files import Partitions
from silvan.data.schema import Schema
from silvan.data.sources.query import Query
from silvan.data.sources.table_file import Table
from silvan.errors import InputError, SiteError
from silvan.study.study_sections import COLUMN_LEARNERS
from silvan.study.toml_lines import Key


@dataclass(frozen=True)
class Study:
    """A study file, read and checked."""

    path: Path
    name: str
    tables: dict[str, Path | Query | Table | Partitions]  # by site or party, or the one table under ""
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
    reading: dict[str, Any] = field(default_factory=dict)  # how all files are written, where the study says so
    kinds: Kinds = field(default_factory=dict)  # what columns are, where the study says so
    schema: Schema | None = None  # of the columns, if the study sets it
    evaluation_epsilon: float | None = None  # epsilon of the figures; None: they are exact
    importance: bool = False  # whether columns are shuffled to see how much they matter
    by: tuple[str, ...] = ()  # columns whose subgroups have figures of their own
    dependence: tuple[str, ...] = ()  # columns that predictions are averaged over
    lines: dict[Key, int] = field(default_factory=dict, repr=False)

    @property
    def by_columns(self) -> bool:
        """Whether parties hold columns of the same rows."""
        return self.kind in COLUMN_LEARNERS

    @property
    def folds(self) -> list[Fold]:
        """The splits that the study is judged on, if every row is judged."""
        return folds_of(self.test, self.repeats) if self.repeats else []

    @property
    def private(self) -> bool:
        """Whether its forest is made of counts with noise."""
        return self.parameters.get("epsilon") is not None

    @property
    def models_judged(self) -> int:
        """How many models, or scores, a site is sent to judge at most, if the study does what its learner does."""
        if self.by_columns:
            return int(bool(self.test))
        rule, made = isinstance(self.parameters.get("threshold"), str), 0
        if self.kind == "AutoForest" and self.parameters.get("choose", True):
            made = 3  # both halves, and what the site makes of the shared forest
        if not (self.test or self.repeats) or self.evaluation_epsilon is not None:
            return made + rule  # what fitting needs, on training rows
        more = bool(self.parameters.get("personal")) + rule  # before its threshold is chosen, a forest is another model
        # a site's mix is judged before a threshold is chosen, and without subgroups: another model than afterwards
        return 1 + made + (self.kind == "BOFRF") + more + (bool(made) and (rule or bool(self.by)))

    def settings(self) -> dict[str, Any]:
        """Return all settings that decide the result, as plain data."""
        more = {"id": self.id, "match": self.match, "names": self.names} if self.by_columns else {}
        if self.repeats:
            more["repeats"] = self.repeats
        if self.reading:
            more["reading"] = self.reading
        if self.kinds:
            more["kinds"] = dict(self.kinds)
        if self.schema is not None:
            more["schema"] = self.schema.to_json()
        evaluation = {
            "epsilon": self.evaluation_epsilon,
            "importance": self.importance,
            "by": list(self.by),
            "dependence": list(self.dependence),
        }
        if any(evaluation.values()):
            more["evaluation"] = {key: value for key, value in evaluation.items() if value}
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
        for table in self.tables.values():
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
