"""A study with encrypted labels, and a coordinator that changes sums in transit without reading them.

A sum times Enc(y_i) / Enc(y_0) is another sum unless rows i and 0 have the same label, and then the label holder's gain
changes. One decision per row reads all labels, up to the names of classes. The label holder decides a level once per
task, which a coordinator evades with one task per row, and decides only on what parties have signed.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import msgspec
import numpy as np
import polars as pl
from experiments.attacks.outcome import Outcome

import silvan as sv
from silvan.algorithms.vertical import encrypted_decisions, encrypted_labels
from silvan.algorithms.vertical.columns import columns_of
from silvan.algorithms.vertical.encrypted import EncryptedCoordinator
from silvan.algorithms.vertical.encrypted_decisions import DecideNodes, PartySums
from silvan.algorithms.vertical.encrypted_labels import EncryptedLabels
from silvan.algorithms.vertical.encrypted_splits import EncryptedSums, SumLabels
from silvan.errors import RefusedError
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.learners.in_one_place import joined
from silvan.privacy.paillier.cipher import Ciphertexts
from silvan.tree.fit import Settings

_BITS = 256
_ROOT = np.zeros(1, np.int32)


def run(small: bool) -> list[Outcome]:
    """Request decisions on changed sums: all in one task, and each in a separate task."""
    n = 40 if small else 120
    outcomes = []
    for each, how in ((False, "in one task"), (True, "one task each")):
        read, note = labels_read(n, each=each)
        outcomes.append(Outcome(f"labels of {n} by changed sums, {how}", f"{n} of {n}", read, note=note))
    return outcomes


def unprotected(n: int, *, each: bool) -> float:
    """Return how many labels are read if sums need not be signed and, unless ``each``, levels are decided again."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(encrypted_decisions, "check_sums"))
        if not each:
            stack.enter_context(mock.patch.object(DecideNodes, "position", return_value=None))
        return labels_read(n, each=each)[0]


def labels_read(n: int, *, each: bool) -> tuple[float, str]:
    """Return for how many rows the comparison with the first label is right, and the label holder's reply."""
    with mock.patch.object(encrypted_labels, "TESTING", True):
        federation, labels = _federation(n)
        with _task(federation) as attack:
            plain = attack.gain(None)
            gains: list[float | None] = []
            for row in range(1, n):
                if each:
                    with _task(federation) as other:
                        gains.append(other.gain(row))
                else:
                    gains.append(attack.gain(row))
                if gains[-1] is None:  # the others would be refused as well
                    return 0.0, attack.refused if not each else other.refused
    same = np.array([gain == plain for gain in gains])
    return float((same == (labels[1:] == labels[0])).sum()) + 1.0, ""


@contextmanager
def _task(federation: Federation) -> Iterator["_Attack"]:
    with federation.working_on("another model"):
        yield _Attack(federation)


class _Attack:
    """What the coordinator has once labels are encrypted and a party has added them up, by a column of two values."""

    def __init__(self, federation: Federation) -> None:
        self.federation, self.refused = federation, ""
        columns, settings = columns_of(federation), Settings(n_estimators=1, bootstrap=False, max_depth=1)
        self.coordinator = EncryptedCoordinator(federation, columns, columns.schema, settings, _BITS)
        ground = self.coordinator.context("shop")
        assert ground.labels is not None  # noqa: S101  the party is sent them
        self.labels = wire.decode(federation.content(ground.labels), EncryptedLabels).numbers
        request = SumLabels(ground=ground, nodes=_ROOT, features=np.zeros((1, 1), np.int32))
        self.reply: EncryptedSums = federation.ask({"shop": request})["shop"]

    def gain(self, row: int | None) -> float | None:
        """Return the gain with a row's label in place of the first one's; -1 without a split.

        None if the label holder does not decide.
        """
        request = DecideNodes(
            ground=self.coordinator.context("bank"),
            label=self.coordinator.schema.label,
            class_weight=None,
            key_bits=_BITS,
            monotonic=False,
            parties=self.coordinator.parties,
            nodes=_ROOT,
            features=np.zeros((0, 1), np.int32),
            seeds=np.zeros(1, np.uint64),
            deeper=np.ones(1, np.bool_),
            barren=np.zeros(1, np.bool_),
            which=np.zeros(0, np.int64),
            offers={"shop": PartySums(np.zeros(1, np.int64), np.zeros((1, 1), np.int32), self._changed(row))},
            notes=[],
            signatures={},
        )
        try:
            return float(self.federation.ask(request, to=["bank"])["bank"].gain[0])
        except RefusedError as error:
            if "do not fit the rows" in str(error):  # a negative number of rows in a bin
                return -1.0
            self.refused = str(error).split(": ", 1)[-1]
            return None

    def _changed(self, row: int | None) -> EncryptedSums:
        if row is None:
            return self.reply
        square = self.coordinator.public.n**2
        one, first = (int.from_bytes(self.labels.data[i].tobytes(), "little") for i in (row, 0))
        sums = self.reply.sums
        changed = int.from_bytes(sums.data[0].tobytes(), "little") * one * pow(first, -1, square) % square
        data = np.frombuffer(changed.to_bytes(sums.data.shape[1], "little"), np.uint8)[None]
        return msgspec.structs.replace(self.reply, sums=Ciphertexts(sums.key, data))


def _federation(n: int) -> tuple[Federation, np.ndarray]:
    """Return a federation, and the labels in the order of the rows that parties compute on."""
    rng = np.random.default_rng(7)
    label = rng.choice(["no", "yes"], n)
    bank = pl.DataFrame({"person": np.arange(n), "event": label, "balance": rng.normal(size=n)})
    shop = pl.DataFrame({"person": np.arange(n), "member": (rng.random(n) < 0.4) * 1.0})
    tables = {"bank": bank, "shop": shop}
    federation = sv.federate_columns(tables, id="person", label="event", match="keyed", n_jobs=1)
    return federation, joined(federation, columns_of(federation).training).y
