"""``silvan site``: joining a federation of machines, and the site's process."""

from pathlib import Path
from typing import Annotated, Any

import typer

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The site's folder.")]


_MOST_COLUMNS = 12


def join(
    invite: Annotated[Path, typer.Argument(metavar="INVITE", help="The invitation that the coordinator sent.")],
    table: Annotated[
        str, typer.Option(metavar="TABLE", help="A CSV or Parquet file, or postgresql://... or sqlite:///...")
    ],
    query: Annotated[str | None, typer.Option(help="What to read of a database: SELECT ..., or a table.")] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="FOLDER", help="Where to keep all of it; SITE if not given.")
    ] = None,
    approve: Annotated[
        bool, typer.Option("--approve/--no-approve", help="Answer only studies that you have approved.")
    ] = True,
) -> None:
    """Join a federation: check the table, make keys on this machine, have them signed."""
    from silvan.deploy.hub import Invite
    from silvan.deploy.member import Member
    from silvan.deploy.tables import absolute, look

    asked = Invite.read(invite)
    source = absolute(table)
    columns, rows = look(source, query, asked.columns)
    more = f" and {len(columns) - _MOST_COLUMNS} more" if len(columns) > _MOST_COLUMNS else ""
    _say(f"The table has {rows} and the columns {', '.join(columns[:_MOST_COLUMNS])}{more}.")
    member = Member.join(folder or Path(asked.site), asked, source, query, {"approve": approve})
    _say(
        f"{member.name} has joined {asked.federation}. Its folder is {member.path}; what it lets out is in site.toml.",
        f"Tell the coordinator by telephone, and see that it reads the same: {member.words}",
        f"Next: silvan site start {folder or asked.site}",
    )


def start(
    folder: Folder,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay, as systemd wants it.")] = False,
    new_roster: Annotated[
        bool, typer.Option("--new-roster", help="Accept other keys than before; compare the words first.")
    ] = False,
) -> None:
    """Start the site's process: it connects to the coordinator, and answers what you let it."""
    from silvan.deploy.certificates import check_certificate, read_certificate
    from silvan.deploy.hub import roster_words
    from silvan.deploy.local import start_site
    from silvan.deploy.member import Member
    from silvan.deploy.tables import look

    member = Member(folder)
    startup = member.path / "kit" / "startup"
    check_certificate(
        read_certificate((startup / "client.crt").read_bytes()), read_certificate((startup / "rootCA.pem").read_bytes())
    )
    look(member.settings["table"], member.settings.get("query"), [])
    roster = member.pin_roster(again=new_roster)
    if roster is not None:
        _say(f"All keys together in words: {roster_words(roster)}")
    if foreground:
        _stay(member)
    process = start_site(member)
    _say(f"Running (process {process.pid}). Log: {member.path}/kit/log.txt")


def _stay(member: Any) -> None:
    """Become the site's process."""
    import os
    import sys

    from silvan.deploy.process import client_arguments

    os.chdir(member.path / "kit")
    os.execv(sys.executable, [sys.executable, *client_arguments(member.path / "kit", member.name)])  # noqa: S606


def stop(folder: Folder) -> None:
    """Stop the site's process; a study waits, and goes on when it is started again."""
    from silvan.deploy.local import process_of
    from silvan.deploy.member import Member

    _say("Stopped." if process_of(Member(folder)).stop() else "It was not running.")


def status(folder: Folder) -> None:
    """Show how the site stands: its process, its keys, studies that wait for approval, its budget."""
    import contextlib

    from silvan.deploy.hub import roster_words
    from silvan.deploy.local import process_of
    from silvan.deploy.member import Member
    from silvan.errors import SilvanError

    member = Member(folder)
    pid, own, budget = process_of(member).pid, member.membership, member.budget()
    _say(
        f"{own.site} of {own.federation}, coordinator {own.host}:{own.port}: "
        + (f"running (process {pid})" if pid else "not running"),
        f"Its keys in words: {member.words}",
    )
    roster = member.roster()
    if roster is None:
        with contextlib.suppress(SilvanError):
            roster = member.pin_roster()
    if roster is not None:
        _say(f"All keys together in words: {roster_words(roster)}")
    limit = "" if budget.limit is None else f" of {budget.limit:g}"
    _say(f"Privacy budget spent: {budget.spent:g}{limit}")
    for study in member.asked():
        state = "approved" if member.folder.approvals.find(study.id) else "waits for your approval"
        _say(f"Study {study.id!r}: {state if member.policy.approve else 'needs no approval'}")


COMMANDS = (join, start, stop, status)


def show_asked(folder: Path) -> None:
    """Show the studies that came in: what each asks, what would leave, what it costs."""
    from rich.console import Console
    from rich.text import Text

    from silvan.cli.ledger import kinds_table
    from silvan.cli.show import clean, say
    from silvan.deploy.member import Member
    from silvan.deploy.plain import explain

    member, console = Member(folder), Console()
    asked = member.asked()
    if not asked:
        _say("No study has come in yet.")
    for study in asked:
        told = explain(member, study)
        state = f"approved on {told.approved.at[:10]}" if told.approved else "waits for your approval"
        if not member.policy.approve:
            state = "answered without approval, as site.toml says"
        say(console, Text(clean(f"{told.id}: {state}"), style="bold"), Text("\n".join(map(clean, told.lines))))
        if told.leaves:
            say(console, kinds_table(told.leaves))
        if member.policy.approve and not told.approved:
            _say(f"To approve: silvan site approve {folder} '{told.id}'")


def whole_name(folder: Path, study: str) -> str:
    """Complete a study's name from those that came in."""
    from silvan.deploy.member import Member
    from silvan.errors import InputError

    member = Member(folder)
    names = [asked.id for asked in member.asked()]
    known = [*names, *(approval.study for approval in member.folder.approvals.listed())]
    close = sorted({name for name in known if name.startswith(study)})
    if len(close) != 1:
        raise InputError(f"study must be one of those that came in: {', '.join(map(repr, known)) or 'none did'}")
    return close[0]


def _say(*lines: str) -> None:
    from silvan.cli.show import clean

    for line in lines:
        typer.echo(clean(line))
