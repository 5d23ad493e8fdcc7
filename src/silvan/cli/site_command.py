"""``silvan site``: commands for a site's owner, on the site's folder."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from silvan.cli.plain_text import PlainGroup, clean, print_json, print_lines, print_wrapped
from silvan.errors import InputError, SilvanError
from silvan.util.readable import count_of

if TYPE_CHECKING:
    from silvan.deploy.membership.joined_site import JoinedSite
    from silvan.deploy.membership.site_files import SiteFiles
    from silvan.deploy.studies.send_results import KeptResults
    from silvan.study.study import Study

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The site's folder.")]
StudyName = Annotated[str, typer.Argument(metavar="STUDY", help="The study's name, or how it begins.")]
ResultsOf = Annotated[
    str | None, typer.Argument(metavar="STUDY", help="The study's name; without one, all results are listed.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it.")]

_MOST_COLUMNS = 12

app = typer.Typer(
    cls=PlainGroup,
    no_args_is_help=True,
    help="A site's own side: its ledger, and the studies its owner approves.",
)


@app.callback()
def system() -> None:
    """Refuse systems on which no site can run."""
    from silvan.deploy.service.process import require_posix

    require_posix()


def _site(folder: Path) -> "SiteFiles":
    """Open the folder of a site that has joined, or of one that FLARE provisioned."""
    from silvan.deploy.membership.flare_folder import open_site

    return open_site(folder)


def _joined(folder: Path) -> "JoinedSite":
    """Open the folder of a site that has joined."""
    from silvan.deploy.membership.joined_site import JoinedSite

    return JoinedSite(folder)


# -- what left


@app.command()
def ledger(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The site's folder, or the ledger in it.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every line: find changes, gaps, missing ends and other keys.")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="The public key that the site is known by, if not its site.pub."),
    ] = None,
    noted: Annotated[
        str | None,
        typer.Option("--noted", metavar="DIGEST", help="The digest of a line that was noted before: is it there?"),
    ] = None,
    last: Annotated[int | None, typer.Option("--last", metavar="N", min=1, help="Show the last lines only.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what left a site and what was refused, in plain words."""
    from rich.console import Console

    from silvan.cli.ledger_tables import lines_table, verdict
    from silvan.cli.terminal import print_parts
    from silvan.federation.keys import read_public
    from silvan.privacy.ledger import read_lines
    from silvan.privacy.ledger import verify as verify_ledger
    from silvan.privacy.site_folder import folder_at

    console, site = Console(), folder_at(folder)
    if verify or key is not None or noted is not None:
        public = site.public() if key is None else read_public(key)
        found = verify_ledger(site.path, public, noted)
        if json:
            print_json({"whole": not found.faults, "key": public.hex(), "verified": found})
        else:
            print_parts(console, verdict(found, public.hex()))
        if found.faults:
            raise typer.Exit(1)
        return
    lines = read_lines(site.path)
    shown = lines if last is None else lines[-last:]
    if json:
        print_json({"total": len(lines), "lines": shown})
    else:
        print_parts(console, lines_table(shown, len(lines)))


# -- which studies are approved or declined, and on which rows


