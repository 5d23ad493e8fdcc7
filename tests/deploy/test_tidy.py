"""What is removed, and what is not."""

import os
import time
from uuid import uuid4

from silvan.deploy.jobs.job_folder import JOB_DAYS, mark_in_use, remove_journal, remove_old_jobs
from silvan.study.run_folder import JOURNAL, Run

OLD = time.time() - (JOB_DAYS + 1) * 86400


def job(folder, name, *, old, log_old=True):
    path = folder / name
    path.mkdir()
    log = path / "log.txt"
    log.write_text("")
    os.utime(log, (OLD, OLD) if log_old else None)
    if old:
        os.utime(path, (OLD, OLD))
    return path


def test_old_jobs_are_removed_and_nothing_else(tmp_path):
    names = [str(uuid4()) for _ in range(4)]
    gone = job(tmp_path, names[0], old=True)
    kept = [
        job(tmp_path, names[1], old=False),
        job(tmp_path, names[2], old=True, log_old=False),
        job(tmp_path, names[3], old=True),
        job(tmp_path, "startup", old=True),
    ]
    assert remove_old_jobs(tmp_path, but=names[3]) == [gone]
    assert not gone.exists()
    assert all(path.exists() for path in kept)
    assert remove_old_jobs(tmp_path / "nowhere") == []


def test_a_job_that_waits_for_weeks_is_kept(tmp_path):
    waiting = job(tmp_path, str(uuid4()), old=True)
    mark_in_use(waiting)
    assert remove_old_jobs(tmp_path) == []
    mark_in_use(tmp_path / "nowhere")


def test_a_journal_is_removed_with_its_files(tmp_path):
    run = Run(tmp_path)
    for ending in ("", "-wal", "-shm"):
        run.file(f"{JOURNAL}{ending}").touch()
    run.file("model.silvan").touch()
    remove_journal(run)
    assert [path.name for path in tmp_path.iterdir()] == ["model.silvan"]
