"""Decisions at a site are in its ledger, by name; and what the doctor finds about its table."""

import pytest
from helpers.joining import make_hub, serving, write_table
from helpers.runs import silvan

from silvan.deploy.membership.joined_site import JoinedSite
from silvan.deploy.service.doctor import examine
from silvan.deploy.service.start_stop import prepare_site
from silvan.errors import SilvanError
from silvan.privacy.site_folder import Approval
from silvan.study.parse import parse_remote_study
from silvan.util.acting_user import acting_user

STUDY = parse_remote_study('name = "heart"\nlabel = "label"\nsites = ["north"]\n[learner]\nkind = "HistogramForest"\n')


@pytest.fixture
def member(tmp_path):
    """A site that has joined, and a study that has arrived."""
    hub = make_hub(tmp_path, ["north"])
    with serving(hub):
        made = JoinedSite.join(tmp_path / "north", hub.invite("north"), write_table(tmp_path), None, {"approve": True})
        made.note_study(STUDY)
        yield made


def decided(member):
    lines = JoinedSite(member.path).folder.ledger.lines()
    assert {line.outcome for line in lines} <= {"decided"}
    return [(line.what, line.by) for line in lines]


def test_approvals_are_on_record_by_name(member):
    member.approve(Approval(study=STUDY.unique_name, messages=["Describe", "CountRows"], by="anna"))
    member.withdraw(STUDY.unique_name, "bert")
    member.decline(STUDY, "not before the ethics board meets", "anna")
    assert decided(member) == [
        ("the study was approved: 2 kinds of messages", "anna"),
        ("the approval of the study was withdrawn", "bert"),
        ("the study was declined: not before the ethics board meets", "anna"),
    ]
    shown = " ".join(silvan("site", "ledger", member.path).output.split())
    assert "the study was approved: 2 kinds of messages, by anna" in shown
    assert "3 lines: 3 decided" in shown
    assert "The ledger is intact" in silvan("site", "ledger", member.path, "--verify").output


def test_on_the_command_line_it_is_the_systems_user(member, monkeypatch):
    monkeypatch.setenv("SUDO_USER", "anna")
    silvan("site", "decline", member.path, STUDY.digest, "--why", "no")
    assert decided(member) == [("the study was declined: no", acting_user())]
    assert acting_user().startswith("anna (as ")
    monkeypatch.delenv("SUDO_USER")
    assert "(" not in acting_user()


def test_a_changed_policy_is_noted_once_with_what_was_before(member):
    prepare_site(member, "anna")
    prepare_site(member, "anna")
    text = member.settings_file.read_text()
    member.settings_file.write_text(text.replace("approve = true", "approve = true\nepsilon = 3.0\nmin_leaf = 7"))
    JoinedSite(member.path).note_policy("bert")
    member.settings_file.write_text(text)
    JoinedSite(member.path).note_policy("bert")
    assert decided(member) == [
        ("the policy is: approve = true", "anna"),
        ("the policy was changed: epsilon = 3.0, before default; min_leaf = 7, before default", "bert"),
        ("the policy was changed: epsilon = default, before 3.0; min_leaf = default, before 7", "bert"),
    ]


# -- the doctor


def table_check(member):
    return next(check for check in examine(member.path) if check.what == "table")


def test_the_doctor_reads_the_table(member):
    assert "table.csv has 4 rows and 2 columns" in table_check(member).text
    member.note_study(parse_remote_study(STUDY.text.replace('"label"', '"diagnosis"')))
    assert "lacks 'diagnosis', which study 'heart' asks for" in table_check(member).text
    JoinedSite(member.path).decline(parse_remote_study(STUDY.text.replace('"label"', '"diagnosis"')), "no")
    assert table_check(member).state == "good"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("moved.csv", "moved.csv"),
        ("postgresql://reader@127.0.0.1:1/clinic?table=t", "no PostgreSQL server listens at '127.0.0.1', port 1"),
    ],
)
def test_the_doctor_reports_an_unreadable_table(member, table, said):
    """A file that was moved, a database that is stopped."""
    member.settings_file.write_text(f'table = "{table}"\n')
    found = table_check(JoinedSite(member.path))
    assert found.state == "bad"
    assert said in found.text


def test_a_stopped_site_does_not_start(member):
    from silvan.deploy.membership.coordinator_folder import CoordinatorFiles

    CoordinatorFiles(member.path.parent / "hub").stop_site("north", "two processes answered for it")
    with pytest.raises(SilvanError, match="the coordinator has stopped this site: two processes answered for it"):
        prepare_site(JoinedSite(member.path))


def test_a_folder_with_a_space_in_its_path_is_refused(tmp_path):
    """FLARE splits the command that starts a job at spaces, so every study would fail."""
    (tmp_path / "my sites").mkdir()
    with pytest.raises(SilvanError, match="FLARE starts no job in a folder with a space in its path"):
        make_hub(tmp_path / "my sites")
