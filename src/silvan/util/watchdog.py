"""Tells systemd that a service is ready and alive: a line over the datagram socket that it names in the environment.

systemd kills and restarts a unit with ``WatchdogSec=`` that falls silent. Without systemd nothing is sent.
"""

import contextlib
import os
import socket
import threading
import time

READY, ALIVE = "READY=1", "WATCHDOG=1"


def tell(state: str) -> None:
    """Send a line to systemd, if this is a service of type ``notify``."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    # systemd may be restarting itself: then it receives the next line
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.connect("\0" + address[1:] if address.startswith("@") else address)
        line.sendall(state.encode())


def interval() -> float | None:
    """Return the seconds between two heartbeats, half of what systemd allows; None if it expects none."""
    microseconds, process = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", str(os.getpid()))
    return int(microseconds) / 2e6 if microseconds.isdigit() and process == str(os.getpid()) else None


def keep_telling() -> None:
    """Start a thread that tells systemd that this process is alive for as long as it runs."""
    pause = interval()
    if pause is None:
        return

    def repeat() -> None:
        while True:
            tell(ALIVE)
            time.sleep(pause)

    threading.Thread(target=repeat, name="watchdog", daemon=True).start()
