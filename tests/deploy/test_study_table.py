"""A site's table stays the same during a study, or the site says that it changed."""

import re
import sqlite3
import stat
from importlib.metadata import version

import polars as pl
import pytest
from helpers.flare_jobs import job_folders
from helpers.joining import make_hub, serving, write_table
from helpers.runs import silvan
from typer.testing import CliRunner

from silvan.cli.main import app
from silvan.deploy.jobs.site_job import SiteExecutor, make_site
from silvan.deploy.membership.joined_site import SETTINGS, JoinedSite
from silvan.deploy.membership.site_log import last_error
from silvan.deploy.studies.study_table import check_study_table, freeze, frozen_file
from silvan.errors import FederationError, InputError
from silvan.federation.chunks import send_in_chunks
from silvan.study.parse import parse_remote_study

OTHER_ROWS = pl.DataFrame({"age": [40, 50, 60, 71], "label": [0, 1, 0, 1]})


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    folder = tmp_path_factory.mktemp("joined")
    hub = make_hub(folder, ("north",))
    with serving(hub):
        member = JoinedSite.join(folder / "north", hub.invite("north"), write_table(folder), None, {})
        member.pin_roster()
        return member


@pytest.fixture
def study(request, joined):
    """A study that no other test has."""
    made = parse_remote_study(f'name = "{request.node.name}"\n[learner]\nkind = "HistogramForest"\n')
    joined.note_study(made)
    return made


@pytest.fixture
def table(joined, tmp_path):
    """The table of the site, in this test."""
    table = write_table(tmp_path)
    use(joined, table)
    return table


def use(member, table, more=""):
    (member.path / SETTINGS).write_text(f"table = '{table}'\n{more}[policy]\napprove = false\n")


def begin(member, study):
    """Does what a job does at its start, in a new process."""
    member = JoinedSite(member.path)
    site = make_site(member, study)
    check_study_table(member, study, site)
    return site


def test_a_table_that_changed_is_refused(joined, study, table):
    begin(joined, study)
    begin(joined, study)  # the same after a restart
    OTHER_ROWS.write_csv(table)
    with pytest.raises(FederationError, match="its table has changed since the study began"):
        begin(joined, study)
    write_table(joined.path.parent)
    write_table(type(joined.path)(table).parent)
    begin(joined, study)  # the old rows are back


def approve(member, study):
    shown = silvan("site", "approve", member.path, study.digest)
    return " ".join(shown.output.split())


def test_a_table_that_changed_after_it_was_approved_is_refused(joined, study, table):
    """Also if the study was already waiting; approved again before it begins, it has the new rows."""
    assert "answered from the table as it is now. If it changes" in approve(joined, study)
    OTHER_ROWS.write_csv(table)
    with pytest.raises(FederationError, match="has changed since its owner approved the study; its owner can approve"):
        begin(joined, study)
    assert "answered from the table as it is now" in approve(joined, study)
    assert begin(joined, study).frame["age"].to_list()[-1] == 71
    assert "The study has begun, with the table as it is now" in approve(joined, study)
    write_table(type(joined.path)(table).parent)
    assert "The table has changed since the study began" in approve(joined, study)
    with pytest.raises(FederationError, match="has changed since the study began"):
        begin(joined, study)


def test_an_approval_freezes_the_table_where_all_are_to_be(joined, study, table):
    use(joined, table, "freeze = true\n")
    assert "answered from the frozen copy of the table" in approve(joined, study)
    OTHER_ROWS.write_csv(table)
    assert begin(joined, study).frame["age"].to_list()[-1] == 70


def test_an_approval_where_the_table_cannot_be_read(joined, study, table):
    type(joined.path)(table).unlink()
    assert "cannot be read from here" in approve(joined, study)
    assert joined.folder.approvals.find(study.unique_name) is not None
    write_table(type(joined.path)(table).parent)
    begin(joined, study)


def test_another_study_begins_with_the_new_rows(joined, study, table):
    OTHER_ROWS.write_csv(table)
    assert begin(joined, study).frame["age"].to_list()[-1] == 71


def test_records_reveal_nothing_without_the_key(joined, study, table):
    site = begin(joined, study)
    kept = joined.store.get(f"table of study {study.unique_name}")
    assert kept != site.fingerprint().encode()
    assert len(kept) == 32


def test_a_frozen_table(joined, study, table):
    shown = CliRunner().invoke(app, ["site", "freeze", str(joined.path), study.unique_name])
    assert shown.exit_code == 0, shown.output
    begin(joined, study)
    OTHER_ROWS.write_csv(table)
    assert begin(joined, study).frame["age"].to_list()[-1] == 70
    copy = frozen_file(joined, study)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert stat.S_IMODE(copy.parent.stat().st_mode) == 0o700
    with pytest.raises(InputError, match="frozen already"):
        freeze(joined, study)
    assert (
        "Removed" in CliRunner().invoke(app, ["site", "freeze", str(joined.path), study.unique_name, "--remove"]).output
    )
    assert frozen_file(joined, study) is None
    with pytest.raises(FederationError, match="has changed"):
        begin(joined, study)


