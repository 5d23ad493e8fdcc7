"""Verification of studies: honest ones pass, of any kind, and each deviation is found and named."""

import shutil

import msgspec
import numpy as np
import pytest
from experiments.verification.deviations import AFTERWARDS, DURING, other_value
from experiments.verification.studies import (
    HISTOGRAM,
    LINEAR,
    MERGED,
    NOISY,
    SCHEMA,
    VERTICAL,
    carry_out,
    make_federation,
    study_of,
)
from typer.testing import CliRunner

from silvan.algorithms import shared_bins
from silvan.algorithms.horizontal import histogram_forest
from silvan.cli.study_command import app
from silvan.errors import InputError, SilvanError
from silvan.federation import wire
from silvan.federation.journal import Journal
from silvan.federation.keys import Key, Roster
from silvan.privacy.ledger_heads import compare_ledgers
from silvan.study import verify
from silvan.study.parse import parse_remote_study
from silvan.study.run_folder import JOURNAL, Record, Run
from silvan.study.verify import OF_THE_RUN, note_verification, verify_study

HONEST = {
    "trusted": study_of(HISTOGRAM),
    "ring": study_of(HISTOGRAM, 'sums = "ring"'),
    "masked": study_of(HISTOGRAM, 'sums = "masked"'),
    "published": study_of(HISTOGRAM, 'sampling = "published"'),
    "merged": study_of(MERGED),
    "noise": study_of(NOISY, 'sums = "masked"', f"[evaluation]\nepsilon = 1.0\n{SCHEMA}"),
    "columns": study_of(VERTICAL),
    "linear": study_of(LINEAR, 'sums = "masked"'),
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_study_is_verified(tmp_path, name):
    record = carry_out(HONEST[name], tmp_path)
    found = verify_study(tmp_path)
    assert (found.deviations, found.unverified, found.passed) == ([], [], True)
    assert found.sums >= (0 if name == "columns" else 2)
    assert record.verification == "sums verified, decisions not verified; Ada verifies both"
    note_verification(tmp_path, found)
    assert Run(tmp_path).read().verification == "sums and decisions verified by Ada"


def test_what_is_asked_of_ledgers_is_no_part_of_a_study(tmp_path):
    """A coordinator asks for their heads as often as it is started: no study says so, and none deviates by it."""
    study = HONEST["trusted"]
    fed = make_federation(study, tmp_path, ledgers=str(tmp_path / "sites"))
    assert compare_ledgers(fed, {}).keys() == set(fed.sites)
    carry_out(study, tmp_path, fed)
    assert verify_study(tmp_path).sentence == "sums and decisions verified by Ada"


def test_without_an_auditor_decisions_are_not_verified(tmp_path):
    study = msgspec.structs.replace(HONEST["trusted"], auditor=None)
    assert carry_out(study, tmp_path).verification == "sums verified, decisions not verified"


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("honest")
    carry_out(HONEST["trusted"], folder)
    return folder


# -- deviations


def test_a_single_count_is_named(tmp_path):
    """The coordinator continues with a count increased by one: its journal is consistent with its requests."""
    fed = make_federation(HONEST["trusted"], tmp_path)
    honest_total, kind = fed.sums.total, "GrowLevel"

    def total(federation, question):
        reply, traffic = honest_total(federation, question)
        if question.kind.__name__ == kind and federation.questions[-1].round == 4:
            reply.sums[7] += 1
        return reply, traffic

    fed.sums.total = total
    record = carry_out(HONEST["trusted"], tmp_path, fed)
    assert "not the sum of what the sites answered" in record.verification, "its own check says so as well"
    assert verify_study(tmp_path).deviations == ["GrowLevel of round 4 is not the sum of what the sites answered"]


def test_a_swapped_split_is_named(tmp_path, monkeypatch):
    """The coordinator splits a node differently from what the sums say."""
    honest_choice = histogram_forest.choose_level

    def choose(*given, **named):
        splits = honest_choice(*given, **named)
        splits.missing_left[0] = not splits.missing_left[0]
        return splits

    with monkeypatch.context() as patched:
        patched.setattr(histogram_forest, "choose_level", choose)
        carry_out(HONEST["trusted"], tmp_path)
    assert verify_study(tmp_path).deviations == [
        "GrowLevel of round 4 was asked with other contents than follow from the study and its sums (at 'site 0', "
        "'site 1', 'site 2')"
    ]


def test_another_cut_point_is_named(tmp_path, monkeypatch):
    honest_bins = shared_bins._bins_from_counts

    def bins(*given, **named):
        made = honest_bins(*given, **named)
        made.cuts[0][0] -= np.float32(0.25)
        return made

    with monkeypatch.context() as patched:
        patched.setattr(shared_bins, "_bins_from_counts", bins)
        carry_out(HONEST["trusted"], tmp_path)
    deviations = verify_study(tmp_path).deviations
    assert len(deviations) == 1
    assert deviations[0].startswith("GrowLevel of round 3 was asked with other contents")


def test_another_version_is_no_attack(honest, monkeypatch):
    """Versions are compared first, and nothing else is reported."""
    monkeypatch.setattr(verify, "version", lambda name: "99.0")
    found = verify_study(honest)
    assert (found.passed, found.deviations) == (False, [])
    assert found.sentence.startswith("not verified: the coordinator ran silvan")
    assert "this is silvan 99.0; nothing was compared" in found.sentence


def test_a_statement_by_another_key(honest):
    """The author of a run folder wrote its roster: an auditor with independent keys uses those."""
    roster = Roster.load(honest / "roster.json")
    other = Roster(roster.coordinator, {**roster.sites, "site 1": Key.generate().public}, roster.seals)
    found = verify_study(honest, other)
    assert "the statement of site 'site 1' is not signed by it, or was changed" in found.deviations


def test_an_unclosed_study(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("silvan.study.steps.close", lambda *given: None)
        carry_out(HONEST["trusted"], tmp_path)
    assert "there is no statement of 'site 0', 'site 1', 'site 2'" in verify_study(tmp_path).sentence


def test_a_site_that_was_left_out_from_the_beginning_is_named(tmp_path):
    """No sum reveals it: sites are asked one by one for merged trees."""
    study = parse_remote_study(f'auditor = "Ada"\nexclude = ["sex"]\n[learner]\n{MERGED}\nrefit_leaves = false\n')
    fed = make_federation(study, tmp_path, exclude=["sex"])
    DURING["a site that is never named"](fed, np.random.default_rng(0))
    carry_out(study, tmp_path, fed)
    assert (
        "site 'site 0' took part in a study of 'site 0', 'site 1', 'site 2', and the run folder has one of 'site 0', "
        "'site 1'" in verify_study(tmp_path).deviations
    )


def test_every_other_result_in_the_record_is_named(honest, tmp_path):
    shutil.copytree(honest, tmp_path / "copy")
    run, rng = Run(tmp_path / "copy"), np.random.default_rng(0)
    record, changed = run.read(), set()
    for name in set(Record.__struct_fields__) - OF_THE_RUN - {"format", "version", "sites"}:
        other = other_value(getattr(record, name), rng)
        if other is not None:
            setattr(record, name, other)
            changed.add(f"{name} in run.json does not follow from the replies")
    run.write(record)
    found = set(verify_study(run.folder).deviations)
    assert found >= changed
    assert len(changed) > 20
    assert found - changed == {"evaluation.csv does not follow from the replies"}


@pytest.mark.parametrize("name", ["model.silvan", "evaluation.csv"])
@pytest.mark.parametrize("how", ["changed", "removed"])
def test_another_file_of_the_results_is_named(honest, tmp_path, name, how):
    shutil.copytree(honest, tmp_path / "copy")
    path = tmp_path / "copy" / name
    path.write_bytes(path.read_bytes().replace(b"0", b"1", 1))
    if how == "removed":
        path.unlink()
    assert verify_study(tmp_path / "copy").deviations == [f"{name} does not follow from the replies"]


@pytest.mark.parametrize("kind", [*DURING, *AFTERWARDS])
def test_random_deviations_are_found(tmp_path, kind):
    """One of each kind; ``python -m experiments.verification`` tries a thousand."""
    rng, study = np.random.default_rng(3), HONEST["trusted"]
    for attempt in range(9):
        folder = tmp_path / str(attempt)
        fed = make_federation(study, folder)
        told = DURING[kind](fed, rng) if kind in DURING else None
        try:
            carry_out(study, folder, fed)
        except SilvanError:
            return  # a site refused it
        what = AFTERWARDS[kind](folder, rng) if told is None else told()
        if what is not None:
            assert verify_study(folder).deviations, f"{kind}: {what}"
            return
    pytest.fail("nothing was changed")


# -- what is available


def test_a_killed_coordinator(tmp_path):
    """It resumes from its journal, and the statements agree."""
    study, stopped = HONEST["masked"], []
    ledgers = str(tmp_path / "sites")
    fed = make_federation(study, tmp_path, ledgers=ledgers)
    honest_deliver = fed.transport.deliver

    def deliver(messages, verb, timeout):
        for site, answer in honest_deliver(messages, verb, timeout):
            stopped.append(site)
            if len(stopped) == 31:
                raise KeyboardInterrupt
            yield site, answer

    fed.transport.deliver = deliver
    with pytest.raises(KeyboardInterrupt):
        carry_out(study, tmp_path, fed)
    carry_out(study, tmp_path, ledgers=ledgers)
    assert verify_study(tmp_path).sentence == "sums and decisions verified by Ada"


def test_without_a_journal_nothing_can_be_verified(tmp_path, honest):
    for name in ("run.json", "study.toml", "roster.json"):
        (tmp_path / name).write_bytes((honest / name).read_bytes())
    with pytest.raises(InputError, match="a coordinator keeps it for studies that name an auditor"):
        verify_study(tmp_path)


def test_statements_contain_digests_but_no_replies(honest):
    journal = Journal(honest / JOURNAL)
    (body,) = journal.of_kind("Statement")["site 0"]
    statement = wire.decode(body, verify.Statement)
    journal.close()
    assert len(body) < 400 * len(statement.answered)
    assert {one.kind for one in statement.answered} >= {"Describe", "GrowLevel", "EvaluateModels"}
    assert all(len(one.answers) == (one.kind not in SUMMED) for one in statement.answered)


SUMMED = ("CountCategories", "CountGrid", "CountFine", "GrowLevel", "CountByScore")


def test_the_command(tmp_path):
    """It reports comparisons and deviations, writes the result to a file, and exits with 1 for a deviation."""
    carry_out(HONEST["trusted"], tmp_path)
    done = CliRunner().invoke(app, ["verify", str(tmp_path), "--roster", str(tmp_path / "roster.json")])
    assert (done.exit_code, done.output.splitlines()) == (
        0,
        [
            "14 requests compared with what the sites signed, and 6 sums with their proofs.",
            "Result: sums and decisions verified by Ada.",
            f"Model: {Run(tmp_path).read().models[0].hash}.",
        ],
    )
    assert "Verification: sums and decisions verified by Ada." in (tmp_path / "report.html").read_text()
    AFTERWARDS["a sum in the journal"](tmp_path, np.random.default_rng(0))
    done = CliRunner().invoke(app, ["verify", str(tmp_path)])
    assert done.exit_code == 1
    assert "Deviation: " in done.output
    assert Run(tmp_path).read().verification.startswith("not verified: ")
