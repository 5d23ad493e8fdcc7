"""Joining a federation: keys on the spot, an invitation that is good once, one line for whatever is wrong."""

import shutil
import ssl
import stat
import time
from datetime import UTC, datetime, timedelta
from unittest import mock

import msgspec
import pytest
from cryptography.x509 import BasicConstraints, ExtendedKeyUsage, KeyUsage
from cryptography.x509.oid import ExtendedKeyUsageOID
from experiments.attacks import invitation_paths
from helpers.joining import make_hub, serving, write_table

from silvan.deploy import enrol
from silvan.deploy.certificates import Authority, check_certificate, make_key, make_request, pem, read_certificate
from silvan.deploy.fingerprint import WORDS, fingerprint
from silvan.deploy.hub import Hub, Invite, roster_fingerprint
from silvan.deploy.member import BUDGET, MEMBER, STORE, Member, check_table
from silvan.deploy.operations.doctor import examine
from silvan.errors import FederationError, FormatError, InputError, SchemaError


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One that tests take copies of: keys take a while to make."""
    return make_hub(tmp_path_factory.mktemp("made"))


@pytest.fixture
def hub(made, tmp_path):
    shutil.copytree(made.path, tmp_path / "hub")
    copied = Hub(tmp_path / "hub")
    with serving(copied):
        yield copied


def join(hub, folder, site="north", **settings):
    return Member.join(folder / site, hub.invite(site), write_table(folder), None, settings)


def test_a_site_joins(hub, tmp_path):
    member = join(hub, tmp_path)
    entry = hub.read().sites["north"]
    assert entry.fingerprint == member.fingerprint
    assert len(member.fingerprint.split()) == 8
    startup = member.path / "kit" / "startup"
    assert member.budget().spent == 0  # opens it
    for secret in (*(member.path / name for name in ("site.key", STORE, BUDGET)), startup / "client.key"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    certificate = read_certificate((startup / "client.crt").read_bytes())
    check_certificate(certificate, hub.authority.certificate)
    key = (startup / "client.key").read_text()
    for path in hub.path.rglob("*"):  # a site's key is nowhere but at the site
        assert not path.is_file() or key not in path.read_text(errors="replace")


def test_everybody_reads_the_same_words(hub, tmp_path):
    north = join(hub, tmp_path)
    assert north.pin_roster() is None  # south has not joined yet
    south = join(hub, tmp_path, "south")
    words = {roster_fingerprint(roster) for roster in (north.pin_roster(), south.pin_roster(), hub.roster())}
    assert len(words) == 1
    assert len(words.pop().split()) == 16  # 128 bits: whoever shows two lists chooses both


def test_other_keys_are_refused_once_all_are_known(hub, tmp_path):
    north = join(hub, tmp_path)
    join(hub, tmp_path, "south")
    before = north.pin_roster()
    (tmp_path / "again").mkdir()
    Member.join(tmp_path / "again" / "south", hub.invite("south"), write_table(tmp_path), None, {})
    with pytest.raises(FederationError, match=r"other keys than before.*--new-roster"):
        north.pin_roster()
    assert north.roster() == before
    assert north.pin_roster(again=True) == hub.roster() != before


def test_an_invitation_is_good_once(hub, tmp_path):
    invite = hub.invite("north")
    Member.join(tmp_path / "one", invite, write_table(tmp_path), None, {})
    with pytest.raises(FederationError, match=r"no invitation for 'north' is open: it was used.*ask for a new one"):
        Member.join(tmp_path / "two", invite, write_table(tmp_path), None, {})
    assert not (tmp_path / "two" / MEMBER).exists()


def test_only_the_last_invitation_counts(hub, tmp_path):
    first = hub.invite("north")
    hub.invite("north")
    with pytest.raises(FederationError, match="not the last one"):
        Member.join(tmp_path / "one", first, write_table(tmp_path), None, {})


def test_an_invitation_ends(hub, tmp_path):
    with pytest.raises(FederationError, match="this invitation for 'north' ended on"):
        Member.join(tmp_path / "one", hub.invite("north", days=-1), write_table(tmp_path), None, {})


def test_a_forged_invitation(hub, tmp_path):
    invite = msgspec.structs.replace(hub.invite("north"), secret="guessed")  # noqa: S106
    with pytest.raises(FederationError, match="not the last one"):
        Member.join(tmp_path / "one", invite, write_table(tmp_path), None, {})
    with pytest.raises(FederationError, match="no invitation for 'east'"):
        Member.join(tmp_path / "two", msgspec.structs.replace(invite, site="east"), write_table(tmp_path), None, {})


def test_nothing_is_signed_before_the_secret_is_right(hub, monkeypatch):
    signed = []
    monkeypatch.setattr(Authority, "sign", lambda *given: signed.append(given))
    hub.invite("north")
    for site in ("north", "south", "east"):
        with pytest.raises(InputError, match="invitation for"):
            hub.admit(site, "guessed", "not a key", "not a seal", b"not a request")
    assert signed == []


@pytest.mark.parametrize("name", invitation_paths.NAMES)
def test_an_invitation_cannot_lead_out_of_its_folder(tmp_path, name):
    """The site's folder is called as the invitation says."""
    path = tmp_path / "x.invite"
    path.write_bytes(msgspec.json.encode({**invitation_paths.GOOD, "site": name}))
    with pytest.raises(FormatError, match="not an invitation"):
        Invite.read(path)
    with pytest.raises(InputError, match="site must be of small letters"):
        Invite(**{**invitation_paths.GOOD, "site": name})


