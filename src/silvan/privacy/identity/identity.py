"""Entity alignment: find the rows that all parties have, without disclosing an ID to anybody.

Parties share a key that the coordinator does not have (``shared_key.py``). They identify a row by HMAC-SHA-256 of its
ID, encrypted with that key (``row_digests``). There are two ways to find common rows. ``keyed``: every party sends its
digests and the coordinator intersects them; it learns the number of rows everywhere, and which of them belong to the
same person, but not who that is. ``psi``: the label holder finds the common IDs by private set intersection with each
other party (``psi.py``) and sends only their digests, so that other rows stay unknown to everybody.

A list of digests is a blob that later requests refer to; every party finds its own rows for it.
"""

import hashlib
from collections.abc import Iterable

import msgspec
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB

from silvan.errors import AgreementError, FormatError
from silvan.federation import wire
from silvan.federation.agree import MAX_ROWS
from silvan.federation.federation import Federation
from silvan.federation.message import Ask, Blob, Reply
from silvan.federation.party import KEY_BYTES, Party, derived_key, party_of
from silvan.federation.site import Site, answers
from silvan.federation.store import CacheKey
from silvan.util.readable import count_of

_BLOCK = 64
"""The block size of SHA-256 in bytes."""

WORDS = 2
"""A digest is cut to two words of 64 bits: enough for no two people to share one."""

# -- messages


class Introduction(Reply, frozen=True, kw_only=True):
    """A party's numbers of columns and rows, the state of its IDs, and digests if the IDs are usable."""

    columns: list[str]  # keyed digests of their names, which reveal columns with the same name
    has_id: bool
    has_label: bool
    rows: int
    kind: str
    missing: int
    repeated: int
    digests: np.ndarray  # ascending, so that the order of the table stays hidden


class Introduce(Ask[Introduction], frozen=True, kw_only=True):
    """The number of columns, and keyed digests of their names; of IDs too, if the study matches rows by digests."""


class RowDigests(msgspec.Struct, frozen=True):
    """The digests of the rows for requests, each once."""

    digests: np.ndarray


# -- at a party


@answers(Introduce)
def introduce(site: Site, request: Introduce) -> Introduction:
    """Describe the party's columns, rows and IDs."""
    party = party_of(site)
    party.check_label()
    ids = party.ids
    good = ids.kind and not ids.missing and not ids.repeated and party.match == "keyed"
    digests = row_digests(party) if good else np.zeros((0, WORDS), np.uint64)
    return Introduction(
        columns=[party.key_for(f"name of a column: {name}")[:8].hex() for name in party.columns],
        has_id=party.id_column in party.frame.columns,
        has_label=party.has_label,
        rows=len(party.frame),
        kind=ids.kind,
        missing=ids.missing,
        repeated=ids.repeated,
        digests=digests[rising_order(digests)],
    )


def id_words(party: Party) -> np.ndarray:
    """Return a party's sampling words, keyed digests of IDs that a seed reproduces: uint64 (rows, 2).

    Anyone who knows the seed can compute them for an ID, so they stay with the parties.
    """
    key = party.key_for("words of rows") if party.seed is None else derived_key(party.seed, "parties")
    return party.cache.once(
        CacheKey[np.ndarray]("words of ids", key), lambda: digest_ids(key, party.ids.kind, party.ids.texts)
    )


def row_digests(party: Party, key: bytes | None = None) -> np.ndarray:
    """Return the digest of every row of a party's table, by the shared key or by another: uint64 (rows, 2)."""
    key = party.key_for("digests of rows")[:KEY_BYTES] if key is None else key
    return party.cache.once(CacheKey[np.ndarray]("digests", key), lambda: encrypt_words(key, id_words(party)))


def encrypt_words(key: bytes, words: np.ndarray) -> np.ndarray:
    """Encrypt digests of ids, each by itself, by AES-256: uint64 (rows, 2) again.

    Digests are one block and no two are the same, so that without the key their ciphertexts look drawn at random.
    """
    blocks = words.astype(">u8").tobytes()
    encrypted = Cipher(AES256(key), ECB()).encryptor().update(blocks)  # noqa: S305  for each block is another
    return np.frombuffer(encrypted, ">u8").astype(np.uint64).reshape(-1, WORDS)


def digest_ids(key: bytes, kind: str, texts: Iterable[str]) -> np.ndarray:
    """Return keyed digests of ids, as numbers that sort like their bytes; the kind is part of what is hashed.

    They are HMAC-SHA-256 by its definition, two hashes that begin alike for all ids: faster than ``hmac`` is.
    """
    block = (hashlib.sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block) + kind.encode() + b"\0")
    outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in block))

    def one(text: str) -> bytes:
        first, second = inner.copy(), outer.copy()
        first.update(text.encode())
        second.update(first.digest())
        return second.digest()[: 8 * WORDS]

    joined = b"".join([one(text) for text in texts])
    return np.frombuffer(joined, ">u8").astype(np.uint64).reshape(-1, WORDS)


def places_of(party: Party, blob: Blob) -> np.ndarray:
    """Find a party's rows for a list of digests: row numbers of its table, -1 where it lacks a row."""

    def find() -> np.ndarray:
        wanted = wire.decode(party.blob(blob.hash), RowDigests).digests
        _check_size(wanted)
        if not len(wanted):
            raise FormatError("there are no rows in question")
        own, order = _own_in_order(party)
        at = find_digests(own, wanted)
        found = np.where(at >= 0, order[at], -1)
        if np.bincount(found[at >= 0], minlength=1).max() > 1:
            raise FormatError("a row stands more than once in the list")
        lacking = wanted[at < 0]
        check_digests(lacking[rising_order(lacking)])  # each of these once, too
        return found

    return party.cache.once(CacheKey[np.ndarray]("places", blob.hash), find)


