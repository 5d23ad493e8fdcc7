"""Joining a federation: keys made locally, invitations that work once, one line for each failure."""

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
from helpers.runs import silvan

from silvan.data import stored_table as sv_batches
from silvan.deploy.membership import enrol
from silvan.deploy.membership.certificates import (
    Authority,
    check_certificate,
    ends_soon,
    load_key,
    make_key,
    make_request,
    pem,
    read_certificate,
)
from silvan.deploy.membership.coordinator_folder import CoordinatorFiles, Invite, roster_fingerprint
from silvan.deploy.membership.enrol import ask_coordinator
from silvan.deploy.membership.fingerprint import WORDS, fingerprint
from silvan.deploy.membership.join_requests import Granted, JoinRequest, RenewRequest, Trusted, proof_key
from silvan.deploy.membership.joined_site import MEMBER, JoinedSite
from silvan.deploy.membership.site_files import BUDGET, STORE, check_table, source_of
from silvan.deploy.service.doctor import examine
from silvan.deploy.service.flare_client import why_refused
from silvan.errors import FederationError, FormatError, InputError, SchemaError
from silvan.federation.keys import Key
from silvan.federation.store import MemoryStore
from silvan.privacy.identity.seal import public_key
from silvan.study.parse import parse_remote_study

GUESSED = "guessed"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A template that tests copy, because making keys takes a while."""
    return make_hub(tmp_path_factory.mktemp("made"))


@pytest.fixture
def hub(made, tmp_path):
    shutil.copytree(made.path, tmp_path / "hub")
    copied = CoordinatorFiles(tmp_path / "hub")
    with serving(copied):
        yield copied


def join(hub, folder, site="north", **settings):
    return JoinedSite.join(folder / site, hub.invite(site), write_table(folder), None, settings)


def test_a_site_joins(hub, tmp_path):
    member = join(hub, tmp_path)
    assert hub.fingerprints() == {"north": member.fingerprint}
    assert len(member.fingerprint.split()) == 8
    startup = member.path / "kit" / "startup"
    assert member.budget().spent == 0  # opens it
    for secret in (*(member.path / name for name in ("site.key", STORE, BUDGET)), startup / "client.key"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    certificate = read_certificate((startup / "client.crt").read_bytes())
    check_certificate(certificate, hub.authority.certificate)
    key = (startup / "client.key").read_text()
    for path in hub.path.rglob("*"):  # a site's key never leaves the site
        assert not path.is_file() or key not in path.read_text(errors="replace")


def test_everybody_reads_the_same_words(hub, tmp_path):
    north = join(hub, tmp_path)
    assert north.pin_roster() is None  # south has not joined yet
    south = join(hub, tmp_path, "south")
    words = {roster_fingerprint(roster) for roster in (north.pin_roster(), south.pin_roster(), hub.roster())}
    assert len(words) == 1
    assert len(words.pop().split()) == 16  # 128 bits: an attacker who shows two lists chooses both


def test_other_keys_are_refused_once_all_are_known(hub, tmp_path):
    north = join(hub, tmp_path)
    join(hub, tmp_path, "south")
    before = north.pin_roster()
    (tmp_path / "again").mkdir()
    JoinedSite.join(tmp_path / "again" / "south", hub.invite("south"), write_table(tmp_path), None, {})
    with pytest.raises(FederationError, match=r"other keys than before, of south: ask why; `silvan site roster`"):
        north.pin_roster()
    assert north.roster() == before
    accept(north, hub)
    assert north.pin_roster() == hub.roster() != before


def accept(member, hub):
    """Does what an owner does who compares the words."""
    words = roster_fingerprint(hub.roster())
    shown = silvan("site", "roster", member.path)
    assert words in " ".join(shown.output.split())
    return silvan("site", "roster", member.path, "--accept", words)


def test_a_new_roster_is_accepted_by_its_words(hub, tmp_path):
    """The words of another list are refused, whoever sent that list in the meantime; nothing is started."""
    north = join(hub, tmp_path)
    join(hub, tmp_path, "south")
    before = north.pin_roster()
    assert "list is the same" in silvan("site", "roster", north.path).output
    hub.add("west")
    assert north.pin_roster() == before  # it has not joined yet
    join(hub, tmp_path, "west")
    wrong = silvan("site", "roster", north.path, "--accept", roster_fingerprint(before), ok=False)
    assert "not the words of the coordinator's list" in " ".join((wrong.output + wrong.stderr).split())
    assert north.roster() == before
    assert "joined: west" in silvan("site", "roster", north.path).output
    accept(north, hub)
    assert list(north.roster().sites) == ["north", "south", "west"]


def test_adding_a_site_stops_no_study(hub, tmp_path):
    """A study keeps the sites that it started with, whether or not the others have accepted the new one."""
    north = join(hub, tmp_path)
    join(hub, tmp_path, "south")
    north.pin_roster()
    plan, later = (parse_remote_study(f'name = "{name}"\n[learner]\nkind = "HistogramForest"\n') for name in "ab")
    north.note_study(plan)
    north.note_sites(plan, ["north", "south"])
    hub.add("west")
    join(hub, tmp_path, "west")
    assert list(north.pin_roster().sites) == ["north", "south"]  # so a site may be restarted meanwhile
    north.note_sites(plan, ["north", "south"])
    north.note_study(later)
    with pytest.raises(FederationError, match=r"does not have the keys of west; .*`silvan site roster`"):
        north.note_sites(later, ["north", "south", "west"])
    accept(north, hub)
    north.note_sites(plan, ["north", "south"])
    assert north.sites_of(plan) == ["north", "south"]
    north.note_sites(later, ["north", "south", "west"])
    with pytest.raises(FederationError, match="the study came with other sites before"):
        north.note_sites(plan, ["north", "south", "west"])


def test_a_study_continues_with_its_original_sites(hub, tmp_path):
    """At the coordinator as well."""
    supervise = pytest.importorskip("silvan.deploy.service.supervise", reason="nvflare is not installed")
    for site in ("north", "south"):
        join(hub, tmp_path, site)
    plan = parse_remote_study('name = "heart"\n[learner]\nkind = "HistogramForest"\n')
    first = supervise.Supervisor(hub, plan)
    with mock.patch.object(first, "_running_job", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        first.run_to_end()
    hub.add("west")
    assert supervise.Supervisor(hub, plan).sites == ["north", "south"]


# -- requests to join


def request(hub, folder, **changes):
    """Makes a request to join as north, with some fields replaced."""
    key, store, trusted = Key.generate(), MemoryStore(), changes.pop("trusted", hub.trusted)
    csr = make_request(make_key(folder / f"{len(list(folder.iterdir()))}.key"), "north").decode()
    bare = JoinRequest(site="north", secret=hub.invite("north").secret, request=csr)
    made = JoinRequest.make(bare, trusted, key, store, proof_key(hub.key))
    return msgspec.structs.replace(made, **changes)


def test_a_request_is_signed_with_all_its_keys(hub, tmp_path):
    other = request(hub, tmp_path)
    for changes in (
        {"key": other.key},
        {"seal": other.seal},
        {"request": other.request},
        {"signature": other.signature},
        {"seal_proof": other.seal_proof},
        {"signature": ""},
        {"seal_proof": ""},
        {"trusted": Trusted(Key.generate().public, hub.trusted.root)},
        {"seal": "00" * 32},  # one with which everybody has the same in common
    ):
        error, said = (FormatError, "public key") if changes == {"seal": "00" * 32} else (InputError, "not signed with")
        with pytest.raises(error, match=said):
            hub.admit(request(hub, tmp_path, **changes))
        assert not hub.read().sites["north"].key
    assert hub.admit(request(hub, tmp_path)).certificate


def test_the_sealing_key_of_another_site(hub, tmp_path):
    """Signing with another key does not prove possession of the site's."""
    south = join(hub, tmp_path, "south")
    key = Key.generate()
    bare = msgspec.structs.replace(request(hub, tmp_path), key=key.public.hex(), seal=public_key(south.store).hex())
    statement = bare.statement(hub.trusted)
    with pytest.raises(InputError, match="not signed with the keys"):
        hub.admit(msgspec.structs.replace(bare, signature=key.sign(statement).hex()))


