"""Checks of an installation and of a coordinator's or a site's folder: the findings, or what to do."""

import os
import platform
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from silvan.deploy.membership.certificates import SOON, check_certificate, common_name, read_certificate
from silvan.deploy.membership.coordinator_folder import (
    CERTIFICATES,
    HUB,
    CoordinatorFiles,
    compare_rosters,
    roster_fingerprint,
)
from silvan.deploy.membership.enrol import ask_coordinator, check_versions, versions
from silvan.deploy.membership.flare_folder import FlareServer, FlareSite, is_flare_server, is_site, open_site
from silvan.deploy.membership.join_requests import MAX_CLOCK_DIFFERENCE
from silvan.deploy.membership.joined_site import JoinedSite
from silvan.deploy.membership.site_files import SiteFiles, check_table
from silvan.deploy.membership.startup_kit import JOBS
from silvan.deploy.service.process import port_in_use
from silvan.deploy.service.start_stop import SERVER, process_of, processes_of
from silvan.errors import InputError, SilvanError
from silvan.federation.keys import Roster
from silvan.privacy.file_marks import FileMarks
from silvan.study.run_folder import RUN
from silvan.study.study import Study
from silvan.util.device import describe_device, why_unusable
from silvan.util.files import UNREADABLE
from silvan.util.readable import count_of, format_names

MIN_DISK = 1 << 30

_RESOURCES = "resources.json", "resources.json.default"

_AT_HUB = "`silvan study stop` and `start` renew it"
_AT_SITE = "`silvan site renew` renews it; then restart the site"
_BY_FLARE = "who provisioned the federation makes a new one"


class Check(NamedTuple):
    """The result of one check."""

    what: str
    state: str  # "good", "look" or "bad"
    text: str


def examine(path: Path) -> list[Check]:
    """Check the installation, and the folder of a coordinator or a site, also one of FLARE's own."""
    return [run_check("versions", _versions), run_check("disk", lambda: _disk(path)), *_check_folder(path)]


def _check_folder(path: Path) -> Iterable[Check]:
    if is_flare_server(path):
        return _check_server(FlareServer(path))
    if (path / HUB).exists():
        return _check_coordinator_files(CoordinatorFiles(path))
    if not is_site(path):
        return [Check("folder", "look", f"{path} is neither a coordinator's folder nor a site's")]
    try:
        return _check_site(open_site(path))
    except (SilvanError, OSError) as error:
        return [Check("folder", "bad", str(error))]


def _check_coordinator_files(hub: CoordinatorFiles) -> Iterator[Check]:
    content = hub.read()
    yield run_check("permissions", lambda: check_readers(hub.private_files()))
    for name in CERTIFICATES:
        yield run_check("certificate", partial(check_end, hub.path / name, hub.path / "authority/root.crt", _AT_HUB))
    running = [process.name for process in processes_of(hub) if process.pid is not None]
    port, used = content.port, port_in_use("localhost", content.port)
    if SERVER in running:
        text = "ours" if used else "our process does not listen; see its log"
        yield Check("port", "good" if used else "bad", f"{port}: {text}")
    elif used:
        yield Check("port", "bad", f"{port} is in use by another program; stop that, or name another port at init")
    else:
        yield Check("port", "look", f"{port} is free: the coordinator is not running (`silvan study start`)")
    if running == [SERVER]:
        yield Check("studies", "bad", "nobody runs the studies: `silvan study start` starts what is missing")
    for site, why in hub.stopped().items():
        yield Check("sites", "bad", f"{site} is stopped: {why}; `silvan study readmit {site}` lets it in again")
    missing = [site for site, entry in content.sites.items() if not entry.key]
    if missing:
        yield Check("roster", "look", f"not joined yet: {', '.join(missing)}")
    else:
        yield Check("roster", "good", _in_words(hub.roster()))


def _check_server(server: FlareServer) -> Iterator[Check]:
    startup = server.workspace / "startup"
    yield run_check("permissions", lambda: check_readers([server.path / "coordinator.key", startup / "server.key"]))
    yield run_check("certificate", lambda: check_end(startup / "server.crt", startup / "rootCA.pem", _BY_FLARE))
    yield run_check("allow list", lambda: _allowed(server.workspace))


def _check_site(site: SiteFiles) -> Iterator[Check]:
    startup, renewal = site.startup, _BY_FLARE if isinstance(site, FlareSite) else _AT_SITE
    yield run_check("permissions", lambda: check_readers(site.private_files()))
    if not (isinstance(site, FlareSite) and site.simulator):
        yield run_check("certificate", lambda: check_end(startup / "client.crt", startup / "rootCA.pem", renewal))
    if isinstance(site, FlareSite):
        yield run_check("allow list", lambda: _allowed(site.workspace))
    yield run_check("table", lambda: _check_table(site))
    yield run_check("device", lambda: _check_device(site.settings.get("device", "auto")))
    if isinstance(site, JoinedSite):
        yield from _check_connection(site)
        pid = process_of(site).pid
        text = f"runs ({pid})" if pid else "not running (`silvan site start`)"
        yield Check("process", "good" if pid else "look", text)
    if site.path.exists():
        yield run_check("files", lambda: _check_files(site))
    else:
        yield Check("files", "look", "no study has been here yet")


def _check_device(device: str) -> str:
    """Return in words where trees grow; raise ``InputError`` if that is a graphics card that cannot be used."""
    problem = None if device == "cpu" else why_unusable()
    if device == "cuda" and problem is not None:
        raise InputError(f"{problem}; until that is mended, the processor grows the trees")
    if device == "cpu" or problem is not None:
        return "trees grow on the processor"
    return f"trees of {'large tables' if device == 'auto' else 'all tables'} grow on {describe_device()}"


