"""Files that say which process does something: its id, and when it was started, because ids are used again."""

import os
from pathlib import Path

from silvan.util.files import write_whole


def write_pid(path: Path, pid: int) -> None:
    """Write which process it is."""
    write_whole(path, f"{pid} {start_time(pid)}\n".encode())


def read_pid(path: Path) -> int | None:
    """Return the id of the process that a file names; None if there is no file, or the process has ended."""
    try:
        pid, started = path.read_text().split()
    except (OSError, ValueError):
        return None
    return int(pid) if start_time(int(pid)) == started else None


def start_time(pid: int) -> str:
    """Return when a process was started, which tells it from a later one with the same id; empty if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "" if not is_running(pid) or Path("/proc/self/stat").exists() else "unknown"
    return "" if fields[0] == "Z" else fields[19]


def is_running(pid: int) -> bool:
    """Whether there is a process of a number."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