def test_words_depend_on_both_sides(hub, tmp_path):
    trusted, key, seal = hub.trusted, b"k" * 32, b"s" * 32
    other = Authority.create(tmp_path / "other", "heart").certificate
    words = {
        trusted.words("north", key, seal),
        trusted.words("south", key, seal),
        trusted.words("north", seal, seal),
        trusted.words("north", key, key),
        msgspec.structs.replace(trusted, coordinator=key).words("north", key, seal),
        msgspec.structs.replace(trusted, root=pem(other).decode()).words("north", key, seal),
    }
    assert len(words) == 6


@pytest.mark.parametrize("answer", [{}, {"certificate": 3}, {"certificate": "no", "signature": "00"}])
def test_a_reply_without_the_coordinators_signature(hub, tmp_path, answer):
    with (
        mock.patch.object(CoordinatorFiles, "admit", return_value=answer),
        pytest.raises((FederationError, InputError), match=r"not as a coordinator does|has not the coordin"),
    ):
        join(hub, tmp_path)
    assert not (tmp_path / "north" / MEMBER).exists()


def used(hub, folder):
    invite = hub.invite("north")
    JoinedSite.join(folder / "first", invite, write_table(folder), None, {})
    return invite


def replaced(hub, _):
    first = hub.invite("north")
    hub.invite("north")
    return first