def _check_connection(member: JoinedSite) -> Iterator[Check]:
    """Check that the coordinator is reachable, and its public information."""
    own = member.membership
    try:
        status = ask_coordinator(*own.service)
    except SilvanError as error:
        yield Check("coordinator", "bad", str(error))
        return
    yield Check("coordinator", "good", f"{own.host}:{own.port} answers")
    yield run_check("versions there", lambda: _same_versions(status.versions))
    off = time.time() - status.time
    text = f"{abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} the coordinator's"
    state = "good" if abs(off) < MAX_CLOCK_DIFFERENCE / 4 else "look" if abs(off) < MAX_CLOCK_DIFFERENCE else "bad"
    yield Check("clock", state, text if state == "good" else f"{text}; set it (NTP)")
    yield run_check("roster", lambda: _roster(member))


def _check_table(site: SiteFiles) -> str:
    """Read the site's table; raise an error if that fails, or if it lacks columns of studies that are not over."""
    columns, rows = check_table(site.source(), memory=site.settings.get("memory"))
    if not columns:  # each study creates its own
        return f"{site.settings['table']} has {rows}"
    for study in site.studies():
        if site.declined(study) is not None or (site.results_folder(study) / RUN).is_file():
            continue
        wanted = [site.settings.get("id", "")] if study.by_columns else columns_named_by(study)
        lacking = [column for column in wanted if column and column not in columns]
        if lacking:
            raise InputError(
                f"{site.settings['table']} lacks {format_names(lacking)}, which study {study.name!r} asks for; if it "
                "is called otherwise, set rename in site.toml"
            )
    return f"{site.settings['table']} has {rows} and {count_of(len(columns), 'column')}"


def columns_named_by(study: Study) -> list[str]:
    """Return the columns that a study over rows names: its label, and those of its schema."""
    named = [] if study.schema is None else list(study.schema.columns)
    return list(dict.fromkeys([*named, *study.label_columns]))


def _check_files(member: SiteFiles) -> str:
    """Check that a site's files are consistent; raise an error if one is behind."""
    FileMarks(member.folder.ledger, member.budget(), member.store).check()
    return "ledger, privacy budget and store know of the same answers"


def _allowed(workspace: Path) -> str:
    """Check that FLARE runs silvan's jobs there."""
    local = workspace / "local"
    path = next((local / name for name in _RESOURCES if (local / name).is_file()), None)
    if path is None:
        raise InputError(f"{local}: there is no resources.json; see docs/flare.md")
    try:
        listed = msgspec.json.decode(path.read_bytes()).get("class_allow_list", [])
    except (*UNREADABLE, AttributeError):
        raise InputError(f"{path}: cannot be read as JSON") from None
    if not isinstance(listed, list) or not any(isinstance(one, str) and JOBS.startswith(one) for one in listed):
        raise InputError(f'{path}: FLARE refuses silvan\'s jobs; add "{JOBS}" to class_allow_list, see docs/flare.md')
    return f"{path.name} lets silvan's jobs run"


def _same_versions(there: dict[str, str]) -> str:
    check_versions(versions(), there, "the coordinator")
    return "the same as here"


def _roster(member: JoinedSite) -> str:
    pinned, latest = member.roster(), member.latest_roster()
    known = pinned or latest
    if known is None:
        return "not all sites have joined yet"
    change = compare_rosters(known, latest or known)
    if change.changed:
        raise InputError(f"the coordinator reports other keys than those kept here ({change.describe()})")
    new = f"; not accepted yet ({change.describe()}): see `silvan site roster {member.path}`"
    return f"{_in_words(known)}{new if change.describe() else ''}"


def _in_words(roster: Roster) -> str:
    return f"{count_of(len(roster.sites), 'site')}; in words: {roster_fingerprint(roster)}"


def _versions() -> str:
    found = versions()
    if not found["nvflare"]:
        raise InputError("nvflare is not installed: pip install 'silvan[flare]'")
    return f"silvan {found['silvan']}, nvflare {found['nvflare']}, Python {platform.python_version()}"


def _disk(path: Path) -> str:
    free = shutil.disk_usage(path if path.exists() else Path.cwd()).free
    text = f"{free / (1 << 30):.1f} GiB free"
    if free < MIN_DISK:
        raise InputError(f"{text}; make room: a site that cannot write its books answers nothing")
    return text


def check_readers(paths: list[Path]) -> str:
    """Check that others on this machine cannot read files; raise an error that names one they can."""
    if os.name != "posix":
        return "not checked on this system"
    for path in paths:
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise InputError(f"others on this machine can read {path}; run: chmod 600 {path}")
    return "only you can read the keys"


_ROOT_ENDS = "it is the federation's own: make a new federation, and have all sites join it"


def check_end(path: Path, root: Path, renewal: str) -> str:
    """Check a certificate, and that it does not expire soon; return its expiry."""
    certificate, authority = read_certificate(path.read_bytes()), read_certificate(root.read_bytes())
    check_certificate(certificate, authority)
    ends = min(certificate.not_valid_after_utc, authority.not_valid_after_utc)
    text = f"{common_name(certificate)} until {ends:%Y-%m-%d}"
    if ends - datetime.now(UTC) < SOON:
        raise InputError(f"{text}: soon; {renewal if ends != authority.not_valid_after_utc else _ROOT_ENDS}")
    return text


def run_check(what: str, check: Callable[[], str]) -> Check:
    """Return the result of a check."""
    try:
        return Check(what, "good", check())
    except (SilvanError, OSError) as error:
        return Check(what, "bad", str(error))
