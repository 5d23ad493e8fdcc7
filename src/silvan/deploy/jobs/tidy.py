"""Removes what is no longer needed: the journal of a study that is done, and folders of FLARE's old jobs."""

import contextlib
import os
import shutil
import time
from pathlib import Path
from uuid import UUID

from silvan.study.run_folder import JOURNAL, Run

JOB_DAYS = 7
"""Days after which the folder of a job, with its logs, is removed when the next job begins."""


def remove_journal(run: Run) -> None:
    """Remove the journal of a study that is done: it held every reply that the coordinator saw."""
    for path in run.folder.glob(f"{JOURNAL}*"):
        path.unlink(missing_ok=True)


def remove_old_jobs(folder: Path, but: str = "") -> list[Path]:
    """Remove folders of FLARE's jobs that nothing was written to for long; return them."""
    oldest = time.time() - JOB_DAYS * 86400
    removed = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir() and path.name != but and is_job(path.name) and _last_change(path) < oldest:
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
    return removed


def mark_in_use(job: Path) -> None:
    """Keep the folder of a job that may wait for weeks from counting as old; once a day, however often called."""
    with contextlib.suppress(OSError):
        if time.time() - job.stat().st_mtime > 86400:
            os.utime(job)


def is_job(name: str) -> bool:
    """Whether a folder has the name of a job: FLARE calls each by a random number."""
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False


def _last_change(folder: Path) -> float:
    return max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
