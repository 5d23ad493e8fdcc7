"""The status of a coordinator's or a site's folder: what ``status`` shows, as text, as JSON and for Prometheus."""

import contextlib
import time
from collections.abc import Callable, Collection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from silvan.deploy.jobs.job_progress import PROGRESS, StudyProgress
from silvan.deploy.membership.coordinator_folder import CoordinatorFiles, roster_fingerprint
from silvan.deploy.membership.joined_site import JoinedSite
from silvan.deploy.membership.site_files import SiteFiles
from silvan.deploy.membership.site_log import SITE_LOG, LastError, last_error
from silvan.deploy.service.start_stop import process_of, processes_of
from silvan.errors import InputError, SilvanError
from silvan.privacy.ledger import LEDGER, read_lines
from silvan.study.study import Study
from silvan.util.files import has_no_room, try_json


class CoordinatorSite(msgspec.Struct, frozen=True):
    """A site, as the coordinator knows it."""

    joined: str  # a date, "invited" or "not invited"
    connected: bool
    words: str  # the fingerprint of its keys


class CoordinatorStatus(msgspec.Struct, frozen=True):
    """The status of a coordinator's folder."""

    federation: str
    host: str
    port: int
    processes: dict[str, int | None]  # process ids by name
    sites: dict[str, CoordinatorSite]
    words: str  # the fingerprint of all keys; empty until all sites have joined
    studies: dict[str, StudyProgress]  # by run folder

    @property
    def running(self) -> bool:
        """Whether all processes run."""
        return all(pid is not None for pid in self.processes.values())


class SiteStatus(msgspec.Struct, frozen=True):
    """The status of a site's folder."""

    site: str
    federation: str  # empty where FLARE's own provisioning made it
    coordinator: str
    process: int | None
    words: str
    roster_words: str
    budget_spent: float | None  # None if it cannot be read
    budget_limit: float | None
    ledger_lines: int
    studies: dict[str, str]  # by name: "approved", "declined", "waits for your approval" or "needs no approval"
    last_error: LastError | None = None
    log: str = ""  # the site's own log; empty if there is none
    problem: str = ""  # why parts of this are unknown: a full disk


def coordinator_status(hub: CoordinatorFiles, connected: Collection[str] = ()) -> CoordinatorStatus:
    """Return the status of a coordinator's folder, given the sites that are connected."""
    content, words = hub.read(), hub.fingerprints()
    sites = {
        name: CoordinatorSite(
            entry.joined[:10] or ("invited" if entry.invited else "not invited"), name in connected, words.get(name, "")
        )
        for name, entry in content.sites.items()
    }
    complete = all(entry.key for entry in content.sites.values())
    written = sorted((hub.path / "runs").glob(f"*/{PROGRESS}"))
    read = {path.parent.name: try_json(path, StudyProgress) for path in written}
    return CoordinatorStatus(
        federation=content.name,
        host=content.host,
        port=content.port,
        processes={process.name: process.pid for process in processes_of(hub)},
        sites=sites,
        words=roster_fingerprint(hub.roster()) if complete else "",
        studies={name: progress for name, progress in read.items() if progress is not None},
    )


def study_state(site: SiteFiles, study: Study) -> str:
    """Return the state of a study's approval by a site's owner."""
    if site.declined(study) is not None:
        return "declined"
    if not site.policy.approve:
        return "needs no approval"
    return "approved" if site.folder.approvals.find(study.unique_name) else "waits for your approval"


def site_status(site: SiteFiles, *, ask: bool = True) -> SiteStatus:
    """Return the status of a site's folder; with ``ask``, the coordinator is asked for keys that the site lacks."""
    member = site if isinstance(site, JoinedSite) else None
    problem, words, spent = "", "", None
    try:
        words, spent = site.fingerprint, float(site.budget().spent)
    except OSError as error:  # SQLite files cannot be opened without a few bytes of space
        if not has_no_room(error):
            raise
        problem = f"the disk is full ({site.path}): the site answers nothing until there is room"
    own, roster = None if member is None else member.membership, None if member is None else member.roster()
    if member is not None and roster is None and ask:
        with contextlib.suppress(SilvanError):
            roster = member.pin_roster()
    return SiteStatus(
        site=site.name,
        federation="" if own is None else own.federation,
        coordinator="" if own is None else f"{own.host}:{own.port}",
        process=None if member is None else process_of(member).pid,
        words=words,
        roster_words="" if roster is None else roster_fingerprint(roster),
        budget_spent=spent,
        budget_limit=site.policy.epsilon,
        ledger_lines=len(read_lines(site.path)) if (site.path / LEDGER).exists() else 0,
        studies={study.unique_name: study_state(site, study) for study in site.studies()},
        last_error=last_error(site.path),
        log=str(site.path / SITE_LOG) if (site.path / SITE_LOG).is_file() else "",
        problem=problem,
    )


