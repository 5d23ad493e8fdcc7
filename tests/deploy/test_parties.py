"""Studies over columns between machines, with real folders and the real job classes; only FLARE is left out."""

import re

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'silvan[flare]' to test jobs")

from helpers import parties
from helpers.carried_jobs import run_job
from helpers.column_studies import ID
from helpers.joining import make_hub, serving
from helpers.parties import HOLDER, PARTIES, in_process, load_with_shares, read_predictions, set_up, study

from silvan.algorithms.vertical import encrypted_labels
from silvan.deploy.jobs.site_job import make_site
from silvan.deploy.membership.joined_site import JoinedSite
from silvan.deploy.studies import explain as explaining
from silvan.deploy.studies.explain import approve_study, explain
from silvan.deploy.studies.new_rows import next_prediction, what_was_predicted
from silvan.deploy.studies.send_results import read_results
from silvan.errors import FederationError, InputError, RefusedError
from silvan.federation import wire
from silvan.federation.flare import AbortedError
from silvan.federation.message import Envelope
from silvan.privacy.identity.identity import Introduce, introduce
from silvan.privacy.policy import PolicyBetweenMachines
from silvan.report.summary import summarise
from silvan.study.parse import predicting
from silvan.study.run_folder import REPORT

SMALL = {"n_estimators": 4, "max_depth": 3}


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    """A coordinator's folder and those of three parties."""
    folder = tmp_path_factory.mktemp("joined")
    hub, paths = make_hub(folder, PARTIES), parties.write_tables(folder / "tables", parties.tables())
    new = parties.write_tables(folder / "new", parties.tables(n=40, seed=9, label=False))
    with serving(hub):
        members = {
            party: JoinedSite.join(folder / party, hub.invite(party), paths[party], None, {}) for party in PARTIES
        }
        for member in members.values():
            member.pin_roster()
    for party, member in members.items():
        set_up(member, paths[party], new[party])
    return hub, members, paths, new


TRIED = {}


@pytest.fixture(autouse=True)
def _tried_once(monkeypatch):
    """Runs the trial for the first party that sees the study: the others would see the same."""
    try_out = explaining.try_out

    def once(plan, n_sites):
        if (plan.unique_name, n_sites) not in TRIED:
            TRIED[plan.unique_name, n_sites] = try_out(plan, n_sites)
        return TRIED[plan.unique_name, n_sites]

    monkeypatch.setattr(explaining, "try_out", once)


@pytest.fixture
def run_study(joined):
    """Runs a study as the server's job does; returns the run and all messages."""
    hub, members, *_ = joined
    return lambda plan, stop_after=None: run_job(hub, members, plan, stop_after)


STUDIES = {
    "forest": study("forest", **SMALL),
    "votes": study("votes", vote="hard", **SMALL),
    "linear": study("linear", "VerticalLinear", 'sums = "masked"'),
    "encrypted": study("encrypted", labels="encrypted", key_bits=256, **SMALL),
}


def check_shown(members, plan):
    """Checks that all requests to parties are in the text that their owners approve, and in the announcement."""
    answered = set()
    for member in members.values():
        lines = [line for line in JoinedSite(member.path).folder.ledger.lines() if line.study == plan.unique_name]
        lines = [line for line in lines if line.outcome != "decided"]
        explained, asked = explain(JoinedSite(member.path), plan), {line.kind for line in lines}
        assert asked <= {kind.name for kind in explained.leaves} == set(explained.asked.messages)
        assert len({line.task for line in lines if line.task}) <= explained.asked.tasks
        assert next(line.kind for line in lines if line.kind != "CompareLedgers") == "Announce"
        answered |= asked
    return answered


