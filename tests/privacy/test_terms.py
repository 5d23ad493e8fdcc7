"""The study's text limits all requests: fields are declared, compared, and refused if they differ."""

import random
from contextlib import nullcontext
from dataclasses import replace
from typing import get_type_hints

import numpy as np
import polars as pl
import pytest
from experiments.attacks import agreement, beyond_the_text, local_candidates
from helpers import fuzz_terms
from helpers.asking import schema_blob, send, site, trouble
from sklearn.datasets import load_breast_cancer

import silvan as sv
from silvan.algorithms.shared_bins import CountGrid
from silvan.algorithms.vertical import encrypted_labels
from silvan.data.encode import date_features
from silvan.errors import RefusedError
from silvan.federation.handlers import HANDLERS
from silvan.federation.message import Bound, bounds_of
from silvan.privacy.gate import Gate
from silvan.privacy.policy import Policy
from silvan.study.parse import parse_remote_study
from silvan.study.study_text import text_of


@pytest.mark.parametrize("kind", sorted(HANDLERS))
def test_every_request_field_is_declared(kind):
    request = HANDLERS[kind][0]
    assert [name for name, bound in bounds_of(request).items() if bound is None] == []
    for name, bound in bounds_of(request).items():
        if bound is Bound.EACH:
            assert None not in bounds_of(get_type_hints(request)[name]).values()


def test_without_terms_a_coordinator_reads_beyond_the_text():
    assert min(beyond_the_text.unheld(n=400).values()) > 0  # tests/attacks tries the same with this check on


def test_without_checks_a_coordinator_reads_names_and_cells():
    assert min(agreement.open_to(n=200).values()) > 0  # tests/attacks tries the same with this check on


@pytest.mark.parametrize("between_machines", [True, False])
def test_without_field_checks_local_models_reveal_labels(between_machines):
    """Each reveals how many of some rows have a class; tests/attacks tries the same at sites that check."""
    read, by_columns = local_candidates.unheld(340, 36, between_machines=between_machines)
    assert read >= by_columns + 8


@pytest.mark.parametrize("seed", range(12))
def test_changed_fields_are_refused_and_honest_studies_pass(seed):
    """Random learners on random tables; ``tests/helpers/fuzz_terms.py --n 500`` runs more."""
    outcomes, let_in = fuzz_terms.study(seed)
    assert let_in == []
    assert outcomes["fixed refused"] + outcomes["agreed refused"] > 0


OF_COLUMNS = {
    "encoded": (sv.VerticalForest(n_estimators=3, max_depth=3), 15),
    "encrypted": (sv.VerticalForest(n_estimators=2, max_depth=2, labels="encrypted", key_bits=256), 25),
    "linear": (sv.VerticalLinear(max_iter=3, tol=0.3), 10),
}


@pytest.mark.parametrize("learner", OF_COLUMNS)
def test_a_changed_field_is_refused_by_parties(learner, monkeypatch):
    """The caller of fit holds the coordinator to the learner's parameters, in one process too."""
    monkeypatch.setattr(encrypted_labels, "TESTING", True)
    X, y = load_breast_cancer(return_X_y=True)
    bank = pl.DataFrame(X[:90, :3]).with_columns(person=pl.Series(range(90)), label=pl.Series(y[:90]))
    shop = pl.DataFrame(X[:90, 3:6], schema=["d", "e", "f"]).with_columns(person=pl.Series(range(90)))
    tables = {"bank": bank, "shop": shop}
    transport = fuzz_terms.lying(random.Random(0))  # noqa: S311
    federation = sv.federate_columns(tables, id="person", match="keyed", transport=transport, n_jobs=1)
    model, least = OF_COLUMNS[learner]
    model.fit(federation)
    transport = federation.transport
    assert transport.let_in == []
    assert transport.outcomes["fixed refused"] + transport.outcomes["agreed refused"] >= least


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


EXCLUDING = 'name = "s"\nlabel = "label"\nexclude = {}\n[learner]\nkind = "HistogramForest"\n'


@pytest.mark.parametrize(("excluded", "allowed"), [([], True), (["age"], False)])
def test_a_request_by_a_schema_with_a_column_that_the_study_excludes(excluded, allowed):
    named, data = schema_blob()
    gate = Gate(Policy())
    gate.terms = replace(gate.terms, text=text_of(parse_remote_study(EXCLUDING.format(excluded))))
    reply = send(site(outbox=gate), CountGrid(schema=named), blobs=[data], over=["here"])
    assert (reply.kind == "GridCounts") is allowed
    assert allowed or "does not allow this schema" in trouble(reply).text


