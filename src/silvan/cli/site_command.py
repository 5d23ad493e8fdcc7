"""``silvan site``: commands for a site's owner, on the site's folder."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from silvan.cli.plain_text import PlainGroup, clean, posix_only, print_json, print_lines, print_wrapped
from silvan.errors import InputError, SilvanError
from silvan.util.readable import count_of

if TYPE_CHECKING:
    from silvan.deploy.membership.joined_site import JoinedSite
    from silvan.deploy.membership.site_files import SiteFiles
    from silvan.deploy.studies.send_results import KeptResults
    from silvan.study.study import Study

Folder = Annotated[Path, Argument(metavar="FOLDER", help="The site's folder.")]
StudyName = Annotated[str, Argument(metavar="STUDY", help="The study's name, or how it begins.")]
ResultsOf = Annotated[
    str | None, Argument(metavar="STUDY", help="The study's name; without one, all results are listed.")
]
Output = Annotated[Path | None, Option("--output", "-o", metavar="FILE", help="Where to write it.")]

_MOST_COLUMNS = 12

app = typer.Typer(
    cls=PlainGroup,
    callback=posix_only,
    no_args_is_help=True,
    help="A site's own side: its ledger, and the studies its owner approves.",
)


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
    folder: Annotated[Path, Argument(metavar="FOLDER", help="The site's folder, or the ledger in it.")],
    verify: Annotated[bool, Option("--verify", help="Check every line for changes, gaps and other keys.")] = False,
    key: Annotated[str | None, Option(metavar="KEY", help="The site's public key, if not its site.pub.")] = None,
    noted: Annotated[str | None, Option(metavar="DIGEST", help="Look for a line whose digest was noted.")] = None,
    last: Annotated[int | None, Option("--last", metavar="N", min=1, help="Show the last lines only.")] = None,
    json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what left a site and what was refused, in plain words."""
    from silvan.cli.ledger_tables import lines_table, verdict
    from silvan.cli.terminal import print_parts
    from silvan.federation.keys import read_public
    from silvan.privacy.ledger import read_lines
    from silvan.privacy.ledger import verify as verify_ledger
    from silvan.privacy.site_folder import folder_at

    site = folder_at(folder)
    if verify or key is not None or noted is not None:
        public = site.public() if key is None else read_public(key)
        found = verify_ledger(site.path, public, noted)
        if json:
            print_json({"whole": not found.faults, "key": public.hex(), "verified": found})
        else:
            print_parts(verdict(found, public.hex()))
        if found.faults:
            raise typer.Exit(1)
        return
    lines = read_lines(site.path)
    shown = lines if last is None else lines[-last:]
    if json:
        print_json({"total": len(lines), "lines": shown})
    else:
        print_parts(lines_table(shown, len(lines)))


# -- which studies are approved or declined, and on which rows


@app.command()
def approve(
    folder: Folder,
    study: Annotated[str | None, Argument(metavar="STUDY", help="The study's name; else all are listed.")] = None,
    messages: Annotated[
        list[str] | None,
        Option("--message", metavar="KIND", help="A kind that may be answered; '*': all by the policy; else as shown."),
    ] = None,
    tasks: Annotated[int | None, Option(min=1, help="How many models and evaluations; else as shown.")] = None,
    withdraw: Annotated[bool, Option("--withdraw", help="Approve the study no longer.")] = False,
) -> None:
    """Approve a study, so that the site takes part in it; needed where the policy says approve = true."""
    from silvan.cli.ledger_tables import approvals_list
    from silvan.cli.terminal import print_parts
    from silvan.deploy.membership.flare_folder import is_site
    from silvan.privacy.site_folder import Approval, folder_at
    from silvan.util.acting_user import acting_user

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

            made = approve_study(member, coming, messages, tasks)
            print_parts(approvals_list([made]))
            print_lines(remember_table(member, coming))
            return
    if study is None:
        if withdraw:
            raise InputError("name the study to withdraw")
        print_parts(approvals_list(approvals.listed()))
    elif withdraw:
        if is_site(folder):
            member.withdraw(study)
        else:
            approvals.withdraw(study)
        print_parts(f"Withdrawn: {clean(study)}")
    else:
        made = approvals.approve(Approval(study=study, messages=messages or [], tasks=tasks, by=acting_user()))
        print_parts(approvals_list([made]))


