"""``silvan study``: the coordinator's side of a federation of machines."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from silvan.deploy.hub import Hub
    from silvan.study.run_folder import Run

app = typer.Typer(
    no_args_is_help=True,
    help="A federation of machines, from the coordinator's side. docs/deployment.md goes through it.",
)

In = Annotated[Path, typer.Option("--in", metavar="FOLDER", help="The coordinator's folder; this one, if not given.")]


@app.command()
def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call it; a folder is made for it.")],
    sites: Annotated[list[str], typer.Option("--site", metavar="SITE", help="A site; give it once for each.")],
    address: Annotated[
        str, typer.Option(metavar="HOST[:PORT]", help="Where sites reach this machine; the port after it is used too.")
    ] = "localhost:8102",
    columns: Annotated[
        str, typer.Option(metavar="A,B,...", help="Columns that every site's table must have; checked when it joins.")
    ] = "",
) -> None:
    """Make a federation: its keys, its certificates and the folder to run it from."""
    from silvan.deploy.hub import PORT, Hub
    from silvan.errors import InputError

    host, _, port = address.partition(":")
    if not host or (port and not port.isdigit()):
        raise InputError(f"address must be HOST or HOST:PORT, got {address!r}")
    wanted = [column.strip() for column in columns.split(",") if column.strip()]
    hub = Hub.create(Path(name), name, sites, host, int(port or PORT), wanted)
    _say(
        f"{hub.path} is the coordinator's folder. Keep it private: who has it can let anybody in.",
        f"Next: cd {name}; silvan study start; silvan study invite {sites[0]}",
    )


@app.command()
def invite(site: Annotated[str, typer.Argument(metavar="SITE")], folder: In = Path()) -> None:
    """Write an invitation for a site: a file to send to its owner, good once."""
    import msgspec

    from silvan.deploy.hub import Hub
    from silvan.util.files import write_whole

    made = Hub(folder).invite(site)
    path = folder / f"{site}.invite"
    write_whole(path, msgspec.json.format(msgspec.json.encode(made)) + b"\n")
    path.chmod(0o600)
    _say(
        f"Send {path} to the owner of {site}, and to nobody else; it is good once, until {made.until[:10]}.",
        f"There: silvan site join {path.name} --table TABLE",
    )


@app.command()
def add(site: Annotated[str, typer.Argument(metavar="SITE")], folder: In = Path()) -> None:
    """Name a further site; then invite it."""
    from silvan.deploy.hub import Hub

    Hub(folder).add(site)
    _say(f"Added. Next: silvan study invite {site}. The others must accept the new roster when it has joined.")


@app.command()
def revoke(site: Annotated[str, typer.Argument(metavar="SITE")], folder: In = Path()) -> None:
    """Take a site out: it is asked nothing more, and nothing that it signs is taken."""
    from silvan.deploy.hub import Hub

    Hub(folder).revoke(site)
    _say(f"{site} is out. The other sites must accept the new roster: silvan site start --new-roster")


@app.command()
def start(
    folder: In = Path(),
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay until stopped, for containers.")] = False,
) -> None:
    """Start the coordinator's processes in the background: sites can join and connect."""
    from silvan.deploy.hub import Hub
    from silvan.deploy.one_machine import start_hub, stay

    hub = Hub(folder)
    processes = start_hub(hub)
    content = hub.read()
    _say(f"Running: studies on port {content.port}, joining on port {content.port + 1}. Logs: {hub.path}/*.log")
    if foreground:
        stay(processes)


@app.command()
def stop(folder: In = Path()) -> None:
    """Stop the coordinator's processes; a study that runs goes on when they are started again."""
    from silvan.deploy.hub import Hub
    from silvan.deploy.one_machine import processes_of, stop_all

    _say("Stopped." if stop_all(processes_of(Hub(folder))) else "Nothing was running.")


@app.command()
def status(folder: In = Path()) -> None:
    """Show the sites, how far each is, and the studies."""
    from rich.console import Console

    from silvan.cli.terminal import RULES, clean
    from silvan.deploy.hub import Hub, roster_fingerprint
    from silvan.deploy.one_machine import processes_of

    hub, console = Hub(folder), Console()
    content = hub.read()
    there = _connected(hub)
    from rich.table import Table

    table = Table(box=RULES, pad_edge=False)
    for column in ("Site", "Joined", "Connected", "Its keys in words: compare by telephone"):
        table.add_column(column)
    for name, member in content.sites.items():
        joined = member.joined[:10] or ("invited" if member.invited else "not invited")
        table.add_row(name, joined, "yes" if name in there else "no", member.words if member.key else "")
    console.print(table)
    running = all(process.pid for process in processes_of(hub))
    _say(f"{content.name} at {content.host}:{content.port}: {'running' if running else 'not running'}")
    if all(member.key for member in content.sites.values()):
        _say(f"All keys together in words: {roster_fingerprint(hub.roster())}")
    for run, line in _studies(hub):
        _say(clean(f"{run}: {line}"))


