"""``silvan check``: looks at the tables of a study before anything is learnt."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from silvan.cli.plain_text import clean, print_json

if TYPE_CHECKING:
    from silvan.data.column_profile import ColumnProfile


def check(
    study: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study file, see docs/study.md.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the columns of every site's table, and ask about what looks odd; nothing is learnt or written."""
    from silvan.study.study_file import read_study
    from silvan.study.table_check import (
        open_tables,
        profiles_of,
        questions,
        questions_of_label,
        reading_notes,
        table_of_all,
    )

    plan = read_study(study)
    with plan.pointing():
        tables = open_tables(plan)
        profiles, whole = profiles_of(tables), table_of_all(plan)
        if plan.id is None:
            lines = questions_of_label(profiles, plan.label) + questions(profiles, plan.label, plan.task, whole)
        else:  # parties have different columns, and ids are meant to be
            own = {party: [c for c in columns if c.name != plan.id] for party, columns in profiles.items()}
            lines = [line for party in own for line in questions({party: own[party]}, plan.label, plan.task)]
        notes = reading_notes(tables if whole is None else {whole.name: whole})
    show(profiles, lines, notes, json)


def check_site(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The site's folder.")],
    study: Annotated[
        str | None, typer.Argument(metavar="STUDY", help="A study that came in; the latest, if none is named.")
    ] = None,
    label: Annotated[
        str | None, typer.Option("--label", help="The column to predict; the study's, if there is one.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the columns of the site's own table, and ask about what looks odd; nothing leaves the machine.

    Columns that the study leaves out are left out, and columns are what the study says they are.
    """
    from dataclasses import replace

    from silvan.cli.site_command import study_of
    from silvan.deploy.membership.flare_folder import open_site
    from silvan.deploy.studies.study_table import table_settings
    from silvan.federation.site_table import SiteSettings, SiteTable
    from silvan.study.table_check import profiles_of, questions, reading_notes

    member = open_site(folder)
    came = member.studies()
    plan = study_of(member, study) if study is not None else came[-1] if came else None
    how = SiteSettings() if plan is None else table_settings(member, plan)
    how = how if label is None else replace(how, label=label)
    table = SiteTable(member.name, member.source(), how)
    profiles = profiles_of({member.name: table})
    lines = questions(profiles, how.label, None if plan is None else plan.task)
    if plan is not None and not json:
        typer.echo(clean(f"For the study {plan.name!r}, which predicts {how.label!r}:"))
    show(profiles, lines, reading_notes({member.name: table}), json)


def show(profiles: "dict[str, list[ColumnProfile]]", lines: list[str], notes: dict[str, list[str]], json: bool) -> None:
    """Print columns by site, how files are written, and what should be looked at."""
    from rich.console import Console
    from rich.text import Text

    from silvan.cli.whole_table import make_table

    if json:
        print_json({"columns": profiles, "files": notes, "questions": lines})
        return
    console, table = Console(), make_table()
    for name in ("Column", "Site"):
        table.add_column(name, overflow="fold", min_width=8)
    table.add_column("Kind", no_wrap=True)
    for name in ("Missing", "Distinct", "Low", "High"):
        table.add_column(name, justify="right", no_wrap=True)
    order = list(dict.fromkeys(column.name for columns in profiles.values() for column in columns))
    for name in order:
        for site, columns in profiles.items():
            for column in columns:
                if column.name == name:
                    known = [column.kind, _share(column), f"{column.distinct:,}", *_ends(column)]
                    table.add_row(*map(Text, [clean(name), clean(site), *known]))
    console.print(table)
    for site, found in notes.items():
        console.print(Text(clean(f"The file of {site} is {', '.join(found)}.")))
    for line in lines:
        console.print(Text(f"- {clean(line)}"), highlight=False)
    if not lines:
        console.print("Nothing looks odd.")


def _share(column: "ColumnProfile") -> str:
    return "" if not column.missing else f"{column.missing / column.rows:.0%}"


def _ends(column: "ColumnProfile") -> list[str]:
    from silvan.util.readable import format_number

    numbers: tuple[Any, ...] = (column.low, column.high)
    if column.kind == "date":
        from datetime import date, timedelta

        return ["" if n is None else str(date(1970, 1, 1) + timedelta(days=int(n))) for n in numbers]
    return ["" if n is None else f"{n:,.0f}" if n == round(n) and abs(n) < 1e7 else format_number(n) for n in numbers]
