"""``silvan study``: commands for the coordinator of a federation of machines."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from silvan.cli.plain_text import PlainGroup, posix_only, print_json, print_lines, print_wrapped
from silvan.errors import InputError
from silvan.util.readable import count_of

if TYPE_CHECKING:
    from silvan.deploy.membership.coordinator_folder import CoordinatorFiles
    from silvan.study.run_folder import Run
    from silvan.study.study import Study

EXAMPLE = """\
name = "example"
label = "benign"
test = 0.3

[learner]
kind = "HistogramForest"
n_estimators = 50
max_depth = 8
"""

app = typer.Typer(
    cls=PlainGroup,
    callback=posix_only,
    no_args_is_help=True,
    help="Commands for the coordinator of a federation of machines. docs/deployment.md is the guide.",
)

In = Annotated[Path, Option("--in", metavar="FOLDER", help="The coordinator's folder; by default the current one.")]

At = Annotated[Path | None, Argument(metavar="FOLDER", help="The coordinator's folder; by default the current one.")]


def _hub(folder: Path) -> "CoordinatorFiles":
    """Open a coordinator's folder."""
    from silvan.deploy.membership.coordinator_folder import CoordinatorFiles

    return CoordinatorFiles(folder)


@app.command()
def init(
    name: Annotated[str, Argument(metavar="NAME", help="The federation's name, and that of its new folder.")],
    sites: Annotated[list[str], Option("--site", metavar="SITE", help="A site; repeatable.")],
    address: Annotated[str, Option(metavar="HOST[:PORT]", help="Where sites reach this machine.")] = "localhost:8102",
    columns: Annotated[str, Option(metavar="A,B,...", help="Columns that every table must have.")] = "",
) -> None:
    """Create a federation: its keys, certificates and folder."""
    from silvan.deploy.membership.coordinator_folder import PORT, CoordinatorFiles

    host, _, port = address.partition(":")
    if not host or (port and not port.isdigit()):
        raise InputError.wrong("address", "HOST or HOST:PORT", address)
    wanted = [column.strip() for column in columns.split(",") if column.strip()]
    hub = CoordinatorFiles.create(Path(name), name, sites, host, int(port or PORT), wanted)
    print_lines(
        f"{hub.path} is the coordinator's folder. Keep it private: whoever has it can admit anybody.",
        f"Next: cd {name}; silvan study start; silvan study invite {sites[0]}",
    )


@app.command()
def invite(site: Annotated[str, Argument(metavar="SITE")], folder: In = Path()) -> None:
    """Write an invitation for a site: a file for its owner that works once."""
    from silvan.util.files import write_json

    made = _hub(folder).invite(site)
    path = folder / f"{site}.invite"
    write_json(path, made, private=True)
    print_lines(
        f"Send {path} only to the owner of {site}; it works once, until {made.until[:10]}.",
        f"They run: silvan site join {path.name} --table TABLE",
    )


@app.command()
def add(site: Annotated[str, Argument(metavar="SITE")], folder: In = Path()) -> None:
    """Add another site; then invite it."""
    _hub(folder).add(site)
    print_lines(
        f"Added. Next: silvan study invite {site}. Once it has joined, the others accept it: silvan site roster FOLDER."
    )


@app.command()
def revoke(site: Annotated[str, Argument(metavar="SITE")], folder: In = Path()) -> None:
    """Revoke a site: it is disconnected at once, gets no more requests, and its signatures are rejected."""
    _hub(folder).revoke(site)
    print_lines(f"{site} is revoked. The other sites must accept the new roster: silvan site roster FOLDER")


@app.command()
def readmit(site: Annotated[str, Argument(metavar="SITE")], folder: In = Path()) -> None:
    """Readmit a site that was blocked because two processes answered for it; stop one of them first."""
    why = _hub(folder).readmit(site)
    print_lines(f"{site} may connect again. It was blocked: {why}." if why else f"{site} was not blocked.")


@app.command()
def start(
    at: At = None,
    folder: In = Path(),
    foreground: Annotated[bool, Option("--foreground", help="Stay until stopped, for containers.")] = False,
) -> None:
    """Start the coordinator's processes in the background, so that sites can join and connect."""
    from silvan.deploy.service.start_stop import start_coordinator, wait_for_end

    hub = _hub(at or folder)
    processes = start_coordinator(hub)
    content = hub.read()
    print_lines(f"Running, on port {content.port}. Logs: {hub.path}/*.log")
    if foreground:
        wait_for_end(processes)


@app.command()
def stop(at: At = None, folder: In = Path()) -> None:
    """Stop the coordinator's processes; a running study resumes at the next start."""
    from silvan.deploy.service.start_stop import processes_of, stop_all

    print_lines("Stopped." if stop_all(processes_of(_hub(at or folder))) else "Nothing was running.")


