"""``silvan report``: writes a run's report as a page, JSON or Markdown."""

from pathlib import Path
from typing import Annotated

import typer

from silvan.errors import InputError


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    open_: Annotated[bool, typer.Option("--open", help="Show the page in a browser.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the report as data.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print sentences, tables and model card.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file.")] = None,
) -> None:
    """Write a run's report.html, a self-contained page. JSON and Markdown go to standard output."""
    from silvan.report.html import render, write_report
    from silvan.report.markdown import markdown as as_markdown
    from silvan.report.summary import summarise_run, summary_json
    from silvan.study.run_folder import Run
    from silvan.util.files import write_whole

    if json and markdown:
        raise InputError("--json and --markdown exclude each other; choose one")
    if open_ and (json or markdown):
        raise InputError("--open shows the page; omit --json and --markdown")
    if not json and not markdown and output is None:
        path = write_report(Run(run))
    else:
        summary = summarise_run(run)
        text = summary_json(summary) if json else as_markdown(summary) if markdown else render(summary)
        if output is None:
            typer.echo(text, nl=False)
            return
        write_whole(output, text.encode(errors="replace"))
        path = output
    typer.echo(str(path))
    if open_:
        typer.launch(path.resolve().as_uri())
