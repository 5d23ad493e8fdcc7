"""Private set intersection: the label holder finds which of its IDs others have, and nobody learns other IDs.

It runs Diffie-Hellman once with each other party. An ID is hashed to a point of a curve (``curve25519.py``). The label
holder applies its secret to its points and the other party its own on top (``response``); on the other party's points
(``setup``) the label holder's secret comes second. Equal points are the common IDs. Secrets belong to one study, and
messages are sealed for the parties.

The label holder learns which of its own IDs each other party has; the others learn its number of rows. The coordinator
sees the digests of common rows and no others, and cannot insert IDs among the points: a party hides points once per
study, and only sealed ones. docs/vertical.md lists the assumptions.
"""

from typing import ClassVar

import numpy as np

from silvan.errors import AgreementError, FormatError, RefusedError
from silvan.federation.agree import MAX_ROWS
from silvan.federation.federation import Federation
from silvan.federation.message import Ask, Blob, Derived, Reply
from silvan.federation.party import KEY_BYTES, Party, party_of
from silvan.federation.site import Site, answers
from silvan.federation.store import SEQUENCE, digest
from silvan.privacy.identity.curve25519 import POINT, cut_points, hash_to_points, multiply_points
from silvan.privacy.identity.identity import WORDS, check_digests, rising_order, row_digests
from silvan.privacy.identity.seal import LABEL_HOLDER, seal, unseal
from silvan.util.threads import thread_count

_COMPARED = 16
"""Bytes by which points that were hidden twice are compared.

With 2^40 rows at each of two parties, two that differ are alike with a probability of 2^-48.
"""

# -- messages


class HiddenIds(Reply, frozen=True, kw_only=True):
    """The label holder's IDs as points that only it can undo, sealed for the parties."""

    request: bytes


class HideIds(Ask[HiddenIds], frozen=True, kw_only=True):
    """The party's IDs, hidden by its secret."""


class TwiceHidden(Reply, frozen=True, kw_only=True):
    """Another party's IDs as points, and the label holder's points with the party's secret applied."""

    setup: bytes
    response: bytes


class HideTwice(Ask[TwiceHidden], frozen=True, kw_only=True):
    """Hide the label holder's IDs a second time, and the party's IDs for comparison."""

    once: ClassVar[bool] = True  # anyone who may have arbitrary IDs hidden can try any ID

    request: Derived[Blob]


class Common(Reply, frozen=True, kw_only=True):
    """Digests of the IDs that all parties have, and the number of rows at each."""

    digests: np.ndarray
    shared: dict[str, int]


class Intersect(Ask[Common], frozen=True, kw_only=True):
    """The IDs that all other parties also have."""

    once: ClassVar[bool] = True  # anyone who may have arbitrary points compared can try any ID

    setups: Derived[dict[str, Blob]]
    responses: Derived[dict[str, Blob]]


# -- at a party


@answers(HideIds)
def hide_ids(site: Site, request: HideIds) -> HiddenIds:
    """Hide the party's IDs with its secret."""
    party = party_of(site)
    points = _hide(party, _texts(party, _order(party)), _FIRST)
    return HiddenIds(request=seal(party.key_for("hidden ids"), b"".join(points)))


@answers(HideTwice)
def hide_twice(site: Site, request: HideTwice) -> TwiceHidden:
    """Apply this party's secret to the label holder's hidden IDs."""
    party = party_of(site)
    hidden = unseal(party.key_for("hidden ids"), party.blob(request.request.hash), LABEL_HOLDER)
    twice = multiply_points(_secret(party, _SECOND), cut_points(hidden))
    _note_once(party, request.kind(), hidden)
    own = sorted(_hide(party, _texts(party), _SECOND))  # in an order that reveals nothing
    key_of_own, key_of_twice = _keys_of(party, party.name)
    response = b"".join(point[:_COMPARED] for point in twice)
    return TwiceHidden(setup=seal(key_of_own, b"".join(own)), response=seal(key_of_twice, response))


