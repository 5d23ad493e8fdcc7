"""The data frame that ``evaluate`` returns, which prints with all of its columns."""

import shutil
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from silvan import metrics
from silvan.algorithms.evaluation.evaluation import Evaluation, Row
from silvan.util.readable import digits_of, html_table

if TYPE_CHECKING:
    import polars as pl

_KEYS = ("site", "group", "model")  # the first columns of every block of a printed table
_EMPTY = ("note",)  # columns to leave out if all cells are empty
_GAINS = ("gain", "gain_low", "gain_high")

_IN_UNITS = (*(metric.key for metric in metrics.METRICS if metric.in_units), *_GAINS)
"""Columns in the unit of a numeric target."""

_ENDS = ("low", "high")


def evaluation_frame(found: Evaluation) -> "pl.DataFrame":
    """Return an evaluation as a data frame."""
    frame = metrics_frame([*found.rows, *found.subgroups])
    if not found.guarantee:
        return frame
    import polars as pl  # slow to import

    return frame.with_columns(pl.lit(found.guarantee).alias("guarantee"))


def metrics_frame(rows: Sequence[Row]) -> "pl.DataFrame":
    """Return metrics as a data frame, a line for each site and model."""
    grouped, two = any(r.group for r in rows), any(r.positive is not None for r in rows)
    listed = [
        {
            "site": r.site,
            **({"group": r.group} if grouped else {}),
            "model": r.model,
            "rows": r.rows,
            **r.metrics,
            **{
                f"{name}_{end}": value
                for name, pair in r.between.items()
                for end, value in zip(_ENDS, pair, strict=True)
            },
            **r.more,
            "gain": r.gain,
            "gain_low": r.low,
            "gain_high": r.high,
            "use": r.use,
            **({"positive": str(r.positive)} if two else {}),
            "note": r.note,
        }
        for r in rows
    ]
    # by Python's type, so that polars need not be imported here
    return whole_frame(listed, schema_overrides=dict.fromkeys(_GAINS, float))


def whole_frame(rows: list[dict[str, Any]], **options: Any) -> "pl.DataFrame":
    """Return lines as a data frame that prints completely."""
    return _frame_class()(rows, **options)


@cache
def _frame_class() -> "type[pl.DataFrame]":
    """Return the class; polars takes long to import, and only tables of metrics need it."""
    import polars as pl

    class EvaluationFrame(pl.DataFrame):
        """Metrics of models, a line for each site and model; prints in blocks of columns that fit the terminal."""

        def __str__(self) -> str:
            return "\n\n".join("\n".join(block) for block in _blocks(self, shutil.get_terminal_size().columns))

        __repr__ = __str__

        def _repr_html_(self, **_: Any) -> str:
            """Return a table for notebooks: the main metric, the gain with its interval and the advice come first."""
            texts = {name: _texts(self, name) for name in _shown(self)}
            return html_table(*_ordered(texts))

    return EvaluationFrame


def _shown(frame: "pl.DataFrame") -> list[str]:
    return [name for name in frame.columns if name not in _EMPTY or any(frame[name].to_list())]


def _ordered(texts: dict[str, list[str]]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return heads and lines with the most important columns first; the gain's interval is one column."""
    if "gain_low" in texts and "gain_high" in texts:
        ends = zip(texts.pop("gain_low"), texts.pop("gain_high"), strict=True)
        texts["95% CI"] = [f"{low} to {high}" if low else "" for low, high in ends]
    main = [metric.key for metric in metrics.METRICS if metric.main and metric.key in texts][:1]
    first = [name for name in (*_KEYS, *main, "gain", "95% CI", "use") if name in texts]
    heads = [*first, *(name for name in texts if name not in first)]
    return heads, list(zip(*(texts[name] for name in heads), strict=True))


def _texts(frame: "pl.DataFrame", name: str) -> list[str]:
    """Return the cells of a column as text, empty for missing values."""
    cells = frame[name].to_list()
    alike = "rmse" if name in _IN_UNITS and "rmse" in frame.columns else name
    numbers = [abs(cell) for cell in frame[alike].to_list() if isinstance(cell, float) and cell == cell]
    digits = digits_of(max(numbers, default=0.0))
    digits = digits if alike == "rmse" else min(digits, 3)
    return [_text(cell, digits) for cell in cells]


def _text(cell: object, digits: int) -> str:
    if cell is None or cell != cell:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else ""
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{cell:.{digits}f}" if isinstance(cell, float) else str(cell)


def _blocks(frame: "pl.DataFrame", width: int) -> list[list[str]]:
    """Return the lines of tables, each with as many columns as fit beside site and model."""
    padded = {name: _column(frame, name) for name in _shown(frame)}
    keys = [padded.pop(name) for name in _KEYS if name in padded]
    taken = sum(len(key[0]) + 2 for key in keys)
    blocks: list[list[list[str]]] = []
    free = 0
    for column in padded.values():
        free -= len(column[0]) + 2
        if free < 0:
            blocks.append([*keys])
            free = width - taken - len(column[0]) - 2
        blocks[-1].append(column)
    return [[_line(cells) for cells in zip(*block, strict=True)] for block in blocks or [keys]]


def _line(cells: tuple[str, ...]) -> str:
    return "  ".join(cells).rstrip()


def _column(frame: "pl.DataFrame", name: str) -> list[str]:
    """Return a column below its name, padded to one width, with numbers aligned right."""
    texts = [name, *_texts(frame, name)]
    wide, left = max(map(len, texts)), name in (*_KEYS, *_EMPTY)
    return [text.ljust(wide) if left else text.rjust(wide) for text in texts]
