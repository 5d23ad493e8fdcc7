"""What a study's text fixes is all that may be asked: fields are declared, compared, and refused if they differ."""

from typing import ClassVar

import pytest
from experiments.attacks import agreement, beyond_the_text
from helpers import fuzz_terms

import silvan as sv
from silvan.errors import RefusedError
from silvan.federation.bound import bounds_of
from silvan.federation.handlers import HANDLERS
from silvan.federation.message import Envelope, Reply, Total
from silvan.federation.store import MemoryStore
from silvan.privacy.request_sequence import StudyLimits, check_sequence
from silvan.study.parse import parse_remote_study
from silvan.study.study import text_of


@pytest.mark.parametrize("kind", sorted(HANDLERS))
def test_every_field_of_a_request_says_what_decides_it(kind):
    assert [name for name, bound in bounds_of(HANDLERS[kind][0]).items() if bound is None] == []


def test_a_coordinator_reads_what_the_text_does_not_say_where_sites_do_not_know_it():
    assert min(beyond_the_text.unheld(n=400).values()) > 0  # tests/attacks tries the same where they do


def test_a_coordinator_reads_names_and_cells_where_sites_do_not_check_them():
    assert min(agreement.open_to(n=200).values()) > 0  # tests/attacks tries the same where they do


@pytest.mark.parametrize("seed", range(12))
def test_a_changed_field_is_refused_and_an_honest_study_is_not(seed):
    """Random learners on random tables; ``tests/helpers/fuzz_terms.py --n 500`` runs more."""
    outcomes, let_in = fuzz_terms.study(seed)
    assert let_in == []
    assert outcomes["fixed refused"] + outcomes["agreed refused"] > 0


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


def test_a_study_with_a_schema_has_no_tables_described():
    text = 'name = "s"\nlabel = "y"\ntask = "regression"\n{}[learner]\nkind = "HistogramForest"\n'
    for schema, allowed in (("", True), ("[schema]\nage = {}\ny = { bounds = [0, 9] }\n", False)):
        fixed = text_of(parse_remote_study(text.format(schema))).fixed_by(None)
        assert fixed["task"]("regression") is allowed
        assert not fixed["task"]("classification")
