"""Processes in the background: a log has what they say, a file finds them again, all they started ends with them."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from silvan.errors import InputError
from silvan.util.files import write_whole

SERVER = ["-u", "-m", "nvflare.private.fed.app.server.server_train"]
CLIENT = ["-u", "-m", "nvflare.private.fed.app.client.client_train"]


_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}
"""What this process started; the rest is found by its number."""


class Background:
    """One process of a folder; ``name`` is that of its files there."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._pid, self.log = folder / f"{name}.pid", folder / f"{name}.log"

    @property
    def pid(self) -> int | None:
        """The process's number; None if it is not running."""
        try:
            pid, begun = self._pid.read_text().split()
        except (OSError, ValueError):
            return None
        return int(pid) if _begun(int(pid)) == begun else None

    def start(self, arguments: list[str], cwd: Path) -> int:
        """Start the process; refuse if it is running."""
        if self.pid is not None:
            raise InputError(f"{self.folder}: {self.name} is running already (process {self.pid})")
        with self.log.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603  our own interpreter, and arguments of our own
                [sys.executable, *arguments],
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _CHILDREN[process.pid] = process
        write_whole(self._pid, f"{process.pid} {_begun(process.pid)}\n".encode())
        return process.pid

    def stop(self, patience: float = 10.0) -> bool:
        """End the process and all that it started; say whether there was one."""
        family = self.family()
        for way in (signal.SIGTERM, signal.SIGKILL):
            _signal(family, way, patience)
        self._pid.unlink(missing_ok=True)
        return bool(family)

    def kill(self) -> None:
        """End the process and all that it started at once, as if the machine had lost power."""
        _signal(self.family(), signal.SIGKILL, 10.0)

    def family(self) -> dict[int, str]:
        """Give the process and all that it started, by number, and when each began."""
        pid = self.pid
        if pid is None:
            return {}
        parents = _parents()
        family = {pid: _begun(pid)}
        while True:
            more = [pid for pid, parent in parents.items() if parent in family and pid not in family]
            if not more:
                return family
            family |= {pid: _begun(pid) for pid in more}

    def last_words(self) -> str:
        """Give the last line of the log."""
        with contextlib.suppress(OSError):
            lines = self.log.read_text(errors="replace").strip().splitlines()
            return lines[-1][:300] if lines else ""
        return ""


def need_flare() -> None:
    """Say what to install if FLARE is not there."""
    if find_spec("nvflare") is None:
        raise InputError("studies over machines need NVIDIA FLARE: pip install 'silvan[flare]'")


def server_arguments(workspace: Path) -> list[str]:
    """Give what starts FLARE's server."""
    settings = ["secure_train=true", "org=coordinator", "config_folder=config"]
    return [*SERVER, "-m", str(workspace), "-s", "fed_server.json", "--set", *settings]


def client_arguments(workspace: Path, site: str) -> list[str]:
    """Give what starts FLARE's client."""
    settings = ["secure_train=true", f"uid={site}", f"org={site}", "config_folder=config"]
    return [*CLIENT, "-m", str(workspace), "-s", "fed_client.json", "--set", *settings]


def port_in_use(host: str, port: int) -> bool:
    """Whether somebody listens on a port of this machine."""
    for where in {"127.0.0.1", host}:
        try:
            with socket.create_connection((where, port), timeout=1):
                return True
        except OSError:
            continue
    return False


def wait_for_port(host: str, port: int, seconds: float) -> bool:
    """Wait until somebody listens on a port of this machine."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if port_in_use(host, port):
            return True
        time.sleep(0.1)
    return False


def wait_until_free(host: str, port: int, seconds: float) -> bool:
    """Wait until nobody listens on a port of this machine."""
    end = time.monotonic() + seconds
    while port_in_use(host, port):
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


def _begun(pid: int) -> str:
    """Give when a process began, so that its number is not taken for another's; empty if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "" if not _lives(pid) or Path("/proc/self/stat").exists() else "unknown"
    return "" if fields[0] == "Z" else fields[19]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _parents() -> dict[int, int]:
    """Give the parent of every process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            found[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    return found


def _signal(family: dict[int, str], way: signal.Signals, patience: float) -> None:
    """Send a signal to processes that are still those, and wait until they have ended."""
    left = [pid for pid, begun in family.items() if _begun(pid) == begun]
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, way)
    end = time.monotonic() + patience
    while time.monotonic() < end and any(_begun(pid) == family[pid] for pid in left):
        for pid in left:
            _reap(pid)
        time.sleep(0.05)
    for pid in left:
        _reap(pid)


def _reap(pid: int) -> None:
    """Let go of a child that has ended."""
    child = _CHILDREN.get(pid)
    if child is not None and child.poll() is not None:
        del _CHILDREN[pid]