@app.command()
def approve(
    folder: Folder,
    study: Annotated[
        str | None, typer.Argument(metavar="STUDY", help="The study's name; without one, all approved ones are shown.")
    ] = None,
    messages: Annotated[
        list[str] | None,
        typer.Option(
            "--message",
            metavar="KIND",
            help="A kind of message that may be answered, '*' for all that the policy allows; those shown, if none is "
            "named.",
        ),
    ] = None,
    sites: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="SITE", help="A site that may be in sums; those shown, if none is named."),
    ] = None,
    tasks: Annotated[
        int | None,
        typer.Option("--tasks", min=1, help="Maximum number of models and evaluations; as shown, if not given."),
    ] = None,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Approve the study no longer.")] = False,
) -> None:
    """Approve a study, so that the site takes part in it; needed where the policy says approve = true."""
    from rich.console import Console

    from silvan.cli.ledger_tables import approvals_list
    from silvan.cli.terminal import print_parts
    from silvan.deploy.membership.flare_folder import is_site
    from silvan.privacy.site_folder import Approval, folder_at

    approvals = folder_at(folder).approvals
    if is_site(folder):  # a site of a federation of machines knows which studies came in
        member = _site(folder)
        approvals = member.folder.approvals
        if study is None:
            _show_studies(member, folder)
            return
        study = _complete_name(member, study)
        coming = next((one for one in member.studies() if one.unique_name == study), None)
        if coming is not None and not withdraw:
            from silvan.deploy.studies.explain import approve_study
            from silvan.deploy.studies.study_table import remember_table

            made = approve_study(member, coming, messages, sites, tasks)
            print_parts(Console(), approvals_list([made]))
            print_lines(remember_table(member, coming))
            return
    if study is None:
        if withdraw:
            raise InputError("name the study to withdraw")
        print_parts(Console(), approvals_list(approvals.listed()))
    elif withdraw:
        approvals.withdraw(study)
        print_parts(Console(), f"Withdrawn: {clean(study)}")
    else:
        made = approvals.approve(Approval(study=study, messages=messages or [], sites=sites or None, tasks=tasks))
        print_parts(Console(), approvals_list([made]))


def _show_studies(member: "SiteFiles", folder: Path) -> None:
    """Show the studies that came in: what each learns, what would leave, what it costs."""
    from rich.console import Console
    from rich.text import Text

    from silvan.cli.ledger_tables import kinds_table
    from silvan.cli.terminal import print_parts
    from silvan.deploy.studies.explain import explain

    console, studies = Console(), member.studies()
    if not studies:
        print_lines("No study has come in yet.")
    for study in studies:
        explained = explain(member, study)
        approved = member.folder.approvals.find(study.unique_name)
        state = f"approved on {approved.at[:10]}" if approved else "waits for your approval"
        declined = member.declined(study)
        if declined is not None:
            state = f"declined: {declined}"
        elif not member.policy.approve:
            state = f"answered without approval, as {member.settings_file.name} says"
        title = Text(clean(f"{study.unique_name}: {state}"), style="bold")
        print_parts(console, title, Text("\n".join(map(clean, explained.lines))))
        if explained.leaves:
            print_parts(console, kinds_table(explained.leaves))
        if member.policy.approve and not approved:
            # by the digest: what a coordinator calls a study is no part of a command
            print_lines(f"To approve: silvan site approve {shlex.quote(str(folder))} {study.digest}")
            if declined is None:
                print_lines(f'To decline: silvan site decline {shlex.quote(str(folder))} {study.digest} --why "..."')


def _complete_name(member: "SiteFiles", study: str) -> str:
    """Return the one name, of studies that came in or are approved, that begins with the text, or whose digest does."""
    names = {one.unique_name: one.digest for one in member.studies()}
    known = {**{approval.study: "" for approval in member.folder.approvals.listed()}, **names}
    matching = sorted(name for name, digest in known.items() if name.startswith(study) or digest.startswith(study))
    if len(matching) != 1:
        raise InputError.about(
            "study", f"must be one of those that came in: {', '.join(map(repr, known)) or 'none did'}"
        )
    return matching[0]


def study_of(member: "SiteFiles", study: str) -> "Study":
    """Return the one study that came in whose name, or whose digest, begins with the text."""
    name = _complete_name(member, study)
    return next(one for one in member.studies() if one.unique_name == name)


@app.command()
def decline(
    folder: Folder,
    study: StudyName,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="What the coordinator is told, in a line.")],
) -> None:
    """Take no part in a study: the coordinator is told why. Approving it later takes that back."""
    member = _site(folder)
    member.decline(study_of(member, study), why)
    print_lines("Declined. The coordinator is told when it asks, or asks at once if the study waits for you.")


@app.command()
def freeze(
    folder: Folder,
    study: StudyName,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the copy: the study is over.")] = False,
) -> None:
    """Keep a copy of the table in the site's folder for one study, which then goes on though the table changes."""
    from silvan.deploy.studies.study_table import freeze as freeze_table
    from silvan.deploy.studies.study_table import thaw

    member = _site(folder)
    plan = study_of(member, study)
    if remove:
        print_lines("Removed." if thaw(member, plan) else "The rows of this study are not frozen.")
    else:
        print_lines(f"Frozen: {freeze_table(member, plan)}")


