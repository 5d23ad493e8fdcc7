"""``silvan predict``: predicts the rows of a table with a model."""

import csv
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from silvan.errors import InputError, SchemaError

if TYPE_CHECKING:
    from silvan.forest.forest import Forest
    from silvan.study.run_folder import Run


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A .silvan file, or a run folder.")],
    tables: Annotated[
        list[str],
        typer.Argument(
            metavar="TABLE",
            help="CSV or Parquet, the label is not needed; for a run of parties PARTY=TABLE, each.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="CSV", help="Where to write; else to standard output."),
    ] = None,
    site: Annotated[str | None, typer.Option("--site", "-s", help="Use the forest that this site should use.")] = None,
    fill: Annotated[
        bool,
        typer.Option("--fill", help="Count columns that the table lacks as missing; so too rows that a party lacks."),
    ] = False,
) -> None:
    """Predict every row of a table: the class and each class's probability, or the number."""
    run = open_run(model)
    if run is not None:
        from silvan.study import column_steps

        if site is not None:
            raise InputError("--site is for runs of sites: all parties have the same model")
        column_steps.predict(run, tables, output, fill=fill)
        return
    if len(tables) > 1:
        raise InputError(f"one table at a time, got {len(tables)}; several are for a run of parties")
    predict_table(model, Path(tables[0]), output, site, fill)


def predict_table(model: Path, table: Path, output: Path | None, site: str | None, fill: bool) -> None:
    """Predict the rows of one table."""
    import numpy as np

    from silvan.data.encode import encode_features
    from silvan.data.table import listed, read_table
    from silvan.forest import predict as walk
    from silvan.study.progress_bars import Progress

    progress = Progress()
    forest = open_forest(model, site)
    with progress.step("Reading the table"):
        frame = read_table(str(table), forest.schema.label.name)
        lacking = np.array([name not in frame.columns for name in forest.schema.names])
        absent = [name for name, lacks in zip(forest.schema.names, lacking, strict=True) if lacks]
        abstain = forest.combine == "vote" and not fill
        if absent and (lacking.all() or not (fill or abstain)):
            mend = "add these columns, or pass --fill to count them as missing"
            raise SchemaError(
                f"{str(table)!r} lacks {listed(absent)}; {'is it the right table?' if fill or abstain else mend}"
            )
        X = encode_features(frame, forest.schema, fill_absent=True)
    with progress.step("Predicting"):
        scores, decided = walk.scores_and_decisions(forest, X, absent=lacking if abstain else None)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if forest.classes is None:
        writer.writerow(["row", "prediction"])
        writer.writerows([i, repr(value)] for i, value in enumerate(scores[:, 0].tolist(), 1))
    else:
        classes = forest.classes.tolist()
        writer.writerow(["row", "prediction", *(f"probability_{c}" for c in classes)])
        for i, (best, shares) in enumerate(zip(decided.tolist(), scores.tolist(), strict=True), 1):
            writer.writerow([i, classes[best], *(f"{share:.6g}" for share in shares)])
    if absent and abstain:
        silent = int(walk.abstaining(forest, lacking).sum())
        typer.echo(f"{silent} of {len(forest)} trees abstained: the table lacks {listed(absent)}", err=True)
    write_out(text.getvalue(), output, f"{len(X):,} predictions by forest {forest.hash[:12]}")


def write_out(text: str, output: Path | None, what: str) -> None:
    """Write predictions to a file, or to standard output."""
    from silvan.util.files import write_whole

    if output is None:
        sys.stdout.write(text)
        return
    write_whole(output, text.encode())
    typer.echo(f"{what} written to {output}", err=True)


def open_run(path: Path) -> "Run | None":
    """Return the run if it is one of parties; None for any other model."""
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
