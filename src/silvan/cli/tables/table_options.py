"""The option ``--reading`` of commands that read a table beside a run, and what becomes of it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from silvan.cli.plain_text import clean

if TYPE_CHECKING:
    from silvan.study.run_folder import Record

Reading = Annotated[
    list[str] | None,
    typer.Option(
        "--reading",
        metavar="KEY=VALUE",
        help="How the table is written, if not as the study says: 'separator=;' or missing=NA,-9; repeatable.",
    ),
]


def table_as_written(table: str | Path, record: "Record | None", words: list[str] | None) -> Any:
    """Return what to read a table from; print what the study's own ``[reading]`` makes of it."""
    from silvan.study.tables.reading_options import as_written, parse_reading

    written = as_written(table, {} if record is None else record.study, parse_reading(words or []))
    if written.note:
        typer.echo(clean(written.note), err=True)
    return written.source
