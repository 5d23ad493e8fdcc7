"""One row that would change how all others are read.

The noise of a private reply covers the change that one row makes. Here one row is added to a table with a given
schema; one of its cells has another type than its column. The exact counts behind a noisy reply are compared: they
may differ by 1, the claimed sensitivity of a table of one column by class. A request that only one of the two tables
can answer counts as a change of all rows.
"""

import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import polars as pl
from experiments.attacks.outcome import Outcome

from silvan.algorithms.private.table_counts import CountTables, plan_counts
from silvan.data.schema import Feature, Label, Schema
from silvan.errors import SilvanError
from silvan.federation.message import Blob
from silvan.federation.site import Site

_ROWS = 200

_CODES = Feature("x", "categorical", categories=("1.0", "2.0", "9007199254740993"), other=True)
_NUMBERS = Feature("x", bounds=(0.0, 4.0))
_CLASSES = Label("y", classes=("0", "1", "01"))

_CELLS: dict[str, tuple[Feature, list[Any], Any]] = {
    # the row, the kind of the column, the cells of the other rows, and the cell of the row
    "a text among codes": (_CODES, [1.0, 2.0], "x"),
    "a fraction among long codes": (_CODES, [9007199254740993], 1.5),
    "a text among numbers": (_NUMBERS, [1, 2], "x"),
    "a number without end": (_NUMBERS, [1.5, 2.5], float("inf")),
    "a missing cell": (_CODES, [1, 2], None),
}
_LABELS = {"a class that is none": "x", "a missing class": None, "a class that is a fraction": 0.5}


def run(small: bool) -> list[Outcome]:
    """Try every cell in a file, a database and data frames, in memory and in batches; ``small`` uses fewer rows."""
    n = 60 if small else _ROWS
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        for source in ("file", "sqlite", "pandas", "polars", "arrays"):
            found: list[tuple[float, str]] = []
            for what, schema, rows, row in _tables(n):
                for memory in (None, 4096):
                    pair = [_store(Path(folder), source, cells) for cells in (rows, [*rows, row])]
                    found.append((_change(pair, schema, memory, len(rows)), what))
            worst, what = max(found)
            target = f"change of exact counts by one row, {source}: maximum of {len(found)} tables of {n} rows"
            outcomes.append(Outcome(target, _BEFORE[source], worst, 1.0, what if worst > 1 else ""))
    return outcomes


_BEFORE = {
    "file": "401",
    "sqlite": "401",
    "pandas": "200 (refused)",
    "polars": "399",
    "arrays": "200 (refused)",
}


def _tables(n: int) -> Iterator[tuple[str, Schema, list[tuple[Any, Any]], tuple[Any, Any]]]:
    """Yield a description of the row, the schema, the rows and the row."""
    for what, (feature, cells, cell) in _CELLS.items():
        rows = [(cells[i % len(cells)], i % 3 % 2) for i in range(n)]
        yield what, Schema((feature,), _CLASSES), rows, (cell, 1)
    for what, cell in _LABELS.items():
        yield what, Schema((_NUMBERS,), _CLASSES), [(i % 4, i % 3 % 2) for i in range(n)], (1, cell)


def _store(folder: Path, kind: str, rows: list[tuple[Any, Any]]) -> Any:
    """Store a table as somebody who only has its cells would."""
    if kind == "file":
        path = folder / f"{len(rows)}.csv"
        texts = (("" if cell is None else str(cell) for cell in row) for row in rows)
        path.write_text("x,y\n" + "".join(",".join(row) + "\n" for row in texts))
        return path
    if kind == "sqlite":
        path = folder / f"{len(rows)}.sqlite"
        path.unlink(missing_ok=True)
        with sqlite3.connect(path) as database:
            database.execute("PRAGMA synchronous = OFF")
            database.execute("CREATE TABLE t (x, y)")
            database.executemany("INSERT INTO t VALUES (?, ?)", rows)
        database.close()
        return f"sqlite:///{path}?table=t"
    if kind == "pandas":
        exact = object if isinstance(rows[0][0], int) and rows[0][0] > 2**53 else None  # pandas itself would round
        return pd.DataFrame({"x": pd.Series([x for x, _ in rows], dtype=exact), "y": [y for _, y in rows]})
    if kind == "polars":
        # polars has no columns of several types, so such cells are stored as text
        return pl.DataFrame({"x": _texts([x for x, _ in rows]), "y": _texts([y for _, y in rows])})
    return np.array([[x] for x, _ in rows], object), np.array([y for _, y in rows], object)


def _texts(cells: list[Any]) -> list[Any]:
    kinds = {type(cell) for cell in cells if cell is not None}
    return [None if c is None else str(c) for c in cells] if len(kinds) > 1 else cells


def _change(pair: list[Any], schema: Schema, memory: int | None, n: int) -> float:
    """Return the total difference between the counts of two tables."""
    feature = schema.features[0]
    cuts = np.zeros(0, np.float32) if feature.categorical else np.array([1.5, 2.5], np.float32)
    request = CountTables(
        epsilon=1.0,
        schema=Blob(""),
        columns=np.zeros(1, np.int32),
        sizes=np.array([len(cuts)]),
        cuts=cuts,
        missing=np.zeros(1, np.int64),
        table_sizes=np.ones(1, np.int64),
        table_columns=np.zeros(1, np.int64),
    )
    found = []
    for source in pair:
        site = Site("north", source, label="y", memory=memory)
        try:
            found.append(plan_counts(site, request, schema)())
        except (SilvanError, ValueError, TypeError, msgspec.MsgspecError):
            found.append(None)
    first, second = found
    if first is None or second is None:
        return 0.0 if first is second else float(n)
    return float(np.abs(second - first).sum())
