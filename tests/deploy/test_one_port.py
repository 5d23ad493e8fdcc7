"""The coordinator's single port: how callers are distinguished, and who is let in."""

import ssl
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'silvan[flare]' to test real sites")

from helpers.joining import make_hub, serving, write_table

from silvan.deploy.membership.certificates import key_digest
from silvan.deploy.membership.enrol import JOINING, PROCESS, ask_coordinator
from silvan.deploy.membership.joined_site import JoinedSite
from silvan.deploy.service.flare_client import why_refused
from silvan.deploy.service.one_port import Gatekeeper, protocols_of


def hello(*protocols):
    """The first message of a caller, as the system's TLS library writes it."""
    context = ssl.create_default_context()
    if protocols:
        context.set_alpn_protocols(list(protocols))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller = context.wrap_bio(incoming, outgoing, server_hostname="coordinator.example.org")
    with pytest.raises(ssl.SSLWantReadError):
        caller.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("protocols", [(), (JOINING,), (PROCESS + "ab" * 16,), ("h2", "http/1.1", JOINING)])
def test_the_first_message_identifies_the_service(protocols):
    assert protocols_of(hello(*protocols)) == list(protocols)


@pytest.mark.parametrize("cut", [0, 1, 5, 6, 43, 44, 60, 100, -1])
def test_damaged_first_messages_cause_no_error(cut):
    assert set(protocols_of(hello(JOINING)[:cut])) <= {JOINING, JOINING[:-1]}
    assert protocols_of(b"GET / HTTP/1.1\r\n\r\n") == []
    assert protocols_of(b"\x16\x03\x01\xff\xff\x01" + b"\xff" * cut) == []


@pytest.fixture
def gate(tmp_path):
    """The port of a coordinator with one site; and the site."""
    hub = make_hub(tmp_path, ["north"])
    with serving(hub):
        member = JoinedSite.join(tmp_path / "north", hub.invite("north"), write_table(tmp_path), None, {})
        yield Gatekeeper(hub), hub, member


class Caller(SimpleNamespace):
    __hash__ = object.__hash__


def caller(member, process):
    """A connection of a site's process, and whether it was closed."""
    closed = []
    key = key_digest((member.startup / "client.crt").read_bytes())
    named = {"key": key, "name_of_site": member.name, "peer": f"address of {process}", "process": process}
    return Caller(**named, close=lambda: closed.append(True), closed=closed)


def test_a_site_may_restart_any_number_of_times(gate):
    port, hub, member = gate
    for process in ("one", "one", "one", "two", "two", "three", "", "three"):
        assert port.enter(caller(member, process))
    assert hub.stopped() == {}


def test_two_processes_of_one_site_are_both_stopped(gate):
    """The first one returns after the second: neither replaced the other. Both read why; one is let in again."""
    port, hub, member = gate
    forgotten = []
    port.forget = forgotten.append
    one, two, again = (caller(member, process) for process in ("one", "two", "one"))
    assert port.enter(one)
    assert port.enter(two)
    assert not port.enter(again)
    assert one.closed == two.closed == again.closed == [True]
    assert forgotten == ["north"]
    why = hub.stopped()["north"]
    assert "two processes answered for it at the same time, at address of one and address of two" in why
    assert not port.enter(caller(member, "two"))
    assert "Keep the folder that is the site's, delete the copy" in why_refused(member.path)
    assert hub.readmit("north") == why
    assert why_refused(member.path) == ""
    assert port.enter(caller(member, "two"))


def test_a_removed_site_is_disconnected_and_refused(gate):
    """Even if another joins in its name: a certificate is identified by its key."""
    port, hub, member = gate
    here = caller(member, "one")
    assert port.enter(here)
    hub.revoke("north")
    port.look()
    assert here.closed == [True]
    assert not port.enter(caller(member, "one"))
    hub.add("north")
    assert not port.enter(caller(member, "one"))
    JoinedSite.join(member.path.parent / "other", hub.invite("north"), write_table(member.path.parent), None, {})
    assert not port.enter(caller(member, "one"))
    assert "has taken this site out, or another has joined in its name" in why_refused(member.path)


def test_a_renewed_certificate_is_let_in(gate):
    port, _, member = gate
    member.renew()
    assert port.enter(caller(member, "one"))


def test_an_unreachable_coordinator_is_not_accused(gate, tmp_path):
    _, hub, member = gate
    told = ask_coordinator(*member.membership.service)
    assert told.sites["north"].stopped == ""
    hub.stop_site("north", "a test says so")
    assert "a test says so" in why_refused(member.path)
