"""Copy a federation to attack it: the same tables and rules, with separate stores and ledgers."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import msgspec

from silvan.federate.options import make_sums
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.journal import Journal
from silvan.federation.message import Envelope, SignedReply, Verb
from silvan.federation.partitioned_site import site_of
from silvan.federation.signed import make_signers
from silvan.federation.site import Site
from silvan.federation.store import digest
from silvan.federation.transport import InProcess
from silvan.privacy.gate import Gate, policy_of
from silvan.privacy.noise.budget import Budget

S = TypeVar("S", bound=SignedReply)

Tamper = Callable[[str, bytes], bytes]
"""Returns what arrives instead of a site's message."""


class Wiretap(InProcess):
    """A transport that records what sites receive and send, and may change what they send."""

    def __init__(self, sites: dict[str, Site], *, cold: bool = False, tamper: Tamper | None = None) -> None:
        super().__init__(sites, cold=cold)
        self.tamper = tamper
        self.received: list[tuple[str, Envelope]] = []
        self.sent: list[tuple[str, Envelope]] = []

    def deliver(
        self, messages: dict[str, bytes], verb: Verb, timeout: float | None
    ) -> Iterator[tuple[str, bytes | Exception]]:
        """Deliver messages, and record and change the replies."""
        self.received.extend((site, wire.decode(data, Envelope)) for site, data in messages.items())
        for site, data in super().deliver(messages, verb, timeout):
            if isinstance(data, bytes):
                data = data if self.tamper is None else self.tamper(site, data)
                self.sent.append((site, wire.decode(data, Envelope)))
            yield site, data


def tap_of(federation: Federation) -> Wiretap:
    """Return the record of a federation's messages."""
    if not isinstance(federation.transport, Wiretap):
        raise TypeError("this federation has no record of messages")
    return federation.transport


def rehearse(federation: Federation, sums: str | None = None, *, tamper: Tamper | None = None) -> Federation:
    """Copy a federation in this process, so that an attack on the copy leaves no trace in the original.

    ``sums`` replaces its kind of sums, and ``tamper`` changes what sites send.
    """
    adding, secure_sum = make_sums(sums or federation.sums.name)
    coordinator, keys = make_signers(federation.active)
    sites = {}
    for name in federation.active:
        site = federation.site(name)
        policy = policy_of(site)
        gate = Gate(policy, Budget(policy.epsilon))
        sites[name] = site_of(name, site.source, site.settings, outbox=gate, secure_sum=secure_sum, keys=keys[name])
    again = Federation(
        Wiretap(sites, tamper=tamper),
        sites,
        adding,
        journal=Journal(None),
        study="rehearsal of an audit",
        roster=coordinator.roster,
    )
    rows = {name: federation.site(name).n_train for name in sites}
    again.agreement = replace(federation.agreement, rows=rows)
    return again


def sign_as(federation: Federation, site: str, reply: S) -> S:
    """Sign a reply in the name of a site, as a malicious site can."""
    keys = federation.site(site).keys
    if keys is None:
        return reply
    signature = keys.sign_work(federation.study, federation.task, digest(reply.work()))
    return msgspec.structs.replace(reply, signature=signature)
