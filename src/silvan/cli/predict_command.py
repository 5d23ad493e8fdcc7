"""``silvan predict``: predicts the rows of a table with a model."""

import sys
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from silvan.cli.plain_text import clean
from silvan.errors import InputError, SchemaError
from silvan.util.readable import count_of

if TYPE_CHECKING:
    import numpy as np

    from silvan.data.schema import Schema
    from silvan.data.typed_table import Frame
    from silvan.forest.forest import Forest
    from silvan.study.reading_options import ReadAs
    from silvan.study.run_folder import Record, Run

Words = list[str] | None

_MOST_COLUMNS = 5
"""Maximum number of columns with separate warnings."""

Reading = Annotated[
    Words,
    Option(
        "--reading", metavar="KEY=VALUE", help="How the table is written: 'separator=;'; for one party PARTY:KEY=VALUE."
    ),
]
"""An option of all commands that read a table in addition to a run."""


def predict(
    model: Annotated[Path, Argument(metavar="MODEL", help="A .silvan file, or a run folder.")],
    tables: Annotated[list[str], Argument(metavar="TABLE", help="CSV or Parquet; PARTY=TABLE for each party.")],
    output: Annotated[Path | None, Option("--output", "-o", metavar="CSV", help="Default: standard output.")] = None,
    site: Annotated[str | None, Option("--site", "-s", help="Use the forest that this site should use.")] = None,
    fill: Annotated[bool, Option("--fill", help="Treat absent columns, or a party's absent rows, as missing.")] = False,
    id_: Annotated[
        str | None, Option("--id", metavar="COLUMN", help="Keep this column next to the predictions.")
    ] = None,
    reading: Reading = None,
) -> None:
    """Predict every row of a table: the class with all probabilities, or the number."""
    run = open_column_run(model)
    if run is not None:
        if site is not None:
            raise InputError("--site is for horizontal runs: all parties share one model")
        if id_ is not None:
            raise InputError("--id is for horizontal runs: predictions of a vertical model always contain the ids")
        predict_matched_rows(run, tables, output, fill, reading)
        return
    if len(tables) > 1:
        raise InputError(f"one table at a time, got {len(tables)}; only a vertical run takes several")
    predict_table(model, Path(tables[0]), output, site, fill, id_, reading)


def predict_table(
    model: Path, table: Path, output: Path | None, site: str | None, fill: bool, id_: str | None, reading: Words
) -> None:
    """Predict the rows of one table; the cells of the column ``id_`` are copied as written."""
    import numpy as np

    from silvan.data.encode import encode_features
    from silvan.forest import predict as walk
    from silvan.metrics import decided_at
    from silvan.study.progress_bars import ProgressBars
    from silvan.study.run_folder import Run
    from silvan.util.csv_text import csv_text
    from silvan.util.readable import format_names

    progress = ProgressBars()
    forest, record = open_forest(model, site), Run(model).read() if model.is_dir() else None
    source = table_as_written(table, record, reading)
    with progress.step("Reading the table"):
        frame, ids = read_with_ids(source, forest.schema, id_)
        lacking = np.array([name not in frame.columns for name in forest.schema.columns])
        abstain = forest.combine == "vote" and not fill
        partial = columns_of_some(record, forest.schema)
        absent = lacking_columns(table, frame.columns, forest.schema, fill or abstain, partial)
        X = encode_features(frame, forest.schema, fill_absent=True)
    note_unknown_categories(frame, forest.schema)
    note_extrapolation(forest, X)
    with progress.step("Predicting"):
        scores, decided = walk.scores_and_decisions(forest, X, absent=lacking if abstain else None)
        threshold, rule = None if record is None else record.threshold, ""
        if threshold is not None and forest.classes is not None and len(forest.classes) == 2:
            decided = decided_at(threshold, scores, forest.schema.label.positive_code)
            positive = clean(str(forest.schema.label.positive_class))
            rule = (
                f"; {positive} (the positive class) where its score is at least {threshold:.3g}, the study's threshold"
            )
    classes = [] if forest.classes is None else forest.classes.tolist()
    rows: list[list[Any]] = [["row", "prediction", *(f"probability_{c}" for c in classes)]]
    for i, (best, shares) in enumerate(zip(decided.tolist(), scores.tolist(), strict=True), 1):
        rows.append([i, classes[best], *(f"{share:.6g}" for share in shares)] if classes else [i, repr(shares[0])])
    if ids is not None:
        rows = [[row[0], cell, *row[1:]] for row, cell in zip(rows, [id_, *ids], strict=True)]
    if absent and abstain:
        silent = f"{walk.abstaining(forest, lacking).sum()} of {count_of(len(forest), 'tree')} abstained"
        typer.echo(f"{silent}: the table lacks {format_names(absent)}", err=True)
    write_out(csv_text(rows), output, f"{count_of(len(X), 'prediction')} by forest {forest.hash[:12]}{rule}")


