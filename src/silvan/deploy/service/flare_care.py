"""Checks and copies of what silvan keeps in FLARE's own folders."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from silvan.deploy.membership.flare_folder import SETTINGS, FlareServer, FlareSite, is_site, open_site
from silvan.deploy.membership.joined_site import MEMBER
from silvan.deploy.membership.site_files import SiteFiles
from silvan.deploy.service import doctor
from silvan.deploy.service.backup import copy_folder
from silvan.deploy.service.doctor import Check, check_end, check_files, check_readers, run_check
from silvan.deploy.service.process import is_running
from silvan.errors import InputError
from silvan.util.files import UNREADABLE

_ALLOWED = "silvan.deploy.jobs."
_RESOURCES = "resources.json", "resources.json.default"
_PROCESSES = "pid.fl", "daemon_pid.fl"
"""Where FLARE's own scripts note their processes."""

_RENEWAL = "who provisioned the federation makes a new one"


def examine(path: Path) -> list[Check]:
    """Check the installation, and the folder of a coordinator or a site, also one of FLARE's own."""
    if is_flare_server(path):
        return [*doctor.check_installation(path), *_check_server(FlareServer(path))]
    if is_site(path) and not (path / MEMBER).exists():
        try:
            site = open_site(path)
        except (InputError, OSError) as error:
            return [*doctor.check_installation(path), Check("folder", "bad", str(error))]
        if isinstance(site, FlareSite):
            return [*doctor.check_installation(path), *_check_site(site)]
    return doctor.examine(path)


def is_flare_server(path: Path) -> bool:
    """Whether a folder is that of a server which FLARE provisioned."""
    return (path / "startup" / "server.crt").is_file() and (path / "local").is_dir()


def _check_site(site: FlareSite) -> Iterator[Check]:
    startup, own = site.workspace / "startup", site.path
    private = [own / name for name in ("site.key", "store.sqlite", "budget.sqlite", "ledger.jsonl")]
    yield run_check("permissions", lambda: check_readers([*private, startup / "client.key"]))
    if not site.simulator:
        yield run_check("certificate", lambda: check_end(startup / "client.crt", startup / "rootCA.pem", _RENEWAL))
    yield run_check("allow list", lambda: _allowed(site.workspace))
    yield run_check("settings", lambda: f"table {site.settings['table']}")
    if own.exists():
        yield run_check("files", lambda: check_files(site))
    else:
        yield Check("files", "look", "no study has been here yet")


def _check_server(server: FlareServer) -> Iterator[Check]:
    startup = server.workspace / "startup"
    yield run_check("permissions", lambda: check_readers([server.path / "coordinator.key", startup / "server.key"]))
    yield run_check("certificate", lambda: check_end(startup / "server.crt", startup / "rootCA.pem", _RENEWAL))
    yield run_check("allow list", lambda: _allowed(server.workspace))


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
    if not isinstance(listed, list) or not any(isinstance(one, str) and _ALLOWED.startswith(one) for one in listed):
        raise InputError(
            f'{path}: FLARE refuses silvan\'s jobs; add "{_ALLOWED}" to class_allow_list, see docs/flare.md'
        )
    return f"{path.name} lets silvan's jobs run"


# -- copies


def backup_flare_site(site: SiteFiles, target: Path) -> int:
    """Copy what silvan keeps for a site, with its settings, to a new folder; return how many files there are."""
    assert isinstance(site, FlareSite)  # noqa: S101
    _check_stopped(site.workspace, "client")
    return copy_folder(site.path, target, also=[site.settings_file])


def backup_flare_server(workspace: Path, target: Path) -> int:
    """Copy what silvan keeps at a server to a new folder; return how many files there are."""
    server = FlareServer(workspace)
    settings = server.workspace / "local" / SETTINGS
    return copy_folder(server.path, target, also=[settings] if settings.is_file() else [])


def _check_stopped(workspace: Path, which: str) -> None:
    """Raise ``InputError`` if FLARE's process runs, as far as its scripts tell."""
    for name in _PROCESSES:
        pid = 0
        with suppress(OSError, ValueError):
            pid = int((workspace / name).read_text())
        if pid > 0 and is_running(pid):
            raise InputError(f"FLARE's {which} is running (process {pid}); stop it first: files must be of one moment")