@pytest.mark.parametrize(("field", "value"), invitation_paths.OTHERS.items())
def test_an_invitation_with_another_field_that_is_none(field, value):
    with pytest.raises((InputError, FormatError)):
        Invite(**{**invitation_paths.GOOD, field: value})


def test_another_coordinator_behind_the_address(hub, tmp_path):
    """Whoever answers must have the certificate that the invitation trusts."""
    other = Authority.create(tmp_path / "other", "heart").certificate
    invite = msgspec.structs.replace(hub.invite("north"), root=pem(other).decode())
    with pytest.raises(FederationError, match="is not the coordinator that invited you"):
        Member.join(tmp_path / "one", invite, write_table(tmp_path), None, {})


def test_nobody_answers(made, tmp_path):
    hub = made
    with pytest.raises(FederationError, match=r"does not answer .connection refused.; has it run `silvan study start`"):
        Member.join(tmp_path / "one", hub.invite("north"), write_table(tmp_path), None, {})


def test_a_clock_an_hour_off(hub, tmp_path):
    there = time.time
    with (
        mock.patch("silvan.deploy.enrol.time.time", return_value=there() + 3600),
        pytest.raises(InputError, match="clock is 60 minutes"),
    ):
        enrol.check_clock(there(), "the coordinator")
    real = enrol.call

    def late(*args, **kwargs):
        return {**real(*args, **kwargs), "time": there() + 3600}

    with mock.patch("silvan.deploy.member.call", late), pytest.raises(InputError, match="60 minutes behind that of"):
        join(hub, tmp_path)


def test_versions_that_differ(hub, tmp_path):
    other = {"silvan": "9.9.9", "nvflare": enrol.versions()["nvflare"]}
    with (
        mock.patch("silvan.deploy.member.versions", return_value=other),
        pytest.raises(InputError, match=r"silvan is 9.9.9 here and .* at the coordinator; install the same"),
    ):
        join(hub, tmp_path)
    asked = {"site": "north", "secret": "", "key": "", "seal": "", "request": "", "versions": other}
    content = hub.read()
    root = hub.invite("north").root
    with pytest.raises(FederationError, match=r"silvan is .* here and 9.9.9 at site 'north'"):
        enrol.call("localhost", content.port + 1, root, "/join", asked)


def test_two_sites_with_one_key(hub, tmp_path):
    north = join(hub, tmp_path)
    (tmp_path / "south").mkdir()
    (tmp_path / "south" / "site.key").write_bytes((north.path / "site.key").read_bytes())
    (tmp_path / "south" / "site.key").chmod(0o600)
    with pytest.raises(FederationError, match="another site has joined with this key"):
        join(hub, tmp_path, "south")


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b"\xff", b'{"site": 1}', b'{"site": "north", "versions": 3}', b"x" * 70000]
)
def test_nonsense_is_answered_with_a_line(hub, body):
    import http.client

    content = hub.read()
    context = ssl.create_default_context(cadata=hub.invite("north").root)
    connection = http.client.HTTPSConnection("localhost", content.port + 1, timeout=10, context=context)
    connection.request("POST", "/join", body)
    response = connection.getresponse()
    assert response.status == 400
    assert msgspec.json.decode(response.read())["error"]
    connection.close()
    assert not hub.read().sites["north"].key


def test_a_port_in_use(hub):
    with pytest.raises(InputError, match=f"port {hub.read().port + 1} cannot be used"):
        enrol.make_server(hub)


def test_a_site_that_is_taken_out(hub, tmp_path):
    north = join(hub, tmp_path)
    south = join(hub, tmp_path, "south")
    north.pin_roster()
    hub.revoke("south")
    assert list(north.pin_roster(again=True).sites) == ["north"]
    with pytest.raises(FederationError, match="does not know this site's key"):
        south.pin_roster(again=True)


def test_names(tmp_path):
    for bad in ("", "North", "a b", "all", "server", "../x", "ü"):
        with pytest.raises(InputError, match="site must be of small letters"):
            Hub.create(tmp_path / "x", "heart", [bad], "localhost", 8102)
    with pytest.raises(InputError, match="each site once"):
        Hub.create(tmp_path / "x", "heart", ["a", "a"], "localhost", 8102)
    with pytest.raises(InputError, match="port must be"):
        Hub.create(tmp_path / "x", "heart", ["a"], "localhost", 70000)
    assert not (tmp_path / "x").exists()
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "hub.json").write_text("{}")
    with pytest.raises(InputError, match="there is a federation already"):
        make_hub(tmp_path)