# -- results of studies


@app.command()
def model(folder: Folder, study: ResultsOf = None, output: Output = None) -> None:
    """Write the model of a finished study to a file, after its signature was checked; or list what has come."""
    from silvan.util.files import write_whole

    kept = _results(folder, study)
    if kept is None:
        return
    if kept.model is None:
        raise InputError(
            "the model of a study over columns is in shares: this party's is in its store, and new rows are predicted "
            "together (`silvan study predict`)"
        )
    if output is None:
        raise InputError("name the file to write the model to: -o FILE")
    write_whole(output, kept.model)
    if kept.record.at_sites:
        print_lines(
            f"Written: {output}. Made here, of the forest that all sites share and of this site's own rows: nobody "
            "else has it, and its leaf values tell of these rows. Share it with care."
        )
        return
    print_lines(f"Written: {output}. Signed by the coordinator for this study and site.")


@app.command()
def report(folder: Folder, study: ResultsOf = None, output: Output = None) -> None:
    """Write the report of a finished study, with the site's own figures, after its signature was checked."""
    from silvan.report.html import write_report
    from silvan.util.files import write_whole

    kept = _results(folder, study)
    if kept is None:
        return
    kept.run.write_evaluation(kept.record.evaluation)
    page = write_report(kept.run)
    if output is not None:
        write_whole(output, page.read_bytes())
    print_lines(f"Written: {output or page}. Signed by the coordinator for this study and site.")


def _results(folder: Path, study: str | None) -> "KeptResults | None":
    """Return the results of a study, checked; without a name, list those that have come, and whether they are whole."""
    from silvan.deploy.studies.send_results import read_results

    member = _site(folder)
    if study is not None:
        return read_results(member, study_of(member, study))
    found = [plan for plan in member.studies() if member.results_folder(plan).is_dir()]
    if not found:
        print_lines("No results have come yet.")
    for plan in found:
        try:
            kept = read_results(member, plan)
            state = "; ".join(
                f"{count_of(one.trees, 'tree')}, {one.hash[:12]}" for one in kept.record.models if one.trees
            )
            made = "; another, made here of this site's own rows" if kept.record.at_sites else ""
            state = f"{state or 'a model in shares'}{made}; in {kept.run.folder}"
        except SilvanError as error:
            state = str(error)
        print_lines(clean(f"{plan.name} ({plan.digest[:12]}): {state}"))
    return None


# -- membership of a federation


@app.command()
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


@app.command()
def start(
    folder: Folder,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay, as systemd wants it.")] = False,
) -> None:
    """Start the site's process: it connects to the coordinator, and answers what you let it."""
    from silvan.deploy.service.start_stop import become_site, prepare_site, start_site

    member = _joined(folder)
    print_lines(*prepare_site(member))
    if foreground:
        become_site(member)
    process = start_site(member)
    print_lines(
        f"Running (process {process.pid}). Errors: silvan site status {folder}. FLARE's log: {member.path}/kit/log.txt"
    )


@app.command()
def renew(folder: Folder) -> None:
    """Renew the site's certificate, by the key that the coordinator knows the site by; then restart the site."""
    member = _joined(folder)
    member.renew()
    end = f"{member.certificate.not_valid_after_utc:%Y-%m-%d}"
    print_lines(f"Renewed, until {end}. The site uses it when it is started again.")


@app.command()
def roster(
    folder: Folder,
    accept: Annotated[
        str | None,
        typer.Option("--accept", metavar="WORDS", help="The words of the new list, compared with the others."),
    ] = None,
) -> None:
    """Show everybody's keys that the site goes by, in words, and those that the coordinator tells now."""
    from silvan.deploy.membership.coordinator_folder import compare_rosters, roster_fingerprint

    member = _joined(folder)
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