@pytest.mark.parametrize("name", STUDIES)
def test_the_same_model_as_in_one_process_and_predictions_that_stay(joined, run_study, monkeypatch, name):
    """Killed parties resume; new ids are scored by shares that never left, and the label holder keeps the scores."""
    hub, members, *_ = joined
    plan = STUDIES[name]
    if name == "encrypted":
        pytest.importorskip("gmpy2", reason="gmpy2 is not installed: pip install 'silvan[vertical]'")
        monkeypatch.setattr(encrypted_labels, "TESTING", True)
    with pytest.raises(AbortedError):
        run_study(plan, stop_after=30)
    run, _ = run_study(plan)
    record = run.read()
    model, fed = in_process(parties.tables(), plan, sums=plan.sums, policy=PolicyBetweenMachines())
    found = load_with_shares(run, plan, members)
    if name == "linear":
        assert all(
            np.array_equal(found.shares_[party].coefficients, model.shares_[party].coefficients) for party in PARTIES
        )
    else:
        assert found.forest_.hash == model.forest_.hash
        assert record.models[0].trees == len(model.forest_)
    (figures,) = record.evaluation
    alone = {row["model"]: row for row in model.evaluate(fed).filter(site="all").to_dicts()}["federated"]
    assert figures.metrics == pytest.approx({key: alone[key] for key in figures.metrics})
    assert (record.status, record.by, run.file(REPORT).exists()) == ("done", "columns", True)
    assert {site.test_rows for site in record.sites} == {int(fed.columns.held_out.sum())}
    assert summarise(record)["by"] == "columns"
    assert record.received == list(PARTIES)
    shown = check_shown(members, plan)
    assert "Announce" in shown
    for party, member in members.items():  # only the label holder receives metrics
        own = JoinedSite(member.path)
        kept = read_results(own, plan)
        assert (kept.record.evaluation, kept.model) == (record.evaluation if party == HOLDER else [], None)
        assert list(kept.record.bytes) == [party]

    asked = next_prediction(hub, plan)
    run, _ = run_study(asked)
    check_shown(members, asked)
    new = in_process(parties.tables(n=40, seed=9, label=False))
    expected = model.predict_proba(new)
    decided = dict(model.predict(new).iter_rows())
    kept = read_predictions(members[HOLDER])
    assert set(kept) == set(expected[ID].to_list())
    for row in expected.iter_rows(named=True):
        line = kept[row[ID]]
        assert line["prediction"] == decided[row[ID]]
        assert float(line["probability_yes"]) == pytest.approx(row["yes"], abs=1e-5)
    assert what_was_predicted(hub, asked)[0] == len(kept)
    assert not any((members[party].path / "predictions").exists() for party in PARTIES if party != HOLDER)
    assert next_prediction(hub, plan).predict.number == 2
    for path in (members[HOLDER].path / "predictions").iterdir():
        path.unlink()


def test_messages_and_files_contain_no_names_of_columns_or_categories(run_study):
    plan = study("names", **SMALL)
    run, carrier = run_study(plan)
    names = {name for table in parties.tables().values() for name in table.columns} - {"label", ID, "client"}
    words = [*names, "green", "yes", "client"]
    files = [path for path in run.folder.rglob("*") if path.suffix in (".json", ".silvan", ".csv")]
    texts = [*carrier.carried, *(path.read_bytes() for path in files)]
    assert len(names) == 9
    for word in words:
        pattern = re.compile(rb"(?<![A-Za-z])" + word.encode() + rb"(?![A-Za-z])")
        assert not any(pattern.search(text) for text in texts), word


def test_every_study_has_its_own_keys(run_study):
    """Digests do not let the coordinator link a person between two studies."""
    plans = [study("one", **SMALL), study("two", **SMALL)]
    carriers = [run_study(plan)[1] for plan in plans]
    for party in PARTIES:
        digests = [carrier.sites[party].site.key for carrier in carriers]
        secrets = [carrier.sites[party].site.secret for carrier in carriers]
        assert digests[0] != digests[1]
        assert secrets[0] != secrets[1]
    one, two = (carrier.sites["shop"].site for carrier in carriers)
    assert one.key == carriers[0].sites["bank"].site.key
    with pytest.raises(RefusedError, match="another study"):
        two.check_study(plans[0].unique_name)


def test_predictions_use_the_approved_model(joined, run_study):
    hub, members, *_ = joined
    plans = [study("first", **SMALL), study("second", **SMALL, min_samples_leaf=3)]
    for plan in plans:
        run_study(plan)
    asked, other = (next_prediction(hub, plan) for plan in plans)
    site = make_site(JoinedSite(members["shop"].path), asked)
    site.check_model(asked.predict.model)
    with pytest.raises(RefusedError, match="another model"):
        site.check_model(other.predict.model)


