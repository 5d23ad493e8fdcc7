"""What a study's text fixes is all that may be asked: fields are declared, compared, and refused if they differ."""

import dataclasses
from contextlib import nullcontext
from typing import Any

import msgspec
import numpy as np
import pytest
from experiments.attacks import beyond_the_text, local_candidates
from sklearn.datasets import load_breast_cancer

import silvan as sv
from silvan.errors import RefusedError
from silvan.federation import wire
from silvan.federation.bound import Bound, bounds_of
from silvan.federation.handlers import HANDLERS
from silvan.federation.in_process import InProcess
from silvan.federation.message import Blob, Envelope
from silvan.study.parse import parse_remote_study
from silvan.study.study_text import text_of
from silvan.tree.objectives import Measure


@pytest.mark.parametrize("kind", sorted(HANDLERS))
def test_every_field_of_a_request_says_what_decides_it(kind):
    assert [name for name, bound in bounds_of(HANDLERS[kind][0]).items() if bound is None] == []


def test_a_coordinator_reads_what_the_text_does_not_say_where_sites_do_not_know_it():
    assert min(beyond_the_text.unheld(n=400).values()) > 0  # tests/attacks tries the same where they do


@pytest.mark.parametrize("between_machines", [True, False])
def test_local_models_reveal_labels_where_sites_do_not_know_the_text(between_machines):
    """Each tells how many of some rows are of a class; tests/attacks tries the same where sites know the text."""
    read, by_columns = local_candidates.unheld(340, 36, between_machines=between_machines)
    assert read >= by_columns + 8


def another(value: Any) -> Any:
    """Return another value of the same type."""
    if value is None or isinstance(value, str):
        return "another"
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
        for field, bound in bounds_of(type(request)).items():
            value = getattr(request, field)
            sent_alone = field in ("candidates", "model") and "LocalModel" not in repr(value)
            if bound is Bound.DERIVED or sent_alone or (envelope.kind, field) in self.changed:
                continue
            try:
                site.outbox.terms.check(site, msgspec.structs.replace(request, **{field: another(value)}))
                self.let_in.append((envelope.kind, field))
            except (RefusedError, KeyError):  # a schema that the site does not have
                self.changed.add((envelope.kind, field))
        return reply


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


def leaving_out(federation, kind):
    """Leave the last site out of the sums of a kind, and return what comes out of all sums."""
    total, found = federation.total, {}

    def some(request, over=None, **how):
        over = federation.sites[:-1] if request.kind() == kind else over
        found[request.kind()] = total(request, over, **how)
        return found[request.kind()]

    federation.total = some
    return found


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("losses", [None, 0])
def test_two_kinds_of_sums_are_over_the_same_sites(losses, held, monkeypatch):
    """Rows at leaves over five sites, labels at the same leaves over four: the difference is the fifth site's.

    Where a site may be lost, it cannot tell that nobody was.
    """
    X, y = load_breast_cancer(return_X_y=True)
    tables = {f"site {i}": (X[i::5, :4], y[i::5]) for i in range(5)}
    federation = sv.federate_rows(tables, policy=sv.Policy(losses=losses), n_jobs=1)
    found = leaving_out(federation, "CountLeafLabels")
    if not held:  # sites that do not know the text must reckon with clusters
        monkeypatch.setattr(sv.MergedForest, "held_to_text", lambda *_, **__: nullcontext())
    model = sv.MergedForest(5, max_depth=1, recount=True)
    if losses is None:
        model.fit(federation)
        labels, rows = found["CountLeafLabels"].counts.sum(axis=1), found["CountLeafRows"].rows
        assert 0 < rows.sum() - labels.sum() < rows.sum() / 2  # rows of the last site, leaf by leaf
    else:
        with pytest.raises(RefusedError, match="lose 0 sites"):
            model.fit(federation)


def test_all_sums_over_a_cluster_are_over_the_same_sites():
    X, y = load_breast_cancer(return_X_y=True)
    tables = {f"site {i}": (X[i::5, :4], y[i::5]) for i in range(5)}
    model = sv.BOFRF(2, max_depth=2, clusters=2, recount=True)
    model.fit(sv.federate_rows(tables, policy=sv.Policy(losses=0), n_jobs=1))
    federation = sv.federate_rows(tables, policy=sv.Policy(losses=0), n_jobs=1)
    total = federation.total

    def some(request, over=None, **how):
        kind = next(iter(request.values())).kind() if isinstance(request, dict) else request.kind()
        if kind == "CountLeafLabels" and len(over or request) > 2:
            over = sorted(over or request)[:-1]
            request = {site: request[site] for site in over} if isinstance(request, dict) else request
        return total(request, over, **how)

    federation.total = some
    with pytest.raises(RefusedError, match="lose 0 sites"):
        model.fit(federation)


def test_parties_hand_over_digests_only_where_the_text_says_so():
    """A coordinator that has digests of ids can try ids; private set intersection is there to prevent that."""
    text = 'name = "s"\nlabel = "y"\nmatch = "{}"\n[learner]\nkind = "VerticalForest"\n'
    for match, allowed in (("psi", False), ("keyed", True)):
        study = parse_remote_study(text.format(match))
        assert text_of(study).fixed_by(None)["digests"] is allowed