@pytest.mark.parametrize("how", ['exclude = ["seen"]', 'split = { by = "seen", test = "last 20%" }'])
def test_parts_of_a_date_that_the_study_leaves_out_are_not_in_its_schema(how):
    text = text_of(parse_remote_study(f'name = "s"\nlabel = "y"\n{how}\n[learner]\nkind = "HistogramForest"\n'))
    for column, allowed in (("seen", False), ("born", True)):
        schema = sv.Schema.of([*date_features(column, ("year", "month"))], sv.Label("y", (0, 1)))
        assert text.allows(schema) is allowed


def test_studies_that_differ_by_one_row_reveal_it():
    """What the documents do not claim to prevent: each study is approved, and its sums are masked."""
    rng, counts = np.random.default_rng(0), []
    rows = {"day": [0, 1, 2, 3, 9] * 8, "y": [0, 1] * 20}
    tables = {f"site {i}": pl.DataFrame({"x": rng.normal(size=40), **rows}) for i in range(3)}
    tables["site 1"][7, "day"] = 8
    for since in (8, 9):
        split = {"by": "day", "test": f"since {since}"}
        federation = sv.federate_rows(tables, label="y", split=split, sums="masked", n_jobs=1)
        counts.append(federation.total(CountGrid(schema=federation.blob(federation.schema.to_json().encode()))))
    label = counts[1].label.astype(np.int64) - counts[0].label.astype(np.int64)
    cells = counts[1].cells.astype(np.int64) - counts[0].cells.astype(np.int64)
    assert label.tolist() == [0, 1], "the label of the one row of day 8"
    assert np.count_nonzero(cells) == 1, "the cell that its value is in"


def leaving_out(federation, *kinds):
    """Leaves the last site out of the sums of some kinds, and returns the results of all sums."""
    total, found = federation.total, {}

    def some(request, over=None, **how):
        over = federation.sites[:-1] if request.kind() in kinds else over
        found[request.kind()] = total(request, over, **how)
        return found[request.kind()]

    federation.total = some
    return found


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("losses", [None, 0])
def test_two_kinds_of_sums_are_over_the_same_sites(losses, held, monkeypatch):
    """Rows at leaves over five sites, labels at the same leaves over four: the difference is the fifth site's.

    If a site may be lost, it cannot know that nobody was.
    """
    X, y = load_breast_cancer(return_X_y=True)
    tables = {f"site {i}": (X[i::5, :4], y[i::5]) for i in range(5)}
    federation = sv.federate_rows(tables, policy=sv.Policy(losses=losses), n_jobs=1)
    found = leaving_out(federation, "CountLeafLabels")
    if not held:  # sites that do not know the text must allow for clusters
        monkeypatch.setattr(sv.MergedForest, "held_to_text", lambda *_, **__: nullcontext())
    model = sv.MergedForest(5, max_depth=1, refit_leaves=True)
    if losses is None:
        model.fit(federation)
        labels, rows = found["CountLeafLabels"].counts.sum(axis=1), found["CountLeafRows"].rows
        assert 0 < rows.sum() - labels.sum() < rows.sum() / 2  # rows of the last site, leaf by leaf
    else:
        with pytest.raises(RefusedError, match="lose 0 sites"):
            model.fit(federation)


def test_a_study_without_clusters_sums_over_all_of_its_sites():
    """Sums that a study with clusters takes over some of the sites: both leave the same site out."""
    X, y = load_breast_cancer(return_X_y=True)
    tables = {f"site {i}": (X[i::5, :4], y[i::5]) for i in range(5)}
    federation = sv.federate_rows(tables, policy=sv.Policy(losses=0), n_jobs=1)
    leaving_out(federation, "CountLeafLabels", "CountLeafRows")
    with pytest.raises(RefusedError, match="lose 0 sites"):
        sv.MergedForest(5, max_depth=1, refit_leaves=True).fit(federation)


def test_all_sums_over_a_cluster_are_over_the_same_sites():
    X, y = load_breast_cancer(return_X_y=True)
    tables = {f"site {i}": (X[i::5, :4], y[i::5]) for i in range(5)}
    model = sv.BOFRF(2, max_depth=2, clusters=2, refit_leaves=True)
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


def test_a_study_with_a_schema_has_no_tables_described():
    text = 'name = "s"\nlabel = "y"\ntask = "regression"\n{}[learner]\nkind = "HistogramForest"\n'
    for schema, allowed in (("", True), ("[schema]\nage = {}\ny = { bounds = [0, 9] }\n", False)):
        fixed = text_of(parse_remote_study(text.format(schema))).fixed_by(None)
        assert fixed["task"]("regression") is allowed
        assert not fixed["task"]("classification")
