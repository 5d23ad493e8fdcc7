"""Background processes: output goes to a log, a file has the process id, and stopping one stops its children."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from silvan.deploy.membership.site_log import MAX_LOG, OLD_LOGS
from silvan.errors import InputError
from silvan.util.pid_file import read_pid, start_time, write_pid

SERVER = ["-u", "-m", "silvan.deploy.service.flare_server"]
CLIENT = ["-u", "-m", "silvan.deploy.service.flare_client"]

_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}
"""Processes that this one started, which it must reap; others are found by their id."""


class Background:
    """A process that belongs to a folder, where its files are ``NAME.pid`` and ``NAME.log``."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._pid, self.log = folder / f"{name}.pid", folder / f"{name}.log"

    @property
    def pid(self) -> int | None:
        """The process id; None if it is not running."""
        return read_pid(self._pid)

    def start(self, arguments: list[str], cwd: Path) -> int:
        """Start the process; raise ``InputError`` if it is running."""
        self._check_alone()
        rotate(self.log)
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
        write_pid(self._pid, process.pid)
        return process.pid

    def become(self, arguments: list[str], cwd: Path) -> None:
        """Replace this process by it, without redirecting output; raise ``InputError`` if it is already running."""
        self._check_alone()
        write_pid(self._pid, os.getpid())
        os.chdir(cwd)
        os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606  our own interpreter

    def _check_alone(self) -> None:
        """Raise ``InputError`` if it is running, and record the second start in its log."""
        if self.pid is None:
            return
        with self.log.open("a", encoding="utf-8") as log:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            log.write(f"{now} process {os.getpid()} tried to start a second {self.name} and was refused\n")
        raise InputError(f"{self.folder}: {self.name} is running already (process {self.pid})")

    def stop(self, patience: float = 10.0) -> bool:
        """Stop the process and its children; return whether it was running."""
        processes = self.with_children()
        for number in (signal.SIGTERM, signal.SIGKILL):
            _signal(processes, number, patience)
        self._pid.unlink(missing_ok=True)
        return bool(processes)

    def kill(self) -> None:
        """Kill the process and its children at once, as if the machine had lost power."""
        _signal(self.with_children(), signal.SIGKILL, 10.0)

    def with_children(self) -> dict[int, str]:
        """Return the ids of the process and its children, with their start times."""
        pid = self.pid
        if pid is None:
            return {}
        parents = _parents()
        found = {pid: start_time(pid)}
        while True:
            more = [pid for pid, parent in parents.items() if parent in found and pid not in found]
            if not more:
                return found
            found |= {pid: start_time(pid) for pid in more}

    def last_log_line(self) -> str:
        """Return the last line of the log."""
        with contextlib.suppress(OSError):
            lines = self.log.read_text(errors="replace").strip().splitlines()
            return lines[-1][:300] if lines else ""
        return ""


def rotate(log: Path) -> None:
    """Rotate a long log to ``NAME.log.1``, and the older ones one further."""
    if not log.exists() or log.stat().st_size < MAX_LOG:
        return
    names = [log, *(log.with_name(f"{log.name}.{i}") for i in range(1, OLD_LOGS + 1))]
    for older, newer in zip(names[:0:-1], names[-2::-1], strict=True):
        if newer.exists():
            newer.replace(older)


def require_posix() -> None:
    """Raise ``InputError`` on Windows: sites and coordinators need signals, locks and permissions of POSIX systems."""
    if os.name == "nt":
        raise InputError(
            "sites and coordinators do not run on Windows itself; install silvan in WSL2 (`wsl --install`) and run "
            "this there, see docs/deployment.md"
        )


def require_flare() -> None:
    """Raise ``InputError`` if FLARE is not installed."""
    if find_spec("nvflare") is None:
        raise InputError("studies over machines need NVIDIA FLARE: pip install 'silvan[flare]'")


def server_arguments(workspace: Path) -> list[str]:
    """Return the arguments of Python that start FLARE's server."""
    settings = ["secure_train=true", "org=coordinator", "config_folder=config"]
    return [*SERVER, "-m", str(workspace), "-s", "fed_server.json", "--set", *settings]


def client_arguments(workspace: Path, site: str) -> list[str]:
    """Return the arguments of Python that start FLARE's client."""
    settings = ["secure_train=true", f"uid={site}", f"org={site}", "config_folder=config"]
    return [*CLIENT, "-m", str(workspace), "-s", "fed_client.json", "--set", *settings]


def port_in_use(host: str, port: int) -> bool:
    """Whether a process listens on a port of this machine."""
    for where in {"127.0.0.1", host}:
        try:
            with socket.create_connection((where, port), timeout=1):
                return True
        except OSError:
            continue
    return False


def wait_for_port(host: str, port: int, seconds: float, *, used: bool = True) -> bool:
    """Wait until a process listens on a port of this machine, or none does; return whether that happened."""
    end = time.monotonic() + seconds
    while port_in_use(host, port) is not used:
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def _parents() -> dict[int, int]:
    """Return the parent of every process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            found[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    return found


def _signal(processes: dict[int, str], number: signal.Signals, patience: float) -> None:
    """Send a signal to those processes that still run, and wait until they have ended."""
    left = [pid for pid, started in processes.items() if start_time(pid) == started]
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    end = time.monotonic() + patience
    while time.monotonic() < end and any(start_time(pid) == processes[pid] for pid in left):
        _reap()
        time.sleep(0.05)
    _reap()


def _reap() -> None:
    """Reap child processes that have ended, by a signal or by themselves."""
    for pid, child in list(_CHILDREN.items()):
        if child.poll() is not None:
            _CHILDREN.pop(pid, None)
