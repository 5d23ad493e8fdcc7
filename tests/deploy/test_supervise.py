"""How often a study is resubmitted, and when a job is considered lost."""

import os
import subprocess
import sys
from types import SimpleNamespace

import msgspec
import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'silvan[flare]' to test real sites")

from silvan.deploy.jobs.job_progress import INTERRUPTED, PROGRESS, StudyProgress
from silvan.deploy.membership.startup_kit import process_file
from silvan.deploy.service import supervise
from silvan.deploy.service.supervise import MOST_TRIES, Attempts, Supervisor
from silvan.errors import FederationError
from silvan.study.parse import parse_remote_study
from silvan.study.run_folder import Record, Run
from silvan.util.folder_lock import lock_folder
from silvan.util.pid_file import write_pid


def test_a_study_with_progress_is_resubmitted_at_once():
    attempts = Attempts()
    assert [attempts.next(answers, "killed") for answers in range(1, 100)] == [0.0] * 99


def test_a_study_without_progress_waits_longer_and_ends():
    attempts = Attempts()
    attempts.next(5, "")
    waits = [attempts.next(5, "") for _ in range(MOST_TRIES - 1)]
    assert waits == sorted(waits)
    assert waits[0] == 2.0
    assert waits[-1] == 60.0
    with pytest.raises(FederationError, match=f"{MOST_TRIES} jobs ended without .* answer: site 'a' has left"):
        attempts.next(5, "site 'a' has left the job")


def test_one_new_reply_resets_the_waiting_time():
    attempts = Attempts()
    for _ in range(MOST_TRIES - 1):
        attempts.next(0, "")
    assert attempts.next(1, "") == 0.0
    assert attempts.next(1, "") == 2.0


class Followed(Supervisor):
    """Follows a job with a given FLARE status, in a run folder without a federation."""

    def __init__(self, folder, statuses):
        self.run, self.said, self._statuses, self.ended = Run(folder), [], list(statuses), []
        self.hub = SimpleNamespace(path=folder)
        self._last_line, self._report = "", self.said.append

    def write(self, **fields):
        self.run.file(PROGRESS).write_bytes(msgspec.json.encode(StudyProgress("job", **fields)))

    def _status(self, job):
        return self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]

    def note_process(self, pid):
        path = process_file(self.hub.path / "server" / "job")
        path.parent.mkdir(parents=True)
        write_pid(path, pid)

    def _open(self):
        return self

    def abort(self, job):
        self.ended.append(job)


@pytest.fixture(autouse=True)
def no_patience(monkeypatch):
    for name in ("STALE", "SILENT", "_PAUSE"):
        monkeypatch.setattr(supervise, name, 0.0)


def test_a_queued_job_is_not_lost(tmp_path):
    followed = Followed(tmp_path, ["SUBMITTED"] * 5 + ["FINISHED:COMPLETED"])
    assert followed._follow("job") is None
    assert followed.ended == []


def test_a_job_whose_process_is_slow_to_start_is_not_gone(tmp_path):
    """On a busy machine FLARE and silvan take minutes to load; a second job would make it busier still."""
    followed = Followed(tmp_path, ["DISPATCHED"] + ["RUNNING"] * 20 + ["FINISHED:COMPLETED"])
    followed.note_process(os.getpid())
    followed._follow("job")
    assert followed.ended == []
    assert followed.said == []


def test_a_job_whose_process_ended_before_its_first_word_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(supervise, "STALE", 3600.0)  # for a job that has no process yet
    ended = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    followed = Followed(tmp_path, ["RUNNING"])
    followed.note_process(ended.pid)
    ended.communicate()
    followed._follow("job")
    assert followed.ended == ["job"]
    assert followed.said == ["the job is gone; FLARE only thinks that it runs"]