def foreign(hub, folder):
    """The replying server must have the certificate that the invitation trusts."""
    other = Authority.create(folder / "other", "heart").certificate
    return msgspec.structs.replace(hub.invite("north"), root=pem(other).decode())


INVITES = {
    "used": (used, r"no invitation for 'north' is open: it was used.*ask for a new one"),
    "not the last": (replaced, "not the last one"),
    "ended": (lambda hub, _: hub.invite("north", days=-1), "this invitation for 'north' ended on"),
    "guessed": (lambda hub, _: msgspec.structs.replace(hub.invite("north"), secret=GUESSED), "not the last one"),
    "another site": (lambda hub, _: msgspec.structs.replace(hub.invite("north"), site="east"), "no invitation for 'ea"),
    "another coordinator": (foreign, "is not the coordinator that invited you"),
}


@pytest.mark.parametrize("case", INVITES)
def test_an_invitation_works_once_for_one_site(hub, tmp_path, case):
    make, said = INVITES[case]
    invite = make(hub, tmp_path)
    with pytest.raises(FederationError, match=said):
        JoinedSite.join(tmp_path / "two", invite, write_table(tmp_path), None, {})
    assert not (tmp_path / "two" / MEMBER).exists()


def test_nothing_is_signed_before_the_secret_is_right(hub, monkeypatch):
    signed = []
    monkeypatch.setattr(Authority, "sign", lambda *given: signed.append(given))
    hub.invite("north")
    for site in ("north", "south", "east"):
        with pytest.raises(InputError, match="invitation for"):
            hub.admit(JoinRequest(site=site, secret=GUESSED, key="no key", seal="no seal", request="nothing"))
    assert signed == []


@pytest.mark.parametrize("name", invitation_paths.NAMES)
def test_an_invitation_cannot_lead_out_of_its_folder(tmp_path, name):
    """The site's folder has the name in the invitation."""
    path = tmp_path / "x.invite"
    path.write_bytes(msgspec.json.encode({**invitation_paths.GOOD, "site": name}))
    with pytest.raises(FormatError, match="not an invitation"):
        Invite.read(path)
    with pytest.raises(InputError, match="site must be of small letters"):
        Invite(**{**invitation_paths.GOOD, "site": name})


@pytest.mark.parametrize(("field", "value"), invitation_paths.OTHERS.items())
def test_an_invitation_with_a_malformed_field_is_refused(field, value):
    with pytest.raises((InputError, FormatError)):
        Invite(**{**invitation_paths.GOOD, field: value})