@app.command()
def status(
    at: At = None, folder: In = Path(), json: Annotated[bool, Option("--json", help="As JSON, for programs.")] = False
) -> None:
    """Show the sites with their state, and the studies."""
    from rich.console import Console

    from silvan.cli.terminal import shown
    from silvan.deploy.jobs.job_progress import line_of
    from silvan.deploy.service.status import as_data, coordinator_status
    from silvan.report.site_tables import ReportTable

    hub = _hub(at or folder)
    found = coordinator_status(hub, _connected(hub))
    if json:
        print_json(as_data(found))
        return
    heads = ["Site", "Joined", "Connected", "Its keys in words: compare by telephone"]
    rows = [[name, site.joined, "yes" if site.connected else "no", site.words] for name, site in found.sites.items()]
    Console().print(shown(ReportTable(heads, rows, texts=4)))
    print_wrapped(
        "", f"{found.federation} at {found.host}:{found.port}: {'running' if found.running else 'not running'}"
    )
    for name, pid in found.processes.items():
        if pid is None and any(found.processes.values()):
            print_wrapped(f"Its process {name!r} is not running; `silvan study start` starts it.")
    if found.words:
        print_wrapped(f"All keys together in words: {found.words}")
    for run, progress in found.studies.items():
        print_wrapped(f"{run}: {progress.error or line_of(progress)}")


def _connected(hub: "CoordinatorFiles") -> list[str]:
    """Return the sites that are connected; none if the server is not running."""
    from silvan.deploy.membership.startup_kit import ADMIN
    from silvan.deploy.service.start_stop import processes_of

    if processes_of(hub)[0].pid is None:
        return []
    from silvan.federation.flare import Session

    try:
        session = Session(hub.path / "admin", ADMIN, timeout=5.0)
    except ConnectionError:
        return []
    try:
        return list(session.sites())
    finally:
        session.close()


@app.command()
def metrics(
    at: At = None,
    folder: In = Path(),
    port: Annotated[int, Option(min=1, max=65535, help="Where to listen, on 127.0.0.1.")] = 9102,
) -> None:
    """Serve metrics for Prometheus at http://127.0.0.1:PORT/metrics until stopped."""
    from silvan.deploy.service import status

    hub = _hub(at or folder)
    server = status.make_metrics_server(port, lambda: status.metrics(status.coordinator_status(hub, _connected(hub))))
    print_lines(f"Metrics at http://127.0.0.1:{port}/metrics; end with Ctrl-C.")
    server.serve_forever()


@app.command()
def run(
    study: Annotated[Path, Argument(metavar="STUDY.toml", help="The study file, see docs/study.md.")],
    folder: In = Path(),
) -> None:
    """Submit a study and watch it to its end; it continues without this command and survives restarts of sites."""
    from silvan.study.study_file import read_remote_study

    show_run(run_study(_hub(folder), read_remote_study(study)))


@app.command()
def backup(
    target: Annotated[Path, Argument(metavar="TARGET", help="A new folder for the copy.")], folder: In = Path()
) -> None:
    """Copy the coordinator's folder; to restore it, copy it back."""
    from silvan.deploy.service.backup import backup_coordinator

    n = backup_coordinator(folder, target)
    print_lines(f"{count_of(n, 'file')} in {target}. It contains secrets: protect it like the coordinator's folder.")


@app.command()
def job(
    study: Annotated[Path, Argument(metavar="STUDY.toml", help="The study file; it must name the sites.")],
    folder: Annotated[Path, Option("-o", "--output", metavar="FOLDER", help="A new folder for the job.")],
) -> None:
    """Write a study as a FLARE job, for a federation provisioned with FLARE's own tools."""
    from silvan.deploy.jobs.job_folder import job_name, write_study_job
    from silvan.study.study_file import read_remote_study

    plan = read_remote_study(study)
    write_study_job(plan, folder)
    print_lines(f"{folder} is the job {job_name(plan)}. Next: nvflare job submit -j {folder}")


@app.command()
def predict(
    study: Annotated[Path, Argument(metavar="STUDY.toml", help="The study as it was run, or its run folder.")],
    folder: In = Path(),
) -> None:
    """Predict new rows with a vertical model; the party that holds the label gets the predictions."""
    from silvan.deploy.studies.new_rows import next_prediction, what_was_predicted
    from silvan.study.study_file import read_remote_study

    hub = _hub(folder)
    made = next_prediction(hub, read_remote_study(study / "study.toml" if study.is_dir() else study))
    run_study(hub, made)
    rows, party, file = what_was_predicted(hub, made)
    print_lines(f"{count_of(rows, 'row')} predicted. The predictions are at {party}: {file} in its folder.")


