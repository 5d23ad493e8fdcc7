"""Private set intersection: the label holder finds which of its ids others have, and nobody learns other ids.

The elliptic-curve protocol of ``openmined-psi``, once with each other party; what travels are points on a curve
that only their owner can read, sealed for the parties. The label holder learns which of its own ids each other party
has; the others learn how many rows it has. The coordinator sees the digests of the rows in common and no others, and
cannot put ids of its own among the points: a party hides once in a study, and only what a party has sealed.
"""

from importlib.util import find_spec
from typing import Any, ClassVar

import msgspec
import numpy as np

from silvan.errors import AgreementError, FormatError, InputError, RefusedError
from silvan.federation import wire
from silvan.federation.agreement.agree import MAX_ROWS
from silvan.federation.federation import Federation
from silvan.federation.message import Blob, Course, Reply, Request, Verb
from silvan.federation.party import Party, party_of
from silvan.federation.site import Site, answers
from silvan.privacy.identity import WORDS, check_digests, row_digests
from silvan.privacy.seal import seal, unseal

_FALSE_HIT = 1e-12  # its probability; with the exact data structure that is used there are none

# -- messages


class HiddenIds(Reply, frozen=True, kw_only=True):
    """The label holder's ids as points that only it can take off, sealed for the parties."""

    request: bytes
    rows: int


class Points(msgspec.Struct, frozen=True):
    """What is sealed: ids as points, and how many."""

    points: bytes
    rows: int


class HideIds(Request, frozen=True, kw_only=True):
    """The party's ids, hidden by its secret."""

    verb: ClassVar[Verb] = "ask"
    reply: ClassVar[type[Reply]] = HiddenIds


class TwiceHidden(Reply, frozen=True, kw_only=True):
    """Another party's ids as points, and the label holder's points with its own secret on top."""

    setup: bytes
    response: bytes


class HideTwice(Request, frozen=True, kw_only=True):
    """Hide the label holder's ids once more, and the party's own for comparison."""

    verb: ClassVar[Verb] = "ask"
    reply: ClassVar[type[Reply]] = TwiceHidden

    request: Blob
    rows: int

    def course(self) -> Course:
        """Return a course of a single question: whoever may have any ids hidden can try any id."""
        return Course(self.kind())


class Common(Reply, frozen=True, kw_only=True):
    """Digests of the ids that all parties have, and how many each has."""

    digests: np.ndarray
    shared: dict[str, int]


class Intersect(Request, frozen=True, kw_only=True):
    """Which ids all other parties have too."""

    verb: ClassVar[Verb] = "ask"
    reply: ClassVar[type[Reply]] = Common

    setups: dict[str, Blob]
    responses: dict[str, Blob]


# -- at a party


def import_psi() -> Any:
    """Import ``openmined-psi``, which is an extra."""
    try:
        import private_set_intersection.python as psi
    except ImportError:
        raise InputError("match='psi' needs openmined-psi: pip install '.[psi]'") from None
    return psi


def has_psi() -> bool:
    """Return whether ``openmined-psi`` is installed."""
    return find_spec("private_set_intersection") is not None


def _key(party: Party) -> bytes:
    """Return the party's secret number, the same after a restart."""
    key = party.secret_for("private set intersection")[:32]
    return bytes([key[0] & 0x7F]) + key[1:]  # below the order of the curve's group


def _elements(party: Party) -> list[str]:
    """Return the ids in the order of their digests, so that the order of the table stays hidden."""
    ids = party.ids
    if not ids.kind or ids.missing or ids.repeated:
        raise RefusedError("the party's ids do not tell its rows apart")
    order = np.lexsort(row_digests(party).T[::-1])
    return [f"{ids.kind}\0{ids.texts[i]}" for i in order]


@answers(HideIds)
def hide_ids(site: Site, request: HideIds) -> HiddenIds:
    """Hide the party's ids by its secret."""
    party, psi = party_of(site), import_psi()
    client = psi.client.CreateFromKey(_key(party), True)
    elements = _elements(party)
    points = client.CreateRequest(elements).SerializeToString()
    sealed = seal(party.key_for("hidden ids"), wire.encode(Points(points, len(elements))))
    return HiddenIds(request=sealed, rows=len(elements))


@answers(HideTwice)
def hide_twice(site: Site, request: HideTwice) -> TwiceHidden:
    """Hide the label holder's ids once more, by this party's secret."""
    party = party_of(site)
    hidden = wire.decode(unseal(party.key_for("hidden ids"), party.blob(request.request.hash)), Points)
    if not 1 <= request.rows < MAX_ROWS or hidden.rows != request.rows:
        raise FormatError("there are no rows in question, or not as many as was said")
    psi = import_psi()
    server = psi.server.CreateFromKey(_key(party), True)
    asked = psi.Request()
    _parse(asked, hidden.points)
    if len(asked.encrypted_elements) != hidden.rows:
        raise RefusedError("there are other ids to hide than the label holder spoke of")
    setup = server.CreateSetupMessage(_FALSE_HIT, request.rows, _elements(party), psi.DataStructure.RAW)
    key = _twice_key(party, party.name)
    return TwiceHidden(
        setup=seal(key, setup.SerializeToString()),
        response=seal(key, server.ProcessRequest(asked).SerializeToString()),
    )


def _twice_key(party: Party, name: str) -> bytes:
    """Return the key by which a party seals what it has hidden for the label holder."""
    return party.key_for(f"hidden twice by {name}")


@answers(Intersect)
def intersect(site: Site, request: Intersect) -> Common:
    """Find the ids that all parties have."""
    party, psi = party_of(site), import_psi()
    if set(request.setups) != set(request.responses):
        raise FormatError("the answers do not match")
    client = psi.client.CreateFromKey(_key(party), True)
    digests = row_digests(party)
    digests = digests[np.lexsort(digests.T[::-1])]
    common, shared = np.ones(len(digests), np.bool_), {}
    for name in request.setups:
        setup, response = psi.ServerSetup(), psi.Response()
        key = _twice_key(party, name)
        _parse(setup, unseal(key, party.blob(request.setups[name].hash)))
        _parse(response, unseal(key, party.blob(request.responses[name].hash)))
        found = np.zeros(len(digests), np.bool_)
        found[np.array(client.GetIntersection(setup, response), np.int64)] = True
        shared[name] = int(found.sum())
        common &= found
    return Common(digests=digests[common], shared=shared)


def _parse(message: Any, data: bytes) -> None:
    try:
        message.ParseFromString(data)
    except Exception:  # protobuf's errors have no stable home
        raise FormatError("what another party sent cannot be read") from None


# -- at the coordinator


def find_common(federation: Federation, label_holder: str) -> np.ndarray:
    """Find the digests of the rows that all parties have: three rounds, counted apart."""
    import_psi()  # in one process it is needed here; elsewhere it does no harm to notice early
    others = [name for name in federation.active if name != label_holder]

    def check(site: str, reply: Common) -> None:
        check_digests(reply.digests)
        if set(reply.shared) != set(others) or len(reply.digests) > min(reply.shared.values(), default=MAX_ROWS):
            raise FormatError("its counts are not possible")

    with federation.counted_apart():
        asked: HiddenIds = federation.ask(HideIds(), to=[label_holder])[label_holder]
        replies: dict[str, TwiceHidden] = {}
        if others:
            request = HideTwice(request=federation.blob(asked.request), rows=asked.rows)
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
