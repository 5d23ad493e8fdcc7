"""The coordinator's process that runs all its studies to their ends, whether anybody watches or not.

``silvan study run`` and the live page only submit a study and watch it (``submissions.py``): they write a file into its
run folder. This process finds the file, supervises the study (``supervise.py``), and records its state in another.
Both persist, so a restarted process continues all unfinished studies.
"""

import logging
import sys
import threading
import time
from pathlib import Path

from silvan.deploy.membership.coordinator_folder import CoordinatorFiles
from silvan.deploy.service.submissions import PAUSE, SUBMITTED, Account, Act, pending
from silvan.deploy.service.supervise import Supervisor
from silvan.errors import SilvanError
from silvan.study.parse import parse_remote_study
from silvan.study.run_folder import Run
from silvan.util.files import has_no_room
from silvan.util.folder_lock import lock_folder

log = logging.getLogger("silvan.studies")

_FULL = 5.0
"""Seconds after which a study is begun again that found the disk full."""


def supervise(hub: CoordinatorFiles, run: Run, submission: Act) -> None:
    """Run a study to its end; record what happens, in any case."""
    record = Account(run, submission)
    try:
        study = parse_remote_study(run.file("study.toml").read_text())
        Supervisor(hub, study, record.line).run_to_end()
        error = ""
    except SilvanError as failed:
        error = str(failed)
    except Exception as failed:
        log.exception("%s", run.folder)
        if has_no_room(failed):  # it is started again, until there is space
            time.sleep(_FULL)
            return
        error = f"a bug in silvan: {type(failed).__name__}: {failed}"
    record.end(error)


def serve(hub: CoordinatorFiles, stop: threading.Event) -> None:
    """Supervise every study that is submitted, each in a thread of its own, until told to stop."""
    at_work: dict[Path, threading.Thread] = {}
    while not stop.wait(PAUSE):
        for path in sorted((hub.path / "runs").glob(f"*/{SUBMITTED}")):
            run = Run(path.parent)
            busy = at_work.get(run.folder)
            submission = None if busy is not None and busy.is_alive() else pending(run)
            if submission is not None:
                thread = threading.Thread(target=supervise, args=(hub, run, submission), daemon=True)
                at_work[run.folder] = thread
                thread.start()


def main() -> None:
    """Run the process for the folder named on the command line until stopped."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    hub = CoordinatorFiles(Path(sys.argv[1]))
    (hub.path / "runs").mkdir(exist_ok=True)
    with lock_folder(hub.path / "runs", wait=10.0):
        serve(hub, threading.Event())


if __name__ == "__main__":
    main()
