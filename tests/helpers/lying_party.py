"""Studies over columns in which one party follows the protocol's form and lies in its replies.

A study is run honestly once. In a study of lies one party changes one of its replies: fields, partitions and gains that
look right, an earlier reply of its own or of another party, the name of another study or task. In every case:

- nothing fails except by an error that says what is wrong, and nothing takes long;
- the error names the party, or is one of those that cannot (``NAMELESS``); it never names only honest parties;
- a study that ends has the honest model, or the lie is one that nobody can detect (``UNSEEN``): about the party's own
columns, ids or label.

    PYTHONPATH=tests python tests/helpers/lying_party.py --n 2000 --seed 0
"""

import argparse
import random
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from unittest import mock

import msgspec
import numpy as np
from helpers.column_studies import federate, split, wide
from helpers.fuzz_wire import watched
from helpers.lies import lies_about, opened

import silvan as sv
from silvan.algorithms.vertical import encrypted_labels
from silvan.errors import SilvanError
from silvan.federation import wire
from silvan.federation.message import Envelope
from silvan.federation.transport import InProcess

PARTIES = ("party 0", "party 1", "party 2")
HOLDER = PARTIES[0]

STUDIES: dict[str, tuple[str, dict[str, Any], Any]] = {
    "classes": ("binary", {"match": "keyed"}, sv.VerticalForest(2, max_depth=3)),
    "number": ("number", {"match": "psi"}, sv.VerticalForest(2, max_depth=3, auditor=True)),
    "linear": ("binary", {"match": "keyed"}, sv.VerticalLinear(max_iter=3, tol=0.3)),
    "encrypted": ("binary", {"match": "keyed"}, sv.VerticalForest(2, max_depth=2, labels="encrypted", key_bits=256)),
}

NAMELESS = (
    "the sum does not show which",  # a sum of linear models: its parts are masked
    "some party answers from another model",  # leaf sets that do not meet
    "the parties have no row in common",
    "no party holds the label",
    "no party has a feature",
)
"""What errors say that cannot tell which party it was."""

UNSEEN = {
    "Introduction": "which rows it has, and what its columns are called",
    "HiddenIds": "which rows it has",
    "TwiceHidden": "which rows it has",
    "Common": "the label holder says which rows are in common",
    "ColumnKinds": "what its columns are, and for the label holder what is drawn",
    "Values": "splits that it has and does not offer",
    "Sides": "a split by a column that it does not have",
    "EncryptedSums": "splits that it has and does not offer",
    "LeftBits": "a split by a column that it does not have",
    "ShownShare": "splits that it did not make",
    "Offer": "a direction of columns that it does not have",
    "Predictors": "coefficients that it did not keep",
    "LeafSets": "sides of other columns",
    "LabelsForParties": "labels",
    "Decisions": "what labels make the best split",
    "LeafValues": "what labels make of leaves",
    "Unexplained": "what labels leave unexplained",
    "KeptConstant": "what labels make of the constant",
    "ScoreMetrics": "figures",
    "PredictionsKept": "what it wrote down",
}
"""Answers of which false ones cannot be told from true ones of other columns, ids or labels."""


class Lying(InProcess):
    """Changes one party's replies on their way; ``kept`` are all honest ones, by party."""

    liar, at, how, pick = "", -1, "", random.Random(0)  # noqa: S311
    kept: list[tuple[str, Envelope]]
    told = ""

    def deliver(
        self, messages: dict[str, bytes], verb: str, timeout: float | None
    ) -> Iterator[tuple[str, bytes | Exception]]:
        for name, data in super().deliver(messages, verb, timeout):
            if not isinstance(data, bytes):
                yield name, data
                continue
            kept = type(self).kept
            kept.append((name, wire.decode(data, Envelope)))
            own = sum(party == self.liar for party, _ in kept)
            yield name, data if name != self.liar or own - 1 != self.at else self.lie(data)

    def lie(self, data: bytes) -> bytes:
        """Returns another reply in place of an honest one."""
        envelope, inside = opened(data)
        type(self).told = envelope.kind
        before = [old for party, old in self.kept[:-1] if party == self.liar]
        same = [old for party, old in self.kept[:-1] if old.kind == envelope.kind]
        if self.how == "replay" and before:
            return wire.encode(self.pick.choice(before))
        if self.how == "old answer" and same:
            return wire.encode(msgspec.structs.replace(envelope, body=self.pick.choice(same).body))
        if self.how == "other study":
            return wire.encode(msgspec.structs.replace(envelope, study="another"))
        if self.how == "other task":
            return wire.encode(msgspec.structs.replace(envelope, task="another", question="0" * 64))
        name = self.pick.choice(sorted(inside)) if inside else ""
        if not name:
            return data
        value = inside[name]
        lie = plausible(value, self.pick) if self.how == "plausible" else self.pick.choice(list(lies_about(value)))
        return wire.encode(msgspec.structs.replace(envelope, body=wire.encode({**inside, name: lie})))


