"""Changes between the approval and the end of a study: each fits the study's terms, or ends with one sentence."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from experiments.verification.deviations import dropped_site
from experiments.verification.studies import (
    HISTOGRAM,
    LINEAR,
    MERGED,
    VERTICAL,
    OutOfSight,
    carry_out,
    make_federation,
    sites_of,
    study_of,
)

from silvan.errors import FederationError, InputError, SilvanError
from silvan.federation import wire
from silvan.federation.keys import Key, Roster
from silvan.federation.message import Envelope
from silvan.federation.signed import SignedMessage
from silvan.privacy.aggregation.masked_site import MaskedPart
from silvan.study.parse import parse_remote_study, predicting
from silvan.study.study_text import text_of
from silvan.study.verify import verify_study

STUDY = study_of(HISTOGRAM)


def refused(study, folder, federation, said):
    with pytest.raises(SilvanError) as raised:
        carry_out(study, folder, federation)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


# -- a text that two sites read differently

OTHER_TEXTS = {
    "fewer trees": (HISTOGRAM.replace("n_estimators = 2", "n_estimators = 1"), "", "n_trees of GrowLevel"),
    "more bins": (HISTOGRAM + "\nmax_bins = 17", "", "max_bins of CountFine"),
    "no bootstrap": (HISTOGRAM + "\nbootstrap = false", "", "bootstrap of GrowLevel"),
    "another learner": (
        'kind = "MergedForest"\nn_estimators = 2\nmax_depth = 2',
        'label = "sex"',
        "columns of ListColumns",
    ),
    "a number to predict": (HISTOGRAM, 'task = "regression"', "task of Describe"),
    "another positive class": (HISTOGRAM, 'positive = "no"', "does not allow this schema"),
    "a column left out": (HISTOGRAM, 'exclude = ["sex"]', "columns of ListColumns"),
    "a split by a column": (HISTOGRAM, 'split = { by = "dose", test = "since 4" }', "columns of ListColumns"),
}


@pytest.mark.parametrize("other", OTHER_TEXTS)
def test_a_site_that_reads_another_text_refuses(tmp_path, other):
    learner, more, said = OTHER_TEXTS[other]
    text = f'auditor = "Ada"\n{more}\n[learner]\n{learner}\n'
    theirs = parse_remote_study(text if "split" in more else f"test = 0.3\n{text}")
    federation = make_federation(STUDY, tmp_path)
    gate = sites_of(federation)["site 1"].outbox
    gate.terms = replace(gate.terms, text=text_of(theirs, STUDY.unique_name))
    refused(STUDY, tmp_path, federation, said)


def test_a_site_with_another_text_has_another_study(tmp_path):
    federation = make_federation(STUDY, tmp_path)
    gate = sites_of(federation)["site 1"].outbox
    gate.terms = replace(gate.terms, study=study_of(MERGED).unique_name)
    refused(STUDY, tmp_path, federation, "site 'site 1' refused Describe: the site is at work on another study")


@pytest.mark.parametrize(
    ("sites", "said"),
    [
        (["site 0", "site 1"], "the sum has sites that are not in the study"),
        (["site 0", "site 1", "site 2", "site 3"], "lets a study lose 0 sites"),
    ],
)
def test_a_site_that_knows_other_sites_refuses(tmp_path, sites, said):
    federation = make_federation(STUDY, tmp_path)
    gate = sites_of(federation)["site 1"].outbox
    gate.terms = replace(gate.terms, sites=sites)
    refused(STUDY, tmp_path, federation, said)


# -- keys that change


@pytest.mark.parametrize("sums", ["trusted", "masked"])
@pytest.mark.parametrize(
    ("whose", "said"),
    [
        ("coordinator", "site 'site 1': did not answer Describe"),
        ("sites", "refused NoteColumns: what another site made was changed on its way, or is not of this study"),
    ],
)
def test_a_site_that_knows_another_by_another_key_refuses(tmp_path, whose, said, sums):
    study = study_of(HISTOGRAM, f'sums = "{sums}"')
    federation = make_federation(study, tmp_path)
    signer = sites_of(federation)["site 1"].signer
    known = {name: getattr(signer.roster, name) for name in ("coordinator", "sites", "seals")}
    other = Key.generate().public
    signer.roster = Roster(**known | {whose: other if whose == "coordinator" else {**known[whose], "site 2": other}})
    refused(study, tmp_path, federation, said)


@pytest.mark.parametrize("sums", ["trusted", "masked"])
def test_a_site_that_knows_another_by_a_false_key_makes_no_sums(tmp_path, sums):
    """The key for proofs comes sealed from the first site, and masks of sites that share no key do not cancel."""
    study = study_of(HISTOGRAM, f'sums = "{sums}"')
    federation = make_federation(study, tmp_path)
    site = sites_of(federation)["site 1"]
    seals = {**site.signer.roster.seals, "site 0": Key.generate().public}
    site.signer.roster = Roster(site.signer.roster.coordinator, site.signer.roster.sites, seals)
    if sums == "masked":
        site.secure_sum = MaskedPart(seals)
    refused(study, tmp_path, federation, "was changed on its way, or belongs elsewhere")


# -- a study that is resumed, and a restarted site


def test_restarted_sites_enforce_the_same_terms(tmp_path):
    federation = make_federation(STUDY, tmp_path, transport=partial(OutOfSight, cold=True))
    carry_out(STUDY, tmp_path, federation)
    assert verify_study(tmp_path).sentence == "sums and decisions verified by Ada"


# -- a lost site


def losing(federation, site, kind):
    """Makes a site fail at its first request of a kind."""
    honest, gone = federation.transport.deliver, []

    def deliver(messages, verb, timeout):
        envelope = wire.decode(wire.decode(next(iter(messages.values())), SignedMessage).body, Envelope)
        gone.extend([site] * (envelope.kind == kind))
        yield from honest({name: data for name, data in messages.items() if name not in gone}, verb, timeout)

    federation.transport.deliver = deliver


@pytest.mark.parametrize("quorum", [None, 2])
def test_a_lost_site(tmp_path, quorum):
    study = study_of(HISTOGRAM, "" if quorum is None else f"quorum = {quorum}")
    federation = make_federation(study, tmp_path)
    losing(federation, "site 2", "GrowLevel")
    if quorum is None:
        refused(study, tmp_path, federation, "site 2")
        return
    carry_out(study, tmp_path, federation)
    found = verify_study(tmp_path)
    assert found.passed
    assert found.sentence.endswith("but for 1 sum: GrowLevel of round 3 is not verified (site 'site 2' was lost)")


def test_more_sites_lost_than_the_text_allows_are_named(tmp_path):
    """The coordinator's own program continues with two of three sites; the sites' lists of sums do not reveal it."""
    study = parse_remote_study(f'auditor = "Ada"\nexclude = ["sex"]\n[learner]\n{MERGED}\nrefit_leaves = false\n')
    federation = make_federation(study, tmp_path, exclude=["sex"], quorum=2)
    losing(federation, "site 2", "GrowTrees")
    carry_out(study, tmp_path, federation)
    assert any("left out, which the study does not allow" in text for text in verify_study(tmp_path).deviations)


@pytest.mark.parametrize(("learner", "seed"), [(VERTICAL, 2), (VERTICAL, 7), (VERTICAL, 12), (LINEAR, 12)])
def test_a_party_that_a_coordinator_leaves_out_ends_a_vertical_study(tmp_path, learner, seed):
    """At the agreement, at the roots, and later: without a quorum nobody may be lost, whoever says so."""
    study = study_of(learner)
    federation = make_federation(study, tmp_path)
    told = dropped_site(federation, np.random.default_rng(seed))
    with pytest.raises(FederationError, match=r"party \d' did not answer; without a quorum a study needs all"):
        carry_out(study, tmp_path, federation)
    assert told() is not None


# -- predictions of new rows


def test_a_prediction_trains_nothing():
    study = predicting(study_of(VERTICAL), "0" * 64, 1)
    assert {"settings", "turned"} <= text_of(study_of(VERTICAL)).fixed_by(None).keys()
    assert text_of(study).fixed_by(None).keys().isdisjoint({"settings", "turned", "key_bits", "alpha", "tol"})


def test_a_prediction_of_new_rows_is_not_verified(tmp_path):
    study = study_of(HISTOGRAM)
    carry_out(study, tmp_path)
    (tmp_path / "study.toml").write_text(predicting(study_of(VERTICAL), "0" * 64, 1).text)
    with pytest.raises(InputError, match="predictions of new rows are not verified"):
        verify_study(tmp_path)
