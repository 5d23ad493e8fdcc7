"""What sites get at the end of a study: the signed model, their metrics, and nothing about single other sites."""

from types import SimpleNamespace
from unittest import mock

import msgspec
import polars as pl
import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'silvan[flare]' to test jobs")

from helpers.carried_jobs import run_job
from helpers.joining import make_hub, serving
from helpers.studies import table
from typer.testing import CliRunner

import silvan as sv
from silvan.algorithms import kept_results
from silvan.algorithms.kept_results import MADE_MODEL, OWN_MODEL, SIGNATURE, KeepResults
from silvan.cli.main import app
from silvan.deploy.membership.joined_site import JoinedSite
from silvan.deploy.studies.explain import explain
from silvan.deploy.studies.send_results import read_results
from silvan.errors import FormatError, InputError, RefusedError
from silvan.federation.flare import AbortedError
from silvan.learners.result import Result
from silvan.privacy.policy import PolicyBetweenMachines
from silvan.study.parse import parse_remote_study
from silvan.study.run_folder import EVALUATION, JOURNAL, MODEL, RUN, Run

SITES = ["north", "south", "west"]


def study(name, more="", sites=SITES):
    top = (
        f'name = "{name}"\nsampling = "published"\ntest = 0.3\nsites = {msgspec.json.encode(sites).decode()}\n{more}\n'
    )
    return parse_remote_study(f'{top}[learner]\nkind = "HistogramForest"\nn_estimators = 4\nmax_depth = 3\n')


def join(folder, tables):
    """A coordinator, and a site for each table, which all know each other."""
    hub, members = make_hub(folder, list(tables)), {}
    with serving(hub):
        for site, rows in tables.items():
            path = folder / f"{site}.csv"
            rows.write_csv(path)
            members[site] = JoinedSite.join(folder / site, hub.invite(site), str(path), None, {"approve": False})
        for member in members.values():
            member.pin_roster()
    return hub, members


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    rows = table("binary", n=300)
    return join(tmp_path_factory.mktemp("joined"), {site: rows[i::3] for i, site in enumerate(SITES)})


def results(members, plan, site):
    own = JoinedSite(members[site].path)
    return read_results(own, plan)


def silvan(*words):
    return CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": "200"})


def test_every_site_gets_the_model_and_its_metrics_and_overall_ones(joined, tmp_path):
    hub, members = joined
    plan = study("forest")
    run, _ = run_job(hub, members, plan)
    record = run.read()
    assert record.received == SITES
    assert not run.file(JOURNAL).exists()
    for site, member in members.items():
        kept = results(members, plan, site)
        assert kept.record.copy_for == site
        assert {row.site for row in kept.record.evaluation} == {site, "all"}
        assert [row for row in record.evaluation if row.site in (site, "all")] == kept.record.evaluation
        assert ([one.name for one in kept.record.sites], kept.record.among) == ([site], SITES)
        assert (set(kept.record.bytes), {line.site for line in kept.record.traffic}) == ({site}, {site})
        assert (kept.record.differences, kept.record.received) == ([], [])
        assert {counts.site for counts in kept.record.counts} <= {site, "all"}
        assert b'"south"' not in msgspec.json.encode(msgspec.structs.replace(kept.record, among=[])) or site == "south"
        line = member.folder.ledger.lines()[-1]
        assert (line.study, line.kind, line.outcome) == (plan.unique_name, "KeepResults", "answered")
        assert "keep the finished model" in line.describe()
        assert all(path.stat().st_mode & 0o077 == 0 for path in kept.run.folder.iterdir())
    written = tmp_path / "model.silvan"
    said = silvan("site", "model", members["north"].path, "forest", "-o", written)
    assert said.exit_code == 0, said.output
    assert sv.Forest.load(written).hash == record.models[0].hash
    said = silvan("site", "report", members["north"].path, "forest")
    assert said.exit_code == 0, said.output
    page = results(members, plan, "north").run.file("report.html").read_text()
    assert "copy for north" in page
    assert "3 sites" in page
    assert "south" not in page.replace("north, south, west", "")  # the study's text names all sites
    assert "south" not in results(members, plan, "north").run.file(EVALUATION).read_text()
    assert "forest (" in silvan("site", "model", members["north"].path).output
    assert "At the end you are sent the model, your own metrics and those over all" in " ".join(
        explain(members["north"], plan).lines
    )


def test_a_site_decides_by_the_study_s_threshold(joined, tmp_path):
    hub, members = joined
    plan = parse_remote_study(study("decided").text.replace("max_depth = 3", "max_depth = 3\nthreshold = 0.3"))
    run_job(hub, members, plan)
    kept, rows = results(members, plan, "north"), tmp_path / "rows.csv"
    assert kept.record.threshold == 0.3
    table("binary", n=90, seed=7).drop("label").write_csv(rows)
    said = silvan("predict", kept.run.folder, rows, "-o", tmp_path / "out.csv")
    assert "yes (the positive class) where its score is at least 0.3, the study's threshold" in " ".join(
        said.output.split()
    )
    found = pl.read_csv(tmp_path / "out.csv")
    assert ((found["probability_yes"] >= 0.3) == (found["prediction"] == "yes")).all()
    assert found["prediction"].n_unique() == 2