@app.command()
def cancel(
    study: Annotated[Path, Argument(metavar="STUDY.toml", help="The study file, as it was run.")], folder: In = Path()
) -> None:
    """Cancel a running or waiting study; if it is run again, it resumes."""
    from silvan.deploy.service.submissions import cancel as cancel_study
    from silvan.study.run_folder import Run
    from silvan.study.study_file import read_remote_study
    from silvan.util.acting_user import acting_user

    ended = cancel_study(Run(_hub(folder).path / "runs" / read_remote_study(study).folder), acting_user())
    print_lines("Cancelled." if ended else "Nothing to cancel: the study has not started, or is done.")


@app.command()
def verify(
    run: Annotated[Path, typer.Argument(metavar="RUN_FOLDER", help="The coordinator's run folder, or a copy of it.")],
    roster: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The sites' keys as you know them (default: those in the run folder)."),
    ] = None,
) -> None:
    """Verify a finished study's sums and decisions against what the sites signed; for its auditor."""
    from silvan.federation.keys import Roster
    from silvan.report.html import write_report
    from silvan.study.run_folder import Run
    from silvan.study.verify import note_verification, verify_study

    found = verify_study(run, None if roster is None else Roster.load(roster))
    if not found.other_versions:
        asked, sums = count_of(found.questions, "request"), count_of(found.sums, "sum")
        print_lines(f"{asked} compared with what the sites signed, and {sums} with their proofs.")
    for text in found.deviations:
        print_wrapped(f"Deviation: {text}")
    for text in found.unverified:
        print_wrapped(f"Not verified: {text}")
    print_wrapped(f"Result: {found.sentence}.")
    for model in Run(run).read().models if found.passed else ():
        print_wrapped(f"Model{f' of {model.site}' if model.site else ''}: {model.hash}.")
    if roster is None and found.passed:
        print_wrapped(
            "The keys come from the run folder: compare its roster.json with the sites' own keys, or pass your copy "
            "with --roster."
        )
    note_verification(run, found)
    write_report(Run(run))
    if not found.passed:
        raise typer.Exit(1)


def run_study(hub: "CoordinatorFiles", plan: "Study") -> "Run":
    """Submit a study, print what happens until its end, and return its run folder."""
    from silvan.deploy.service.process import require_flare

    require_flare()
    from silvan.deploy.service.start_stop import processes_of
    from silvan.deploy.service.submissions import submit, watch
    from silvan.deploy.service.supervise import Supervisor
    from silvan.util.acting_user import acting_user

    supervisor = Supervisor(hub, plan)
    submission = submit(supervisor, acting_user())
    watch(supervisor.run, submission, timed_printer(), lambda: processes_of(hub)[1].pid is not None)
    return supervisor.run


def show_run(run: "Run") -> None:
    """Show the results of a run, and list its files."""
    from silvan.cli import terminal
    from silvan.study.run_folder import EVALUATION, JOURNAL, REPORT, RUN

    record = run.read()
    if record.evaluation:
        terminal.print_results(record)
    models = [model.file for model in record.models]
    written = [name for name in [*models, EVALUATION, RUN, REPORT, JOURNAL] if run.file(name).exists()]
    terminal.print_parts(terminal.files(run.folder, written, record.models))


def timed_printer() -> Callable[[str], None]:
    """Return a function that prints a line of text after the seconds since this call."""
    start = time.monotonic()
    return lambda text: print_lines(f"{time.monotonic() - start:6.1f} s  {text}")


@app.command()
def local(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="A new folder.")] = Path("local"),
    sites: Annotated[int, Option("--sites", min=1, max=16, help="How many sites.")] = 3,
    keep: Annotated[bool, Option("--keep", help="Keep everything running afterwards.")] = False,
) -> None:
    """Set up a federation on this machine, in separate processes with mutual TLS, and run an example study."""
    from silvan.deploy.service.start_stop import make_local, process_of, processes_of, stop_all
    from silvan.study.parse import parse_remote_study

    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty; name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    tables = write_site_tables(folder, sites)
    hub, members = make_local(folder.resolve(), tables, report=timed_printer())
    try:
        show_run(run_study(hub, parse_remote_study(EXAMPLE)))
    finally:
        if not keep:
            stop_all([*map(process_of, members), *processes_of(hub)])
    if keep:
        print_lines(
            f"Everything is running. Next: silvan study run STUDY.toml --in {hub.path}",
            f"To stop it: silvan study stop --in {hub.path}; silvan site stop {folder}/SITE for each site",
        )


def write_site_tables(folder: Path, n: int) -> dict[str, str]:
    """Write a table for each of n sites: every n-th row of scikit-learn's breast cancer data."""
    from silvan.datasets import from_sklearn

    frame, tables = from_sklearn("breast_cancer").rename({"label": "benign"}), {}
    for i in range(n):
        path = folder / f"site-{i + 1}.csv"
        frame.gather_every(n, i).write_csv(path)
        tables[path.stem] = str(path.resolve())
    return tables