def plausible(value: Any, pick: random.Random) -> Any:
    """Returns something of the same kind, shape and sums, as far as possible."""
    if isinstance(value, np.ndarray) and value.size > 1:
        flat = value.reshape(-1).copy()
        i, j = pick.sample(range(len(flat)), 2)
        if value.dtype == np.uint8 and pick.random() < 0.7:
            at = [k for k, byte in enumerate(flat.tolist()) if 0 < byte < 255]
            k = pick.choice(at or [0])
            flat[k] = int(f"{int(flat[k]):08b}"[::-1], 2)  # the same number of rows goes left, but other rows
        elif value.dtype.kind in "iu" and pick.random() < 0.5:
            flat[i] += flat.dtype.type(1)
            flat[j] -= flat.dtype.type(1)
        elif value.dtype.kind == "f" and pick.random() < 0.5:
            flat[i] = flat[i] * 1.5 + 1.0
        else:
            flat[i], flat[j] = flat[j], flat[i]
        return flat.reshape(value.shape)
    if isinstance(value, bytes) and len(value) > 1:
        return value[:-1] + bytes([value[-1] ^ 1])
    if isinstance(value, dict) and value:
        name = pick.choice(sorted(value))
        return {**value, name: plausible(value[name], pick)}
    if isinstance(value, list) and len(value) > 1:
        return [*value[1:], value[0]]
    return not value if isinstance(value, bool) else value


def run(kind: type[Lying], name: str) -> str:
    """Runs a study and returns its outcome as text: model, predictions and metrics."""
    task, settings, learner = STUDIES[name]
    kind.kept = []
    with warnings.catch_warnings(), mock.patch.object(encrypted_labels, "TESTING", True):
        warnings.simplefilter("ignore")
        fed = federate(split(wide(task, n=60), 3), kind, test=0.25, **settings)
        model = learner.fit(fed)
        judged = model.evaluation(fed, candidates=[]).rows
        made = model.forest_.hash if name != "linear" else model.coefficients().write_csv()
        return f"{made} {model.predict(fed).write_csv()} {[row.metrics for row in judged]}"


class Studies:
    """Runs studies of lies; ``seen`` counts outcomes, ``failures`` broken rules."""

    def __init__(self, seed: int = 0, names: tuple[str, ...] = tuple(STUDIES)) -> None:
        self.seed, self.names = seed, names
        self.truth = {name: run(self._kind("", -1, "", random.Random(0)), name) for name in names}  # noqa: S311
        self.answers = {name: self._count(name) for name in names}
        self.seen: Counter[str] = Counter()
        self.failures: list[str] = []

    def _kind(self, liar: str, at: int, how: str, pick: random.Random) -> type[Lying]:
        return type("Liar", (Lying,), {"liar": liar, "at": at, "how": how, "pick": pick})

    def _count(self, name: str) -> Counter[str]:
        """Returns the number of replies of each party."""
        kind = self._kind("", -1, "", random.Random(0))  # noqa: S311
        run(kind, name)
        return Counter(party for party, _ in kind.kept)

    def study(self, number: int) -> None:
        """Runs the study of a given number, and records its outcome."""
        pick = random.Random(f"{self.seed} {number}")  # noqa: S311
        name, liar = pick.choice(self.names), pick.choice(PARTIES)
        how = pick.choice(
            ("field", "field", "plausible", "plausible", "replay", "old answer", "other study", "other task")
        )
        kind = self._kind(liar, pick.randrange(self.answers[name][liar]), how, pick)
        where = f"study {number}: {name}, {liar}, {how}"
        try:
            made = run(kind, name)
        except SilvanError as error:
            text = str(error)
            if liar in text or (liar == HOLDER and "the label holder" in text):
                self.seen["named"] += 1
            elif any(known in text for known in NAMELESS):
                self.seen["not named, as it cannot be"] += 1
            else:
                self.failures.append(f"{where}, {kind.told}: {type(error).__name__}: {text}")
            return
        except Exception as error:
            self.failures.append(f"{where}, {kind.told}: failed with {error!r}")
            return
        if made == self.truth[name]:
            self.seen["nothing came of it"] += 1
        elif kind.told in UNSEEN:
            self.seen["unseen"] += 1
        else:
            self.failures.append(f"{where}: another model by {kind.told}")

    def run(self, n: int, first: int = 0) -> "Studies":
        """Runs this many studies."""
        with watched() as again:
            for number in range(first, first + n):
                again()
                self.study(number)
        return self


def main() -> None:
    """Run as a program."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--n", type=int, default=2000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--first", type=int, default=0)
    given = options.parse_args()
    found = Studies(given.seed).run(given.n, given.first)
    with suppress(BrokenPipeError):
        print(dict(found.seen))
        print("\n".join(found.failures))
    raise SystemExit(bool(found.failures))


if __name__ == "__main__":
    main()
