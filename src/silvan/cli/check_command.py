"""``silvan check``: inspects a study's tables before training."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from silvan.cli.plain_text import clean, print_json, print_wrapped

if TYPE_CHECKING:
    from silvan.data.column_profile import ColumnProfile


def check(
    study: Annotated[Path, Argument(metavar="STUDY.toml", help="The study file, see docs/study.md.")],
    json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the columns of every site's table and point out anything odd; nothing is trained or written."""
    from silvan.study import table_check
    from silvan.study.study_file import read_study, with_lines

    plan = read_study(study)
    with with_lines(plan):
        tables = table_check.open_tables(plan)
        profiles, whole = table_check.profiles_of(tables), table_check.table_of_all(plan)
        ask = table_check.questions
        if plan.id is None:
            lines = [table_check.ONE_SITE] if len(tables) == 1 else []
            lines += table_check.questions_of_label(profiles, plan.label)
            lines += table_check.questions_of_rows(tables) + ask(profiles, plan.label, plan.task, whole)
            lines += table_check.questions_of_columns(profiles, plan.label, plan.absent)
        else:  # parties hold different columns, and an id column is expected
            columns_of = {party: [c for c in columns if c.name != plan.id] for party, columns in profiles.items()}
            lines = [
                line for party, columns in columns_of.items() for line in ask({party: columns}, plan.label, plan.task)
            ]
        notes = table_check.reading_notes(tables if whole is None else {whole.name: whole})
    show(profiles, lines, notes, json)


def check_site(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="The site's folder.")],
    study: Annotated[str | None, Argument(metavar="STUDY", help="A study received (default: the latest).")] = None,
    label: Annotated[str | None, Option("--label", help="The column to predict, if not the study's.")] = None,
    json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the columns of the site's own table and point out anything odd; nothing leaves the machine.

    Columns that the study excludes are not shown, and column kinds are those of the study.
    """
    from dataclasses import replace

    from silvan.cli.site_command import study_of
    from silvan.deploy.membership.flare_folder import open_site
    from silvan.deploy.studies.study_table import study_source, table_settings
    from silvan.federation.site_table import SiteSettings, SiteTable
    from silvan.study.table_check import profiles_of, questions, questions_of_rows, reading_notes

    member = open_site(folder)
    received = member.studies()
    plan = study_of(member, study) if study is not None else received[-1] if received else None
    how = SiteSettings() if plan is None else table_settings(member, plan)
    how = how if label is None else replace(how, label=label)
    table = SiteTable(member.name, member.source() if plan is None else study_source(member, plan), how)
    profiles = profiles_of({member.name: table})
    lines = questions_of_rows({member.name: table})
    lines += questions(profiles, how.label, None if plan is None else plan.task)
    if plan is not None and not json:
        typer.echo(clean(f"For the study {plan.name!r}, which predicts {how.label!r}:"))
    show(profiles, lines, reading_notes({member.name: table}), json)


def show(profiles: "dict[str, list[ColumnProfile]]", lines: list[str], notes: dict[str, list[str]], json: bool) -> None:
    """Print columns by site, the format of each file, and anything that looks odd."""
    if json:
        print_json({"columns": profiles, "files": notes, "questions": lines})
        return
    from rich.console import Console

    from silvan.cli.terminal import shown
    from silvan.report.site_tables import ReportTable

    listed = [(column, site) for site, columns in profiles.items() for column in columns]
    order = list(dict.fromkeys(column.name for column, _ in listed))
    rows = []
    for column, site in sorted(listed, key=lambda one: order.index(one[0].name)):
        missing = f"{column.missing / column.rows:.0%}" if column.missing else ""
        rows.append([column.name, site, column.kind, missing, f"{column.distinct:,}", *_ends(column)])
    Console().print(shown(ReportTable(["Column", "Site", "Kind", "Missing", "Distinct", "Low", "High"], rows, texts=3)))
    print_wrapped(*(f"The file of {site} is {', '.join(found)}." for site, found in notes.items()))
    print_wrapped(*([f"- {line}" for line in lines] or ["Nothing looks odd."]))


def _ends(column: "ColumnProfile") -> list[str]:
    from silvan.util.readable import format_number

    numbers: tuple[Any, ...] = (column.low, column.high)
    if column.kind == "date":
        from datetime import date, timedelta

        return ["" if n is None else str(date(1970, 1, 1) + timedelta(days=int(n))) for n in numbers]
    return ["" if n is None else f"{n:,.0f}" if n == round(n) and abs(n) < 1e7 else format_number(n) for n in numbers]
