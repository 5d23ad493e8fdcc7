"""A site's membership of a federation: it joins, runs, renews its certificate, and knows everybody's keys."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from silvan.cli.plain_text import print_lines
from silvan.cli.site_studies import Folder
from silvan.errors import InputError

_MOST_COLUMNS = 12


def join(
    invite: Annotated[Path, typer.Argument(metavar="INVITE", help="The invitation that the coordinator sent.")],
    table: Annotated[
        str, typer.Option(metavar="TABLE", help="A CSV or Parquet file, or the URL of a database: postgresql://...")
    ],
    query: Annotated[str | None, typer.Option(help="What to read of a database: SELECT ..., or a table.")] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="FOLDER", help="Where to keep all of it; SITE if not given.")
    ] = None,
    approve: Annotated[
        bool, typer.Option("--approve/--no-approve", help="Answer only studies that you have approved.")
    ] = True,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="How much of the rows may be in memory: 2GB; all, if not given.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="The Dask scheduler whose workers read TABLE, a folder of Parquet files."),
    ] = None,
    reading: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="How the file is written, for [reading] in site.toml: 'decimal=,' or rename.alter=age; repeatable.",
        ),
    ] = None,
) -> None:
    """Join a federation: check the table, make keys on this machine, have them signed."""
    from silvan.data.readers.query import is_url
    from silvan.deploy.membership.coordinator_folder import Invite
    from silvan.deploy.membership.joined_site import JoinedSite
    from silvan.deploy.membership.site_files import FILES_ALONE, absolute_path, check_table, source_of
    from silvan.study.reading_options import parse_reading, reading_lines

    invitation = Invite.read(invite)
    source = absolute_path(table) if cluster is None else str(Path(table).absolute())
    options = {key: value for key, value in parse_reading(reading or []).items() if value is not None}
    if options and is_url(source):
        raise InputError(FILES_ALONE)
    columns, rows = check_table(source_of(source, query, options, cluster), invitation.columns, memory)
    more = f" and {len(columns) - _MOST_COLUMNS} more" if len(columns) > _MOST_COLUMNS else ""
    print_lines(f"The table has {rows} and the columns {', '.join(columns[:_MOST_COLUMNS])}{more}.")
    member = JoinedSite.join(
        folder or Path(invitation.site),
        invitation,
        source,
        query,
        {"approve": approve},
        memory,
        cluster,
        reading_lines(options),
    )
    print_lines(
        f"{member.name} has joined {invitation.federation}. Its folder is {member.path}; what it lets out is in "
        "site.toml.",
        f"Tell the coordinator by telephone, and see that it reads the same: {member.fingerprint}",
        f"Next: silvan site start {folder or invitation.site}",
    )


def start(
    folder: Folder,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay, as systemd wants it.")] = False,
    new_roster: Annotated[bool, typer.Option("--new-roster", hidden=True)] = False,
) -> None:
    """Start the site's process: it connects to the coordinator, and answers what you let it."""
    from silvan.deploy.membership.joined_site import JoinedSite
    from silvan.deploy.service.start_stop import become_site, prepare_site, start_site

    member = JoinedSite(folder)
    if new_roster:
        raise InputError(f"new keys are shown, and accepted by their words, with `silvan site roster {folder}`")
    print_lines(*prepare_site(member))
    if foreground:
        become_site(member)
    process = start_site(member)
    print_lines(
        f"Running (process {process.pid}). Errors: silvan site status {folder}. FLARE's log: {member.path}/kit/log.txt"
    )


def renew(folder: Folder) -> None:
    """Renew the site's certificate, by the key that the coordinator knows the site by; then restart the site."""
    from silvan.deploy.membership.joined_site import JoinedSite

    member = JoinedSite(folder)
    member.renew()
    end = f"{member.certificate.not_valid_after_utc:%Y-%m-%d}"
    print_lines(f"Renewed, until {end}. The site uses it when it is started again.")


def roster(
    folder: Folder,
    accept: Annotated[
        str | None,
        typer.Option("--accept", metavar="WORDS", help="The words of the new list, compared with the others."),
    ] = None,
) -> None:
    """Show everybody's keys that the site goes by, in words, and those that the coordinator tells now."""
    from silvan.deploy.membership.coordinator_folder import compare_rosters, roster_fingerprint
    from silvan.deploy.membership.joined_site import JoinedSite

    member = JoinedSite(folder)
    if accept is not None:
        kept = member.accept_roster(accept)
        print_lines(f"Accepted: {', '.join(kept.sites)}. Studies that have begun go on with the sites that they have.")
        return
    kept_now, latest = member.roster(), member.latest_roster()
    if kept_now is not None:
        print_lines(f"Kept: {', '.join(kept_now.sites)}; in words: {roster_fingerprint(kept_now)}")
    if latest is None:
        print_lines("The coordinator has no complete list: not all sites have joined.")
    elif kept_now is None or kept_now != latest:
        change = "" if kept_now is None else f" ({compare_rosters(kept_now, latest).describe()})"
        words = roster_fingerprint(latest)
        print_lines(
            f"The coordinator tells now: {', '.join(latest.sites)}{change}; in words: {words}",
            "Compare these words with the coordinator and another site by telephone. If they are the same:",
            f'silvan site roster {shlex.quote(str(folder))} --accept "{words}"',
        )
    else:
        print_lines("The coordinator tells the same.")


def stop(folder: Folder) -> None:
    """Stop the site's process; a study waits, and goes on when it is started again."""
    from silvan.deploy.membership.joined_site import JoinedSite
    from silvan.deploy.service.start_stop import process_of

    print_lines("Stopped." if process_of(JoinedSite(folder)).stop() else "It was not running.")
