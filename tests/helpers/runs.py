"""Small studies on disk, and the command line at work on them."""

from pathlib import Path

import polars as pl
from helpers.studies import parts, table
from typer.testing import CliRunner

from silvan.cli.main import app
from silvan.study.run_folder import Record, Run

STUDY = """\
name = {name!r}
label = "label"
test = 0.3
{more}
[sites]
{sites}

[learner]
kind = "{kind}"
n_estimators = 4
max_depth = 3
"""


def silvan(*words: object, ok: bool = True):
    """Runs a command in this process."""
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "100"})
    if ok:
        assert result.exit_code == 0, result.output + result.stderr
    return result


def said(result):
    """Returns all output of a command, without its line breaks."""
    return " ".join((result.stdout + result.stderr).split())


def write_study(
    folder: Path,
    tables: dict[str, pl.DataFrame] | None = None,
    *,
    kind: str = "HistogramForest",
    name: str = "small",
    more: str = "",
) -> Path:
    """Writes tables and a study of them; sites are called north, east and south by default."""
    if tables is None:
        tables = dict(zip(("north", "east", "south"), parts(table(n=120), 3).values(), strict=True))
    lines = []
    for i, (site, frame) in enumerate(tables.items()):
        frame.write_csv(folder / f"{i}.csv")
        lines.append(f"'{site}' = \"{i}.csv\"")
    path = folder / "study.toml"
    path.write_text(STUDY.format(name=name, more=more, sites="\n".join(lines), kind=kind))
    return path


def fitted(folder: Path, **settings: object) -> Record:
    """Fits a small study into the folder's ``run``, and returns the content of run.json."""
    silvan("fit", write_study(folder, **settings), "--output", folder / "run")
    return Run(folder / "run").read()
