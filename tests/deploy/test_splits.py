"""Studies between machines that evaluate every row: splits by secrets of the sites, under one approval."""

import re
import sqlite3
from contextlib import ExitStack, contextmanager

import msgspec
import numpy as np
import polars as pl
import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'silvan[flare]' to test jobs")

from helpers.carried_jobs import Carrier, run_job
from helpers.joining import make_hub, serving
from helpers.studies import table

from silvan.algorithms.class_counts import CountClasses
from silvan.data.holdout import Fold, LeftOut
from silvan.deploy.jobs.splits import make_split
from silvan.deploy.membership.joined_site import JoinedSite
from silvan.deploy.studies.explain import approve_study, explain
from silvan.errors import FederationError, InputError, RefusedError
from silvan.federation import wire
from silvan.federation.describe import CountRows
from silvan.federation.federation import Federation
from silvan.federation.flare import AbortedError
from silvan.federation.keys import COORDINATOR
from silvan.federation.message import Envelope
from silvan.federation.signed import Signer
from silvan.federation.sums import TrustedSums
from silvan.report.summary import summarise_run
from silvan.study.parse import parse_remote_study
from silvan.study.run_folder import JOURNAL, split_journal
from silvan.study.verify import verify_study

SITES = ["north", "south", "west"]
ROWS = 240


def study(name, more="", repeats=2):
    how = f"test = 0.5\nrepeats = {repeats}" if repeats else 'split = "sites"'
    top = f'name = "{name}"\n{how}\nsites = {msgspec.json.encode(SITES).decode()}\n{more}\n'
    return parse_remote_study(f'{top}[learner]\nkind = "HistogramForest"\nn_estimators = 3\nmax_depth = 3\n')


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    """A federation in which north's owner must approve studies; south and west have the same table."""
    folder = tmp_path_factory.mktemp("joined")
    hub, rows = make_hub(folder, SITES), table("binary", n=ROWS)
    members = {}
    with serving(hub):
        for site, some in zip(SITES, (rows[0::3], rows[1::3], rows[1::3]), strict=True):
            path = folder / f"{site}.csv"
            some.write_csv(path)
            policy = {"approve": site == "north"}
            members[site] = JoinedSite.join(folder / site, hub.invite(site), str(path), None, policy)
        for member in members.values():
            member.pin_roster()
    return hub, members


def asked(carrier):
    """Returns the studies that requests belonged to, in order, each once."""
    envelopes = [wire.decode(body, Envelope) for body in carrier.carried]
    return list(dict.fromkeys(one.study for one in envelopes if not one.sender))


@pytest.mark.parametrize(("sums", "repeats"), [("trusted", 2), ("masked", 1)])
def test_every_row_is_evaluated(joined, sums, repeats):
    """As often as the study says, each time with a model of other rows; one approval covers all of it."""
    hub, members = joined
    plan = study(f"rows {sums}", f'sums = "{sums}"', repeats)
    approve_study(members["north"], plan)
    run, carrier = run_job(hub, members, plan)
    record = run.read()
    assert (record.status, record.repeats, record.folds) == ("done", repeats, 2)
    assert {(row.site, row.model): row.rows for row in record.evaluation} == {
        (site, model): ROWS if site == "all" else ROWS // 3
        for site in (*SITES, "all")
        for model in ("local", "federated")
    }
    assert asked(carrier) == [plan.unique_name, *(fold.study(plan.unique_name) for fold in plan.splits(SITES))]
    assert not list(run.folder.glob(f"{JOURNAL}*"))
    assert record.received == SITES
    assert f"Each row was evaluated {'once' if repeats == 1 else 'two times'}" in " ".join(
        summarise_run(run.folder)["sentences"]
    )
    for member in members.values():
        lines = [line for line in member.folder.ledger.lines() if line.study.startswith(plan.unique_name)]
        assert {line.study for line in lines} == set(asked(carrier))
        assert {line.outcome for line in lines} == {"answered"} | ({"decided"} if member is members["north"] else set())


def test_what_the_owner_reads(joined):
    shown = explain(joined[1]["north"], study("read", repeats=10))
    text = " ".join(shown.lines)
    assert "every row of yours is evaluated 10 times, by models of other rows" in text
    assert "for each of 20 splits" in text
    assert {"CountRows", "EvaluateModels"} <= set(shown.asked.messages)