def test_a_silent_but_living_job_is_not_lost(tmp_path):
    """It holds the lock of its run folder; when it releases it, it has recorded how it ended."""
    followed = Followed(tmp_path, ["RUNNING"] * 20 + ["FINISHED:COMPLETED"])
    followed.write(stage="training")
    with lock_folder(tmp_path):
        assert followed._follow("job").stage == "training"
    assert followed.ended == []
    followed.write(stage="done", final=True)
    assert followed._follow("job").final


@pytest.mark.parametrize(("stage", "said"), [("training", True), (INTERRUPTED, False)])
def test_a_job_without_a_process_is_ended(tmp_path, stage, said):
    """A job that reported an interruption is not called lost; FLARE is told to stop it anyway."""
    followed = Followed(tmp_path, ["RUNNING"])
    followed.write(stage=stage)
    assert followed._follow("job").stage == stage
    assert followed.ended == ["job"]
    assert any("the job is gone" in line for line in followed.said) == said


@pytest.mark.parametrize(
    ("statuses", "final", "found", "ended"),
    [
        (["RUNNING"], False, "job", []),
        (["RUNNING"] * 3 + ["FINISHED:COMPLETED"], True, None, []),
        (["RUNNING"], True, None, ["job"]),
        (["FINISHED:ABORTED"], False, None, []),
    ],
)
def test_a_finished_job_is_not_mistaken_for_the_next_run(tmp_path, monkeypatch, statuses, final, found, ended):
    """A site refused; its owner fixed that and reran the study while FLARE was still ending the job."""
    monkeypatch.setattr(supervise, "SILENT", 60.0 if "FINISHED:COMPLETED" in statuses else 0.0)
    followed = Followed(tmp_path, statuses)
    followed.run.file("job").write_text("job\n")
    followed.write(stage="training", error="site 'south' refused", final=final)
    assert followed._running_job() == found
    assert followed.ended == ended


class Bringing(Supervisor):
    """Brings results to the sites of a finished study; each job delivers to those of its sites that take them."""

    def __init__(self, folder, connected, away=(), refusing=()):
        self.run, self.study, self.said, self.jobs = Run(folder), parse_remote_study("[learner]\n"), [], []
        self.sites, self._away, self._here, self._refusing = ["a", "b", "c"], set(away), connected, refusing
        self._last_line, self._report = "", self.said.append
        self.run.write(Record(name="done", status="done", received=["a"]))

    def _connected(self):
        return self._here.pop(0) if len(self._here) > 1 else self._here[0]

    def _submit(self, without):
        self.jobs.append([site for site in self.sites if site not in without])
        return "job"

    def _follow(self, job):
        record = self.run.read()
        record.received += [site for site in self.jobs[-1] if site not in self._refusing]
        self.run.write(record)
        return StudyProgress(job, final=True)


@pytest.mark.parametrize(
    ("connected", "away", "jobs", "said"),
    [
        ([["a", "b", "c"]], [], [["b", "c"]], ""),
        ([["a"], ["a"], ["b", "c"]], [], [["b", "c"]], "waiting for sites b, c to connect"),
        ([["b"]], ["c"], [["b"]], "site c did not get the results: run it again"),
        ([["a"]], ["b", "c"], [], "sites b, c did not get the results"),
    ],
)
def test_results_are_delivered_to_available_sites(tmp_path, monkeypatch, connected, away, jobs, said):
    """A participating site has a moment to come back; a site that was always away is not waited for."""
    monkeypatch.setattr(supervise.time, "sleep", lambda seconds: None)
    bringing = Bringing(tmp_path, connected, away)
    assert bringing._bring_results() is bringing.run
    assert bringing.jobs == jobs
    assert any(said in line for line in bringing.said) or not said


def test_a_site_that_takes_no_results_is_asked_once(tmp_path):
    bringing = Bringing(tmp_path, [["a", "b", "c"]], refusing=["b"])
    bringing._bring_results()
    assert bringing.jobs == [["b", "c"]]
    assert "site b did not get the results" in bringing.said[-1]
