"""The commands of a federation of machines, as a user types them, against the real service on loopback."""

import pytest
from helpers.joining import make_hub, serving, write_table
from helpers.runs import silvan

from silvan.deploy.membership.coordinator_folder import CoordinatorFiles
from silvan.deploy.membership.joined_site import JoinedSite
from silvan.deploy.service.start_stop import free_port


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("machines")


@pytest.fixture(scope="module")
def hub(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        port = free_port()
        made = silvan(
            "study", "init", "heart", "--site", "north", "--site", "south", "--address", f"localhost:{port}",
            "--columns", "age, label",
        )  # fmt: skip
        assert "silvan study start" in made.output
        found = CoordinatorFiles(folder / "heart")
        with serving(found):
            yield found


def said(result):
    return " ".join((result.output + result.stderr).split())


@pytest.fixture(scope="module")
def north(hub, folder):
    """A site that has joined."""
    invited = silvan("study", "invite", "north", "--in", hub.path)
    assert "works once" in said(invited)
    invite = hub.path / "north.invite"
    assert invite.stat().st_mode & 0o077 == 0
    joined = silvan("site", "join", invite, "--table", write_table(folder), "--folder", folder / "north")
    member = JoinedSite(folder / "north")
    assert "4 rows and the columns age, label" in said(joined)
    assert member.fingerprint in said(joined)
    return member


def test_both_sides_show_the_same_words(hub, north):
    there = said(silvan("study", "status", "--in", hub.path))
    here = said(silvan("site", "status", north.path))
    assert all(word in there for word in north.fingerprint.split())
    assert north.fingerprint in here
    assert "not running" in there
    assert "not running" in here


def test_an_invitation_used_twice(hub, north, folder):
    again = silvan(
        "site",
        "join",
        hub.path / "north.invite",
        "--table",
        folder / "table.csv",
        "--folder",
        folder / "again",
        ok=False,
    )
    assert again.exit_code == 1
    assert "no invitation for 'north' is open: it was used, or taken back; ask for a new one" in said(again)


def test_a_table_that_differs_from_the_agreement(hub, folder):
    silvan("study", "invite", "south", "--in", hub.path)
    (folder / "other.csv").write_text("weight,label\n1,0\n2,1\n")
    wrong = silvan(
        "site",
        "join",
        hub.path / "south.invite",
        "--table",
        folder / "other.csv",
        "--folder",
        folder / "south",
        ok=False,
    )
    assert "the table lacks 'age', which the federation agreed on" in said(wrong)
    missing = silvan("site", "join", hub.path / "south.invite", "--table", "no.csv", ok=False)
    assert "there is no such table" in said(missing)
    assert not (folder / "south").exists()
    assert hub.read().sites["south"].invited  # the invitation is still valid


def test_approval_is_required_by_default(north):
    assert north.policy.approve
    assert "No study has arrived yet" in said(silvan("site", "approve", north.path))
    unknown = silvan("site", "approve", north.path, "heart", ok=False)
    assert "study must be one of those received: none yet" in said(unknown)


def test_an_expired_certificate(hub, north):
    from silvan.deploy.membership.certificates import load_key, make_request

    startup = north.path / "kit" / "startup"
    before = (startup / "client.crt").read_bytes()
    request = make_request(load_key(startup / "client.key"), "north")
    (startup / "client.crt").write_bytes(hub.authority.sign(request, "north", days=0))
    looked = silvan("doctor", north.path, ok=False)
    assert looked.exit_code == 1
    assert "the certificate of 'north' expired on" in said(looked)
    assert "`silvan site renew` has a site's renewed" in said(looked)
    (north.path / "site.toml").rename(north.path / "away")
    try:
        started = silvan("site", "start", north.path, ok=False)  # it goes no further than this
        assert "site.toml: cannot be read" in said(started)
    finally:
        (north.path / "away").rename(north.path / "site.toml")
    assert (startup / "client.crt").read_bytes() != before
    assert "expired" not in said(silvan("doctor", north.path, ok=False))


def test_a_port_in_use(hub, monkeypatch):
    """The service of this test uses it."""
    monkeypatch.setattr("silvan.deploy.service.start_stop.PORT_SECONDS", 0.1)
    refused = silvan("study", "start", "--in", hub.path, ok=False)
    assert "is in use by another program; stop that, or name another port" in said(refused)


def test_a_study_before_all_have_joined(hub, north, folder):
    (folder / "study.toml").write_text('[learner]\nkind = "HistogramForest"\n')
    refused = silvan("study", "run", folder / "study.toml", "--in", hub.path, ok=False)
    assert "site 'south' has not joined yet; send it the invitation" in said(refused)


def test_folders_of_something_else(tmp_path):
    for command in (["study", "status", "--in", tmp_path], ["site", "status", tmp_path], ["site", "start", tmp_path]):
        result = silvan(*command, ok=False)
        assert "here; `silvan" in said(result)
    assert "good" in said(silvan("doctor", tmp_path))


def test_a_malformed_address_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = silvan("study", "init", "heart", "--site", "a", "--address", "host:port", ok=False)
    assert "address must be HOST or HOST:PORT" in said(result)


def test_without_flare(hub, monkeypatch):
    monkeypatch.setattr("silvan.deploy.service.process.find_spec", lambda name: None)
    refused = silvan("study", "start", "--in", hub.path, ok=False)
    assert "studies over machines need NVIDIA FLARE: pip install 'silvan[flare]'" in said(refused)


def test_a_renamed_column(tmp_path):
    """A site can join with another name for a column if it says so; its settings keep the mapping."""
    hub = make_hub(tmp_path, columns=["age", "label"])
    (tmp_path / "south.csv").write_text("alter;label\n40;0\n50;1\n60;0\n70;1\n")
    with serving(hub):
        silvan("study", "invite", "south", "--in", hub.path)
        asked = [
            "site",
            "join",
            hub.path / "south.invite",
            "--table",
            tmp_path / "south.csv",
            "--folder",
            tmp_path / "south",
        ]
        lacking = silvan(*asked, ok=False)
        assert "the table lacks 'age', which the federation agreed on; it has 'alter', 'label'" in said(lacking)
        assert "set rename" in said(lacking)
        for line, text in {
            "rename = { alte = 'age' }": "did you mean 'alter'?",
            "rename = 5": "--reading: rename must map names of columns",
            "renam = {}": "--reading: unknown key 'renam'; did you mean 'rename'?",
            "rename = { alter": "--reading: the value of rename is not valid TOML",
            "rename": "--reading takes KEY=VALUE",
        }.items():
            assert text in said(silvan(*asked, "--reading", line, ok=False))
        database = silvan(
            *asked, "--table", "sqlite:///x.db?table=t", "--reading", "rename = { alter = 'age' }", ok=False
        )
        assert "[reading] is for files; a query says what columns are called" in said(database)
        joined = silvan(*asked, "--reading", "rename = { alter = 'age' }", "--reading", "separator=;")
        assert "4 rows and the columns age, label" in said(joined)
        assert JoinedSite(tmp_path / "south").settings["reading"] == {"rename": {"alter": "age"}, "separator": ";"}
