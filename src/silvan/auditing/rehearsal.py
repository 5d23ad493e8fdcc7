"""Make a federation again to attack it: the same tables and rules, with stores and ledgers of its own."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from silvan.federate.options import make_sums
from silvan.federation.federation import Federation
from silvan.federation.journal import Journal
from silvan.federation.message import Verb
from silvan.federation.site import Site
from silvan.federation.transports.in_process import InProcess
from silvan.privacy.gate.gate import Gate, policy_of
from silvan.privacy.noise.budget import Budget

Tamper = Callable[[str, bytes], bytes]
"""Returns what arrives in place of what a site sent."""


class _Recording(InProcess):
    """A transport that records what sites send, and may change it."""

    def __init__(self, sites: dict[str, Site], tamper: Tamper | None, sent: list[tuple[str, bytes]]) -> None:
        super().__init__(sites)
        self._tamper, self._sent = tamper, sent

    def deliver(
        self, messages: dict[str, bytes], verb: Verb, timeout: float | None
    ) -> Iterator[tuple[str, bytes | Exception]]:
        """Deliver messages, and record and change the answers."""
        for site, data in super().deliver(messages, verb, timeout):
            if isinstance(data, bytes):
                data = data if self._tamper is None else self._tamper(site, data)
                self._sent.append((site, data))
            yield site, data


def rehearse(
    federation: Federation,
    sums: str | None = None,
    *,
    tamper: Tamper | None = None,
    sent: list[tuple[str, bytes]] | None = None,
) -> Federation:
    """Make a federation again whose attack leaves no trace in the original.

    Parameters
    ----------
    federation
        The original, in this process.
    sums
        A way of summing in place of its own.
    tamper
        A function that changes what sites send.
    sent
        A list that is filled with all that sites send.
    """
    adding, cover = make_sums(sums or federation.sums.name)
    sites = {}
    for name in federation.active:
        site = federation.site(name)
        policy = policy_of(site)
        gate = Gate(policy, Budget(policy.epsilon))
        sites[name] = Site(name, site.source, site.settings, outbox=gate, cover=cover)
    transport = _Recording(sites, tamper, [] if sent is None else sent)
    again = Federation(transport, sites, adding, journal=Journal(None), study="rehearsal of an audit")
    rows = {name: federation.site(name).n_train for name in sites}
    again.agreement = replace(federation.agreement, rows=rows)
    return again
