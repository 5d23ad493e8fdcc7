"""What a study's text fixes is all that may be asked: fields are declared, compared, and refused if they differ."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar, get_type_hints

import msgspec
import numpy as np
import polars as pl
import pytest
from experiments.attacks import beyond_the_text
from sklearn.datasets import load_breast_cancer

import silvan as sv
from silvan.algorithms.vertical import encrypted_labels
from silvan.errors import RefusedError
from silvan.federation import wire
from silvan.federation.bound import Bound, bounds_of
from silvan.federation.handlers import HANDLERS
from silvan.federation.in_process import InProcess
from silvan.federation.message import Blob, Envelope, Reply, Total
from silvan.federation.store import MemoryStore
from silvan.learners.fixed_fields import fixed_for_parties
from silvan.privacy.gate import holding_to
from silvan.privacy.request_sequence import StudyLimits, check_sequence
from silvan.privacy.terms import StudyText
from silvan.study.parse import parse_remote_study
from silvan.study.study_text import text_of
from silvan.tree.objectives import Measure


@pytest.mark.parametrize("kind", sorted(HANDLERS))
def test_every_field_of_a_request_says_what_decides_it(kind):
    request = HANDLERS[kind][0]
    assert [name for name, bound in bounds_of(request).items() if bound is None] == []
    for name, bound in bounds_of(request).items():
        if bound is Bound.EACH:
            assert None not in bounds_of(get_type_hints(request)[name]).values()


def test_a_coordinator_reads_what_the_text_does_not_say_where_sites_do_not_know_it():
    assert min(beyond_the_text.unheld(n=400).values()) > 0  # tests/attacks tries the same where they do


def another(value: Any) -> Any:
    """Return another value of the same type."""
    if value is None or isinstance(value, str):
        return "another"
    if isinstance(value, bytes):
        return value + b"another"
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1000
    if isinstance(value, np.ndarray):
        return value + np.ones((), value.dtype)
    if isinstance(value, Blob):
        return Blob("0" * 64)
    if isinstance(value, list):
        return [another(value[0]), *value[1:]] if value else ["another"]
    if isinstance(value, tuple):
        return (*value, 0)
    if isinstance(value, sv.Label):
        return msgspec.structs.replace(value, name="another")
    if isinstance(value, Measure):
        return msgspec.structs.replace(value, objective="another")
    if dataclasses.is_dataclass(value):
        name = "min_samples_leaf"
        return dataclasses.replace(value, **{name: getattr(value, name) + 1})
    name = next(n for n in ("settings", "boosting", "feature", "n_trees") if hasattr(value, n))
    return msgspec.structs.replace(value, **{name: another(getattr(value, name))})


class Changing(InProcess):
    """Has a site check every request once more with each fixed or agreed field changed."""

    def __init__(self, sites: dict[str, Any], **more: Any) -> None:
        super().__init__(sites, **more)
        self.changed: set[tuple[str, str]] = set()
        self.let_in: list[tuple[str, str]] = []

    def _answer(self, name: str, data: bytes, verb: Any) -> bytes:
        reply, site = super()._answer(name, data, verb), self.local_sites[name]
        envelope = wire.decode(data, Envelope)
        request = wire.decode(envelope.body, HANDLERS[envelope.kind][0])
        if site.outbox.terms.text is None:
            return reply
        for field, change in changes(request):
            sent_alone = field in ("candidates", "model") and "LocalModel" not in repr(getattr(request, field))
            if sent_alone or (envelope.kind, field) in self.changed:
                continue
            try:
                site.outbox.terms.check(site, change())
                self.let_in.append((envelope.kind, field))
            except (RefusedError, KeyError):  # a schema that the site does not have
                self.changed.add((envelope.kind, field))
        return reply


def changes(part: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """List the fields of a request that are fixed or agreed, each with what makes the request with another value."""

    def replaced(field: str, make: Callable[[], Any]) -> Any:
        return msgspec.structs.replace(part, **{field: make()})

    for field, bound in bounds_of(type(part)).items():
        value = getattr(part, field)
        if bound is Bound.EACH:
            yield from ((name, partial(replaced, field, change)) for name, change in changes(value))
        elif bound is not Bound.DERIVED:
            yield field, partial(replaced, field, partial(another, value))


LEARNERS = {
    "histogram": sv.HistogramForest(n_estimators=3, max_depth=3),
    "merged": sv.MergedForest(n_estimators=4, recount=True, class_weight="balanced", threshold="youden"),
    "bofrf": sv.BOFRF(n_estimators=3, personal=True),
    "auto": sv.AutoForest(n_estimators=3, max_depth=3),
    "boppid": sv.BOPPID(n_estimators=3),
    "multboost": sv.MultBoost(n_estimators=2),
}


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_changed_field_is_refused_and_an_honest_study_is_not(learner):
    X, y = load_breast_cancer(return_X_y=True)
    tables = {f"site {i}": (X[i::3, :6], y[i::3]) for i in range(3)}
    federation = sv.federate_rows(tables, test=0.3, transport=Changing, n_jobs=1)
    model = LEARNERS[learner].fit(federation)
    model.evaluate(federation)
    if learner == "histogram":
        model.permutation_importance(federation)
        model.partial_dependence(federation, "x0")
    transport = federation.transport
    assert transport.let_in == []
    assert len(transport.changed) >= 5


OF_COLUMNS = {
    "encoded": (sv.VerticalForest(n_estimators=3, max_depth=3), 15),
    "encrypted": (sv.VerticalForest(n_estimators=2, max_depth=2, labels="encrypted", key_bits=256), 25),
    "linear": (sv.VerticalLinear(max_iter=3, tol=0.3), 10),
}


@pytest.mark.parametrize("learner", OF_COLUMNS)
def test_a_changed_field_is_refused_by_parties(learner, monkeypatch):
    monkeypatch.setattr(encrypted_labels, "TESTING", True)
    X, y = load_breast_cancer(return_X_y=True)
    bank = pl.DataFrame(X[:90, :3]).with_columns(person=pl.Series(range(90)), label=pl.Series(y[:90]))
    shop = pl.DataFrame(X[:90, 3:6], schema=["d", "e", "f"]).with_columns(person=pl.Series(range(90)))
    tables = {"bank": bank, "shop": shop}
    federation = sv.federate_columns(tables, id="person", match="keyed", transport=Changing, n_jobs=1)
    model, least = OF_COLUMNS[learner]
    parameters = model.get_params(deep=False)
    text = StudyText("label", lambda schema: fixed_for_parties(parameters), clusters=True)
    with holding_to(text, federation.local_sites.values()):
        model.fit(federation)
    transport = federation.transport
    assert transport.let_in == []
    assert len(transport.changed) >= least


def test_the_text_of_a_study_gives_the_terms_of_its_learner():
    study = parse_remote_study(
        'name = "s"\nlabel = "y"\n[learner]\nkind = "HistogramForest"\nn_estimators = 7\nbootstrap = false\n'
    )
    schema = sv.Schema.of([sv.Feature("age", bounds=(0, 100))], sv.Label("y", (0, 1)))
    fixed = text_of(study).fixed_by(schema)
    assert fixed["n_trees"](7)
    assert not fixed["n_trees"](8)
    assert fixed["bootstrap"] is False
    assert fixed["study"] == study.unique_name
    assert text_of(study).allows(schema)
    assert not text_of(study).allows(sv.Schema.of([sv.Feature("age")], sv.Label("z", (0, 1))))


class LeafRows(Total[Reply], frozen=True, kw_only=True):
    """A sum that a study with clusters may ask of some sites."""

    some_sites: ClassVar[bool] = True


class LeafLabels(LeafRows, frozen=True, kw_only=True):
    """Another."""


@pytest.mark.parametrize("clusters", [True, False])
def test_two_kinds_of_sums_are_over_the_same_sites(clusters):
    """Rows at leaves over five sites, labels at the same leaves over four: the difference is the fifth site's."""
    sites, store = [f"site {i}" for i in range(5)], MemoryStore()
    limits = StudyLimits(losses=0, sites=frozenset(sites), clusters=clusters)

    def ask(request, over):
        envelope = Envelope("study", "question", "coordinator", request.kind(), b"", over=over, task="a model")
        checked = check_sequence("site 0", store, envelope, request, None, draws=None, limits=limits)
        store.put_all(checked.changes)

    ask(LeafRows(), sites)
    if clusters:  # a study with clusters has to live with it: nobody else knows which sites are in one
        ask(LeafLabels(), sites[:4])
    else:
        with pytest.raises(RefusedError, match="lose 0 sites"):
            ask(LeafLabels(), sites[:4])


def test_parties_hand_over_digests_only_where_the_text_says_so():
    """A coordinator that has digests of ids can try ids; private set intersection is there to prevent that."""
    text = 'name = "s"\nlabel = "y"\nmatch = "{}"\n[learner]\nkind = "VerticalForest"\n'
    for match, allowed in (("psi", False), ("keyed", True)):
        study = parse_remote_study(text.format(match))
        assert text_of(study).fixed_by(None)["digests"] is allowed