def _own_in_order(party: Party) -> tuple[np.ndarray, np.ndarray]:
    """Return a party's digests in ascending order, and their rows in its table."""

    def sort() -> tuple[np.ndarray, np.ndarray]:
        digests = row_digests(party)
        order = rising_order(digests)
        return digests[order], order

    return party.cache.once(CacheKey[tuple[np.ndarray, np.ndarray]]("digests in order", party.key), sort)


# -- both sides


def check_digests(digests: np.ndarray) -> None:
    """Check that digests are in ascending order, each of them once."""
    _check_size(digests)
    high, low = digests.T
    rising = (high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] > low[:-1]))
    if not rising.all():
        raise FormatError("the digests must rise")


def rising_order(digests: np.ndarray) -> np.ndarray:
    """Return the ascending order of digests, as indices."""
    order = np.argsort(digests[:, 0])
    if _repeats(digests[order, 0]):
        order = np.lexsort(digests.T[::-1])  # takes twice as long
    return order


def _repeats(rising: np.ndarray) -> bool:
    return bool((rising[1:] == rising[:-1]).any())


def _check_size(digests: np.ndarray) -> None:
    if digests.ndim != 2 or digests.shape[1] != WORDS or digests.dtype != np.uint64:
        raise FormatError("the digests are of another size")


def find_digests(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Find digests in a sorted list: their indices, -1 if missing."""
    if not len(known):
        return np.full(len(wanted), -1)
    first = known[:, 0].copy()
    if not _repeats(first):  # true unless somebody invented the digests
        at = np.minimum(np.searchsorted(first, wanted[:, 0]), len(known) - 1)
        return np.where((known[at] == wanted).all(axis=1), at, -1)
    places = {digest.tobytes(): place for place, digest in enumerate(known)}
    return np.array([places.get(digest.tobytes(), -1) for digest in wanted], np.int64)


# -- at the coordinator


def introduce_parties(federation: Federation, id_column: str | None) -> dict[str, Introduction]:
    """Ask what the parties hold, and raise an error if ids do not identify rows.

    Without an ``id_column``, each party names its own.
    """
    named = "" if id_column is None else f" {id_column!r}"
    with federation.counted_apart():
        replies: dict[str, Introduction] = federation.ask(Introduce(), check=_check_introduction)
    for name, party in replies.items():
        if not party.has_id:
            raise AgreementError(
                f"party {name!r} has no column{named} to match rows by"
                if named
                else f"party {name!r} has no column of the name that it gives as its id"
            )
        if not party.kind:
            raise AgreementError(
                f"the ids{named} of party {name!r} are neither whole numbers nor text in "
                f"{count_of(party.rows, 'row')}; "
                "convert the column"
            )
        if party.missing:
            raise AgreementError(
                f"the id{named} is missing in {party.missing} of {party.rows} rows of party {name!r}; fill in "
                "or drop them"
            )
        if party.repeated:
            raise AgreementError(
                f"the id{named} is not unique: {party.repeated} of {party.rows} rows of party {name!r} repeat "
                "one that stands before; keep one row an id"
            )
    kinds: dict[str, list[str]] = {}
    for name, party in replies.items():
        kinds.setdefault(party.kind, []).append(f"{name!r} ({count_of(party.rows, 'row')})")
    if len(kinds) > 1:
        found = "; ".join(f"{kind} at {', '.join(names)}" for kind, names in kinds.items())
        raise AgreementError(f"the ids{named} are of different types: {found}; make them alike")
    return replies


def _check_introduction(site: str, reply: Introduction) -> None:
    if len(set(reply.columns)) < len(reply.columns) or not all(reply.columns) or not 1 <= reply.rows < MAX_ROWS:
        raise FormatError("a column without a name of its own, or no rows")
    if not (0 <= reply.missing <= reply.rows and 0 <= reply.repeated <= reply.rows):
        raise FormatError("its counts of ids are not possible")
    check_digests(reply.digests)
    if len(reply.digests) not in (0, reply.rows):
        raise FormatError("its number of digests does not match its rows")


def common_digests(by_party: dict[str, np.ndarray]) -> np.ndarray:
    """Intersect the parties' digests; the result is sorted. Raise an error that names a party that shares no row."""
    common = next(iter(by_party.values()))
    for digests in by_party.values():
        common = common[find_digests(digests, common) >= 0]
    if len(common):
        return common
    # the party to name: one that shares no row with some other, otherwise all of them
    for name, digests in by_party.items():
        for other, others in by_party.items():
            if name != other and not (find_digests(others, digests) >= 0).any():
                raise AgreementError(
                    f"party {name!r} has no rows in common with party {other!r}; are the ids the same?"
                )
    raise AgreementError(f"no row is known to all of {', '.join(map(repr, by_party))}; are the ids the same?")


def all_digests(by_party: dict[str, np.ndarray]) -> np.ndarray:
    """Return the digests that any party has, in order, each once."""
    return np.unique(np.concatenate(list(by_party.values())), axis=0)
