"""``silvan site``: join a federation, start and stop the site, renew its certificate, accept changes of the roster."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from silvan.cli.plain_text import print_lines
from silvan.cli.site_command import Folder
from silvan.errors import InputError

if TYPE_CHECKING:
    from silvan.deploy.membership.joined_site import JoinedSite

_MOST_COLUMNS = 12


def _joined(folder: Path) -> "JoinedSite":
    """Open the folder of a site that has joined."""
    from silvan.deploy.membership.joined_site import JoinedSite

    return JoinedSite(folder)


def join(
    invite: Annotated[Path, Argument(metavar="INVITE", help="The coordinator's invitation.")],
    table: Annotated[
        str, Option(metavar="TABLE", help="A CSV or Parquet file, a URL: postgresql://..., omop:URL or fhir:FOLDER.")
    ],
    query: Annotated[str | None, Option(help="What to read from a database: SELECT ..., or a table.")] = None,
    folder: Annotated[Path | None, Option(metavar="FOLDER", help="The site's folder (default: SITE).")] = None,
    memory: Annotated[
        str | None, Option(metavar="SIZE", help="Memory for rows, such as 2GB (default: all rows).")
    ] = None,
    cluster: Annotated[str | None, Option(metavar="ADDRESS", help="A Dask scheduler whose workers read TABLE.")] = None,
    reading: Annotated[
        list[str] | None,
        Option(metavar="KEY=VALUE", help="How the table is written: 'decimal=,'; repeatable."),
    ] = None,
) -> None:
    """Join a federation: check the table, create keys on this machine, have them signed."""
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
    shown = f" and the columns {', '.join(columns[:_MOST_COLUMNS])}{more}" if columns else ""
    print_lines(f"The table has {rows}{shown}.")
    place, how = folder or Path(invitation.site), reading_lines(options)
    member = JoinedSite.join(place, invitation, source, query, {"approve": True}, memory, cluster, how)
    print_lines(
        f"{member.name} has joined {invitation.federation}. Its folder is {member.path}; its policy is in site.toml.",
        f"Compare these words with the coordinator by telephone: {member.fingerprint}",
        f"Next: silvan site start {place}",
    )


def start(
    folder: Folder,
    foreground: Annotated[bool, Option("--foreground", help="Stay in the foreground, for systemd.")] = False,
) -> None:
    """Start the site's process, which connects to the coordinator and answers what you allow."""
    from silvan.deploy.service.start_stop import prepare_site, start_site

    member = _joined(folder)
    print_lines(*prepare_site(member))
    process = start_site(member, foreground=foreground)
    print_lines(
        f"Running (process {process.pid}). Errors: silvan site status {folder}. FLARE's log: {member.path}/kit/log.txt"
    )


def renew(folder: Folder) -> None:
    """Renew the site's certificate with its existing key; then restart the site."""
    member = _joined(folder)
    member.renew()
    end = f"{member.certificate.not_valid_after_utc:%Y-%m-%d}"
    print_lines(f"Renewed, until {end}. Restart the site to use it.")


def roster(
    folder: Folder,
    accept: Annotated[str | None, Option(metavar="WORDS", help="The words of the new list, after comparing.")] = None,
) -> None:
    """Show the keys of all sites in words: those that this site accepted, and the coordinator's current list."""
    from silvan.deploy.membership.coordinator_folder import compare_rosters, roster_fingerprint

    member = _joined(folder)
    if accept is not None:
        kept = member.accept_roster(accept)
        print_lines(f"Accepted: {', '.join(kept.sites)}. Studies that have started keep their sites.")
        return
    kept_now, latest = member.roster(), member.latest_roster()
    if kept_now is not None:
        print_lines(f"Accepted: {', '.join(kept_now.sites)}; in words: {roster_fingerprint(kept_now)}")
    if latest is None:
        print_lines("The coordinator's list is incomplete: not all sites have joined.")
    elif kept_now is None or kept_now != latest:
        change = "" if kept_now is None else f" ({compare_rosters(kept_now, latest).describe()})"
        words = roster_fingerprint(latest)
        print_lines(
            f"The coordinator's list: {', '.join(latest.sites)}{change}; in words: {words}",
            "Compare these words with the coordinator and another site by telephone. If they agree:",
            f'silvan site roster {shlex.quote(str(folder))} --accept "{words}"',
        )
    else:
        print_lines("The coordinator's list is the same.")


def stop(folder: Folder) -> None:
    """Stop the site's process; studies pause and resume at the next start."""
    from silvan.deploy.service.start_stop import process_of

    print_lines("Stopped." if process_of(_joined(folder)).stop() else "It was not running.")
