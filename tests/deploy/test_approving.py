"""What an owner sees of a study, what an approval contains, and that a site respects it."""

import threading

import pytest
from experiments.attacks import approval_collision
from helpers.runs import silvan

from silvan.deploy.membership.joined_site import JoinedSite
from silvan.deploy.studies.explain import approve_study, explain
from silvan.deploy.studies.trial import try_out
from silvan.errors import InputError, RefusedError
from silvan.federation.handlers import HANDLERS
from silvan.privacy.gate import Gate
from silvan.privacy.policy import Policy
from silvan.privacy.site_folder import APPROVALS, Approval, Approvals
from silvan.privacy.terms import Terms
from silvan.study.parse import parse_remote_study

TOP = 'name = "heart"\nlabel = "y"\n'
SCHEMA = '[schema]\nage = { bounds = [0, 100] }\nsex = { categories = ["f", "m"] }\ny = { classes = ["no", "yes"] }\n'


@pytest.fixture
def member(tmp_path):
    return approval_collision.make_member(tmp_path)


def study(learner='kind = "HistogramForest"', top="", schema=""):
    return parse_remote_study(f"{TOP}{top}\n[learner]\n{learner}\n{schema}")


def test_the_id_covers_the_whole_text():
    """Texts whose digests share their first 48 bits are two studies."""
    one, other = (parse_remote_study(text) for text in (approval_collision.HARMLESS, approval_collision.HARMFUL))
    assert one.digest[:12] == other.digest[:12]
    assert one.unique_name != other.unique_name
    assert len(one.unique_name.split()[-1]) == 64


def test_an_approval_contains_what_was_shown(member):
    plan = study(top='test = 0.25\nsums = "masked"\nquorum = 2')
    member.note_study(plan)
    shown = explain(member, plan)
    made = approve_study(member, plan)
    kinds = [kind.name for kind in shown.leaves]
    assert set(kinds) >= {
        "Describe",
        "CountCategories",
        "NameCategories",
        "DealKey",
        "TakeKey",
        "EvaluateModels",
    }
    assert made.messages == kinds
    assert (made.tasks, made.sites, made.losses) == (2, list(approval_collision.SITES), 1)
    assert any("Up to 1 of 3 sites may be lost" in line for line in shown.lines)
    gate = member.gate(plan)
    for kind in kinds:
        gate.check_kind(HANDLERS[kind][0], plan.unique_name, made.sites)
    with pytest.raises(RefusedError, match="approved this study without GrowTrees"):
        gate.check_kind(HANDLERS["GrowTrees"][0], plan.unique_name, made.sites)


@pytest.mark.parametrize("private", ["tables", "levels", "input"])
def test_a_private_study_is_shown_too(member, private):
    """Whatever the rows and epsilon, no message kind is requested that was not shown."""
    plan = study(f'kind = "HistogramForest"\nepsilon = 0.1\nprivate = "{private}"', 'sums = "masked"', SCHEMA)
    kinds = {
        "tables": {"CountPeople", "CountColumns", "CountTables", "CountScores"},
        "levels": {"NoisyLevel"},
        "input": {"DisguisedLevel"},
    }[private]
    assert {"DealKey", "TakeKey", *kinds} <= set(approve_study(member, plan).messages)


def test_a_study_without_a_trial(member):
    """There are fewer sites than clusters: nothing is approved unless the owner names what may leave."""
    plan = study('kind = "BOFRF"\nclusters = 40')
    assert try_out(plan) is None
    assert any("What would leave is unknown" in line for line in explain(member, plan).lines)
    with pytest.raises(InputError, match=r"name each kind that may leave .--message KIND."):
        approve_study(member, plan)
    assert member.folder.approvals.listed() == []
    assert approve_study(member, plan, messages=["Describe"]).messages == ["Describe"]


def test_a_policy_that_forbids_the_study(member):
    (member.path / "site.toml").write_text('table = "x.csv"\n[policy]\napprove = true\nmessages = ["Describe"]\n')
    again, plan = JoinedSite(member.path), study()
    assert any("Your policy does not allow ListColumns" in line for line in explain(again, plan).lines)
    with pytest.raises(InputError, match="which the site's policy does not allow"):
        approve_study(again, plan)


def test_a_budget_too_small_for_the_study(member):
    """A site with a privacy budget refuses replies without noise, whatever its owner approves."""
    settings = 'table = "x.csv"\n[policy]\napprove = true\nepsilon = 1.0\nmessages = ["*", "CountGrid"]\n'
    (member.path / "site.toml").write_text(settings)
    again, plan = JoinedSite(member.path), study()
    line = next(line for line in explain(again, plan).lines if "without noise" in line)
    assert "Describe" in line
    assert "CountGrid" not in line
    private = study('kind = "HistogramForest"\nepsilon = 0.1\nprivate = "tables"', 'sums = "masked"', SCHEMA)
    assert not any("without noise" in line for line in explain(again, private).lines)


