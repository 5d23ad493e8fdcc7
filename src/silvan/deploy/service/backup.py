"""Copies the folder of a site or a coordinator, so that it can be restored.

A copy contains everything except logs, process ids and the folders of FLARE's jobs. SQLite itself copies its files. The
files of a site record each other's state, so they are copied while it is stopped; a copy is marked as one, and a site
that is started from it first asks its owner.
"""

import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

from silvan.deploy.jobs.job_folder import is_job
from silvan.deploy.membership.coordinator_folder import CoordinatorFiles
from silvan.deploy.membership.flare_folder import SETTINGS, FlareServer, is_flare_server
from silvan.deploy.membership.joined_site import JoinedSite
from silvan.deploy.membership.site_files import SiteFiles
from silvan.deploy.service.start_stop import process_of
from silvan.errors import InputError
from silvan.privacy.file_marks import FROM_BACKUP
from silvan.util.pid_file import is_running

_DATABASE = ".sqlite"
_LEFT_OUT = ("-wal", "-shm", ".pid", ".lock", "log.txt", "log.json", ".half")
_PROCESSES = "pid.fl", "daemon_pid.fl"
"""The files in which FLARE's scripts record their processes."""


def backup_site(site: SiteFiles, target: Path) -> int:
    """Copy a site's files and settings to a new folder; return the number of files."""
    if (pid := _running(site)) is not None:
        who = "the site" if isinstance(site, JoinedSite) else "FLARE's client"
        raise InputError(f"{who} is running (process {pid}); stop it first: its files must be of one moment")
    return _copy_folder(site.path, target, [] if isinstance(site, JoinedSite) else [site.settings_file])


def backup_coordinator(folder: Path, target: Path) -> int:
    """Copy a coordinator's folder, or silvan's files at FLARE's server, to a new one; return the number of files."""
    if not is_flare_server(folder):
        return _copy_folder(CoordinatorFiles(folder).path, target)
    server = FlareServer(folder)
    settings = server.workspace / "local" / SETTINGS
    return _copy_folder(server.path, target, [settings] if settings.is_file() else [])


def _running(site: SiteFiles) -> int | None:
    """Return the process id of a running site, as far as FLARE's scripts show it."""
    if isinstance(site, JoinedSite):
        return process_of(site).pid
    for name in _PROCESSES:
        with suppress(OSError, ValueError):
            pid = int((site.startup.parent / name).read_text())
            if pid > 0 and is_running(pid):
                return pid
    return None


def _copy_folder(folder: Path, target: Path, also: Sequence[Path] = ()) -> int:
    """Copy a folder and some files from elsewhere; mark the result as a copy. Return the number of files."""
    target = target.absolute()
    if target.exists() or target.is_relative_to(folder):
        raise InputError(f"{target}: name a new folder outside of {folder}; nothing is written over")
    half = target.with_name(f".{target.name}.half")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(mode=0o700, parents=True)
    paths = list(_files(folder))
    for path in paths:
        copy = half / path.relative_to(folder)
        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _copy_file(path, copy)
    for path in also:
        _copy_file(path, half / path.name)
    (half / FROM_BACKUP).write_text(datetime.now(UTC).isoformat(sep=" ", timespec="seconds") + "\n")
    half.replace(target)
    return len(paths) + len(also)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files to copy; raise ``InputError`` for a link, which may lead to any file of the machine."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink():
            raise InputError(f"{path} is a link, and a backup is made of files alone; put the file there, or remove it")
        if path.is_dir():
            if not is_job(path.name):
                yield from _files(path)
        elif path.is_file() and not path.name.endswith(_LEFT_OUT) and ".log" not in path.name:
            yield path


def _copy_file(path: Path, copy: Path) -> None:
    copy.touch(mode=0o600)
    if path.suffix != _DATABASE:
        shutil.copyfile(path, copy)
    else:
        with (
            closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(copy)) as to,
        ):
            source.backup(to)
    shutil.copystat(path, copy)
