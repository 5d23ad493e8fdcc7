"""What a site notes of a study, so that the study can be verified afterwards: what it answered, and fingerprints.

Of each request, by its digest, so that one that is repeated, or asked again by a coordinator that was restarted, counts
once; of the site's parts of sums their fingerprints, never the parts. All of it is in the site's store. Once a study is
closed (``close_study.py``) the points of its fingerprints are known, and the site answers nothing more in it.
"""

import msgspec

from silvan.errors import RefusedError
from silvan.federation.message import Envelope, Request
from silvan.federation.store import SEQUENCE, Store, digest
from silvan.privacy.fingerprints import Fingerprint

_MOST_ANSWERS = 20
"""Different answers to one request that are noted; an honest site has one."""


class Answered(msgspec.Struct, frozen=True, array_like=True):
    """One request that was answered: its digest, kind and round, and digests of the answers if they were shown."""

    asked: str
    kind: str
    round: int
    answers: list[str] = []


class SumPart(msgspec.Struct, frozen=True, array_like=True):
    """A site's part of a sum: its fingerprint, the sites in the sum, and the common part of their requests."""

    fingerprint: Fingerprint
    over: list[str]
    statistic: str


def note_answer(store: Store, envelope: Envelope, shown: bytes | None, part: SumPart | None) -> dict[str, bytes]:
    """Return what to put into a store of a request that is about to be answered.

    ``shown`` is the answer if the coordinator sees it; ``part`` is the site's part of a sum if it is new.
    """
    notes: dict[str, bytes] = {}
    study, asked = envelope.study, envelope.asked
    place = store.get(_key("place", study, asked))
    if place is None:
        place = str(_count(store, study)).encode()
        answered = Answered(asked, envelope.kind, envelope.round)
        notes[_key("count", study)] = str(int(place) + 1).encode()
        notes[_key("place", study, asked)] = place
        notes[_key("answered", study, place.decode())] = msgspec.msgpack.encode(answered)
    if shown is not None:
        key = _key("answered", study, place.decode())
        answered = msgspec.msgpack.decode(notes.get(key) or store.get(key) or b"", type=Answered)
        one = digest(shown)
        if one not in answered.answers and len(answered.answers) < _MOST_ANSWERS:
            answers = [*answered.answers, one]
            notes[key] = msgspec.msgpack.encode(msgspec.structs.replace(answered, answers=answers))
    known = part or find_part(store, study, asked)
    if known is not None:  # the sites of a sum may become fewer on its way
        notes[_key("part", study, asked)] = msgspec.msgpack.encode(
            msgspec.structs.replace(known, over=sorted(envelope.over))
        )
    return notes


def answered_in(store: Store, study: str) -> list[Answered]:
    """Return what was answered in a study, each request once, in the order of the first answers."""
    keys = [_key("answered", study, str(place)) for place in range(_count(store, study))]
    return [msgspec.msgpack.decode(store.get(key) or b"", type=Answered) for key in keys]


def find_part(store: Store, study: str, asked: str) -> SumPart | None:
    """Return what is noted of the site's part of a sum."""
    data = store.get(_key("part", study, asked))
    return None if data is None else msgspec.msgpack.decode(data, type=SumPart)


# -- the end of a study


def close(store: Store, study: str, asked: str, answer: bytes) -> None:
    """Note that a study is closed, by which request and with which answer."""
    store.put(_key("closed", study), msgspec.msgpack.encode((asked, answer)))


def closing_answer(store: Store, study: str, asked: str) -> bytes | None:
    """Return the answer with which a study was closed; raise ``RefusedError`` if that was by another request."""
    data = store.get(_key("closed", study))
    if data is None:
        return None
    known, answer = msgspec.msgpack.decode(data, type=tuple[str, bytes])
    if known != asked:
        raise RefusedError(
            "the study is closed: the site has signed what it answered, and answers nothing more in it; a study of "
            "another name can ask again"
        )
    return answer


def check_open(store: Store, envelope: Envelope, kind: type[Request]) -> None:
    """Raise ``RefusedError`` for a request in a study that is closed; the results may still come."""
    if not kind.after_close:
        closing_answer(store, envelope.study, envelope.asked)


def _count(store: Store, study: str) -> int:
    return int(store.get(_key("count", study)) or 0)


def _key(what: str, study: str, name: str = "") -> str:
    return f"{SEQUENCE} {what} {digest(study.encode())} {name}"