def test_nobody_answers(made, tmp_path):
    hub = made
    with pytest.raises(FederationError, match=r"does not answer .connection refused.; has it run `silvan study start`"):
        JoinedSite.join(tmp_path / "one", hub.invite("north"), write_table(tmp_path), None, {})


def test_a_clock_an_hour_off(hub, tmp_path):
    there = time.time
    with (
        mock.patch("silvan.deploy.membership.enrol.time.time", return_value=there() + 3600),
        pytest.raises(InputError, match="clock is 60 minutes"),
    ):
        enrol.check_clock(there(), "the coordinator")
    real = enrol.ask_coordinator

    def late(*args):
        return msgspec.structs.replace(real(*args), time=there() + 3600)

    with (
        mock.patch("silvan.deploy.membership.joined_site.ask_coordinator", late),
        pytest.raises(InputError, match="60 minutes behind that of"),
    ):
        join(hub, tmp_path)


def test_versions_that_differ(hub, tmp_path):
    other = {"silvan": "9.9.9", "nvflare": enrol.versions()["nvflare"]}
    with (
        mock.patch("silvan.deploy.membership.joined_site.versions", return_value=other),
        pytest.raises(InputError, match=r"silvan is 9.9.9 here and .* at the coordinator; install the same"),
    ):
        join(hub, tmp_path)
    asked = JoinRequest(site="north", secret="", request="", versions=other)
    content = hub.read()
    root = hub.invite("north").root
    with pytest.raises(FederationError, match=r"silvan is .* here and 9.9.9 at site 'north'"):
        enrol.call("localhost", content.port, root, "/join", Granted, asked)


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
def test_nonsense_gets_a_one_line_reply(hub, body):
    import http.client

    content = hub.read()
    context = ssl.create_default_context(cadata=hub.invite("north").root)
    connection = http.client.HTTPSConnection("localhost", content.port, timeout=10, context=context)
    connection.request("POST", "/join", body)
    response = connection.getresponse()
    assert response.status == 400
    assert msgspec.json.decode(response.read())["error"]
    connection.close()
    assert not hub.read().sites["north"].key


def test_a_removed_site(hub, tmp_path):
    north = join(hub, tmp_path)
    south = join(hub, tmp_path, "south")
    north.pin_roster()
    hub.revoke("south")
    assert list(north.pin_roster().sites) == ["north", "south"]  # until its owner has compared the words
    accept(north, hub)
    assert list(north.pin_roster().sites) == ["north"]
    for refused in (south.pin_roster, lambda: south.accept_roster(""), south.renew):
        with pytest.raises(FederationError, match=r"has taken this site out|no site 'south' has joined"):
            refused()


@pytest.mark.parametrize(
    ("sites", "port", "said"),
    [
        *(([bad], 8102, "site must be of small letters") for bad in ("", "North", "a b", "all", "server", "../x", "ü")),
        (["a", "a"], 8102, "each site once"),
        (["a"], 70000, "port must be"),
    ],
)
def test_names_and_ports_are_checked_before_a_folder_is_made(tmp_path, sites, port, said):
    with pytest.raises(InputError, match=said):
        CoordinatorFiles.create(tmp_path / "x", "heart", sites, "localhost", port)
    assert not (tmp_path / "x").exists()


def federation_again(folder):
    (folder / "hub").mkdir()
    (folder / "hub" / "hub.json").write_text("{}")
    make_hub(folder)


def empty_invite(folder):
    (folder / "bad.invite").write_text("{}")
    Invite.read(folder / "bad.invite")


@pytest.mark.parametrize(
    ("use", "error", "said"),
    [
        (federation_again, InputError, "there is a federation already"),
        (CoordinatorFiles, InputError, "no federation here"),
        (JoinedSite, InputError, "no site here"),
        (lambda folder: Invite.read(folder / "no.invite"), InputError, "there is no such invitation"),
        (empty_invite, FormatError, "not an invitation"),
    ],
)
def test_unrelated_files(tmp_path, use, error, said):
    with pytest.raises(error, match=said):
        use(tmp_path)


