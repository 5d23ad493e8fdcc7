"""What a site's owner looks at and keeps: the ledger, results of studies, how the site stands, copies of its folder."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from silvan.cli.plain_text import clean, print_json, print_lines, print_wrapped
from silvan.cli.site_studies import Folder, study_of
from silvan.errors import InputError, SilvanError
from silvan.util.readable import count_of

if TYPE_CHECKING:
    from silvan.deploy.studies.send_results import KeptResults

ResultsOf = Annotated[
    str | None, typer.Argument(metavar="STUDY", help="The study's name; without one, all results are listed.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it.")]


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
    from silvan.deploy.membership.flare_folder import open_site
    from silvan.deploy.studies.send_results import read_results

    member = open_site(folder)
    if study is not None:
        plan = study_of(member, study)
        return read_results(member.results_folder(plan), member.coordinator_key(plan), plan.unique_name, member.name)
    found = [plan for plan in member.studies() if member.results_folder(plan).is_dir()]
    if not found:
        print_lines("No results have come yet.")
    for plan in found:
        try:
            kept = read_results(
                member.results_folder(plan), member.coordinator_key(plan), plan.unique_name, member.name
            )
            state = "; ".join(
                f"{count_of(one.trees, 'tree')}, {one.hash[:12]}" for one in kept.record.models if one.trees
            )
            made = "; another, made here of this site's own rows" if kept.record.at_sites else ""
            state = f"{state or 'a model in shares'}{made}; in {kept.run.folder}"
        except SilvanError as error:
            state = str(error)
        print_lines(clean(f"{plan.name} ({plan.digest[:12]}): {state}"))
    return None


def backup(
    folder: Folder, target: Annotated[Path, typer.Argument(metavar="TARGET", help="A new folder for the copy.")]
) -> None:
    """Copy the site's folder, while it is stopped; to put it back, copy it to where it was."""
    from silvan.deploy.membership.flare_folder import open_site
    from silvan.deploy.service.backup import backup_site

    n = backup_site(open_site(folder), target)
    print_lines(f"{count_of(n, 'file')} in {target}. Secrets are among them: keep it as you keep the site's folder.")


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
    from silvan.deploy.membership.flare_folder import is_site, open_site
    from silvan.deploy.membership.joined_site import JoinedSite
    from silvan.deploy.service.start_stop import process_of
    from silvan.privacy.file_marks import FileMarks
    from silvan.privacy.noise.budget import Budget
    from silvan.privacy.site_folder import folder_at

    site, store = folder_at(folder), None
    if is_site(folder):
        member = open_site(folder)
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


def status(
    folder: Folder, json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False
) -> None:
    """Show how the site stands: its process, its keys, studies that wait for approval, its budget."""
    from silvan.deploy.membership.flare_folder import open_site
    from silvan.deploy.service.status import as_data, site_status

    found = site_status(open_site(folder))
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


def metrics(
    folder: Folder,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where to listen, on 127.0.0.1.")] = 9103,
) -> None:
    """Serve figures for Prometheus at http://127.0.0.1:PORT/metrics until stopped."""
    from silvan.deploy.membership.flare_folder import open_site
    from silvan.deploy.service import status

    path = open_site(folder).path
    server = status.make_metrics_server(port, lambda: status.metrics(status.site_status(open_site(path))))
    print_lines(f"Figures at http://127.0.0.1:{port}/metrics; end with Ctrl-C.")
    server.serve_forever()