@answers(Intersect)
def intersect(site: Site, request: Intersect) -> Common:
    """Find the IDs that all parties have."""
    party = party_of(site)
    others = set(party.seals) - {party.name}
    if set(request.setups) != set(request.responses):
        raise FormatError("the answers do not match")
    if set(request.setups) != others:
        raise RefusedError("the party compares its ids with those of all the parties that it knows")
    order, secret = _order(party), _secret(party, _FIRST)
    setups, responses = {}, {}
    for name in sorted(others):
        by, (key_of_own, key_of_twice) = f"party {name!r}", _keys_of(party, name)
        setups[name] = unseal(key_of_own, party.blob(request.setups[name].hash), by)
        responses[name] = unseal(key_of_twice, party.blob(request.responses[name].hash), by)
    common, shared = np.ones(len(order), np.bool_), {}
    for name in request.setups:
        twice = cut_points(responses[name], _COMPARED)
        if len(twice) != len(order):
            raise FormatError(f"other points came back from party {name!r} than were hidden")
        theirs = {point[:_COMPARED] for point in multiply_points(secret, cut_points(setups[name]))}
        found = np.array([point in theirs for point in twice])
        shared[name] = int(found.sum())
        common &= found
    _note_once(party, request.kind(), b"".join(setups[name] + responses[name] for name in sorted(others)))
    digests = row_digests(party)[order[common]]
    return Common(digests=digests[rising_order(digests)], shared=shared)


_FIRST, _SECOND = "hides ids first", "hides ids second"
"""The purposes of a party's secrets: one for what it starts, another for what others start."""


def _secret(party: Party, purpose: str) -> bytes:
    """Return the party's secret for points, the same after a restart."""
    return party.secret_for(f"private set intersection: {purpose}")[:POINT]


def _keys_of(party: Party, name: str) -> tuple[bytes, bytes]:
    """Return the keys that seal the party's own points, and the label holder's with its secret applied."""
    return party.key_for(f"ids hidden by {name}"), party.key_for(f"hidden twice by {name}")


def _order(party: Party) -> np.ndarray:
    """Return the party's rows in an order that only it knows, the same after a restart."""
    return rising_order(row_digests(party, party.secret_for("order of hidden ids")[:KEY_BYTES]))


def _texts(party: Party, order: np.ndarray | None = None) -> list[bytes]:
    """Return the IDs in the form for hashing."""
    ids = party.ids
    if not ids.kind or ids.missing or ids.repeated:
        raise RefusedError("the party's ids are not unique")
    return [f"{ids.kind}\0{ids.texts[i]}".encode() for i in (range(len(ids.texts)) if order is None else order)]


def _hide(party: Party, texts: list[bytes], purpose: str) -> list[bytes]:
    """Hash IDs to points, under the key that parties share, and apply the party's secret."""
    points = hash_to_points(party.key_for("points of ids"), texts, thread_count(party.n_jobs))
    return multiply_points(_secret(party, purpose), points)


def _note_once(party: Party, kind: str, asked: bytes) -> None:
    """Raise an error if the party has already replied about other points, in any task of the study."""
    name = f"{SEQUENCE} {kind} {party.secret_for(f'name of {kind}')[:16].hex()}"  # the secret belongs to the study
    if not party.store.settles(name, digest(asked).encode()):
        raise RefusedError("the party has compared its ids with others already, once in a study")


# -- at the coordinator


def find_common(federation: Federation, label_holder: str) -> np.ndarray:
    """Find the digests of the rows that all parties have: three rounds, counted apart."""
    others = [name for name in federation.active if name != label_holder]

    def check(site: str, reply: Common) -> None:
        check_digests(reply.digests)
        if set(reply.shared) != set(others) or len(reply.digests) > min(reply.shared.values(), default=MAX_ROWS):
            raise FormatError("its counts are not possible")

    with federation.counted_apart():
        asked: HiddenIds = federation.ask(HideIds(), to=[label_holder])[label_holder]
        replies: dict[str, TwiceHidden] = {}
        if others:
            request = HideTwice(request=federation.blob(asked.request))
            replies = federation.ask(request, to=others)
        common: Common = federation.ask(
            Intersect(
                setups={name: federation.blob(reply.setup) for name, reply in replies.items()},
                responses={name: federation.blob(reply.response) for name, reply in replies.items()},
            ),
            to=[label_holder],
            check=check,
        )[label_holder]
    for name, n in common.shared.items():
        if not n:
            raise AgreementError(
                f"party {name!r} has no rows in common with party {label_holder!r}; are the ids the same?"
            )
    if not len(common.digests):
        names = ", ".join(map(repr, federation.active))
        raise AgreementError(f"no row is known to all of {names}; are the ids the same?")
    return common.digests.reshape(-1, WORDS)