def test_a_table_without_the_agreed_columns(tmp_path):
    path = write_table(tmp_path)
    assert check_table(path, ["age"]) == (["age", "label"], "4 rows")
    with pytest.raises(SchemaError, match="the table lacks 'weight', which the federation agreed on; it has 'age'"):
        check_table(path, ["age", "weight"])


def test_settings_of_a_site(hub, tmp_path):
    member = join(hub, tmp_path, approve=True)
    assert member.policy.approve
    path = member.path / "site.toml"
    for text, said in (
        ("tabel = 1", "unknown key 'tabel'"),
        ("query = 'x'", "table is missing"),
        ("table = 3", "table must be text"),
        ('table = "x"\n[policy]\nmin_leaf = "many"', "min_leaf must be"),
        ("table = ", "not valid TOML"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=said):
            _ = JoinedSite(member.path).settings


# -- certificates


def test_two_coordinators_with_one_address(tmp_path):
    """A site that has joined one finds the other there: it says so, and does not take that for being taken out."""
    first = make_hub(tmp_path)
    with serving(first):
        member = join(first, tmp_path)
    (tmp_path / "second").mkdir()
    second = CoordinatorFiles.create(tmp_path / "second" / "hub", "heart", ["north"], "localhost", first.read().port)
    said = "is not the coordinator that invited you"
    with serving(second):
        with pytest.raises(FederationError, match=said):
            ask_coordinator(*member.membership.service)
        with pytest.raises(FederationError, match=said):
            member.renew()
        assert why_refused(member.path) == ""


def test_a_certificate_is_valid_for_its_time_and_federation(tmp_path):
    authority = Authority.create(tmp_path / "authority", "heart")
    signed = authority.sign(make_request(make_key(tmp_path / "key"), "north"), "north", days=1)
    certificate = read_certificate(signed)
    check_certificate(certificate, authority.certificate)
    other = Authority.create(tmp_path / "theirs", "heart")
    for by, days, said in (
        (authority, 2, r"the certificate of 'north' expired on .*; `silvan site renew`"),
        (authority, -2, "not valid yet: this machine's clock is behind"),
        (other, 0, "not of this federation"),
    ):
        with pytest.raises(InputError, match=said):
            check_certificate(certificate, by.certificate, datetime.now(UTC) + timedelta(days=days))


def test_a_certificate_is_renewed(hub, tmp_path, monkeypatch):
    """With the key that the site joined with, before or after the certificate expires; with no other key or time."""
    north = join(hub, tmp_path)
    startup = north.path / "kit" / "startup"
    csr = make_request(load_key(startup / "client.key"), "north")
    (startup / "client.crt").write_bytes(hub.authority.sign(csr, "north", days=0))
    words = north.fingerprint
    assert ends_soon(north.certificate)
    assert "Renewed, until" in silvan("site", "renew", north.path).output
    check_certificate(north.certificate, hub.authority.certificate)
    assert not ends_soon(north.certificate)
    assert north.fingerprint == words == hub.fingerprints()["north"]
    asked = RenewRequest.make(hub.trusted, north.folder.key, "north", csr.decode())
    for forged in (
        msgspec.structs.replace(asked, at=asked.at - 1),
        msgspec.structs.replace(asked, request=csr.decode() + "\n"),
        RenewRequest.make(hub.trusted, Key.generate(), "north", csr.decode()),
        msgspec.structs.replace(asked, site="south"),
    ):
        with pytest.raises(InputError, match="no site 'south'" if forged.site == "south" else "not signed with the"):
            hub.renew_site(forged)
    monkeypatch.setattr("silvan.deploy.membership.join_requests.time.time", lambda: asked.at + 3600)
    with pytest.raises(InputError, match="signed at another time"):
        hub.renew_site(asked)


def test_certificates_of_the_coordinator_are_renewed(hub):
    """For the same keys and names; certificates with time left stay as they are."""
    server, admin = (hub.path / name for name in ("server/startup/server.crt", "admin/startup/client.crt"))
    assert hub.ending() == []
    csr = make_request(load_key(server.with_suffix(".key")), "localhost")
    server.write_bytes(hub.authority.sign(csr, "localhost", ("localhost",), days=20))
    before = admin.read_bytes()
    assert hub.ending() == ["server/startup/server.crt"]
    hub.renew(*hub.ending())
    renewed = read_certificate(server.read_bytes())
    assert hub.ending() == []
    check_certificate(renewed, hub.authority.certificate)
    assert renewed.public_key() == load_key(server.with_suffix(".key")).public_key()
    assert admin.read_bytes() == before


def test_no_certificate_outlives_the_root(tmp_path):
    authority = Authority.create(tmp_path / "authority", "heart", days=10)
    signed = read_certificate(authority.sign(make_request(make_key(tmp_path / "key"), "north"), "north"))
    assert signed.not_valid_after_utc == authority.certificate.not_valid_after_utc


def test_a_request_is_signed_in_the_name_that_was_invited(tmp_path):
    authority = Authority.create(tmp_path / "authority", "heart")
    signed = read_certificate(authority.sign(make_request(make_key(tmp_path / "key"), "somebody"), "north"))
    assert "CN=north" in signed.subject.rfc4514_string()
    with pytest.raises(FormatError, match="not a request"):
        authority.sign(b"nothing", "north")


def test_a_certificate_is_valid_for_one_purpose(tmp_path):
    """A site's certificate is a client's: nobody can use it to impersonate the coordinator."""
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
    # without its key a ledger cannot be read
    assert {check.what for check in bad if "versions" not in check.what} == {"permissions", "files"}
    assert "chmod 600" in next(check.text for check in bad if check.what == "permissions")


def test_a_doctor_at_the_coordinator(hub, tmp_path):
    found = examine(hub.path)
    assert states(found)["roster"] == "look"
    assert any("in use by another program" in check.text for check in found)  # the service of this test
    assert states(examine(tmp_path))["folder"] == "look"


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("BEGIN CERTIFICATE", "BEGIN\\u00a0CERTIFICATE"),
        lambda text: text.replace("MII", "MI", 1),
        lambda text: "<html>" + text,
        lambda text: text.replace(": ", " = "),
        lambda text: text.encode("utf-16").decode("latin-1"),
        lambda text: text.replace('"host": "', '"host": "-'),
    ],
)
def test_a_damaged_invitation(made, tmp_path, change):
    """Truncated, quoted, re-encoded: reported before anything is created or anybody is contacted."""
    path = tmp_path / "north.invite"
    path.write_text(change(msgspec.json.format(msgspec.json.encode(made.invite("north"))).decode()), "latin-1")
    with pytest.raises(FormatError, match="not an invitation, or changed on its way; ask for it again, as a file"):
        Invite.read(path)


