"""Signed messages: sender, recipient, study, time, and which message a reply answers.

Every participant has a key and a roster of the others' keys (``keys.py``). A message is refused if its sender did not
sign it, if it is for another recipient or verb, if it is not newer than the last one in the study, or if its time is
too far from now. A reply repeats the nonce of the message it answers, so replies to older or other requests are
rejected. The outbox ensures that one name stands for one request.

A site also signs what it makes for others, above all trees, even if messages are not signed: a coordinator that
forwards them cannot replace them.

Signing takes about 0.1 ms per message and checking 0.3 ms, plus one pass of SHA-256 over its bytes.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable

import msgspec

from silvan.errors import InputError, RefusedError, RepeatedError
from silvan.federation import wire
from silvan.federation.keys import COORDINATOR, Key, Roster, is_signed
from silvan.federation.message import Owner, Verb
from silvan.federation.store import Store, digest

NONCE = 16
TOLERANCE = 300.0
"""Maximum difference between two clocks, in seconds."""


class ForgedError(RefusedError):
    """A message is not from the coordinator, or not for this site and verb."""


class SignedMessage(msgspec.Struct, frozen=True):
    """A message and everything that is signed with it."""

    sender: str
    to: str
    study: str
    verb: str  # of a message to a site; empty for a reply
    at: int  # nanoseconds since 1970, increasing from message to message
    nonce: bytes
    body: bytes  # an envelope
    signature: bytes = b""

    def signed_bytes(self) -> bytes:
        """Return the bytes that are signed."""
        head = [self.sender, self.to, self.study, self.verb, self.at, self.nonce, hashlib.sha256(self.body).digest()]
        return b"silvan message\0" + msgspec.msgpack.encode(head)


class Signer:
    """Signs the messages of one participant, and checks those it receives.

    Parameters
    ----------
    name
        The participant: a site's name, or ``COORDINATOR``.
    key
        The participant's own key.
    roster
        All public keys, the participant's own included.
    clock
        Returns the time in nanoseconds.
    """

    def __init__(
        self,
        name: str,
        key: Key,
        roster: Roster,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        who = "the coordinator" if name == COORDINATOR else f"site {name!r}"
        if roster.key_of(name) != key.public:
            raise InputError(f"the roster has no key of {who}, or another one; was a new key made?")
        self.name, self.roster, self.clock = name, roster, clock
        self._key, self._last = key, 0
        self._open: dict[str, bytes] = {}  # the nonce of the last message to each site

    # -- the coordinator's side

    def send(self, to: str, study: str, verb: Verb, body: bytes) -> bytes:
        """Sign a message to a site; only a reply to this message will be accepted."""
        self._open[to] = secrets.token_bytes(NONCE)
        return self._sign(to, study, verb, self._open[to], body)

    def read(self, site: str, study: str, data: bytes) -> bytes | None:
        """Return a site's reply to the last message; None if it replies to another one."""
        try:
            signed = wire.decode(data, SignedMessage)
        except ValueError:
            return None
        key, nonce = self.roster.sites.get(site), self._open.get(site)
        names = (signed.sender, signed.to, signed.study, signed.verb)
        if key is None or nonce is None or names != (site, self.name, study, ""):
            return None
        if not hmac.compare_digest(signed.nonce, nonce) or not is_signed(key, signed.signature, signed.signed_bytes()):
            return None
        return signed.body

    # -- a site's side

    def check(self, signed: SignedMessage, verb: Verb, store: Store) -> None:
        """Refuse a message that is not from the coordinator, for this site and verb, new and recent."""
        if signed.sender != COORDINATOR or not is_signed(
            self.roster.coordinator, signed.signature, signed.signed_bytes()
        ):
            raise ForgedError("the message is not signed by the coordinator that the site knows")
        if (signed.to, signed.verb) != (self.name, verb) or len(signed.nonce) != NONCE:
            raise ForgedError("the message is for another site, or was to come by another verb")
        late = self.clock() - signed.at
        if abs(late) > TOLERANCE * 1e9:
            text = (
                f"the message was signed at another time: it is late, or the clocks of the coordinator and the site "
                f"differ by more than {TOLERANCE:g} s: set both (NTP), then run the study again"
            )
            raise RepeatedError(text) if late > 0 else RefusedError(text)  # a late message may be sent again
        kept = f"last message {digest(signed.study.encode())}"
        last = store.get(kept)
        if last is not None and signed.at <= int.from_bytes(last, "big"):
            raise RepeatedError("the message was sent before one that the site has had, or is the same again")
        store.put(kept, signed.at.to_bytes(16, "big"))

    def answer(self, study: str, nonce: bytes, body: bytes) -> bytes:
        """Sign the reply to a message."""
        return self._sign(COORDINATOR, study, "", nonce[:NONCE], body)

    # -- objects that a site made

    def sign_work(self, study: str, task: str, work: str) -> bytes:
        """Sign an object that this participant made for a task of a study, given by its hash."""
        return self._key.sign(_work_bytes(self.name, study, task, work))

    def _sign(self, to: str, study: str, verb: str, nonce: bytes, body: bytes) -> bytes:
        self._last = max(self._last + 1, self.clock())
        signed = SignedMessage(self.name, to, study, verb, self._last, nonce, body)
        return wire.encode(msgspec.structs.replace(signed, signature=self._key.sign(signed.signed_bytes())))


def is_owned(roster: Roster, owner: Owner, study: str, work: str) -> bool:
    """Check a site's signature on an object of a study, given by its hash."""
    key = roster.sites.get(owner.site)
    return key is not None and is_signed(key, owner.signature, _work_bytes(owner.site, study, owner.task, work))


def is_by_coordinator(key: bytes, study: str, task: str, work: str, signature: bytes) -> bool:
    """Check a coordinator's signature on an object of a study, by its public key."""
    return is_signed(key, signature, _work_bytes(COORDINATOR, study, task, work))


def _work_bytes(site: str, study: str, task: str, work: str) -> bytes:
    return b"silvan work\0" + msgspec.msgpack.encode([site, study, task, work])


def make_signers(
    sites: list[str], keys: dict[str, Key] | None = None, seals: dict[str, bytes] | None = None
) -> tuple[Signer, dict[str, Signer]]:
    """Make keys for a federation in one process: the coordinator's signer, and those of the sites."""
    own = {name: (keys or {}).get(name) or Key.generate() for name in sites}
    coordinator = Key.generate()
    roster = Roster(coordinator.public, {name: key.public for name, key in own.items()}, seals or {})
    return Signer(COORDINATOR, coordinator, roster), {name: Signer(name, key, roster) for name, key in own.items()}