# -- for Prometheus


Samples = dict[str, tuple[str, dict[tuple[str, str], float]]]
"""By metric: what it says, and its value by label."""

_OF_STUDIES: dict[str, tuple[str, Callable[[StudyProgress], float]]] = {
    "silvan_study_round": ("The round that a study is in", lambda progress: progress.round),
    "silvan_study_waiting": ("How many sites a study waits for", lambda progress: len(progress.waiting)),
    "silvan_study_lost": ("How many sites a study goes on without", lambda progress: len(progress.lost)),
    "silvan_study_failed": ("Whether a study failed", lambda progress: bool(progress.error)),
    "silvan_study_done": ("Whether a study is done", lambda progress: progress.stage == "done"),
}


def metrics(status: CoordinatorStatus | SiteStatus) -> str:
    """Return the numbers of a status in the text format of Prometheus."""
    found = _coordinator_metrics(status) if isinstance(status, CoordinatorStatus) else _site_metrics(status)
    lines = []
    for name, (text, values) in found.items():
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
        for (label, of), value in values.items():
            escaped = of.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            lines.append(f'{name}{{{label}="{escaped}"}} {float(value):g}')
    return "\n".join(lines) + "\n"


def _coordinator_metrics(status: CoordinatorStatus) -> Samples:
    running = {("process", name): pid is not None for name, pid in status.processes.items()}
    connected = {("site", name): site.connected for name, site in status.sites.items()}
    found: Samples = {
        "silvan_process_up": ("Whether a process of the coordinator runs", {**running}),
        "silvan_site_connected": ("Whether a site is connected", {**connected}),
    }
    for name, (text, value) in _OF_STUDIES.items():
        found[name] = text, {("study", study): value(progress) for study, progress in status.studies.items()}
    return found


def _site_metrics(status: SiteStatus) -> Samples:
    waiting = sum(state.startswith("waits") for state in status.studies.values())
    values = {
        "silvan_process_up": ("Whether the site's process runs", status.process is not None),
        "silvan_studies_waiting": ("How many studies wait for the owner's approval", waiting),
        "silvan_ledger_lines": ("How many lines the ledger has", status.ledger_lines),
        "silvan_budget_spent": ("Epsilon that was spent", status.budget_spent),
        "silvan_budget_limit": ("Epsilon that may be spent", status.budget_limit),
    }
    at = "site", status.site
    return {name: (text, {at: value}) for name, (text, value) in values.items() if value is not None}


def as_data(status: CoordinatorStatus | SiteStatus) -> dict[str, Any]:
    """Return a status as plain data, with the time."""
    return {"time": time.time(), **msgspec.to_builtins(status)}


def make_metrics_server(port: int, values: Callable[[], str]) -> ThreadingHTTPServer:
    """Return a server of ``/metrics`` on 127.0.0.1; raise ``InputError`` if the port is in use."""

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version, timeout = "silvan", "", 20

        def do_GET(self) -> None:
            """Send the metrics."""
            if self.headers.get("Host", "").lower() not in hosts:  # a web page whose name points here
                code, text = 421, "metrics are served to 127.0.0.1 and localhost\n"
            elif self.path != "/metrics":
                code, text = 404, "there is nothing here\n"
            else:
                code, text = 200, values()
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  as http.server calls it
            """Print nothing."""

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise InputError(f"port {port} cannot be used ({(error.strerror or '').lower()}); name another") from None
    hosts = {f"{host}:{server.server_port}" for host in ("127.0.0.1", "localhost")}
    return server
