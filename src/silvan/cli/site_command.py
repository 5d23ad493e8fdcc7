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
    from silvan.deploy.membership.site_files import SiteFiles
    from silvan.deploy.studies.send_results import KeptResults
    from silvan.study.study import Study

Folder = Annotated[Path, Argument(metavar="FOLDER", help="The site's folder.")]
StudyName = Annotated[str, Argument(metavar="STUDY", help="The study's name, or its beginning.")]
ResultsOf = Annotated[
    str | None, Argument(metavar="STUDY", help="The study's name; without it, all results are listed.")
]
Output = Annotated[Path | None, Option("--output", "-o", metavar="FILE", help="File to write.")]

app = typer.Typer(
    cls=PlainGroup,
    callback=posix_only,
    no_args_is_help=True,
    help="Commands for a site's owner: join, approve studies, read the ledger, get results.",
)


def _site(folder: Path) -> "SiteFiles":
    """Open the folder of a site that has joined, or of one that FLARE provisioned."""
    from silvan.deploy.membership.flare_folder import open_site

    return open_site(folder)


# -- the ledger


@app.command()
def ledger(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="The site's folder, or the ledger in it.")],
    verify: Annotated[bool, Option("--verify", help="Check every line's signature and place.")] = False,
    key: Annotated[str | None, Option(metavar="KEY", help="The site's public key (default: site.pub).")] = None,
    noted: Annotated[str | None, Option(metavar="DIGEST", help="Look for the line with this digest.")] = None,
    last: Annotated[int | None, Option("--last", metavar="N", min=1, help="Show only the last N lines.")] = None,
    json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show in plain words what left the site and what was refused."""
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


# -- approving and declining studies, and freezing their rows


@app.command()
def approve(
    folder: Folder,
    study: Annotated[
        str | None, Argument(metavar="STUDY", help="The study's name; without it, all are listed.")
    ] = None,
    messages: Annotated[
        list[str] | None,
        Option("--message", metavar="KIND", help="Allow this kind of message; '*': all that the policy allows."),
    ] = None,
    tasks: Annotated[int | None, Option(min=1, help="Most models and evaluations (default: as listed).")] = None,
    withdraw: Annotated[bool, Option("--withdraw", help="Withdraw the approval.")] = False,
) -> None:
    """Approve a study so that the site takes part; required if the policy says approve = true."""
    from silvan.cli.ledger_tables import approvals_list
    from silvan.cli.terminal import print_parts
    from silvan.deploy.membership.flare_folder import is_site
    from silvan.privacy.site_folder import Approval, folder_at
    from silvan.util.acting_user import acting_user

    approvals = folder_at(folder).approvals
    if is_site(folder):  # a site of a federation of machines knows which studies it has received
        member = _site(folder)
        approvals = member.folder.approvals
        if study is None:
            _show_studies(member, folder)
            return
        study = _complete_name(member, study)
        received = next((one for one in member.studies() if one.unique_name == study), None)
        if received is not None and not withdraw:
            from silvan.deploy.studies.explain import approve_study
            from silvan.deploy.studies.study_table import remember_table

            made = approve_study(member, received, messages, tasks)
            print_parts(approvals_list([made]))
            print_lines(remember_table(member, received))
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
    """Show the studies received: what each learns, what would leave, what it costs."""
    from rich.text import Text

    from silvan.cli.ledger_tables import kinds_table
    from silvan.cli.terminal import print_parts
    from silvan.deploy.studies.explain import explain

    studies = member.studies()
    if not studies:
        print_lines("No study has arrived yet.")
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
        lines = [clean(part) for line in explained.lines for part in line.splitlines()]
        print_parts(Text("In detail", style="bold"), Text("\n".join(lines)))
        if explained.leaves:
            print_parts(kinds_table(explained.leaves))
        if member.policy.approve and not approved:
            # by its digest: the coordinator's name for the study must not become part of a command
            print_lines(f"To approve: silvan site approve {shlex.quote(str(folder))} {study.digest}")
            if declined is None:
                print_lines(f'To decline: silvan site decline {shlex.quote(str(folder))} {study.digest} --why "..."')


def _complete_name(member: "SiteFiles", study: str) -> str:
    """Return the only study, received or approved, whose name or digest begins with the text."""
    names = {one.unique_name: one.digest for one in member.studies()}
    names = {**{approval.study: "" for approval in member.folder.approvals.listed()}, **names}
    matching = sorted(name for name, digest in names.items() if name.startswith(study) or digest.startswith(study))
    if len(matching) != 1:
        raise InputError.about("study", f"must be one of those received: {', '.join(map(repr, names)) or 'none yet'}")
    return matching[0]


def study_of(member: "SiteFiles", study: str) -> "Study":
    """Return the only study received whose name or digest begins with the text."""
    name = _complete_name(member, study)
    return next(one for one in member.studies() if one.unique_name == name)


@app.command()
def decline(
    folder: Folder,
    study: StudyName,
    why: Annotated[str, Option("--why", metavar="TEXT", help="Reason for the coordinator, in one line.")],
) -> None:
    """Decline a study and tell the coordinator why; you can still approve it later."""
    member = _site(folder)
    member.decline(study_of(member, study), why)
    print_lines("Declined. The coordinator learns this with its next request.")


@app.command()
def freeze(
    folder: Folder,
    study: StudyName,
    remove: Annotated[bool, Option("--remove", help="Remove the copy after the study.")] = False,
) -> None:
    """Keep a copy of the table for one study, so that later changes of the table do not stop it."""
    from silvan.deploy.studies.study_table import freeze as freeze_table
    from silvan.deploy.studies.study_table import thaw

    member = _site(folder)
    plan = study_of(member, study)
    if remove:
        print_lines("Removed." if thaw(member, plan) else "This study has no frozen rows.")
    else:
        print_lines(f"Frozen: {freeze_table(member, plan)}")


# -- results


@app.command()
def model(folder: Folder, study: ResultsOf = None, output: Output = None) -> None:
    """Check the signature of a finished study's model and write it to a file; or list the results."""
    from silvan.util.files import write_whole

    kept = _results(folder, study)
    if kept is None:
        return
    if kept.model is None:
        raise InputError(
            "the model of a vertical study is split into shares: this party's share is in its store, and parties "
            "predict new rows together (`silvan study predict`)"
        )
    if output is None:
        raise InputError("name the file to write the model to: -o FILE")
    write_whole(output, kept.model)
    if kept.record.at_sites:
        print_lines(
            f"Written: {output}. It was made here from the shared forest and this site's own rows. Nobody else has "
            "it, and its leaf values reveal something about these rows: share it with care."
        )
        return
    print_lines(f"Written: {output}. Signed by the coordinator for this study and site.")


