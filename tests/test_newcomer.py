"""A newcomer's additions are declared in one place: a metric, a key, a learner."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated

import numpy as np
import pytest
from msgspec import Meta

import silvan as sv
from silvan import metrics
from silvan.algorithms.evaluation.evaluation import evaluate_answers
from silvan.algorithms.evaluation.score_groups import Answer
from silvan.learners.evaluation_frame import metrics_frame
from silvan.learners.registry import LEARNERS, PooledForestParameters, learner
from silvan.study import parse
from silvan.study.sections import Text
from silvan.study.steps import start_record
from silvan.study.study import Study
from silvan.study.study_file import make_learner, read_study
from silvan.util.declared import about

ROOT = Path(__file__).parent.parent
SITES = '[sites]\na = "a.csv"\n'


@pytest.fixture
def reference(monkeypatch):
    """The tool that writes the reference of keys and learners."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    import write_study_reference

    return write_study_reference


def written(folder, text):
    (folder / "a.csv").write_text("x,label\n1,0\n2,1\n")
    (folder / "s.toml").write_text(text)
    return folder / "s.toml"


def test_a_metric_is_one_entry(monkeypatch):
    toy = metrics.Metric("toy", "Toy", "a metric of a newcomer", ("two",), lambda e: 0.25, averages=True)
    monkeypatch.setattr(metrics, "METRICS", (*metrics.METRICS, toy))
    monkeypatch.setitem(metrics.BY_KEY, "toy", toy)
    schema, y = sv.Schema.of(["x"], sv.Label("label", (0, 1))), np.arange(40) % 2
    scores = np.random.default_rng(0).dirichlet([1, 1], len(y))
    rows = evaluate_answers(schema, "a", {"local": Answer(scores, scores.argmax(axis=1))}, y, np.zeros(2, np.uint64))
    assert metrics_frame(rows)["toy"].to_list() == [0.25]


@pytest.mark.parametrize("key", ["pr_auc", "mcc", "brier", "mae"])
def test_a_metric_is_named_in_one_file(key):
    named = [path.name for path in (ROOT / "src").rglob("*.py") if f'"{key}"' in path.read_text()]
    assert named == ["metrics.py"]


class StudyWithContact(Study, frozen=True, kw_only=True):
    """A study with one more key.

    Parameters
    ----------
    contact
        whom to ask
    """

    contact: Annotated[Text | None, about(default="nobody")] = None


def test_a_key_is_one_field(tmp_path, monkeypatch, reference):
    monkeypatch.setattr(parse, "Study", StudyWithContact)
    monkeypatch.setattr(reference, "Study", StudyWithContact)
    study = read_study(written(tmp_path, f'contact = "Ada"\n{SITES}'))
    assert study.contact == "Ada"
    assert start_record(study, "").study["contact"] == "Ada"  # the report shows all of its settings
    assert "| `contact` | nobody | whom to ask |" in reference.of_study(machines=False)
    with pytest.raises(
        sv.InputError, match=r"s.toml:1: contact must be text that is not empty.*\n.*did you mean 'cont"
    ):
        read_study(written(tmp_path, f'contact = ""\ncontcat = "Ada"\n{SITES}'))


def test_a_learner_is_its_file_and_a_class_in_the_registry(tmp_path, monkeypatch, reference):
    module = ModuleType("silvan.learners.toy")
    monkeypatch.setitem(sys.modules, "silvan.learners.toy", module)
    monkeypatch.setitem(LEARNERS, "ToyForest", None)

    @learner("toy", "A. Newcomer: Toys. 2026.")
    class ToyForestParameters(PooledForestParameters):
        """Of a toy.

        Parameters
        ----------
        patience
            How long to wait.
        """

        patience: Annotated[int, Meta(ge=1)] = 3

    class ToyForest(ToyForestParameters, sv.PooledForest):
        """A toy."""

    module.ToyForest = ToyForest
    assert "patience\n    How long to wait." in ToyForest.__doc__
    assert LEARNERS["ToyForest"].papers == ("A. Newcomer: Toys. 2026.",)
    assert "::: silvan.ToyForest\n" in reference.render((ROOT / "docs/api.md").read_text())
    assert "| `patience` | `3` | How long to wait. |" in reference.of_learners()
    study = read_study(written(tmp_path, f'{SITES}[learner]\nkind = "ToyForest"\npatience = 5\nn_estimators = 2\n'))
    model = make_learner(study, None)
    assert (type(model), model.patience) == (ToyForest, 5)
    with pytest.raises(sv.InputError, match="patience must be a whole number of at least 1, got 0"):
        read_study(written(tmp_path, f'{SITES}[learner]\nkind = "ToyForest"\npatience = 0\n'))


def test_learners_are_public_and_documented(reference):
    page = (ROOT / "docs/api.md").read_text()
    assert set(LEARNERS) <= set(sv.__all__)
    assert page == reference.render(page)
