"""``silvan describe``: Table 1 of a study's tables, before anything is trained."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from silvan.cli.plain_text import print_json


def describe(
    study: Annotated[Path, Argument(metavar="STUDY.toml", help="The study file, see docs/study.md.")],
    csv: Annotated[Path | None, Option("--csv", metavar="FILE", help="Write all numbers as CSV.")] = None,
    html: Annotated[Path | None, Option("--html", metavar="FILE", help="Write the table as a page.")] = None,
    json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Describe the columns over all sites and at each: quartiles, missing values, categories, differences.

    Covers all rows; nothing is trained, and nothing else is written.
    """
    import msgspec
    from rich.console import Console

    from silvan.cli.plain_text import clean, print_wrapped
    from silvan.cli.terminal import shown
    from silvan.report.describe_page import describe_page
    from silvan.report.site_tables import ReportTable
    from silvan.study.listener import Listener
    from silvan.study.parse import describing
    from silvan.study.run_folder import NotKept
    from silvan.study.run_study import run_study
    from silvan.study.steps import start_record
    from silvan.study.study_file import make_federation, read_study, with_lines
    from silvan.util.csv_text import csv_text
    from silvan.util.files import write_whole

    plan = describing(read_study(study))
    with with_lines(plan):
        federation = make_federation(plan, None)
        record = run_study(plan, federation, NotKept(), start_record(plan, ""), Listener())
    table = record.table_one
    if table is None:
        raise AssertionError("a describing study has a Table 1")
    if csv is not None:
        frame = table.frame()
        rows = [["" if cell is None else cell for cell in row] for row in frame.rows()]
        write_whole(csv, csv_text([frame.columns, *rows]).encode())
    if html is not None:
        write_whole(html, describe_page(plan.name, table).encode(errors="replace"))
    if json:
        print_json(msgspec.to_builtins(table))
        return
    cells = [[clean(cell) for cell in row] for row in table.texts()]
    Console().print(shown(ReportTable([clean(head) for head in table.heads], cells)))
    print_wrapped(clean(table.note))
    for path in (csv, html):
        if path is not None:
            typer.echo(f"written to {clean(str(path))}")
