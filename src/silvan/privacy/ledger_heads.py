"""Other sites' records of a site's ledger: its length, and the digest of its last line, signed by the site.

A copied or restored folder of a site looks consistent from the inside: ledger, privacy budget and store agree, and the
budget exists a second time. But its ledger lacks the site's later replies. So when a study begins and ends, each site
sends the signed head of its ledger, and receives what the coordinator and the other sites recorded about it. A site
whose ledger lacks that line sends no further replies until its owner has looked into it.

This does not detect a coordinator that suppresses all these records.
"""

import time
from collections.abc import Mapping
from typing import ClassVar

import msgspec

from silvan.errors import RefusedError
from silvan.federation.federation import Federation
from silvan.federation.keys import Roster, is_signed
from silvan.federation.message import Ask, Derived, Reply
from silvan.federation.site import Site, answers
from silvan.privacy.file_marks import write_behind
from silvan.privacy.gate import Gate
from silvan.privacy.ledger import Head

_KEY = "ledger head of "

# -- messages


class KnownLedgers(Reply, frozen=True, kw_only=True):
    """The length of its ledger, with the digest of the last line, and its records of the other sites' ledgers."""

    heads: dict[str, Head]


class CompareLedgers(Ask[KnownLedgers], frozen=True, kw_only=True):
    """Whether its ledger agrees with what others remember; that of a copied or restored site does not."""

    of_rows: ClassVar[bool] = False
    after_close: ClassVar[bool] = True
    verified: ClassVar[bool] = False

    heads: Derived[dict[str, Head]]
    at: Derived[int]  # the time, so that a resumed study asks again


# -- at a site


@answers(CompareLedgers)
def compare_ledger_here(site: Site, request: CompareLedgers) -> KnownLedgers:
    """Check the site's own ledger, store the heads of the others, and reply with all."""
    gate, keys = site.outbox, site.keys
    if not isinstance(gate, Gate) or keys is None or gate.ledger.folder is None:
        return KnownLedgers(heads={})
    ledger, folder, known = gate.ledger, gate.ledger.folder, request.heads.get(site.name)
    if known is not None and is_head_of(known, site.name, keys.roster) and not ledger.holds(known):
        assert folder is not None  # noqa: S101
        write_behind(folder, known)
        why = (
            f"its ledger lacks what others know of it, up to line {known.lines:,}: its folder is a copy, or was put "
            "back from one; it answers nothing more until its owner has looked (`silvan site restored`)"
        )
        gate.close_rows(why)
        raise RefusedError(why)
    found = {site.name: ledger.signed_head()}
    for name in keys.roster.sites:
        if name == site.name:
            continue
        data = site.store.get(_KEY + name)
        kept = None if data is None else msgspec.msgpack.decode(data, type=Head)
        newest = newer(kept, request.heads.get(name), name, keys.roster)
        if newest is not None:
            found[name] = newest
            if newest != kept:
                site.store.put(_KEY + name, msgspec.msgpack.encode(newest))
    return KnownLedgers(heads=found)


# -- at the coordinator


def compare_ledgers(federation: Federation, known: Mapping[str, Head]) -> dict[str, Head]:
    """Make all sites compare their ledgers with the records of them; return the updated records.

    Sites receive two requests: the second one includes what the others have added.
    """
    found = dict(known)
    roster = federation.roster
    if roster is None:
        return found
    with federation.aside():
        for _ in range(2):
            request = CompareLedgers(heads=dict(found), at=time.time_ns())
            replies: dict[str, KnownLedgers] = federation.ask(request)
            for reply in replies.values():
                found = merged(found, reply.heads, roster)
    return found


def merged(known: Mapping[str, Head], more: Mapping[str, Head], roster: Roster) -> dict[str, Head]:
    """Return the longer of two records of each site's ledger, if the site has signed it."""
    found = {}
    for name in roster.sites:
        newest = newer(known.get(name), more.get(name), name, roster)
        if newest is not None:
            found[name] = newest
    return found


def newer(one: Head | None, other: Head | None, site: str, roster: Roster) -> Head | None:
    """Return the head of the longer ledger, among those signed by the site's current key."""
    heads = [head for head in (one, other) if head is not None and is_head_of(head, site, roster)]
    return max(heads, key=lambda head: head.lines, default=None)


def is_head_of(head: Head, site: str, roster: Roster) -> bool:
    """Whether a site signed this state of its ledger."""
    key = roster.sites.get(site)
    try:
        signature = bytes.fromhex(head.signature)
    except ValueError:
        return False
    return key is not None and is_signed(key, signature, head.signed_bytes())
