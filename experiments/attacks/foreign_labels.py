"""A study with encrypted labels, and a coordinator that makes parties add up its own "labels", under its own key.

Each row has its own lane, so that a sum by bin reveals which rows are in the bin. One request per column reads the bin
of every row. The protection: parties add up only what the label holder signed for the task.
"""

from unittest import mock

import msgspec
import numpy as np
import polars as pl
from experiments.attacks.outcome import Outcome

import silvan as sv
from silvan.algorithms.vertical import encrypted_labels, party_rows
from silvan.algorithms.vertical.columns import columns_of
from silvan.algorithms.vertical.encoded_labels import LabelsForParties
from silvan.algorithms.vertical.encrypted import EncryptedCoordinator
from silvan.algorithms.vertical.encrypted_labels import EncryptedLabels
from silvan.algorithms.vertical.encrypted_splits import SumLabels
from silvan.algorithms.vertical.party_rows import GrowingContext, descend
from silvan.errors import SilvanError
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.message import Blob
from silvan.privacy.paillier.cipher import decrypt
from silvan.privacy.paillier.packing import Lanes, encrypt_rows
from silvan.privacy.paillier.paillier_keys import PrivateKey, generate
from silvan.tree.fit import Settings

_BITS = 256
_COLUMNS = ("visits", "basket", "age")


def run(small: bool) -> list[Outcome]:
    """Make a party add up labels without a signature, or with that of a party that the study does not name."""
    n, outcomes = 48 if small else 240, []
    for signer, how in (("", "by the coordinator's key"), ("spy", "signed by a party that colludes with it")):
        target = f"rows of {n} whose bins in all columns of a party are read, {how}"
        try:
            outcomes.append(Outcome(target, "240 of 240", rows_read(n, signer, holder="bank")))
        except SilvanError as error:
            outcomes.append(Outcome(target, "240 of 240", 0.0, note=str(error).split(": ", 1)[-1]))
    return outcomes


def unprotected(n: int) -> float:
    """Return for how many rows all bins are read if parties do not check who signed the labels."""
    with mock.patch.object(party_rows, "check_signed"):
        return rows_read(n)


def rows_read(n: int, signer: str = "", holder: str | None = None) -> float:
    """Return for how many rows all bins are read; ``signer`` signs the labels, the text names the ``holder``."""
    with mock.patch.object(encrypted_labels, "TESTING", True):
        federation = _federation(n)
        federation.party("shop").label_holder = holder
        columns = columns_of(federation)
        settings = Settings(n_estimators=1, bootstrap=False)
        with federation.working_on("another model"):
            coordinator = EncryptedCoordinator(federation, columns, columns.schema, settings, _BITS)
            key, lanes = generate(_BITS, testing=True), Lanes(_BITS, n, n)
            numbers = encrypt_rows(key, lanes, np.eye(n, dtype=np.uint8))
            labels = EncryptedLabels(coordinator.rows.hash, key.public.to_bytes(), lanes, numbers)
            blob = federation.blob(wire.encode(labels))
            if signer:
                keys = federation.party(signer).keys
                assert keys is not None  # noqa: S101
                signature = keys.sign_work(federation.study, federation.task, blob.hash)
                blob = federation.work(signer, LabelsForParties(labels=wire.encode(labels), signature=signature))
            ground = msgspec.structs.replace(coordinator.context("shop"), labels=blob)
            found = [_read_column(federation, ground, key, lanes, f) for f in range(len(_COLUMNS))]
        truth = _true_bins(federation, msgspec.structs.replace(ground, labels=None))
    right = np.ones(n, np.bool_)
    for f, places in enumerate(found):
        right &= ((places[:, None] == places) == (truth[:, f, None] == truth[:, f])).all(axis=1)
    return float(right.sum())


def _federation(n: int) -> Federation:
    rng = np.random.default_rng(5)
    person = np.arange(n)
    bank = pl.DataFrame({"person": person, "event": rng.choice(["no", "yes"], n), "balance": rng.normal(size=n)})
    shop = pl.DataFrame(
        {
            "person": person,
            "visits": rng.integers(0, 4, n) * 1.0,
            "basket": rng.lognormal(3, 1, n).round(2),
            "age": rng.integers(18, 90, n) * 1.0,
        }
    )
    tables = {"bank": bank, "shop": shop, "spy": pl.DataFrame({"person": person, "more": rng.normal(size=n)})}
    return sv.federate_columns(tables, id="person", label="event", match="keyed", n_jobs=1)


def _read_column(
    federation: Federation, ground: GrowingContext, key: PrivateKey, lanes: Lanes, column: int
) -> np.ndarray:
    """Return where each row is in the packed sums: a number for every bin, 0 for the fullest, which is left out."""
    request = SumLabels(ground=ground, nodes=np.zeros(1, np.int32), features=np.array([[column]], np.int32))
    plain = decrypt(key, federation.ask({"shop": request})["shop"].sums)
    groups, places = len(plain) // lanes.parts, np.zeros(lanes.rows, np.int64)
    for part in range(lanes.parts):
        for place, field in enumerate(range(lanes.rows)[lanes.part(part)]):
            for group, number in enumerate(plain[part * groups : (part + 1) * groups]):
                lane = (number >> (place * lanes.stride)) & ((1 << lanes.stride) - 1)
                if lane:
                    places[field] = group * lanes.stride + lane.bit_length()
    return places


def _true_bins(federation: Federation, ground: GrowingContext) -> np.ndarray:
    """Return the true bin of every row in every column, to check the attacker's result: (rows, columns)."""
    party = federation.party("shop")
    party.store.put(f"blob {ground.columns.hash}", federation.content(ground.columns))
    party.store.put(f"blob {ground.rows.hash}", federation.content(Blob(ground.rows.hash)))
    rows = descend(party, ground).rows
    codes, shift = rows.table.codes.astype(np.int64), rows.table.bins.shift.astype(np.int64)
    bins: np.ndarray = np.where(codes > 0, (codes + rows.offsets[0]) >> shift, 0)
    return bins
