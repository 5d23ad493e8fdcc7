"""Write and remove folders of FLARE's jobs, with names of silvan's classes and the study's text but no code."""

import contextlib
import os
import shutil
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import UUID

from silvan.deploy.membership.startup_kit import write_job
from silvan.errors import InputError
from silvan.federate.options import check_quorum, make_sums
from silvan.study.run_folder import JOURNAL, Run
from silvan.study.study import Study

JOB_DAYS = 7
"""Days after which the folder of a job, with its logs, is removed when the next job begins."""


def write_study_job(study: Study, folder: Path) -> None:
    """Write the job of a study into a new folder, for a federation that FLARE provisioned."""
    sites = sites_of(study)
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty; name a new folder")
    write_job(folder, job_name(study), sites, job_arguments(study, sites), quorum=study.quorum)


def sites_of(study: Study) -> list[str]:
    """Return the sites that a study names; raise ``InputError`` if it names none, or too few."""
    if study.site_names is None:
        raise InputError('sites is missing: name FLARE\'s clients that take part, as sites = ["site-1", "site-2"]')
    check_number_of_sites(study, len(study.site_names))
    return study.site_names


def check_number_of_sites(study: Study, n: int) -> None:
    """Raise ``InputError`` if n sites are too few for the quorum or the sums of a study."""
    if study.quorum is not None and study.quorum > n:
        raise InputError.wrong("quorum", f"at most the number of sites, {n}", study.quorum)
    sums, _ = make_sums(study.sums)
    check_quorum(study.quorum, sums, n)
    if n < sums.least:
        raise InputError(f"{sums.name} sums take at least {sums.least} sites, got {n}")


def job_name(study: Study) -> str:
    """Return the name of a study's job, in characters that FLARE accepts: the name and a digest of the text."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in study.name.lower())[:40]
    return f"{plain}-{study.digest[:12]}".lstrip("-_")


def job_arguments(study: Study, sites: list[str], without: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the arguments for a job's classes, at the server and at the sites."""
    return {"study": study.text, "sites": sites, "without": without or {}, "version": version("silvan")}


# -- what is no longer needed


def remove_journal(run: Run) -> None:
    """Remove the journal of a study that is done: it held every reply that the coordinator saw."""
    for path in run.folder.glob(f"{JOURNAL}*"):
        path.unlink(missing_ok=True)


def remove_old_jobs(folder: Path, but: str = "") -> list[Path]:
    """Remove folders of FLARE's jobs that are unchanged for a long time; return them."""
    oldest = time.time() - JOB_DAYS * 86400
    others = [path for path in folder.iterdir() if path.name != but and path.is_dir()] if folder.is_dir() else []
    jobs = [path for path in others if is_job(path.name)]
    removed = [job for job in jobs if max(path.stat().st_mtime for path in (job, *job.iterdir())) < oldest]
    for job in removed:
        shutil.rmtree(job, ignore_errors=True)
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
