"""Attacks on the making of a release: patients, labels, backdoors."""

import numpy as np
import polars as pl
import pytest
from experiments.audit.backdoors import plant_crude
from helpers.column_studies import ID
from helpers.studies import federate, parts, table

import silvan as sv
from silvan.auditing.backdoor import backdoor_trees, bound, find_trigger, with_backdoor
from silvan.auditing.differencing import difference_sums
from silvan.auditing.release import case_of
from silvan.auditing.site_assignment import assign_patients, bait
from silvan.auditing.vertical_labels import labels_from_partitions


@pytest.fixture(scope="module")
def fed():
    return federate(parts(table(n=400), 4), test=0.4)


@pytest.mark.parametrize("sums", ["trusted", "ring", "masked"])
def test_patients_are_found_in_parts_but_not_in_masked_sums(sums):
    found = assign_patients(federate(parts(table(n=200), 4), sums=sums))
    assert found.undefended == pytest.approx(0.75, abs=0.05)  # all of them, minus one in four
    assert found.value == (found.undefended if sums == "trusted" else 0.0)


@pytest.mark.parametrize("sums", ["trusted", "ring", "masked"])
def test_two_sums_that_differ_by_a_site(sums):
    """All counts of the site can be read if sites remember nothing, and none if they do."""
    found = difference_sums(federate(parts(table(), 4), sums=sums))
    assert found.undefended == 1.0
    assert found.value == 0.0
    assert "one set of sites" in found.note


def test_a_site_that_scores_no_trees_reveals_nothing():
    policy = sv.Policy(messages=["Describe", "CountCategories", "NameCategories", "CountRows"])
    assert "refuse" in assign_patients(federate(parts(table(n=120), 3), policy=policy)).note


def test_a_bait_is_for_one_row(fed):
    part = fed.site("site 0").part(fed.schema)
    for says in (0, 1):
        tree = bait(fed.schema, part.X[5], says)
        assert tree.predict(part.X)[5] == fed.schema.label.classes[says]
    differ = bait(fed.schema, part.X[5], 0).predict(part.X) != bait(fed.schema, part.X[5], 1).predict(part.X)
    assert differ.sum() == 1


def test_auditing_changes_no_records(fed):
    before = fed.rounds, dict(fed.traffic)
    lines = [len(fed.site(name).outbox.ledger) for name in fed.sites]
    assert min(lines) > 0
    assign_patients(fed)
    assert (fed.rounds, dict(fed.traffic)) == before
    assert [len(fed.site(name).outbox.ledger) for name in fed.sites] == lines


def rows_of(fed):
    return case_of(fed, fed.schema, 0).outsiders


def test_a_site_that_may_claim_rows_flips_everything(fed):
    claimed = backdoor_trees(sv.MergedForest(n_estimators=24, max_depth=5, weights="trees"), fed, rows_of(fed))
    assert claimed.value > 0.7
    equal = backdoor_trees(sv.MergedForest(n_estimators=24, max_depth=5), fed, rows_of(fed))
    assert equal.undefended == pytest.approx(claimed.value, abs=0.05)
    assert equal.value < claimed.value - 0.2


def test_tau_gives_crude_trees_no_weight(fed):
    model = sv.BOFRF(n_estimators=6, max_depth=5)
    crude = backdoor_trees(model, fed, rows_of(fed), plant_crude)
    assert "with 0% of the say" in crude.note
    assert crude.value <= 0.03
    stealthy = backdoor_trees(model, fed, rows_of(fed))
    assert "with 2" in stealthy.note  # about a quarter: no score distinguishes such a tree from an honest one
    assert stealthy.value > crude.value


def test_flipped_rows_stay_within_the_bound(fed):
    for model in (sv.MergedForest(n_estimators=24, max_depth=5), sv.BOFRF(n_estimators=6, max_depth=5)):
        finding = backdoor_trees(model, fed, rows_of(fed))
        most = float(finding.note.rsplit("at most ", 1)[1].split("%")[0]) / 100
        assert finding.value <= most + 1e-3


def test_a_backdoor_changes_nothing_without_its_trigger(fed):
    model = sv.MergedForest(n_estimators=8, max_depth=5).fit(fed)
    rows = rows_of(fed)
    trigger = find_trigger(fed, model.forest_, rows)
    doored = with_backdoor(model.forest_, trigger)
    assert np.array_equal(doored.scores(rows.X), model.forest_.scores(rows.X))
    assert (doored.scores(trigger.on(rows.X))[:, trigger.target] == 1.0).all()
    assert bound(model.forest_, doored, trigger, rows)[0] == 1.0


def test_labels_follow_from_partitions_of_small_leaves():
    rng = np.random.default_rng(0)
    n = 200
    X, y = rng.normal(size=(n, 6)), rng.random(n) < 0.5
    ids = {ID: np.arange(n)}
    holder = pl.DataFrame(X[:, :3], schema=list("abc")).with_columns(label=y.astype(int), **ids)
    other = pl.DataFrame(X[:, 3:], schema=list("efg")).with_columns(**ids)
    fed = sv.federate_columns({"holder": holder, "curious": other}, id=ID, label="label", n_jobs=1)
    model = sv.VerticalForest(n_estimators=15, max_depth=12, min_samples_leaf=25)
    finding = labels_from_partitions(model, fed)
    assert finding.undefended > 0.8
    assert finding.value < 0.72
    assert finding.n == n