def test_an_interrupted_study_resumes_with_the_next_split(joined):
    hub, members = joined
    plan, undisturbed = (study(name, 'sums = "ring"', 1) for name in ("interrupted", "undisturbed"))
    for one in (plan, undisturbed):
        approve_study(members["north"], one)
    _, whole = run_job(hub, members, undisturbed)
    with pytest.raises(AbortedError):
        run_job(hub, members, plan, stop_after=4 * len(whole.carried) // 5)
    run, carrier = run_job(hub, members, plan)
    folds = [fold.study(plan.unique_name) for fold in plan.splits(SITES)]
    assert folds[0] not in asked(carrier)
    assert folds[-1] in asked(carrier)
    assert len(carrier.carried) < len(whole.carried)
    assert run.read().status == "done"


def test_the_rows_of_a_fold_are_a_secret_of_the_site(joined):
    """From the same table, under the same seed: nobody else can tell which rows a sum covers."""
    _, members = joined
    plan = study("secret")
    carrier = Carrier(members, plan)
    kept = []
    for name in ("south", "west"):
        site = carrier.sites[name].site
        splits = [make_split(site, JoinedSite(members[name].path), plan, fold) for fold in plan.splits(SITES)]
        rows = [split.held_out.between(0, ROWS // 3) for split in splits]
        assert (rows[0] ^ rows[1]).all()  # two folds of one shuffle
        assert not (rows[0] == rows[2]).all()
        assert abs(int(rows[0].sum()) - int(rows[1].sum())) <= 1
        public = make_split(site, JoinedSite(members[name].path), plan, plan.splits(SITES)[0])
        public.test_key = None
        assert not np.array_equal(public.held_out.between(0, ROWS // 3), rows[0])
        kept.append(rows[0])
    assert not np.array_equal(*kept)


@pytest.mark.parametrize("fold", [Fold(0, 2, 2), Fold(0, 3, 0), Fold(2, 2, 0)])
def test_splits_outside_the_study_are_refused(joined, fold):
    """A coordinator can neither choose the held-out rows nor run more splits than the owner approved."""
    hub, members = joined
    plan = study("others")
    approve_study(members["north"], plan)
    transport = Carrier(members, plan)
    federation = Federation(
        transport,
        SITES,
        TrustedSums(),
        study=fold.study(plan.unique_name),
        signer=Signer(COORDINATOR, hub.key, hub.roster()),
    )
    with pytest.raises(RefusedError, match="the site is at work on another study"):
        federation.ask(CountRows())


def test_splits_of_a_study_that_is_not_approved_are_refused(joined):
    hub, members = joined
    plan = study("not approved")
    federation = Federation(
        Carrier(members, plan),
        SITES,
        TrustedSums(),
        study=plan.splits(SITES)[0].study(plan.unique_name),
        signer=Signer(COORDINATOR, hub.key, hub.roster()),
    )
    with pytest.raises(RefusedError, match="site 'north' refused CountRows: the site's owner has not approved"):
        federation.ask(CountRows())


def test_rows_beyond_memory_are_not_split(joined):
    more = changed(joined[1]["south"], lambda text: f'memory = "1GB"\n{text}')
    with more, pytest.raises(FederationError, match=r"its rows are not all in memory \(memory in its settings\)"):
        Carrier(joined[1], study("beyond memory"))


@contextmanager
def changed(member, change):
    """Makes a site read other settings."""
    settings = member.path / "site.toml"
    before = settings.read_text()
    settings.write_text(change(before))
    try:
        yield
    finally:
        settings.write_text(before)


def test_sampling_must_be_secret():
    with pytest.raises(InputError, match="sampling must be 'secret' with repeats"):
        study("published", 'sampling = "published"')


@pytest.mark.parametrize(
    ("learner", "said"),
    [
        ('kind = "VerticalForest"', "repeats is for studies over rows"),
        ('kind = "HistogramForest"\nepsilon = 1.0', "repeats is for learners without epsilon"),
    ],
)
def test_learners_without_repeats(learner, said):
    with pytest.raises(InputError, match=said):
        parse_remote_study(f"test = 0.5\nrepeats = 2\n[learner]\n{learner}\n")


def test_splits_are_verified_too(joined):
    """Each is closed separately, and an auditor has the journals of all."""
    hub, members = joined
    plan = study("audited", 'auditor = "Ada"\nsums = "masked"', repeats=1)
    approve_study(members["north"], plan)
    run, _ = run_job(hub, members, plan)
    found = verify_study(run.folder)
    assert (found.sentence, found.deviations) == ("sums and decisions verified by Ada", [])
    assert found.sums > 10, "of the study and of both splits"
    with sqlite3.connect(run.file(split_journal(1))) as db:
        db.execute("DELETE FROM reply WHERE kind = 'Histograms'")
    assert verify_study(run.folder).sentence.startswith("not verified: split 2: ")


# -- one site left out at a time


def test_each_site_evaluates_a_model_of_the_others(joined):
    """One approval covers all of it, and an auditor verifies each part."""
    hub, members = joined
    plan = study("left out", 'auditor = "Ada"', repeats=0)
    shown = " ".join(explain(members["north"], plan).lines)
    assert "each site is left out in turn" in shown
    assert "Your rows are in every other model" in shown
    approve_study(members["north"], plan)
    run, carrier = run_job(hub, members, plan)
    record = run.read()
    assert (record.status, record.repeats, record.folds, record.left_out) == ("done", 0, 3, True)
    assert [(row.site, row.model, row.rows, row.gain) for row in record.evaluation] == [
        *((site, "federated", ROWS // 3, None) for site in SITES),
        ("all", "federated", ROWS, None),
    ]
    parts = [f"{plan.unique_name}; {where} {site}" for site in SITES for where in ("without", "at")]
    assert asked(carrier) == [plan.unique_name, *parts]
    for name, member in members.items():
        lines = [line for line in member.folder.ledger.lines() if line.study.startswith(f"{plan.unique_name};")]
        trained = {f"{plan.unique_name}; without {site}" for site in SITES if site != name}
        assert {line.study for line in lines} == {*trained, f"{plan.unique_name}; at {name}"}
        assert {line.outcome for line in lines} == {"answered"}
        at_itself = {line.kind for line in lines if line.study.endswith(f"; at {name}")}
        assert "EvaluateModels" in at_itself
        assert not at_itself & {"GrowLevel", "CountByScore"}, "no sum is over one site"
    assert "At a site outside the training federation, expect AUC" in " ".join(summarise_run(run.folder)["sentences"])
    found = verify_study(run.folder)
    assert (found.sentence, found.deviations) == ("sums and decisions verified by Ada", [])


def test_a_site_takes_no_part_in_the_model_that_it_evaluates(joined):
    """It refuses to grow trees in that part, and refuses parts that are about another site."""
    hub, members = joined
    plan = study("others only", repeats=0)
    approve_study(members["north"], plan)
    for part in (LeftOut("north"), LeftOut("south", evaluates=True)):
        federation = Federation(
            Carrier(members, plan),
            SITES,
            TrustedSums(),
            study=part.study(plan.unique_name),
            signer=Signer(COORDINATOR, hub.key, hub.roster()),
        )
        with pytest.raises(RefusedError, match="site 'north' refused CountRows: the site is at work on another study"):
            federation.ask(CountRows())


def test_a_sum_in_a_part_is_over_the_sites_of_that_part(joined):
    """A sum over fewer sites would differ from another one by a single site's rows."""
    hub, members = joined
    approve_study(members["north"], agreed := study("agreed", repeats=0))
    schema = run_job(hub, members, agreed)[0].forest().schema
    text = study("fewer", repeats=0).text.replace("HistogramForest", "MergedForest") + 'class_weight = "balanced"\n'
    plan = parse_remote_study(text)
    approve_study(members["north"], plan)
    carrier, signer = Carrier(members, plan), Signer(COORDINATOR, hub.key, hub.roster())

    def count(sites):
        part = LeftOut("west").study(plan.unique_name)
        federation = Federation(carrier, sites, TrustedSums(), study=part, signer=signer)
        federation.total(CountClasses(schema=federation.blob(schema.to_json().encode())))

    for sites in (["north"], ["south"]):
        with pytest.raises(RefusedError, match="refused CountClasses: the site lets a study lose 0 sites at most"):
            count(sites)
    count(["north", "south"])


# -- test rows by date


def test_the_latest_rows_of_every_site_are_test_rows(joined, tmp_path):
    """Each site reads its own dates; nobody else learns one."""
    hub, members = joined
    text = study("by date", 'auditor = "Ada"', repeats=0).text.replace('"sites"', '{ by = "seen", test = "last 25%" }')
    plan = parse_remote_study(text)
    tables = {name: pl.read_csv(member.settings["table"]) for name, member in members.items()}
    dated = {}
    for name, rows in tables.items():
        day = pl.date(2024, 1, 1) + pl.duration(days=pl.int_range(len(rows)))
        rows.with_columns(seen=day).write_csv(tmp_path / f"{name}.csv")
        dated[name] = changed(members[name], lambda text, path=tmp_path / f"{name}.csv": with_table(text, path))
    with ExitStack() as stack:
        for one in dated.values():
            stack.enter_context(one)
        shown = " ".join(explain(JoinedSite(members["north"].path), plan).lines)
        assert "The last 25% of your rows, by 'seen', are test rows" in shown
        assert "Columns left out: seen." in shown
        fresh = {name: JoinedSite(member.path) for name, member in members.items()}
        approve_study(fresh["north"], plan)
        run, carrier = run_job(hub, fresh, plan)
    record = run.read()
    assert {(site.name, site.test_rows) for site in record.sites} == {(site, ROWS // 12) for site in SITES}
    assert run.forest().schema.names == tuple(name for name in tables["north"].columns if name != "label")
    assert b"2024-0" not in b"".join(carrier.carried)
    assert verify_study(run.folder).sentence == "sums and decisions verified by Ada"


def with_table(text, path):
    return re.sub(r"(?m)^table = .*$", f'table = "{path}"', text)


# -- several rows per person


def test_a_person_is_on_one_side_of_every_split(joined, tmp_path):
    """Sites count persons, assign them to folds by their own secrets, and send no id."""
    hub, members = joined
    plan = study("persons", 'group = "patient"\nauditor = "Ada"')
    with ExitStack() as stack:
        for name, member in members.items():
            rows = pl.read_csv(member.settings["table"])
            rows.with_columns(patient=pl.format("ZQ{}", pl.int_range(len(rows)) // 4)).write_csv(
                tmp_path / f"{name}.csv"
            )
            stack.enter_context(changed(member, lambda text, name=name: with_table(text, tmp_path / f"{name}.csv")))
        fresh = {name: JoinedSite(member.path) for name, member in members.items()}
        shown = " ".join(explain(fresh["north"], plan).lines)
        assert "Your rows of one 'patient' are a person's" in shown
        assert "Columns left out: patient." in shown
        approve_study(fresh["north"], plan)
        run, carrier = run_job(hub, fresh, plan)
        own = carrier.sites["north"].site
        for fold in plan.splits(SITES)[:2]:
            part = make_split(own, JoinedSite(members["north"].path), plan, fold)
            test = part.held_out.between(0, ROWS // 3).reshape(-1, 4)
            assert (test.all(axis=1) | ~test.any(axis=1)).all()
            assert 0 < test.all(axis=1).sum() < len(test)
    record = run.read()
    assert (record.status, {site.rows for site in record.sites}) == ("done", {ROWS // 24})  # half are test rows
    assert {row.rows for row in record.evaluation if row.site != "all"} == {ROWS // 12}
    assert "patient" not in run.forest().schema.names
    assert b"ZQ" not in b"".join(carrier.carried)
    assert verify_study(run.folder).sentence == "sums and decisions verified by Ada"


def test_a_site_counts_what_the_study_says(joined):
    """A site refuses to count persons in a study of rows."""
    hub, members = joined
    plan = study("rows alone", repeats=0)
    approve_study(members["north"], plan)
    federation = Federation(
        Carrier(members, plan),
        SITES,
        TrustedSums(),
        study=plan.unique_name,
        signer=Signer(COORDINATOR, hub.key, hub.roster()),
    )
    with pytest.raises(RefusedError, match="the study's text says otherwise: grouped of CountRows"):
        federation.ask(CountRows(grouped=True))


def test_columns_that_a_site_lacks_are_missing_or_left_out(joined, tmp_path):
    """With masked sums too, and a site replies for no other columns than the study's text allows."""
    hub, members = joined
    south = pl.read_csv(members["south"].settings["table"]).drop("dose")
    south.write_csv(tmp_path / "south.csv")
    with changed(members["south"], lambda text: with_table(text, tmp_path / "south.csv")):
        for absent, there in (("missing", True), ("drop", False)):
            text = study(f"absent {absent}", 'auditor = "Ada"', repeats=0).text
            sums = f'test = 0.3\nsums = "masked"\nabsent = "{absent}"'
            plan = parse_remote_study(text.replace('split = "sites"', sums))
            fresh = {name: JoinedSite(member.path) for name, member in members.items()}
            approve_study(fresh["north"], plan)
            run, _ = run_job(hub, fresh, plan)
            record = run.read()
            assert ("dose" in run.forest().schema.names) == there
            assert any("'dose' is absent at south and missing in all rows there" in w for w in record.warnings) == there
            assert verify_study(run.folder).sentence == "sums and decisions verified by Ada"