def test_a_table_is_checked_within_memory(tmp_path, monkeypatch):
    """Joining and starting never read a whole table, of any kind."""
    import sqlite3

    def whole(*_, **__):
        raise AssertionError("the whole table")

    for name in ("read_table", "open_table"):
        monkeypatch.setattr(f"silvan.data.table.{name}", whole)
    csv, base = tmp_path / "a.csv", tmp_path / "a.sqlite"
    csv.write_text("age,label\n" + "".join(f"{i},{i % 2}\n" for i in range(3000)))
    with sqlite3.connect(base) as database:
        database.execute("CREATE TABLE t (age INTEGER, label INTEGER)")
        database.executemany("INSERT INTO t VALUES (?, ?)", [(i, i % 2) for i in range(3000)])
    database.close()
    seen = []
    read = sv_batches.read_batches
    monkeypatch.setattr(
        sv_batches,
        "read_batches",
        lambda query, sink, room: read(query, lambda f: (seen.append(len(f)), sink(f)), room),
    )
    for table in (str(csv), f"sqlite:///{base}?table=t"):
        assert check_table(source_of(table, None), ["age"], "20kB") == (["age", "label"], "3,000 rows")
    assert max(seen) < 100
    with pytest.raises(InputError, match="has columns but no rows"):
        check_table(source_of(f"sqlite:///{base}", "select * from t where age < 0"))
