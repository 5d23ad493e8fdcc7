"""The coordinator's process that runs studies: submitters may leave, and interrupted studies continue."""

import errno
import threading

import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'silvan[flare]' to test real sites")

from helpers.joining import make_hub

from silvan.deploy.service import studies
from silvan.deploy.service.studies import serve
from silvan.deploy.service.submissions import CANCELLED, cancel, cancelled_by, pending, submit, watch
from silvan.deploy.service.supervise import CancelledError, Supervisor
from silvan.errors import FederationError
from silvan.study.parse import parse_remote_study

STUDY = parse_remote_study('name = "heart"\nsites = ["north"]\n[learner]\nkind = "HistogramForest"\n')


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_hub(tmp_path_factory.mktemp("hub"), ["north"])


@pytest.fixture
def hub(made, monkeypatch):
    """A coordinator's folder without a site; only ``Short`` runs the study."""
    monkeypatch.setattr(type(made), "roster", lambda self, needed=None: None)
    monkeypatch.setattr(studies, "PAUSE", 0.01)
    monkeypatch.setattr(studies, "_FULL", 0.01)
    monkeypatch.setattr(studies, "Supervisor", Short)
    Short.begun, Short.outcomes = [], []
    yield made
    for path in (made.path / "runs").glob("*/*"):
        path.unlink()


class Short(Supervisor):
    """Runs a study in no time, with one outcome after the other."""

    def run_to_end(self):
        self.begun.append(self.study.name)
        self._tell("handed in")
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if isinstance(outcome, Exception):
            raise outcome
        if isinstance(outcome, threading.Event):
            outcome.wait(10)
            self._check_cancelled()
        return self.run


class Process:
    """The process, as a thread."""

    def __init__(self, hub):
        self.stop = threading.Event()
        self._thread = threading.Thread(target=serve, args=(hub, self.stop))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *raised):
        self.stop.set()
        self._thread.join()


def told(run, submission):
    lines = []
    watch(run, submission, lines.append, lambda: True)
    return lines


def test_a_study_is_run_once_by_whoever_submits_it(hub):
    supervisor = Short(hub, STUDY)
    submission = submit(supervisor, "anna")
    assert submit(supervisor, "bert") == submission, "it is watched by both"
    with Process(hub):
        assert told(supervisor.run, submission) == ["submitted by anna", "handed in"]
    assert pending(supervisor.run) is None
    assert Short.begun == ["heart"]
    with Process(hub):
        again = submit(supervisor, "bert")
        assert told(supervisor.run, again)[0] == "submitted by bert"


def test_interrupted_studies_resume_in_the_next_process(hub):
    """The process ended in the middle of a study; nobody submits the study again."""
    supervisor, never = Short(hub, STUDY), threading.Event()
    Short.outcomes = [never]
    submission = submit(supervisor, "anna")
    with Process(hub):
        while not Short.begun:
            pass
    with Process(hub):
        lines = told(supervisor.run, submission)
    never.set()
    assert lines == ["submitted by anna", "handed in", "handed in"]


def test_watchers_learn_why_a_study_failed(hub):
    supervisor = Short(hub, STUDY)
    Short.outcomes = [FederationError("site north has left"), KeyError("x")]
    for said in ("site north has left", "a bug in silvan: KeyError: 'x'"):
        with Process(hub), pytest.raises(FederationError, match=said):
            told(supervisor.run, submit(supervisor, "anna"))
    assert Short.begun == ["heart", "heart"]


def test_a_full_disk_ends_no_study(hub):
    supervisor = Short(hub, STUDY)
    Short.outcomes = [OSError(errno.ENOSPC, "No space left on device")] * 2
    with Process(hub):
        told(supervisor.run, submit(supervisor, "anna"))
    assert len(Short.begun) == 3


def test_who_cancels_a_study_is_on_record(hub):
    supervisor, waits = Short(hub, STUDY), threading.Event()
    assert not cancel(supervisor.run, "bert")
    Short.outcomes = [waits]
    submission = submit(supervisor, "anna")
    with Process(hub):
        assert cancel(supervisor.run, "bert")
        assert cancelled_by(supervisor.run) == "bert"
        waits.set()
        with pytest.raises(FederationError, match="bert cancelled the study; run it again, and it goes on"):
            told(supervisor.run, submission)
        told(supervisor.run, submit(supervisor, "anna"))
    assert not supervisor.run.file(CANCELLED).exists()
    assert not cancel(supervisor.run, "bert")


def test_a_study_waits_for_a_coordinator_that_does_not_run(hub):
    supervisor = Short(hub, STUDY)
    submission, lines = submit(supervisor, "anna"), []
    watching = threading.Thread(target=watch, args=(supervisor.run, submission, lines.append, lambda: False))
    watching.start()
    while not lines:
        pass
    with Process(hub):
        watching.join()
    assert lines[0] == "the study is submitted, and waits: the coordinator does not run (`silvan study start`)"
    assert lines[1:] == ["submitted by anna", "handed in"]


def test_a_cancelled_study_ends_in_the_process_that_finds_it(hub):
    """It was cancelled while the process did not run."""
    supervisor = Supervisor(hub, STUDY)
    supervisor.write_study()
    supervisor.run.file(CANCELLED).write_text("{}")
    with pytest.raises(CancelledError, match="somebody cancelled the study"):
        supervisor._pause(1.0)