def test_with_two_sites_none_can_subtract_its_metrics(joined):
    """The total minus a site's own metrics would be the other site's: only if the study says so."""
    hub, members = joined
    pair = {site: members[site] for site in SITES[:2]}
    quiet, shared = (study(name, more, sites=SITES[:2]) for name, more in (("two", ""), ("open", 'metrics = "all"')))
    for plan, seen in ((quiet, {"north"}), (shared, {"north", "south", "all"})):
        run_job(hub, pair, plan)
        kept = results(members, plan, "north")
        assert {row.site for row in kept.record.evaluation} == seen
        assert bool(kept.record.curves) == ("all" in seen)
        assert silvan("site", "report", members["north"].path, plan.name).exit_code == 0
    assert "the metrics of all sites, yours too" in " ".join(explain(members["north"], shared).lines)
    assert "you are sent the model and your own metrics; no other" in " ".join(explain(members["north"], quiet).lines)


@pytest.mark.parametrize("common", [True, False])
def test_a_site_gets_its_model_and_the_shared_one(joined, monkeypatch, common):
    """Where sites use individual models; south uses the shared one if there is one."""
    hub, members = joined
    plan = study(f"personal {common}")
    trees = [sv.MergedForest(n).fit(sv.federate_rows({"a": table("binary", n=60)})).forest_ for n in (1, 2, 3)]
    given = dict(zip(["", "north", "west"] if common else SITES, trees, strict=True))
    monkeypatch.setattr(Result, "to_keep", given)
    run_job(hub, members, plan)
    for site in SITES:
        kept = results(members, plan, site)
        assert set(kept.models) == {name for name, one in ((MODEL, ""), (OWN_MODEL, site)) if one in given}
        assert sv.Forest.from_bytes(kept.model).hash == given.get(site, trees[0]).hash
        assert [model.site for model in kept.record.models] == [name for name in ("", site) if name in given]


@pytest.fixture(scope="module")
def differing(tmp_path_factory):
    """Three sites; at the last one the label means the opposite."""
    rows = table("binary", n=450)
    tables = {site: rows[i::3] for i, site in enumerate(SITES)}
    swap = pl.when(pl.col("label") == "yes").then(pl.lit("no")).otherwise(pl.lit("yes"))
    tables["west"] = tables["west"].with_columns(label=swap)
    return *join(tmp_path_factory.mktemp("differing"), tables), tables


AUTO = """name = "auto"
sampling = "published"
test = 0.3
sites = ["north", "south", "west"]

[learner]
kind = "AutoForest"
n_estimators = 6
max_depth = 4
"""


def test_a_personal_forest_stays_at_its_site(differing, tmp_path):
    hub, members, tables = differing
    plan = parse_remote_study(AUTO)
    run, carrier = run_job(hub, members, plan)
    record = run.read()
    assert "west" in record.at_sites
    assert record.received == SITES
    assert [(model.site, model.file) for model in record.models] == [("", MODEL)]
    assert sorted(path.name for path in run.folder.glob("*.silvan")) == [MODEL]
    assert record.choices["west"].startswith(
        "a forest that it made from the shared one, its own rows and trees: AUC 0."
    )
    here = sv.federate_rows(tables, test=0.3, policy=PolicyBetweenMachines())
    same = sv.AutoForest(n_estimators=6, max_depth=4).fit(here)  # in one process the forests of sites are known
    assert record.models[0].hash == same.forest_.hash
    for site in SITES:
        kept = results(members, plan, site)
        assert set(kept.models) == ({MODEL, MADE_MODEL} if site in record.at_sites else {MODEL})
        assert sv.Forest.from_bytes(kept.model) == same.forests_[site]
        assert kept.record.at_sites == [site] * (site in record.at_sites)
        assert all(path.stat().st_mode & 0o077 == 0 for path in kept.run.folder.iterdir())
    made = same.forests_["west"]
    assert not any(made.to_bytes() in body for body in carrier.carried)
    figures = {row["site"]: row["auc"] for row in same.evaluate(here).filter(model="federated").iter_rows(named=True)}
    told = {row.site: row.metrics["auc"] for row in record.evaluation if row.model == "federated"}
    assert {site: told[site] for site in SITES} == {site: figures[site] for site in SITES}
    written = tmp_path / "model.silvan"
    said = silvan("site", "model", members["west"].path, "auto", "-o", written)
    assert said.exit_code == 0, said.output
    assert sv.Forest.load(written) == made
    assert "Nobody else has it" in " ".join(said.output.split())
    assert "another one, made here" in " ".join(silvan("site", "model", members["west"].path).output.split())
    said = silvan("site", "report", members["west"].path, "auto")
    assert said.exit_code == 0, said.output
    rows = tmp_path / "rows.csv"
    tables["west"].drop("label").write_csv(rows)
    said = silvan("predict", run.folder, rows, "--site", "west")
    assert said.exit_code == 1
    assert "includes its own rows and exists at the site only" in " ".join(said.output.split())
    said = silvan("predict", run.folder, rows)  # everybody gets the shared forest
    assert said.exit_code == 0


