"""``silvan study local``: a whole federation on this machine, and a study on it."""

from pathlib import Path
from typing import Annotated

import typer

from silvan.cli.plain_text import print_lines
from silvan.cli.study_command import run_study, show_run, timed_printer
from silvan.errors import InputError

EXAMPLE = """\
name = "example"
label = "malignant"
test = 0.3

[learner]
kind = "HistogramForest"
n_estimators = 50
max_depth = 8
"""


def local(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder for all of it.")] = Path("local"),
    sites: Annotated[int, typer.Option("--sites", min=1, max=16, help="How many sites.")] = 3,
    table: Annotated[
        Path | None, typer.Option(metavar="TABLE", help="A table to deal out; breast cancer data if not given.")
    ] = None,
    study: Annotated[
        Path | None, typer.Option("--run", metavar="STUDY.toml", help="A study to run; an example if not given.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running afterwards.")] = False,
) -> None:
    """Set up a whole federation on this machine, in processes of their own with mutual TLS, and run a study on it."""
    from silvan.deploy.one_machine import make_local
    from silvan.deploy.services import process_of, processes_of, stop_all
    from silvan.study.remote_study import parse_remote_study, read_remote_study

    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder}: it is not empty; name a new folder")
    plan = parse_remote_study(EXAMPLE) if study is None else read_remote_study(study)
    folder.mkdir(parents=True, exist_ok=True)
    tables = write_site_tables(folder, sites, table)
    hub, members = make_local(folder.resolve(), tables, report=timed_printer())
    try:
        show_run(run_study(hub, plan))
    finally:
        if not keep:
            stop_all([*map(process_of, members), *processes_of(hub)])
    if keep:
        print_lines(
            f"All of it runs. Next: silvan study run STUDY.toml --in {hub.path}",
            f"To end it: silvan study stop --in {hub.path}; silvan site stop {folder}/SITE for each",
        )


def write_site_tables(folder: Path, n: int, table: Path | None) -> dict[str, str]:
    """Write a table for each of n sites, every n-th row of one table or of scikit-learn's breast cancer data."""
    import polars as pl

    if table is None:
        from sklearn.datasets import load_breast_cancer

        data = load_breast_cancer()
        names = [name.replace(" ", "_") for name in data.feature_names]
        frame = pl.DataFrame(data.data, schema=names).with_columns(malignant=pl.Series(1 - data.target))
    else:
        from silvan.data.table import read_table

        frame = pl.DataFrame(read_table(table).to_native())
    tables = {}
    for i in range(n):
        path = folder / f"site-{i + 1}.csv"
        frame.gather_every(n, i).write_csv(path)
        tables[f"site-{i + 1}"] = str(path.resolve())
    return tables