def test_what_the_owner_reads(joined):
    """Partitions, who sees what, and exactly the messages that are then requested."""
    _, members, *_ = joined
    shop = JoinedSite(members["shop"].path)
    shown = explain(shop, STUDIES["forest"])
    text = " ".join(shown.lines)
    assert "Partitions: at each split, who goes left is disclosed to all parties and to the coordinator" in text
    assert "partitions then tell which rows share a label" in text
    assert "bank, lab, shop all have" in text
    assert "names stay with you" in text
    assert "does not name the party that holds the label" in text
    named = study("named", more='label_holder = "bank"\n', **SMALL)
    assert "The label is held by bank" in " ".join(explain(shop, named).lines)
    safe = " ".join(explain(shop, study("safe", **SMALL, min_samples_leaf=20)).lines)
    assert "partitions then tell" not in safe
    asked = explain(shop, predicting(STUDIES["forest"], "0" * 64, 1))
    assert "Predicts 'label' with model 000000000000" in asked.lines[0]
    assert {kind.name for kind in asked.leaves} == {
        "Announce",
        "CompareLedgers",
        "DealKey",
        "TakeKey",
        "Introduce",
        "HideIds",
        "HideTwice",
        "Intersect",
        "ReachLeaves",
        "KeepPredictions",
    }


def test_a_party_that_would_refuse_does_so_before_anything_is_asked(joined, run_study):
    _, members, paths, new = joined
    plan = study("large leaves", **SMALL)
    try:
        set_up(members["shop"], paths["shop"], new["shop"], "min_leaf = 30")
        with pytest.raises(RefusedError, match=r"'shop' refused this before anything was asked: .*at least 30 rows"):
            run_study(plan)
    finally:
        set_up(members["shop"], paths["shop"], new["shop"])
    for member in members.values():
        lines = JoinedSite(member.path).folder.ledger.lines()
        assert {line.kind for line in lines if line.study == plan.unique_name} == {"Announce", "CompareLedgers"}


def test_exactly_the_approved_requests_occur(joined, run_study):
    _, members, paths, new = joined
    plan = study("approved", **SMALL)
    try:
        for party in PARTIES:
            set_up(members[party], paths[party], new[party], "approve = true")
            approve_study(JoinedSite(members[party].path), plan)
        _, carrier = run_study(plan)
    finally:
        for party in PARTIES:
            set_up(members[party], paths[party], new[party])
    asked = {wire.decode(body, Envelope).kind for body in carrier.carried[::2]}
    approved = set(JoinedSite(members["shop"].path).folder.approvals.find(plan.unique_name).messages)
    assert asked == approved


@pytest.mark.parametrize(
    ("more", "said"),
    [({"id": None}, "names no column of ids"), ({"memory": "1GB"}, "limits memory")],
)
def test_a_site_that_cannot_be_a_party_says_why(joined, more, said):
    _, members, paths, _ = joined
    shop = members["shop"]
    try:
        set_up(shop, paths["shop"], **more)
        with pytest.raises(FederationError, match=said):
            make_site(JoinedSite(shop.path), STUDIES["forest"])
    finally:
        set_up(shop, paths["shop"], joined[3]["shop"])


@pytest.mark.parametrize(
    ("party", "holder", "said"),
    [
        ("bank", "bank", ""),
        ("shop", "bank", ""),
        ("bank", "shop", "this table has it too: exclude the column"),
        ("shop", "shop", "this table lacks it"),
    ],
)
def test_the_party_that_the_text_names_holds_the_label(joined, party, holder, said):
    """For labels themselves see tests/attacks/test_vertical_attacks.py."""
    made = make_site(JoinedSite(joined[1][party].path), study("held", more=f'label_holder = "{holder}"\n', **SMALL))
    with pytest.raises(RefusedError, match=said or "have not agreed on a key"):
        introduce(made, Introduce())


def test_a_model_is_needed(joined):
    with pytest.raises(InputError, match="has no model yet"):
        next_prediction(joined[0], study("nothing", **SMALL))