@app.command()
def report(folder: Folder, study: ResultsOf = None, output: Output = None) -> None:
    """Check the signature of a finished study's report and write it, with the site's own metrics."""
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
    """Return a study's results after checking them; without a name, list all results and whether they are intact."""
    from silvan.deploy.studies.send_results import read_results

    member = _site(folder)
    if study is not None:
        return read_results(member, study_of(member, study))
    finished = [plan for plan in member.studies() if member.results_folder(plan).is_dir()]
    if not finished:
        print_lines("No results have arrived yet.")
    for plan in finished:
        try:
            kept = read_results(member, plan)
            state = "; ".join(
                f"{count_of(one.trees, 'tree')}, {one.hash[:12]}" for one in kept.record.models if one.trees
            )
            made = "; another one, made here from this site's own rows" if kept.record.at_sites else ""
            state = f"{state or 'a model in shares'}{made}; in {kept.run.folder}"
        except SilvanError as error:
            state = str(error)
        print_lines(clean(f"{plan.name} ({plan.digest[:12]}): {state}"))
    return None


# -- backups and status


@app.command()
def backup(
    folder: Folder, target: Annotated[Path, Argument(metavar="TARGET", help="A new folder for the copy.")]
) -> None:
    """Copy the folder of a stopped site; to restore it, copy it back."""
    from silvan.deploy.service.backup import backup_site

    n = backup_site(_site(folder), target)
    print_lines(f"{count_of(n, 'file')} in {target}. It contains secrets: protect it like the site's folder.")


@app.command()
def restored(
    folder: Folder,
    accept: Annotated[bool, Option("--accept", help="Accept the files as they are; the ledger records it.")] = False,
    budget: Annotated[Path | None, Option(metavar="FILE", help="The budget file, if it is elsewhere.")] = None,
) -> None:
    """Show which of a site's files are older than the others, after a loss or a restored backup."""
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
    print_lines(*([f"{fault[0].upper()}{fault[1:]}." for fault in faults] or ["All files are equally recent."]))
    if faults and not accept:
        print_lines(
            "Until then, the site answers no requests. Restore the latest files. If they are lost, --accept "
            "continues with these: budget that the ledger shows as spent stays spent, but the site may answer again "
            "what it has forgotten, so withdraw the approval of studies that ran since the backup."
        )
        raise typer.Exit(1)


@app.command()
def status(folder: Folder, json: Annotated[bool, Option("--json", help="As JSON, for programs.")] = False) -> None:
    """Show the site's status: process, key, studies waiting for approval, privacy budget."""
    from silvan.deploy.service.status import as_data, site_status

    found = site_status(_site(folder))
    if json:
        print_json(as_data(found))
        return
    running = f"running (process {found.process})" if found.process else "not running"
    print_wrapped(
        f"{found.site} of {found.federation}, coordinator {found.coordinator}: {running}"
        if found.federation
        else f"{found.site}, started and stopped by FLARE's own commands",
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
    print_lines(f"Metrics at http://127.0.0.1:{port}/metrics; end with Ctrl-C.")
    server.serve_forever()
