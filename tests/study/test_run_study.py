"""The run sequence of a study: its stages and messages; it depends only on the study and the replies."""

from itertools import groupby

import msgspec
import pytest
from helpers.column_studies import ID, split, wide
from helpers.runs import write_study

from silvan.deploy.studies import trial
from silvan.study.listener import Listener
from silvan.study.parse import parse_remote_study
from silvan.study.run_folder import NotKept, Run
from silvan.study.run_study import run_study
from silvan.study.steps import start_record
from silvan.study.study_file import make_federation, read_study


class Recorder(Listener):
    """Records all events."""

    def __init__(self):
        self.heard, self.kinds = [], []

    def stage(self, name, rounds=0):
        self.heard.append(name)

    def agreed(self, record):
        self.heard.append(f"agreed on {record.features}")

    def trained(self, record):
        self.heard.append(f"trained {record.status}")

    def on(self, event):
        if event.what == "question":
            self.kinds.append(event.kind)

    def sequence(self):
        """The kinds of messages from the announcement on; each run of equal kinds once."""
        return [kind for kind, _ in groupby(self.kinds[self.kinds.index("Announce") :])]


def run(study, run_, journal=None):
    federation, recorder = make_federation(study, journal), Recorder()
    record = run_study(study, federation, run_, start_record(study, "x"), recorder)
    federation.journal.close()
    return record, recorder


def rows(folder, **more):
    return read_study(write_study(folder, **more))


def columns(folder):
    for name, frame in split(wide("binary", n=120), 2).items():
        frame.write_csv(folder / f"{name}.csv")
    names = "\n".join(f'"{name}" = "{name}.csv"' for name in split(wide("binary", n=9), 2))
    learner = '[learner]\nkind = "VerticalForest"\nn_estimators = 3\nmax_depth = 2\n'
    (folder / "study.toml").write_text(f'id = "{ID}"\ntest = 0.3\n[parties]\n{names}\n{learner}')
    return read_study(folder / "study.toml")


@pytest.mark.parametrize("make", [rows, columns])
def test_a_listener_hears_the_stages_in_order(tmp_path, make):
    record, recorder = run(make(tmp_path), Run(tmp_path / "run"))
    agreed = f"agreed on {record.features}"
    assert recorder.heard == ["agreeing on columns", agreed, "training", "trained trained", "evaluating"]
    assert (record.status, Run(tmp_path / "run").read()) == ("done", record)


def test_a_listener_hears_every_split(tmp_path):
    _, recorder = run(rows(tmp_path, more="repeats = 1"), NotKept())
    splits = [f"evaluating, split {number} of 3" for number in (1, 2, 3)]
    assert recorder.heard[-4:] == ["evaluating", *splits]
    assert recorder.kinds.count("EvaluateModels") >= 3 * 3, "messages of splits are heard too"


@pytest.mark.parametrize("kind", ["HistogramForest", "MergedForest", "AutoForest"])
def test_a_trial_and_a_fit_send_the_same_messages(tmp_path, monkeypatch, kind):
    """In the same order: an owner approves what will be requested."""
    learner = f'sampling = "published"\ntest = 0.3\n[learner]\nkind = "{kind}"\n'
    tried = Recorder()

    def listened_to(study, federation, run, record, listener, **more):
        return run_study(study, federation, run, record, tried, **more)

    monkeypatch.setattr(trial, "run_study", listened_to)
    remote = parse_remote_study(f'task = "classification"\n{learner}')
    assert trial.try_out(remote) is not None
    lines = "".join(f"{key} = {str(value).lower()}\n" for key, value in remote.parameters.items())
    path = write_study(tmp_path, kind=kind)
    path.write_text(path.read_text() + lines)
    # between machines sites sign their replies at the end, so that the study can be verified
    assert [*run(read_study(path), NotKept())[1].sequence(), "CloseStudy"] == tried.sequence()


def test_the_replies_of_a_journal_give_the_same_record_without_a_message(tmp_path):
    """All requests follow from the study and the replies: an auditor can run it again."""
    study = rows(tmp_path, kind="AutoForest", more="[evaluation]\nimportance = true\n")
    first, asked = run(study, Run(tmp_path / "run"), tmp_path / "journal.sqlite")
    again, silent = run(study, NotKept(), tmp_path / "journal.sqlite")
    assert asked.kinds
    assert silent.kinds == []
    same = {"made": "", "seconds": 0.0, "models": []}
    assert msgspec.structs.replace(again, **same) == msgspec.structs.replace(first, **same)


def test_a_trial_stores_nothing(tmp_path, monkeypatch):
    study = rows(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    record, _ = run(study, NotKept())
    assert record.evaluation
    assert sorted(tmp_path.rglob("*")) == before
