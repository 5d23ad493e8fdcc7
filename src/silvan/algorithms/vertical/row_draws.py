"""Which rows are kept for judging, which are in which tree, and the order in which rows stand.

One party draws: the label holder. It tells the coordinator which rows are kept for judging, and the parties, sealed,
the key by which trees draw rows and by which rows stand in order. By a seed all of it can be repeated: the test part
then follows from the seed and the id alone, and the key from the seed and the label holder's own columns of the rows in
common, which the coordinator does not have.
"""

import hashlib
import hmac

import numpy as np

from silvan.data.encode import encode_features, encode_label
from silvan.data.schema import Schema
from silvan.errors import FormatError
from silvan.federation.message import Blob
from silvan.federation.party import KEY_BYTES, Party, derived_key
from silvan.privacy.identity import places_of, row_words
from silvan.privacy.seal import seal, unseal


def hold_out(party: Party, rows: Blob, share: float) -> np.ndarray:
    """Choose the test part of rows by a keyed hash of the id, whatever the other rows are: bool (rows,)."""
    if not 0 <= share < 1:
        raise FormatError("the share of rows to keep is not possible")
    key = party.key_for("test part") if party.seed is None else derived_key(party.seed, "parties")
    held: np.ndarray = row_words(party, key, rows)[:, 1] < np.uint64(min(int(share * 2.0**64), 2**64 - 1))
    return held & ~held.all()  # there must be something to learn from


def seal_draws(party: Party, schema: Schema, rows: Blob) -> bytes:
    """Seal the key by which trees draw rows for all parties."""
    return seal(party.key_for("row draws"), _key_of_draws(party, schema, rows))


def _key_of_draws(party: Party, schema: Schema, rows: Blob) -> bytes:
    if party.seed is None:
        return party.key_for("rows of trees")[:KEY_BYTES]
    words = row_words(party, derived_key(party.seed, "parties"), rows)
    order = np.lexsort(words.T[::-1])  # that of the digests differs from federation to federation
    frame = party.rows_at(places_of(party, rows)[order])
    X = encode_features(frame, schema)
    X[np.isnan(X)] = np.nan  # one of the many that there are
    content = hashlib.sha256(words[order].tobytes())
    content.update(X.tobytes())
    content.update(encode_label(frame, schema).tobytes())
    return hmac.digest(content.digest(), f"rows of trees {party.seed}".encode(), "sha256")


def row_draws(party: Party, draws: bytes, rows: Blob) -> tuple[np.ndarray, np.ndarray]:
    """Return the key by which trees draw rows, and the word by which each row is drawn: uint64 (2,) and (rows,)."""
    cached = ("draws", draws, rows.hash)
    if cached not in party.cache:
        key = unseal(party.key_for("row draws"), draws)
        if len(key) != KEY_BYTES:
            raise FormatError("not a key of row draws")
        words = row_words(party, hmac.digest(key, b"words of rows", "sha256"), rows)[:, 0].copy()
        party.cache[cached] = np.frombuffer(key[:16], "<u8").astype(np.uint64), words
    found: tuple[np.ndarray, np.ndarray] = party.cache[cached]
    return found
