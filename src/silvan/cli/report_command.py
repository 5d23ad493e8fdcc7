"""``silvan report``: writes the page of a run folder."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    open_: Annotated[bool, typer.Option("--open", help="Show the page in a browser.")] = False,
) -> None:
    """Write a run's report.html: one page that needs nothing else."""
    from silvan.report.html import write_report
    from silvan.study.run_folder import Run

    path = write_report(Run(run))
    typer.echo(str(path))
    if open_:
        typer.launch(path.resolve().as_uri())
