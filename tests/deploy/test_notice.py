"""A site's owner is notified once of a waiting study."""

import sys
import time

import pytest
from helpers.joining import make_hub, serving, write_table

from silvan.deploy.membership.joined_site import SETTINGS, JoinedSite
from silvan.deploy.studies.notice import notify
from silvan.study.parse import parse_remote_study

STUDY = parse_remote_study('name = "$(touch here); heart"\n[learner]\nkind = "HistogramForest"\n')


@pytest.fixture
def member(tmp_path):
    hub = make_hub(tmp_path, ("north",))
    with serving(hub):
        made = JoinedSite.join(tmp_path / "north", hub.invite("north"), write_table(tmp_path), None, {})
    made.note_study(STUDY)
    return made


def with_command(member, command):
    path = member.path / SETTINGS
    path.write_text(f"notify = '''{command}'''\n{path.read_text()}")
    return JoinedSite(member.path)


def test_the_owner_is_notified_once(member, tmp_path):
    heard = tmp_path / "heard"
    code = f'import os; open("{heard}", "a").write(os.environ["SILVAN_SITE"] + " " + os.environ["SILVAN_STUDY"])'
    member = with_command(member, f"{sys.executable} -c '{code}'")
    assert notify(member, STUDY)
    end = time.monotonic() + 60
    while not heard.exists() or not heard.read_text():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert heard.read_text() == f"north {STUDY.unique_name}"
    assert not notify(JoinedSite(member.path), STUDY)


def test_a_missing_notification_command(member):
    assert not notify(member, STUDY)
    member = with_command(member, "/no/such/program")
    assert not notify(member, STUDY)
