"""Which rows are test rows, which rows each tree samples, and the order of rows.

One party draws: the label holder. It tells the coordinator which rows are held out for evaluation, and the parties,
sealed, the key by which trees draw rows and by which rows stand in order. By a seed all of it can be repeated: the test
part then follows from the seed and the id alone, and the key from the seed and the label holder's own columns of the
rows in common, which the coordinator does not have.
"""

import hashlib
import hmac

import numpy as np

from silvan.data.encode import encode_features, encode_label
from silvan.data.schema import Schema
from silvan.errors import FormatError, RefusedError
from silvan.federation.message import Blob
from silvan.federation.party import KEY_BYTES, Party
from silvan.privacy.aggregation.counters import offsets
from silvan.privacy.identity.identity import id_words, places_of, rising_order
from silvan.privacy.identity.seal import LABEL_HOLDER, seal, unseal


def row_words(party: Party, rows: Blob) -> np.ndarray:
    """Return the words by which rows are sampled, which follow from their ids: uint64 (rows, 2)."""
    places = places_of(party, rows)
    if (places < 0).any():
        raise RefusedError("the party lacks some of the rows")
    words: np.ndarray = id_words(party).take(places, axis=0)
    return words


def hold_out(party: Party, rows: Blob, share: float) -> np.ndarray:
    """Choose the test part of rows by a keyed hash of the id, whatever the other rows are: bool (rows,)."""
    if not 0 <= share < 1:
        raise FormatError("the share of rows to keep is not possible")
    held: np.ndarray = row_words(party, rows)[:, 1] < np.uint64(min(int(share * 2.0**64), 2**64 - 1))
    return held & ~held.all()  # there must be something to learn from


def sample_rows(party: Party, schema: Schema, rows: Blob) -> tuple[bytes, np.ndarray]:
    """Return the key for sampling rows, sealed for all parties, and the order of rows."""
    words = row_words(party, rows)
    order = rising_order(words)  # the same in every federation, other than that of the digests
    key = _key_of_draws(party, schema, places_of(party, rows)[order], words[order])
    shuffled = order[np.argsort(offsets(hmac.digest(key, b"order of rows", "sha256"), len(order)), kind="stable")]
    return seal(party.key_for("row draws"), key), shuffled


def _key_of_draws(party: Party, schema: Schema, places: np.ndarray, words: np.ndarray) -> bytes:
    if party.seed is None:
        return party.key_for("rows of trees")[:KEY_BYTES]
    frame = party.rows_at(places)
    X = encode_features(frame, schema)
    X[np.isnan(X)] = np.nan  # one fixed bit pattern for NaN
    content = hashlib.sha256(words.tobytes())
    content.update(X.tobytes())
    content.update(encode_label(frame, schema).tobytes())
    return hmac.digest(content.digest(), f"rows of trees {party.seed}".encode(), "sha256")


def row_draws(party: Party, draws: bytes, rows: Blob) -> tuple[np.ndarray, np.ndarray]:
    """Return the key for sampling rows, and each row's sampling word: uint64 (2,) and (rows,)."""
    key = unseal(party.key_for("row draws"), draws, LABEL_HOLDER)
    if len(key) != KEY_BYTES:
        raise FormatError("not a key for row samples")
    return np.frombuffer(key[:16], "<u8").astype(np.uint64), row_words(party, rows)[:, 0].copy()