@app.command()
def stop(folder: Folder) -> None:
    """Stop the site's process; a study waits, and goes on when it is started again."""
    from silvan.deploy.service.start_stop import process_of

    print_lines("Stopped." if process_of(_joined(folder)).stop() else "It was not running.")


# -- copies of the folder, and how the site stands


@app.command()
def backup(
    folder: Folder, target: Annotated[Path, typer.Argument(metavar="TARGET", help="A new folder for the copy.")]
) -> None:
    """Copy the site's folder, while it is stopped; to put it back, copy it to where it was."""
    from silvan.deploy.service.backup import backup_site

    n = backup_site(_site(folder), target)
    print_lines(f"{count_of(n, 'file')} in {target}. Secrets are among them: keep it as you keep the site's folder.")


@app.command()
def restored(
    folder: Folder,
    accept: Annotated[
        bool, typer.Option("--accept", help="Take the files as they are; a line of the ledger says so.")
    ] = False,
    budget: Annotated[
        Path | None, typer.Option("--budget", metavar="FILE", help="The privacy budget, if it is elsewhere.")
    ] = None,
) -> None:
    """Show which of a site's files are behind the others, after some were lost or put back from a backup."""
    from silvan.deploy.membership.flare_folder import is_site
    from silvan.deploy.membership.joined_site import JoinedSite
    from silvan.deploy.service.start_stop import process_of
    from silvan.privacy.file_marks import FileMarks
    from silvan.privacy.noise.budget import Budget
    from silvan.privacy.site_folder import folder_at

    site, store = folder_at(folder), None
    if is_site(folder):
        member = _site(folder)
        if isinstance(member, JoinedSite) and process_of(member).pid is not None:
            raise InputError(f"the site is running; stop it first (silvan site stop {folder})")
        site, store, charged = member.folder, member.store, member.budget()
    else:
        charged = Budget(None, budget)
    marks = FileMarks(site.ledger, charged, store)
    faults = marks.accept(folder.resolve().name) if accept else marks.faults()
    print_lines(*([f"{fault[0].upper()}{fault[1:]}." for fault in faults] or ["No file is behind another."]))
    if faults and not accept:
        print_lines(
            "The site answers nothing meanwhile. Put back the files as they were last. If they are lost, --accept "
            "takes these: what the ledger knows to be spent stays spent, but the site may be asked again what it has "
            "forgotten, so withdraw the approval of studies that ran since."
        )
        raise typer.Exit(1)


@app.command()
def status(
    folder: Folder, json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False
) -> None:
    """Show how the site stands: its process, its keys, studies that wait for approval, its budget."""
    from silvan.deploy.service.status import as_data, site_status

    found = site_status(_site(folder))
    if json:
        print_json(as_data(found))
        return
    running = f"running (process {found.process})" if found.process else "not running"
    print_wrapped(
        f"{found.site} of {found.federation}, coordinator {found.coordinator}: {running}"
        if found.federation
        else f"{found.site}, a site that FLARE's own commands start and stop",
        f"Its keys in words: {found.words}",
    )
    if found.roster_words:
        print_wrapped(f"All keys together in words: {found.roster_words}")
    limit = "" if found.budget_limit is None else f" of {found.budget_limit:g}"
    print_wrapped(f"Privacy budget spent: {found.budget_spent:g}{limit}")
    for study, state in found.studies.items():
        print_wrapped(f"Study {study!r}: {state}")
    if found.last_error is not None:
        error = found.last_error
        where = f" in study {error.study!r}" if error.study else ""
        print_wrapped(f"Last error, at {error.at.replace('T', ' ')[:19]} UTC{where}: {error.text}")
    if found.log:
        print_lines(f"Its own log: {found.log}")


@app.command()
def metrics(
    folder: Folder,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where to listen, on 127.0.0.1.")] = 9103,
) -> None:
    """Serve figures for Prometheus at http://127.0.0.1:PORT/metrics until stopped."""
    from silvan.deploy.service import status

    path = _site(folder).path
    server = status.make_metrics_server(port, lambda: status.metrics(status.site_status(_site(path))))
    print_lines(f"Figures at http://127.0.0.1:{port}/metrics; end with Ctrl-C.")
    server.serve_forever()