def read_with_ids(source: Any, schema: "Schema", id_: str | None) -> tuple["Frame", list[str] | None]:
    """Read a table by a schema, and the cells of one column as written."""
    from silvan.data.cells import text_columns
    from silvan.data.table import open_table, read_table
    from silvan.util.cell_text import STRANGE, value_text

    if id_ is None:
        return read_table(source, schema.label.name, schema), None
    opened = open_table(source, schema.label.name, by_schema=True)
    if id_ not in opened.frame.columns:
        where = repr(str(source)) if isinstance(source, Path) else source.where
        raise InputError(f"{where} has no column {id_!r}; --id names a column to keep next to the predictions")
    opened.check_clear(schema)
    frame = opened.with_texts([*text_columns(schema), id_])
    texts = ((value, value_text(value) or "") for value in frame[id_].to_list())
    return frame, [str(value) if text == STRANGE else text for value, text in texts]


def columns_of_some(record: "Record | None", schema: "Schema") -> set[str]:
    """Return the columns that some sites of the run lack, which a table may lack too: they count as missing."""
    if record is None or record.by == "columns":
        return set()
    return {column.name for column in record.columns if len(column.sites) < len(record.sites)} & {*schema.columns}


def lacking_columns(
    table: Path, columns: list[str], schema: "Schema", fill: bool, partial: AbstractSet[str] = frozenset()
) -> list[str]:
    """Return the columns that a table lacks; raise ``SchemaError`` unless they may count as missing.

    ``partial`` columns may, with a note, unless another column of the table has a similar name.
    """
    from silvan.data.encode import near_names
    from silvan.util.readable import format_names

    absent = [name for name in dict.fromkeys(schema.columns) if name not in columns]
    near = near_names(absent, [name for name in columns if name not in schema.columns])
    known = not near and partial >= {*absent}
    if absent and (len(absent) == len(set(schema.columns)) or not (fill or known)):
        mend = "is it the right table?" if fill else "add these columns, or pass --fill to treat them as missing"
        mend = f"did you mean {format_names(near)}?" if near else mend
        raise SchemaError(f"{str(table)!r} lacks {format_names(absent)}; {mend}")
    if absent and not fill:
        lacks = f"{str(table)!r} lacks {format_names(absent)}"
        typer.echo(clean(f"{lacks}, like some sites of the study: treated as missing"), err=True)
    return absent


def note_unknown_categories(frame: "Frame", schema: "Schema") -> None:
    """Print a line for each column with mostly unknown categories, which may be coded differently."""
    from silvan.data.encode import mostly_unknown
    from silvan.util.readable import format_names

    for name, rows in mostly_unknown(frame, schema).items():
        feature = schema.features[schema.names.index(name)]
        line = f"check {name}: {rows:,} of {len(frame):,} rows have categories unknown to the forest, treated as "
        line += "'other'" if feature.other else "missing"
        typer.echo(clean(f"{line}; it knows {format_names(list(feature.categories or ()))}"), err=True)