def test_tables_are_frozen_at_the_first_reply(joined, study, table):
    use(joined, table, "freeze = true\n")
    begin(joined, study)
    OTHER_ROWS.write_csv(table)
    assert begin(joined, study).frame["age"].to_list()[-1] == 70


def test_a_frozen_database(joined, study, tmp_path):
    path = tmp_path / "hospital.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE visits (age REAL, sex TEXT, label INTEGER)")
        rows = [(40.5, "f", 0), (None, "m", 1), (60.0, None, 0), (70.25, "f", 1)]
        database.executemany("INSERT INTO visits VALUES (?, ?, ?)", rows)
    (joined.path / SETTINGS).write_text(f"table = 'sqlite:///{path}'\nquery = 'visits'\n[policy]\napprove = false\n")
    before = begin(joined, study)
    before = (before.fingerprint(), before.frame.to_dict(as_series=False))
    freeze(JoinedSite(joined.path), study)
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM visits WHERE label = 0")
    database.close()
    after = begin(joined, study)
    assert (after.fingerprint(), after.frame.to_dict(as_series=False)) == before


@pytest.mark.parametrize("value", ["1", '"yes"'])
def test_freeze_is_true_or_false(joined, table, value):
    use(joined, table, f"freeze = {value}\n")
    with pytest.raises(InputError, match="freeze must be true or false"):
        _ = JoinedSite(joined.path).settings


def test_a_database_is_frozen_within_memory(joined, study, tmp_path, monkeypatch):
    """The copy equals the one made without a limit, and the table is never read whole."""
    base = tmp_path / "clinic.sqlite"
    with sqlite3.connect(base) as database:
        database.execute("CREATE TABLE visits (age INTEGER, sex TEXT, label INTEGER)")
        rows = [(i, None if i % 5 else "f", i % 2) for i in range(2000)]
        database.executemany("INSERT INTO visits VALUES (?, ?, ?)", rows)
    database.close()
    url = f"sqlite:///{base}?table=visits"
    use(joined, url)
    whole = pl.read_parquet(freeze(JoinedSite(joined.path), study))
    frozen_file(joined, study).unlink()
    use(joined, url, "memory = '40kB'\n")
    monkeypatch.setattr("silvan.deploy.studies.study_table.read_table", None)
    copy = freeze(JoinedSite(joined.path), study)
    assert pl.read_parquet(copy).equals(whole)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert not list(copy.parent.glob(".*"))  # no pieces are left
    copy.chmod(0o644)
    begin(joined, study)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    copy.unlink()


def test_a_site_whose_folder_is_gone_says_so(tmp_path):
    executor = SiteExecutor('name = "x"', ["north"], {}, version("silvan"))
    server = executor.make_server(job_folders(tmp_path / "gone" / "kit"))
    with pytest.raises(FederationError, match="its folder is gone or damaged; its owner must put it back"):
        send_in_chunks(server.take, b"question", "ask")


def test_a_site_of_another_version_says_so_to_both(joined):
    """Before it reads the study's text, which may be of another version too; its owner sees the same message."""
    executor = SiteExecutor("not = [ a study", ["north"], {}, "0.0.9")
    server = executor.make_server(job_folders(joined.path / "kit"))
    text = f"silvan is {version('silvan')} at the site and 0.0.9 at the coordinator; install the same version"
    with pytest.raises(FederationError, match=re.escape(text)):
        send_in_chunks(server.take, b"question", "ask")
    assert last_error(joined.path).text.startswith(text)


PRIVATE = """
name = "{}"
test = 0.5
random_state = {}
[schema]
age = {{ bounds = [0, 100] }}
label = {{ classes = [0, 1] }}
[learner]
epsilon = 1.0
"""


def test_private_studies_sample_test_rows_independently_by_a_site_key(joined, table, request):
    """Nobody else knows it: neither the study nor another site's key reveals it."""
    first, second = (make_site(joined, parse_remote_study(PRIVATE.format(request.node.name, i))) for i in range(2))
    assert first.samples_singly
    assert (
        first.test_key
        == second.test_key
        == make_site(JoinedSite(joined.path), parse_remote_study(PRIVATE.format(request.node.name, 2))).test_key
    )
    kept = joined.store.get("secret x25519")
    try:
        joined.store.put("secret x25519", bytes(range(32)))
        other = make_site(joined, parse_remote_study(PRIVATE.format(request.node.name, 0)))
    finally:
        joined.store.put("secret x25519", kept)
    assert other.test_key != first.test_key


def test_so_do_sites_with_a_budget(joined, study, table):
    assert make_site(JoinedSite(joined.path), study).test_key is None
    (joined.path / SETTINGS).write_text(f"table = '{table}'\n[policy]\napprove = false\nepsilon = 1.0\n")
    assert make_site(JoinedSite(joined.path), study).test_key is not None
