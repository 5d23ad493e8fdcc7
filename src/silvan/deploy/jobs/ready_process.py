"""A waiting process with everything loaded: a launcher (``launchers.py``) starts it and gives it a single job.

Loading Python, FLARE, silvan and its compiled kernels takes some seconds of CPU time, and the other processes of a job
do the same at the same time. Here it is done before there is a job; as soon as there is one, only what it needs. A job
arrives as a line on standard input; the process then becomes what FLARE would have started. If the launcher ends, so
does a waiting process.
"""

import contextlib
import os
import runpy
import select
import sys
from importlib import import_module

import msgspec

PROGRAMS = {
    "nvflare.private.fed.app.client.worker_process": "silvan.deploy.jobs.site_job",
    "nvflare.private.fed.app.server.runner_process": "silvan.deploy.jobs.coordinator_job",
}
"""The programs that FLARE starts for a job, at a site and at the server, and the modules that they load."""


class Job(msgspec.Struct, frozen=True):
    """The process that FLARE would start: a program's arguments, and additions to its environment."""

    arguments: list[str]
    environment: dict[str, str]


def load(program: str) -> None:
    """Load the modules of a job, and then those of a study while no job waits."""
    at_site = PROGRAMS[program].endswith("site_job")
    import_module(program)
    if at_site:
        import_module("silvan.util.kernels").skip_blas()
    import_module(PROGRAMS[program])
    import_module("nvflare.fuel.f3.communicator").load_comm_drivers()
    if not _job_waits():
        tiny_studies = import_module("silvan.deploy.jobs.tiny_studies")
        if not _job_waits():
            tiny_studies.run(at_site=at_site)


def _job_waits() -> bool:
    """Whether a job has arrived, or nobody is left to send one."""
    with contextlib.suppress(OSError, ValueError):  # pipes cannot be polled everywhere
        return bool(select.select([sys.stdin], [], [], 0)[0])
    return False


def main(program: str) -> None:
    """Load everything, wait for a job, and become its process."""
    with contextlib.suppress(Exception):  # errors show in the job, which loads what is missing
        load(program)
    line = sys.stdin.buffer.readline()
    if not line:
        return
    job = msgspec.json.decode(line, type=Job)
    os.environ.update(job.environment)
    sys.argv = [program, *job.arguments]
    runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
