"""``silvan check``: looks at the tables of a study before anything is learnt."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from silvan.cli.plain_text import clean

if TYPE_CHECKING:
    from silvan.data.column_profile import ColumnProfile


def check(
    study: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study file, see docs/study.md.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the columns of every site's table, and ask about what looks odd; nothing is learnt or written."""
    from silvan.study.study_file import read_study
    from silvan.study.table_check import open_tables, profiles_of, questions

    plan = read_study(study)
    with plan.pointing():
        profiles = profiles_of(open_tables(plan))
    show(profiles, questions(profiles, plan.label, plan.task), json)


def check_site(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The site's folder.")],
    label: Annotated[str, typer.Option("--label", help="The column to predict.")] = "label",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the columns of the site's own table, and ask about what looks odd; nothing leaves the machine."""
    from silvan.deploy.member import Member, source_of
    from silvan.federation.site_table import SiteSettings, SiteTable
    from silvan.study.table_check import profiles_of, questions

    member = Member(folder)
    settings = member.settings
    source = source_of(settings["table"], settings.get("query"), settings.get("reading"))
    profiles = profiles_of({member.name: SiteTable(member.name, source, SiteSettings(label=label))})
    show(profiles, questions(profiles, label, None), json)


def show(profiles: "dict[str, list[ColumnProfile]]", lines: list[str], json: bool) -> None:
    """Print columns by site and what should be looked at."""
    import msgspec
    from rich.console import Console
    from rich.text import Text

    from silvan.cli.terminal import make_table

    if json:
        content = {"columns": msgspec.to_builtins(profiles), "questions": lines}
        typer.echo(msgspec.json.format(msgspec.json.encode(content)).decode())
        return
    console, table = Console(), make_table()
    for name in ("Column", "Site", "Kind"):
        table.add_column(name, overflow="fold")
    for name in ("Missing", "Distinct", "Low", "High"):
        table.add_column(name, justify="right")
    order = list(dict.fromkeys(column.name for columns in profiles.values() for column in columns))
    for name in order:
        for site, columns in profiles.items():
            for column in columns:
                if column.name == name:
                    known = [column.kind, _share(column), f"{column.distinct:,}", *_ends(column)]
                    table.add_row(*map(Text, [clean(name), clean(site), *known]))
    console.print(table)
    for line in lines:
        console.print(Text(f"- {clean(line)}"), soft_wrap=True)
    if not lines:
        console.print("Nothing looks odd.")


def _share(column: "ColumnProfile") -> str:
    return "" if not column.missing else f"{column.missing / column.rows:.0%}"


def _ends(column: "ColumnProfile") -> list[str]:
    numbers: tuple[Any, ...] = (column.low, column.high)
    if column.kind == "date":
        from datetime import date, timedelta

        return ["" if n is None else str(date(1970, 1, 1) + timedelta(days=int(n))) for n in numbers]
    return ["" if n is None else f"{n:.4g}" for n in numbers]
