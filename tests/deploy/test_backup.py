"""Backups of a site's and a coordinator's folder, and what happens when one is restored."""

import shutil
import sqlite3
import stat
from contextlib import closing

import pytest
from helpers.joining import make_hub, serving, write_table
from helpers.runs import silvan

from silvan.deploy.membership.coordinator_folder import CoordinatorFiles
from silvan.deploy.membership.joined_site import JoinedSite
from silvan.deploy.membership.site_files import BUDGET, STORE
from silvan.deploy.service.backup import backup_coordinator, backup_site
from silvan.deploy.service.start_stop import process_of, start_site
from silvan.errors import FormatError, InputError
from silvan.federation.journal import Entry, Journal
from silvan.privacy.file_marks import FROM_BACKUP, FileMarks
from silvan.privacy.ledger import read_lines


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    hub = make_hub(folder)
    with serving(hub):
        member = JoinedSite.join(folder / "north", hub.invite("north"), write_table(folder), None, {"epsilon": 2.0})
    member.budget().charge("draw", 0.5, "a question")
    member.store.put("answer", b"kept")
    (member.path / "site.log").write_text("long ago\n")
    (member.path / "kit" / "log.txt").write_text("long ago\n")
    member.store.close()
    return hub, member


@pytest.fixture
def site(made, tmp_path):
    shutil.copytree(made[1].path, tmp_path / "north")
    return JoinedSite(tmp_path / "north")


def test_a_site_is_copied_whole_and_asks_before_it_starts_from_the_copy(site, tmp_path):
    copy = tmp_path / "copy"
    said = silvan("site", "backup", site.path, copy).output
    assert "It contains secrets" in said
    assert stat.S_IMODE(copy.stat().st_mode) == 0o700
    for name in ("site.key", STORE, BUDGET, "kit/startup/client.key"):
        assert stat.S_IMODE((copy / name).stat().st_mode) == 0o600
    assert not list(copy.rglob("*.log")) + list(copy.rglob("log.txt")) + list(copy.rglob("*-wal"))
    site.budget().charge("later", 1.0, "a question")

    shutil.rmtree(site.path)
    shutil.copytree(copy, site.path)
    back = JoinedSite(site.path)
    assert (float(back.budget().spent), back.store.get("answer")) == (0.5, b"kept")
    with pytest.raises(InputError, match=r"was put back from the backup of 20.* by `silvan site restored"):
        start_site(back)
    with pytest.raises(FormatError, match="the folder was put back from the backup of"):
        FileMarks(back.folder.ledger, back.budget(), back.store).check()
    shown = silvan("site", "restored", site.path, ok=False)
    assert shown.exit_code == 1
    assert "what left since is not known" in shown.output
    silvan("site", "restored", site.path, "--accept")
    assert not (site.path / FROM_BACKUP).exists()
    assert [line.outcome for line in read_lines(site.path)] == ["restored"]
    assert "All files are equally recent" in silvan("site", "restored", site.path).output


def test_a_running_site_is_not_copied(site, tmp_path):
    process = process_of(site)
    process.start(["-c", "import time; time.sleep(600)"], tmp_path)
    try:
        with pytest.raises(InputError, match=r"is running .*; stop it first: its files must be of one moment"):
            backup_site(site, tmp_path / "copy")
    finally:
        process.kill()
    assert not (tmp_path / "copy").exists()


def test_a_coordinators_journal_is_copied_while_it_is_written(made, tmp_path):
    shutil.copytree(made[0].path, tmp_path / "hub")
    hub = CoordinatorFiles(tmp_path / "hub")
    (hub.path / "runs" / "heart").mkdir(parents=True)
    journal = Journal(hub.path / "runs" / "heart" / "journal.sqlite")
    journal.keep("question", {"north": Entry("kind", b"body", 1, 2)})
    with closing(sqlite3.connect(journal.path)) as busy:  # another reader, so that the log is not merged
        busy.execute("SELECT * FROM reply").fetchall()
        assert backup_coordinator(hub.path, tmp_path / "copy")
    assert Journal(tmp_path / "copy" / "runs" / "heart" / "journal.sqlite").find("question")["north"].body == b"body"
    assert CoordinatorFiles(tmp_path / "copy").read() == hub.read()


def test_nothing_is_overwritten(site, tmp_path):
    (tmp_path / "there").mkdir()
    for target in (tmp_path / "there", site.path / "inside"):
        with pytest.raises(InputError, match="name a new folder outside of"):
            backup_site(site, target)


def test_a_link_in_a_folder_is_not_followed(site, tmp_path):
    """Otherwise anybody who can create a link there could have any file of the machine copied."""
    (tmp_path / "elsewhere").write_text("a secret of another program")
    (site.path / "notes.txt").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"notes.txt is a link"):
        backup_site(site, tmp_path / "copy")