def note_extrapolation(forest: "Forest", X: "np.ndarray") -> None:
    """Print how many numbers lie far outside the range that the forest was trained on, and in which columns."""
    from silvan.forest.extrapolation import far_outside
    from silvan.util.readable import format_number

    found = far_outside(forest, X)
    for one in found[:_MOST_COLUMNS]:
        between = f"{format_number(one.low)} and {format_number(one.high)}"
        line = f"check {one.column}: {one.rows:,} of {count_of(len(X), 'row')} lie far outside the values that the "
        typer.echo(clean(f"{line}forest was trained on (its thresholds lie between {between})"), err=True)
    if found:
        cells, columns = count_of(sum(one.rows for one in found), "cell"), count_of(len(found), "column")
        typer.echo(
            f"{cells} of {columns} {'is' if cells == '1 cell' else 'are'} extrapolated, with the predictions of the "
            "nearest known values; are the units the same?",
            err=True,
        )


def predict_matched_rows(run: "Run", words: list[str], output: Path | None, fill: bool, reading: Words) -> None:
    """Predict rows whose columns several parties hold, matched by id."""
    from silvan.study import column_steps
    from silvan.study.progress_bars import ProgressBars
    from silvan.study.reading_options import as_written, parse_readings
    from silvan.util.csv_text import csv_text

    record = run.read()
    model = column_steps.read_model(run, record)
    tables = _tables_by_party(words, [site.name for site in record.sites])
    asked = parse_readings(reading or [], tables)
    sources = {}
    for party, table in tables.items():
        settings = {"reading": record.readings[party]} if party in record.readings else record.study
        sources[party] = _noted(as_written(table, settings, asked[party]))
    predictions = column_steps.predict(model, record, sources, ProgressBars(), fill=fill)
    text = csv_text([predictions.columns, *predictions.iter_rows()])
    write_out(text, output, f"{count_of(len(predictions), 'prediction')} by model {record.models[0].hash[:12]}")


def _tables_by_party(words: list[str], names: list[str]) -> dict[str, str]:
    """Return the table of each party, given as PARTY=TABLE."""
    tables: dict[str, str] = {}
    for word in words:
        name = max((n for n in names if word.startswith(f"{n}=")), key=len, default=None)
        if name is None:
            raise InputError(
                f"name each party's table as PARTY=TABLE, the party one of {', '.join(names)}; got {word!r}"
            )
        if name in tables:
            raise InputError(f"party {name!r} has two tables; name one")
        tables[name] = word[len(name) + 1 :]
    lacking = [name for name in names if name not in tables]
    if lacking:
        raise InputError(f"name the table of party {lacking[0]!r} too: {lacking[0]}=TABLE; the model needs all parties")
    return tables


def write_out(text: str, output: Path | None, what: str) -> None:
    """Write predictions to a file, or to standard output."""
    from silvan.util.files import write_whole

    if output is None:
        sys.stdout.write(text)
        return
    write_whole(output, text.encode())
    typer.echo(f"{what} written to {output}", err=True)


def open_column_run(path: Path) -> "Run | None":
    """Return the run if it is vertical; None for any other model."""
    from silvan.study.run_folder import RUN, Run

    if not path.is_dir() or not (path / RUN).is_file():
        return None
    run = Run(path)
    return run if run.read().by == "columns" else None


def open_forest(path: Path, site: str | None = None) -> "Forest":
    """Read the forest of a file or of a run folder."""
    from silvan.forest.forest import Forest
    from silvan.study.run_folder import Run

    if path.is_dir():
        return Run(path).forest(site)
    if not path.is_file():
        raise InputError(f"there is no model {str(path)!r}; name a .silvan file or a run folder")
    if site is not None:
        raise InputError("--site is for a run folder: a .silvan file holds one forest")
    return Forest.load(path)


def table_as_written(table: str | Path, record: "Record | None", words: Words) -> Any:
    """Return the source of a table, and print how the study's ``[reading]`` section interprets it."""
    from silvan.study.reading_options import as_written, parse_reading

    return _noted(as_written(table, {} if record is None else record.study, parse_reading(words or [])))


def _noted(written: "ReadAs") -> Any:
    """Return the source of a table, and print how the study's options interpret it."""
    if written.note:
        typer.echo(clean(written.note), err=True)
    return written.source