def _connected(hub: "Hub") -> dict[str, float]:
    from silvan.deploy.flare_kit import ADMIN
    from silvan.deploy.one_machine import processes_of

    if processes_of(hub)[0].pid is None:
        return {}
    from silvan.federation.transports.flare import Session

    try:
        session = Session(hub.path / "admin", ADMIN, timeout=5.0)
    except ConnectionError:
        return {}
    try:
        return session.sites()
    finally:
        session.close()


def _studies(hub: "Hub") -> list[tuple[str, str]]:
    import msgspec

    from silvan.deploy.job_progress import PROGRESS, Progress, line_of

    found = []
    for path in sorted((hub.path / "runs").glob(f"*/{PROGRESS}")):
        progress = msgspec.json.decode(path.read_bytes(), type=Progress)
        found.append((path.parent.name, progress.error or line_of(progress)))
    return found


@app.command()
def run(
    study: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="What to learn, see docs/study.md.")],
    folder: In = Path(),
) -> None:
    """Run a study over the sites, whatever happens to them; run again after an interruption, and it goes on."""
    from silvan.deploy.hub import Hub
    from silvan.study.remote_study import read_remote_study

    show_run(run_to_end(Hub(folder), read_remote_study(study)))


def run_to_end(hub: "Hub", plan: Any) -> "Run":
    """Run a study, telling how it stands."""
    from silvan.deploy.process import require_flare

    require_flare()
    from silvan.deploy.supervise import Supervisor

    return Supervisor(hub, plan, _teller()).run_to_end()


def show_run(run: "Run") -> None:
    """Show what came out."""
    from rich.console import Console

    from silvan.cli import terminal
    from silvan.report.summary import summary
    from silvan.study.run_folder import EVALUATION, JOURNAL, REPORT, RUN

    record, console = run.read(), Console()
    summed = summary(record)
    if record.evaluation:
        terminal.say(console, terminal.results(summed), terminal.sentences(summed))
    models = [model.file for model in record.models]
    written = [name for name in [*models, EVALUATION, RUN, REPORT, JOURNAL] if run.file(name).exists()]
    terminal.say(console, terminal.files(run.folder, written))


@app.command()
def local(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder for all of it.")] = Path("local"),
    sites: Annotated[int, typer.Option("--sites", min=1, max=16, help="How many sites.")] = 3,
    table: Annotated[
        Path | None, typer.Option(metavar="TABLE", help="A table to deal out; breast cancer data if not given.")
    ] = None,
    study: Annotated[
        Path | None, typer.Option("--run", metavar="STUDY.toml", help="A study to run; an example if not given.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running afterwards.")] = False,
) -> None:
    """Set up a whole federation on this machine, in processes of their own with mutual TLS, and run a study on it."""
    from silvan.cli.demo_command import EXAMPLE, write_site_tables
    from silvan.deploy.one_machine import make_local, process_of, processes_of, stop_all
    from silvan.errors import InputError
    from silvan.study.remote_study import parse_remote_study, read_remote_study

    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder}: it is not empty; name a new folder")
    plan = parse_remote_study(EXAMPLE) if study is None else read_remote_study(study)
    folder.mkdir(parents=True, exist_ok=True)
    tables = write_site_tables(folder, sites, table)
    hub, members = make_local(folder.resolve(), tables, say=_teller())
    try:
        show_run(run_to_end(hub, plan))
    finally:
        if not keep:
            stop_all([*map(process_of, members), *processes_of(hub)])
    if keep:
        _say(
            f"All of it runs. Next: silvan study run STUDY.toml --in {hub.path}",
            f"To end it: silvan study stop --in {hub.path}; silvan site stop {folder}/SITE for each",
        )


def _teller() -> Callable[[str], None]:
    import time

    begun = time.monotonic()
    return lambda text: _say(f"{time.monotonic() - begun:6.1f} s  {text}")


def _say(*lines: str) -> None:
    from silvan.cli.terminal import clean

    for line in lines:
        typer.echo(clean(line))