def _show_studies(member: "SiteFiles", folder: Path) -> None:
    """Show the studies that came in: what each learns, what would leave, what it costs."""
    from rich.text import Text

    from silvan.cli.ledger_tables import kinds_table
    from silvan.cli.terminal import print_parts
    from silvan.deploy.studies.explain import explain

    studies = member.studies()
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
        print_parts(title)
        for question, texts in [] if explained.consent is None else explained.consent.parts():
            print_parts(Text(question, style="bold"), Text("\n".join(map(clean, texts))))
        print_parts(Text("In detail", style="bold"), Text("\n".join(map(clean, explained.lines))))
        if explained.leaves:
            print_parts(kinds_table(explained.leaves))
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
    why: Annotated[str, Option("--why", metavar="TEXT", help="Reason that the coordinator sees, in one line.")],
) -> None:
    """Take no part in a study: the coordinator learns why. Approving it later takes that back."""
    member = _site(folder)
    member.decline(study_of(member, study), why)
    print_lines("Declined. The coordinator learns this when it asks next.")


@app.command()
def freeze(
    folder: Folder,
    study: StudyName,
    remove: Annotated[bool, Option("--remove", help="Remove the copy: the study is over.")] = False,
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
    """Write the report of a finished study, with the site's own metrics, after its signature was checked."""
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
    invite: Annotated[Path, Argument(metavar="INVITE", help="The invitation that the coordinator sent.")],
    table: Annotated[
        str, Option(metavar="TABLE", help="A CSV or Parquet file, a URL: postgresql://..., omop:URL or fhir:FOLDER.")
    ],
    query: Annotated[str | None, Option(help="What to read of a database: SELECT ..., or a table.")] = None,
    folder: Annotated[Path | None, Option(metavar="FOLDER", help="Where to keep all of it; else SITE.")] = None,
    memory: Annotated[str | None, Option(metavar="SIZE", help="Memory that rows may take, as 2GB; else all.")] = None,
    cluster: Annotated[
        str | None, Option(metavar="ADDRESS", help="The Dask scheduler; its workers read TABLE.")
    ] = None,
    reading: Annotated[
        list[str] | None,
        Option(metavar="KEY=VALUE", help="For the section reading of site.toml: 'decimal=,'; repeatable."),
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
    shown = f" and the columns {', '.join(columns[:_MOST_COLUMNS])}{more}" if columns else ""
    print_lines(f"The table has {rows}{shown}.")
    place, how = folder or Path(invitation.site), reading_lines(options)
    member = JoinedSite.join(place, invitation, source, query, {"approve": True}, memory, cluster, how)
    print_lines(
        f"{member.name} has joined {invitation.federation}. Its folder is {member.path}; what it lets out is in "
        "site.toml.",
        f"Tell the coordinator by telephone, and see that it reads the same: {member.fingerprint}",
        f"Next: silvan site start {place}",
    )


@app.command()
def start(
    folder: Folder, foreground: Annotated[bool, Option("--foreground", help="Stay, as systemd wants it.")] = False
) -> None:
    """Start the site's process: it connects to the coordinator, and answers what you let it."""
    from silvan.deploy.service.start_stop import prepare_site, start_site

    member = _joined(folder)
    print_lines(*prepare_site(member))
    process = start_site(member, foreground=foreground)
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
    accept: Annotated[str | None, Option(metavar="WORDS", help="The words of the new list, compared.")] = None,
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
    folder: Folder, target: Annotated[Path, Argument(metavar="TARGET", help="A new folder for the copy.")]
) -> None:
    """Copy the site's folder, while it is stopped; to put it back, copy it to where it was."""
    from silvan.deploy.service.backup import backup_site

    n = backup_site(_site(folder), target)
    print_lines(f"{count_of(n, 'file')} in {target}. Secrets are among them: keep it as you keep the site's folder.")


@app.command()
def restored(
    folder: Folder,
    accept: Annotated[bool, Option("--accept", help="Take the files as they are; the ledger notes it.")] = False,
    budget: Annotated[Path | None, Option(metavar="FILE", help="The privacy budget, if elsewhere.")] = None,
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
def status(folder: Folder, json: Annotated[bool, Option("--json", help="As JSON, for programs.")] = False) -> None:
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
        *([f"Its keys in words: {found.words}"] if found.words else []),
    )
    if found.problem:
        print_wrapped(f"{found.problem[0].upper()}{found.problem[1:]}.")
    if found.roster_words:
        print_wrapped(f"All keys together in words: {found.roster_words}")
    limit = "" if found.budget_limit is None else f" of {found.budget_limit:g}"
    if found.budget_spent is not None:
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
    folder: Folder, port: Annotated[int, Option(min=1, max=65535, help="Where to listen, on 127.0.0.1.")] = 9103
) -> None:
    """Serve metrics for Prometheus at http://127.0.0.1:PORT/metrics until stopped."""
    from silvan.deploy.service import status

    path = _site(folder).path
    server = status.make_metrics_server(port, lambda: status.metrics(status.site_status(_site(path))))
    print_lines(f"Figures at http://127.0.0.1:{port}/metrics; end with Ctrl-C.")
    server.serve_forever()