def test_files_that_are_something_else(tmp_path):
    with pytest.raises(InputError, match="no federation here"):
        Hub(tmp_path)
    with pytest.raises(InputError, match="no site here"):
        Member(tmp_path)
    with pytest.raises(InputError, match="there is no such invitation"):
        Invite.read(tmp_path / "no.invite")
    (tmp_path / "bad.invite").write_text("{}")
    with pytest.raises(FormatError, match="not an invitation"):
        Invite.read(tmp_path / "bad.invite")


def test_a_table_without_the_agreed_columns(tmp_path):
    path = write_table(tmp_path)
    assert check_table(path, None, ["age"]) == (["age", "label"], "4 rows")
    with pytest.raises(SchemaError, match="the table lacks 'weight', which the federation agreed on; it has 'age'"):
        check_table(path, None, ["age", "weight"])


def test_settings_of_a_site(hub, tmp_path):
    member = join(hub, tmp_path, approve=True)
    assert member.policy.approve
    path = member.path / "site.toml"
    for text, said in (
        ("tabel = 1", "unknown key 'tabel'"),
        ("query = 'x'", "table is missing"),
        ("table = 3", "table must be text"),
        ('table = "x"\n[policy]\nmin_leaf = "many"', "min_leaf must be"),
        ("table = ", "cannot be read"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=said):
            _ = Member(member.path).settings


# -- certificates


def test_a_certificate_that_expired(tmp_path):
    authority = Authority.create(tmp_path / "authority", "heart")
    signed = authority.sign(make_request(make_key(tmp_path / "key"), "north"), "north", days=1)
    certificate = read_certificate(signed)
    check_certificate(certificate, authority.certificate)
    later = datetime.now(UTC) + timedelta(days=2)
    with pytest.raises(InputError, match=r"the certificate of 'north' expired on .*; ask the coordinator for a new"):
        check_certificate(certificate, authority.certificate, later)
    earlier = datetime.now(UTC) - timedelta(days=2)
    with pytest.raises(InputError, match="not valid yet: this machine's clock is behind"):
        check_certificate(certificate, authority.certificate, earlier)


def test_a_certificate_of_another_federation(tmp_path):
    ours, theirs = (Authority.create(tmp_path / name, "heart") for name in ("ours", "theirs"))
    signed = theirs.sign(make_request(make_key(tmp_path / "key"), "north"), "north")
    with pytest.raises(InputError, match="not of this federation"):
        check_certificate(read_certificate(signed), ours.certificate)


def test_a_request_is_signed_in_the_name_that_was_invited(tmp_path):
    authority = Authority.create(tmp_path / "authority", "heart")
    signed = read_certificate(authority.sign(make_request(make_key(tmp_path / "key"), "somebody"), "north"))
    assert "CN=north" in signed.subject.rfc4514_string()
    with pytest.raises(FormatError, match="not a request"):
        authority.sign(b"nothing", "north")


def test_a_certificate_is_good_for_one_purpose(tmp_path):
    """A site's is a client's: with it nobody passes for the coordinator."""
    authority = Authority.create(tmp_path / "authority", "heart")
    request = make_request(make_key(tmp_path / "key"), "north")
    purposes = {"client": (ExtendedKeyUsageOID.CLIENT_AUTH, ()), "server": (ExtendedKeyUsageOID.SERVER_AUTH, ("host",))}
    for purpose, hosts in purposes.values():
        extensions = read_certificate(authority.sign(request, "north", hosts)).extensions
        assert list(extensions.get_extension_for_class(ExtendedKeyUsage).value) == [purpose]
        usage = extensions.get_extension_for_class(KeyUsage)
        assert usage.critical
        assert usage.value.digital_signature
        assert not usage.value.key_cert_sign
        assert not extensions.get_extension_for_class(BasicConstraints).value.ca
    root = authority.certificate.extensions
    assert root.get_extension_for_class(BasicConstraints).value.ca
    assert root.get_extension_for_class(KeyUsage).value.key_cert_sign


# -- words and doctor


def test_words():
    assert len(set(WORDS)) == 256
    assert fingerprint(b"a") != fingerprint(b"b")
    assert all(word.isalpha() and word.islower() for word in WORDS)


def states(checks):
    return {check.what: check.state for check in checks}


def test_a_doctor_at_a_site(hub, tmp_path):
    member = join(hub, tmp_path)
    found = states(examine(member.path))
    assert found["permissions"] == found["certificate"] == found["coordinator"] == found["clock"] == "good"
    assert found["process"] == "look"
    (member.path / "site.key").chmod(0o644)
    bad = [check for check in examine(member.path) if check.state == "bad"]
    # nobody serves studies here; and without its key a ledger cannot be read
    assert {check.what for check in bad if "versions" not in check.what} == {"permissions", "study port", "files"}
    assert "chmod 600" in next(check.text for check in bad if check.what == "permissions")


def test_a_doctor_at_the_coordinator(hub, tmp_path):
    found = examine(hub.path)
    assert states(found)["roster"] == "look"
    assert any("in use by another program" in check.text for check in found)  # the service of this test
    assert states(examine(tmp_path))["folder"] == "look"
