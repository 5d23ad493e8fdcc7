"""How FLARE starts the processes of jobs: it uses a waiting process if there is one (``ready_process.py``).

With ``SILVAN_READY_PROCESS=off`` in the environment no process is kept ready: every job starts a new one.
"""

import contextlib
import os
import shlex
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, JobConstants
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle, ProcessJobLauncher
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher
from nvflare.utils.job_launcher_utils import get_credential_env

from silvan.deploy.membership.startup_kit import process_file
from silvan.util import watchdog
from silvan.util.pid_file import write_pid

READY_PROCESS = "SILVAN_READY_PROCESS"
"""The name of a variable of the environment."""

_READY = [sys.executable, "-m", "silvan.deploy.jobs.ready_process"]
_PAUSE = 10.0
"""Seconds after the start of a job before a process for the next one is prepared, because the job needs the machine."""

_SITE, _SERVER = "nvflare.private.fed.app.client.worker_process", "nvflare.private.fed.app.server.runner_process"


class _ReadyLauncher(ProcessJobLauncher):
    """Gives a job to the waiting process; without one, starts a process as FLARE does."""

    program = ""  # what FLARE starts

    def __init__(self) -> None:
        super().__init__()
        self._waiting: subprocess.Popen[bytes] | None = None
        self._off = os.environ.get(READY_PROCESS) == "off"
        self._lock = threading.Lock()

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Prepare a process when the machine's client or server starts, and end it with them."""
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.SYSTEM_START:
            self.prepare()
        elif event_type == EventType.SYSTEM_END:
            self._off = True
            waiting = self._take()
            if waiting is not None:
                _end(waiting)

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: Any) -> ProcessHandle:
        """Start the process of a job."""
        next_one = threading.Timer(_PAUSE, self.prepare)
        next_one.daemon = True
        next_one.start()
        workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
        own_code = Path(workspace.get_app_custom_dir(job_meta.get(JobConstants.JOB_ID))).is_dir()
        waiting = None if own_code else self._take()
        if waiting is not None and self._give(waiting, job_meta, fl_ctx):
            return ProcessHandle(process=waiting)
        return super().launch_job(job_meta, fl_ctx)

    def prepare(self) -> None:
        """Start a process that prepares itself, if none waits."""
        with self._lock:
            if not self._off and (self._waiting is None or self._waiting.poll() is not None):
                self._waiting = subprocess.Popen(  # noqa: S603  our own interpreter
                    [*_READY, self.program], stdin=subprocess.PIPE, start_new_session=True
                )

    def _take(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            waiting, self._waiting = self._waiting, None
        return waiting

    def _give(self, waiting: subprocess.Popen[bytes], job_meta: dict[str, Any], fl_ctx: Any) -> bool:
        """Hand a job over; return whether a process took it."""
        _, _, program, *arguments = shlex.split(self.get_command(job_meta, fl_ctx))  # python -m program ...
        if program != self.program:
            return False
        environment = get_credential_env(fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS) or {})
        job = {"arguments": arguments, "environment": environment}
        with contextlib.suppress(OSError):
            if waiting.poll() is None and waiting.stdin is not None:
                waiting.stdin.write(msgspec.json.encode(job) + b"\n")
                waiting.stdin.close()
                return True
        _end(waiting)
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a waiting process, which has nothing to lose."""
    process.kill()
    process.wait()
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()


class SiteLauncher(_ReadyLauncher, ClientProcessJobLauncher):
    """Starts a site's part of a job; tells systemd that the site is alive, if it is a service."""

    program = _SITE

    def __init__(self) -> None:
        super().__init__()
        watchdog.keep_telling()


class ServerLauncher(_ReadyLauncher, ServerProcessJobLauncher):
    """Starts the coordinator's part of a job, and records its process: the supervisor waits while it runs."""

    program = _SERVER

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: Any) -> ProcessHandle:
        """Start the process of a job."""
        handle = super().launch_job(job_meta, fl_ctx)
        workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
        with contextlib.suppress(OSError):
            folder = Path(workspace.get_run_dir(job_meta.get(JobConstants.JOB_ID)))
            write_pid(process_file(folder), handle.adapter.pid)
        return handle
