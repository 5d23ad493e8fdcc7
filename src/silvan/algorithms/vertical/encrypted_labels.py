"""Encrypted labels: Paillier's encryption of every row's label, which parties add up and only the label holder reads.

Classes are encrypted one-hot, numbers in fixed point above the smallest. Random bytes are derived from a party's secret
and from their whole purpose, so a repeated request gets an identical reply.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from silvan.algorithms.vertical.encoded_labels import (
    LabelsForParties,
    LabelsOfRows,
    PrepareLabels,
    measured,
    read_labels,
)
from silvan.algorithms.vertical.party_rows import GrowingContext
from silvan.data.schema import Label
from silvan.errors import CipherError, FormatError, RefusedError, reject
from silvan.federation import wire
from silvan.federation.message import Blob, Fixed
from silvan.federation.party import Party, party_of
from silvan.federation.site import Site, answers
from silvan.federation.store import CacheKey
from silvan.privacy.paillier.cipher import Ciphertexts, Masks
from silvan.privacy.paillier.packing import EncryptedRows, Lanes, encrypt_rows, receive_rows
from silvan.privacy.paillier.paillier_keys import PrivateKey, PublicKey, generate
from silvan.tree.fit import Settings
from silvan.tree.gain import Rule
from silvan.tree.node_rows import NodeRows
from silvan.tree.objectives import Measure

TESTING = False
"""Whether short, insecure keys are allowed; only tests set this."""

# -- messages


class EncryptedLabels(LabelsOfRows, frozen=True):
    """What a party adds up: the rows' ciphertexts, their key, and how a row's numbers lie in a ciphertext."""

    public: bytes
    lanes: Lanes
    numbers: Ciphertexts


class EncryptLabels(PrepareLabels, frozen=True, kw_only=True):
    """The label of every row, encrypted so that only the label holder can read it."""

    key_bits: Fixed[int]


# -- at the label holder


@dataclass(frozen=True)
class Truth:
    """The label as its holder knows it: the target of every row, its measure, and what of it is encrypted."""

    target: np.ndarray
    measure: Measure
    rule: Rule
    values: np.ndarray  # what is encrypted, (rows, fields)
    low: int

    def lanes(self, key_bits: int) -> Lanes:
        """Return how a row's numbers lie in a ciphertext."""
        most = max(int(self.values.max(initial=1)), 1)
        rows, fields = self.values.shape
        return Lanes(key_bits, rows, fields, most, one_hot=self.measure.counts_rows)

    def label(self, rows: NodeRows) -> NodeRows:
        """Return the rows of nodes with their labels."""
        labelled = copy(rows)
        labelled.table = replace(rows.table, target=self.target, n_stats=self.measure.n_stats)
        return labelled

    def histograms(self, counts: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """Convert sums of what was encrypted to histograms of the target."""
        return sums if self.measure.counts_rows else np.stack([counts, sums[:, 0] + self.low * counts], axis=1)

    def encrypted_totals(self, totals: np.ndarray) -> np.ndarray:
        """Convert sums of the target to sums of what was encrypted."""
        return totals if self.measure.counts_rows else totals[:, 1:] - self.low * totals[:, :1]


def truth_of(party: Party, rows: Blob, label: Label, settings: Settings) -> Truth:
    """Return the label of all rows, from the label holder's table."""

    def measure_all() -> Truth:
        y, measure = measured(party, rows, label, settings)
        target = measure.rows(y)
        if measure.counts_rows:
            low = 0
            values = np.zeros((len(y), measure.n_stats), np.uint8)
            values[np.arange(len(y)), target] = 1
        else:
            low = int(target[:, 1].min())
            values = target[:, 1:] - low
        return Truth(target, measure, settings.rule(measure), values, low)

    return party.cache.once(
        CacheKey[Truth]("truth", rows.hash, msgspec.json.encode(label), repr(settings)), measure_all
    )


def private_key(party: Party, bits: int, fingerprint: bytes | None = None) -> PrivateKey:
    """Return the label holder's key, created at first use; raise an error if ``fingerprint`` names another key."""
    named = f"paillier key {bits}"

    def draw() -> PrivateKey:
        data = party.store.get(named)
        if data is None:
            if fingerprint is not None:
                raise RefusedError("the party no longer has the key of these ciphertexts")
            data = generate(bits, testing=TESTING).to_bytes()
            party.store.put(named, data)
        return PrivateKey.from_bytes(data, testing=TESTING)

    private = party.cache.once(CacheKey[PrivateKey]("private key", bits, party.name), draw)
    if fingerprint is not None and private.public.fingerprint != fingerprint:
        raise CipherError("the ciphertexts are of another key than the party has")
    return private


@answers(EncryptLabels)
def encrypt_labels(site: Site, request: EncryptLabels) -> LabelsForParties:
    """Encrypt the label of every row."""
    party = party_of(site)
    truth = truth_of(party, request.rows, request.label, request.settings)
    key = private_key(party, request.key_bits)
    lanes = truth.lanes(request.key_bits)
    entropy = stream(party, f"labels {request.rows.hash} {key.public.fingerprint.hex()}")
    numbers = encrypt_rows(key, lanes, truth.values, party.n_jobs, entropy)
    labels = EncryptedLabels(request.rows.hash, key.public.to_bytes(), lanes, numbers)
    return LabelsForParties(labels=wire.encode(labels))


# -- at every party


def stream(party: Party, purpose: str) -> Callable[[int], bytes]:
    """Return a source of pseudo-random bytes that only the party can know, the same for the same purpose."""
    secret = party.secret_for(purpose)
    flow = Cipher(ChaCha20(secret[:32], secret[32:48]), mode=None).encryptor()
    return lambda n: flow.update(bytes(n))


def received_rows(party: Party, ground: GrowingContext, n_rows: int) -> EncryptedRows:
    """Return the rows' ciphertexts, checked."""
    blob = ground.labels
    if blob is None:
        raise FormatError("there are no ciphertexts to add up")

    def receive() -> EncryptedRows:
        labels = read_labels(party, blob, ground.rows, EncryptedLabels)
        reject(labels.lanes.rows != n_rows, "the ciphertexts are not as many as the rows")
        return receive_rows(read_key(labels.public), labels.lanes, labels.numbers, party.n_jobs)

    return party.cache.once(CacheKey[EncryptedRows]("encrypted rows", blob.hash), receive)


def masks_for(party: Party, public: PublicKey) -> Masks:
    """Return the masks that re-randomise sums under a key."""
    return party.cache.once(
        CacheKey[Masks]("masks", public.fingerprint),
        lambda: Masks(public, party.n_jobs, stream(party, f"masks for {public.fingerprint.hex()}")),
    )


# -- at the coordinator


def read_key(data: bytes) -> PublicKey:
    """Read a public key."""
    return PublicKey.from_bytes(data, testing=TESTING)


def check_labels(labels: EncryptedLabels, n_rows: int, n_classes: int, key_bits: int) -> None:
    """Raise ``FormatError`` for labels that are not encrypted as agreed."""
    lanes = labels.lanes
    if (lanes.bits, lanes.rows, lanes.fields, lanes.one_hot) != (key_bits, n_rows, n_classes or 1, bool(n_classes)):
        raise FormatError("its labels are not encrypted as agreed")
    receive_rows(read_key(labels.public), lanes, labels.numbers)