def test_participants_not_known_yet(member):
    (member.path / "roster.json").unlink()
    with pytest.raises(InputError, match="not all sites have joined"):
        approve_study(member, study())
    assert approve_study(member, study(top='sites = ["north", "south"]')).sites == ["north", "south"]


def test_commands_contain_no_text_of_the_coordinator(member):
    plan = parse_remote_study('name = "x\'; touch /tmp/x; \'"\nlabel = "y"\n[learner]\n')
    member.note_study(plan)
    said = silvan("site", "approve", member.path).output
    command = next(line for line in said.splitlines() if line.startswith("To approve"))
    assert command == f"To approve: silvan site approve {member.path} {plan.digest}"
    assert "touch" not in command
    silvan("site", "approve", member.path, plan.digest)
    assert member.folder.approvals.find(plan.unique_name).messages


def test_a_study_that_an_owner_declines(member):
    """The coordinator learns the reason; a refusal withdraws an approval, and a later approval reverts it."""
    plan = study()
    member.note_study(plan)
    approve_study(member, plan)
    silvan("site", "decline", member.path, plan.digest, "--why", "not before the ethics board\x1b meets")
    assert member.folder.approvals.find(plan.unique_name) is None
    why = member.declined(plan)
    assert why.startswith("not before the ethics board")
    assert "\x1b" not in why
    assert f"declined: {why}" in " ".join(silvan("site", "approve", member.path).output.split())
    approve_study(member, plan)
    assert member.declined(plan) is None
    for reason in ("", " ", "x" * 200):
        assert silvan("site", "decline", member.path, plan.digest, "--why", reason, ok=False).exit_code == 1
    assert member.declined(plan) is None


def test_a_short_name_that_two_studies_share(member):
    for text in (approval_collision.HARMLESS, approval_collision.HARMFUL):
        member.note_study(parse_remote_study(text))
    wrong = silvan("site", "approve", member.path, "heart 5a8575c69302", ok=False)
    assert wrong.exit_code == 1
    assert member.folder.approvals.listed() == []


def test_a_site_serves_only_its_study():
    gate = Gate(Policy(), terms=Terms("one"))
    gate.check_kind(HANDLERS["Describe"][0], "one", [])
    with pytest.raises(RefusedError, match="at work on another study"):
        gate.check_kind(HANDLERS["Describe"][0], "other", [])


def test_concurrent_approvals(tmp_path):
    """By several processes: no decision is lost."""
    known = [Approvals(tmp_path / APPROVALS) for _ in range(6)]
    threads = [
        threading.Thread(target=approvals.approve, args=(Approval(study=f"study {i}", messages=["*"]),))
        for i, approvals in enumerate(known)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(known[0].listed()) == 6


@pytest.mark.parametrize("line", ["n_estimators = 'many'", "epsilon = [1]", "trees = 3", "max_depth = -1"])
def test_a_site_does_not_read_a_learner_with_wrong_parameters(line):
    with pytest.raises(InputError, match=line.split()[0]):
        study(f'kind = "HistogramForest"\n{line}', schema=SCHEMA)


def test_incompatible_parameters_are_shown_as_such(member):
    """A site's process does not load learners; its owner reads why, and other studies are shown as usual."""
    plan = study('kind = "HistogramForest"\nepsilon = 1.0\nvote = "hard"', schema=SCHEMA)
    member.note_study(plan)
    shown = explain(member, plan)
    assert (shown.asked, shown.leaves) == (None, [])
    assert "It cannot run" in shown.lines[0]
    assert "vote" in shown.lines[1]
    assert "It cannot run" in silvan("site", "approve", member.path).output
    with pytest.raises(InputError, match="a trial of the study fails"):
        approve_study(member, plan)


@pytest.mark.parametrize(
    ("learner", "models", "to_fit"),
    [
        ('kind = "HistogramForest"', 1, 0),
        ('kind = "HistogramForest"\nthreshold = "f1"', 2, 1),
        ('kind = "BOFRF"', 2, 0),
        ('kind = "BOFRF"\npersonal = true', 3, 0),
        ('kind = "AutoForest"\ncalibrate = false', 4, 3),
        ('kind = "AutoForest"', 6, 5),  # calibration scores the shared forest, and again with the site's own curve
        ('kind = "AutoForest"\nthreshold = "f1"', 8, 6),
        ('kind = "AutoForest"\nchoose = false', 3, 2),
        ('kind = "AutoForest"\nchoose = false\nthreshold = "f1"', 5, 3),
    ],
)
def test_the_text_fixes_the_number_of_evaluated_models(member, learner, models, to_fit):
    """``to_fit``: without test rows, models are evaluated on training rows."""
    plan = study(learner, "test = 0.25")
    member.note_study(plan)
    assert member.gate(plan).terms.models == models
    assert f"Models of others that are evaluated on your rows: at most {models}." in explain(member, plan).lines
    assert member.gate(study(learner)).terms.models == to_fit