def test_a_site_predicts_with_its_personal_forest(differing, tmp_path):
    hub, members, tables = differing
    plan = parse_remote_study(AUTO.replace('"auto"', '"at the site"'))
    run_job(hub, members, plan)
    kept, rows = results(members, plan, "west"), tmp_path / "rows.csv"
    tables["west"].drop("label").write_csv(rows)
    made = sv.Forest.from_bytes(kept.model)
    for words in ([], ["--site", "west"]):
        said = silvan("predict", kept.run.folder, rows, "-o", tmp_path / "out.csv", *words)
        assert said.exit_code == 0, said.output
        assert made.hash[:12] in said.output
        assert pl.read_csv(tmp_path / "out.csv")["prediction"].to_list() == made.predict(pl.read_csv(rows)).tolist()


def test_a_lost_personal_forest(differing):
    """The site says so and does not hand out the shared forest instead; the other results are there."""
    hub, members, _ = differing
    plan = parse_remote_study(AUTO.replace('"auto"', '"lost"'))
    run_job(hub, members, plan)
    folder = members["west"].results_folder(plan)
    (folder / MADE_MODEL).unlink()
    with pytest.raises(InputError, match="with its own rows, is gone: use the shared"):
        results(members, plan, "west")
    other = sv.MergedForest(2).fit(sv.federate_rows({"a": table("number", n=60)})).forest_
    (folder / MADE_MODEL).write_bytes(other.to_bytes())
    with pytest.raises(FormatError, match="not a forest of this study"):
        results(members, plan, "west")


def test_messages_cannot_replace_a_personal_forest(differing):
    """A coordinator cannot pass off its own forest as the site's; a stale one is not used."""
    hub, members, _ = differing
    plan = parse_remote_study(AUTO.replace('"auto"', '"forged"'))
    run_job(hub, members, plan)
    folder = members["north"].results_folder(plan)
    forged = KeepResults(record=b"", models={MADE_MODEL: (folder / MODEL).read_bytes()})
    site = SimpleNamespace(results=folder, keys=mock.Mock(), study=plan.unique_name, name="north")
    with mock.patch.object(kept_results, "check_signature"), pytest.raises(FormatError, match="other files"):
        kept_results.keep_results(site, forged)  # as if the coordinator had signed it
    plain = study("plain")
    run_job(hub, members, plain)
    (members["north"].results_folder(plain) / MADE_MODEL).write_bytes((folder / MODEL).read_bytes())
    assert set(results(members, plain, "north").models) == {MODEL}


def test_an_absent_site_gets_results_when_the_study_is_rerun(joined):
    """Nothing else is requested then, and sites with the results do not get them again; tables may have changed."""
    hub, members = joined
    _, carrier = run_job(hub, members, study("nobody is away"))
    run, again = run_job(hub, members, study("nobody is away"))
    assert (run.read().received, again.carried) == (SITES, [])
    plan = study("away")
    with pytest.raises(AbortedError):
        run_job(hub, members, plan, stop_after=len(carrier.carried) - 5)
    assert Run(run.folder.parent / plan.folder).read().status == "done"
    run, _ = run_job(hub, members, plan, away=["south"])
    assert run.read().received == ["north", "west"]
    assert not members["south"].results_folder(plan).exists()
    path = members["south"].path.parent / "south.csv"
    before = path.read_bytes()
    path.write_bytes(before + before.splitlines(keepends=True)[-1])
    try:
        run, carrier = run_job(hub, members, plan)
        run.file(RUN).unlink()
        with pytest.raises(RefusedError, match="the study is closed"):
            run_job(hub, members, plan)
    finally:
        path.write_bytes(before)
    assert len(carrier.carried) == 2
    assert results(members, plan, "south").record.copy_for == "south"


def test_unsigned_results_are_not_used(joined, tmp_path):
    hub, members = joined
    plan = study("signed")
    run_job(hub, members, plan)
    folder = members["north"].results_folder(plan)
    assert folder.parent.name == "results"
    other = members["south"].results_folder(plan)
    for name, data in (
        (MODEL, sv.MergedForest(2).fit(sv.federate_rows({"a": table("binary", n=60)})).forest_.to_bytes()),
        (RUN, (folder / RUN).read_bytes().replace(b'"rounds"', b'"rounds "')),
        (RUN, (other / RUN).read_bytes()),
        (SIGNATURE, b""),
    ):
        before = (folder / name).read_bytes()
        (folder / name).write_bytes(data)
        with pytest.raises(FormatError, match="not signed by the coordinator"):
            results(members, plan, "north")
        said = silvan("site", "model", members["north"].path, "signed", "-o", tmp_path / "no.silvan")
        assert said.exit_code != 0
        assert "not signed by the coordinator" in silvan("site", "model", members["north"].path).output
        (folder / name).write_bytes(before)
    assert not (tmp_path / "no.silvan").exists()
    with pytest.raises(InputError, match="have not come yet"):
        results(members, study("never run"), "north")
