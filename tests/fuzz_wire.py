"""Mutated messages against all that reads messages: sites, coordinators, and the validators of what travels in them.

Real messages of small studies, of every learner and every way of summing, signed and not, are changed at random: bits,
bytes, lengths, whole stretches, pieces of other messages, single fields. Nothing may crash or hang, whatever comes out
must be a well-formed answer or an error raised on purpose, and a signed message that was changed must never be taken.

    python tests/fuzz_wire.py --n 1000000 --seed 0
"""

import argparse
import faulthandler
import logging
import random
import resource
import signal
import struct
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import numpy as np
from columns import federate as federate_by_columns
from columns import split, wide
from studies import Recorded, federate, parts, table

import silvan as sv
from silvan.algorithms.columns import ColumnFederation
from silvan.data.schema import Schema
from silvan.errors import SilvanError
from silvan.federation import wire
from silvan.federation.message import Envelope, Missing, Trouble
from silvan.federation.question import Asked
from silvan.federation.signed import Letter
from silvan.federation.site import _HANDLERS
from silvan.tree.save import from_bytes, to_bytes

SLOW, STUCK = 20.0, 900.0
"""Seconds of work after which a message counts as one that hangs, and seconds after which the program gives up."""

KINDS = {kind.reply.__name__: kind for kind, _ in _HANDLERS.values()}


class Hang(BaseException):
    """A message took too long; no handler of errors catches it."""


class CrashError(AssertionError):
    """Something happened that must not."""


@contextmanager
def watched() -> Iterator[None]:
    """Raise if something takes too long; a kernel that cannot be interrupted ends the program with a trace."""

    def ring(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, SLOW)  # of work: the machine may be busy with something else
    faulthandler.dump_traceback_later(STUCK, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        faulthandler.cancel_dump_traceback_later()


# -- real messages


class RecordedColumns(Recorded, ColumnFederation):
    """The same for federations by columns."""


def studies(signed: bool) -> list[Recorded]:
    """Small studies, of which all messages are kept."""
    tables = parts(table(n=60), 3)
    made = []
    for sums, learners in {
        "trusted": [sv.HistogramForest(2, max_depth=3), sv.MergedForest(3), sv.BOFRF(2, clusters=2), sv.BOPPID(2)],
        "ring": [sv.HistogramForest(2, max_depth=2), sv.MultBoost(2)],
        "masked": [sv.HistogramForest(2, max_depth=2), sv.BOFRF(2, personal=True)],
    }.items():
        fed = federate(tables, Recorded, sums=sums, signed=signed, test=0.25)
        for learner in learners:
            learner.fit(fed)
        learners[0].evaluate(fed)
        made.append(fed)
    columns = federate_by_columns(split(wide(n=60), 2), RecordedColumns, signed=signed, test=0.25)
    sv.VerticalForest(2, max_depth=2).fit(columns).evaluate(columns)
    return [*made, columns]


# -- changes

_LENGTHS = [0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, (1 << 64) - 1]
_NUMBERS = [0, 1, -1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 0.5, float("nan"), float("inf"), -1e308]


class Mutator:
    """Changes messages, the same way for the same seed."""

    def __init__(self, seed: int, pool: list[bytes]) -> None:
        self.random, self.pool = random.Random(seed), pool  # noqa: S311

    def __call__(self, data: bytes) -> bytes:
        """Change a message, one to four times."""
        for _ in range(self.random.choice((1, 1, 1, 2, 4))):
            data = self.random.choice(
                (self.flip, self.byte, self.length, self.cut, self.repeat, self.splice, self.field)
            )(data)
        return data

    def place(self, data: bytes) -> int:
        return self.random.randrange(len(data)) if data else 0

    def flip(self, data: bytes) -> bytes:
        i = self.place(data)
        return data[:i] + bytes([data[i] ^ (1 << self.random.randrange(8))]) + data[i + 1 :] if data else b"\0"

    def byte(self, data: bytes) -> bytes:
        i = self.place(data)
        return (
            data[:i]
            + bytes([self.random.choice((0, 0x7F, 0x80, 0xC1, 0xFF, self.random.randrange(256)))])
            + data[i + 1 :]
        )

    def length(self, data: bytes) -> bytes:
        """Write a large or a small number over some bytes, as a length might stand there."""
        i, code = self.place(data), self.random.choice((">H", ">I", "<I", "<Q", ">Q"))
        number = self.random.choice(_LENGTHS) & ((1 << (8 * struct.calcsize(code))) - 1)
        return data[:i] + struct.pack(code, number) + data[i + struct.calcsize(code) :]

    def cut(self, data: bytes) -> bytes:
        i, j = sorted((self.place(data), self.place(data)))
        return data[:i] + data[j:] if self.random.random() < 0.5 else data[:j]

    def repeat(self, data: bytes) -> bytes:
        i, j = sorted((self.place(data), self.place(data)))
        return data[:j] + data[i : min(j, i + 4096)] * self.random.choice((1, 2, 16)) + data[j:]

    def splice(self, data: bytes) -> bytes:
        other = self.random.choice(self.pool)
        i, j = self.place(data), self.place(other)
        return data[:i] + other[j : j + self.random.choice((1, 8, 64, 1024))] + data[i:]

    def field(self, data: bytes) -> bytes:
        """Change one thing inside, if the message can be taken apart; what it holds may be messages, too."""
        try:
            inside = msgspec.msgpack.decode(data, ext_hook=lambda code, d: wire.unpack_array(d))
        except (ValueError, msgspec.DecodeError):
            return self.flip(data)
        with suppress(TypeError, OverflowError, ValueError):
            return wire._ENCODER.encode(self.changed(inside))
        return data

    def changed(self, value: Any) -> Any:
        """Give another value, or the same with something else inside."""
        pick = self.random
        if isinstance(value, dict) and value:
            name = pick.choice(list(value))
            return {**value, name: self.changed(value[name])} if pick.random() < 0.95 else {name: value[name]}
        if isinstance(value, list) and value and pick.random() < 0.8:
            i = pick.randrange(len(value))
            return [*value[:i], self.changed(value[i]), *value[i + 1 :]]
        if isinstance(value, bytes):
            return self.field(value) if value[:1] >= b"\x80" and pick.random() < 0.7 else self.flip(value)
        if isinstance(value, np.ndarray):
            return self.array(value)
        if isinstance(value, bool):
            return not value
        if isinstance(value, int | float):
            return pick.choice([*_NUMBERS, value + 1, value - 1, -value])
        return pick.choice([None, "", "text", b"", [], {}, 0, *_NUMBERS[:3], [value, value]])

    def array(self, value: np.ndarray) -> np.ndarray:
        pick, changed = self.random, value.copy()
        if value.size and pick.random() < 0.6:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                extremes = [0, 1, -1, 2**31 - 1, 2**62] if value.dtype.kind in "iub" else [0.0, np.nan, np.inf, -1e30]
                changed.reshape(-1)[pick.randrange(value.size)] = np.array(pick.choice(extremes)).astype(value.dtype)
            return changed
        return pick.choice(
            [
                value[:0],
                value[:-1],
                value[None] if value.ndim < 4 else value,
                value.reshape(-1),
                np.concatenate([value, value]),
            ]
            if value.ndim
            else [np.zeros(3, value.dtype)]
        )


# -- what must hold


class Fuzzer:
    """Throws changed messages at everything; ``seen`` counts what came of it."""

    def __init__(self, seed: int = 0) -> None:
        logging.getLogger("silvan.site").setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.plain, self.signed = studies(False), studies(True)
        self.messages: list[tuple[Any, str, bytes, str]] = []  # a site, the verb, a message to it, what it is
        self.answers: list[tuple[Any, str, bytes]] = []  # a federation, a site, its answer
        for fed in [*self.plain, *self.signed]:
            for name, way, data in fed.record:
                if way == "received":
                    body = data if fed.signer is None else wire.decode(data, Letter).body
                    kind = wire.decode(body, Envelope).kind
                    self.messages.append((fed.site(name), _HANDLERS[kind][0].verb, data, kind))
                else:
                    self.answers.append((fed, name, data))
        self.files = self._files()
        pool = [data for *_, data, _ in self.messages] + [data for *_, data in self.answers]
        self.random, self.mutate, self.seen = random.Random(seed), Mutator(seed, pool), Counter[str]()  # noqa: S311

    def _files(self) -> list[tuple[Callable[[bytes], object], bytes]]:
        """Things that travel inside messages, with what reads them."""
        forest = sv.MergedForest(3).fit(federate(parts(table(n=60), 3))).forest_
        assert forest is not None
        return [(from_bytes, to_bytes(forest)), (Schema.from_json, forest.schema.to_json().encode())]

    def run(self, n: int) -> "Fuzzer":
        """Throw so many."""
        for _ in range(n):
            chance = self.random.random()
            with watched():
                if chance < 0.6:
                    self.to_site()
                elif chance < 0.9:
                    self.to_coordinator()
                else:
                    self.to_reader()
        return self

    def to_site(self) -> None:
        """Change a message to a site: it answers, with trouble or with what was asked for, and never raises."""
        site, verb, data, kind = self.random.choice(self.messages)
        bad = self.mutate(data)
        gate, site.outbox = site.outbox, site.outbox if self.random.random() < 0.5 else None
        try:
            answer = site.receive(bad, verb)
        finally:
            site.outbox = gate
        if site.signer is not None:
            letter = wire.decode(answer, Letter)
            answer = letter.body
        envelope = wire.decode(answer, Envelope)
        if envelope.kind == Trouble.__name__:
            trouble = wire.decode(envelope.body, Trouble)
            if trouble.code == "internal" and isinstance(site.last_error, MemoryError):
                trouble = Trouble("too large", "")
            self.seen[f"site: {trouble.code}"] += 1
        elif envelope.kind == Missing.__name__:
            self.seen["site: asked for data"] += 1
        elif site.signer is not None and wire.decode(bad, Letter) != wire.decode(data, Letter):
            raise CrashError(f"a site took a forged {kind}: {bad!r}")
        else:
            self.seen["site: answered"] += 1

    def to_coordinator(self) -> None:
        """Change an answer: it is read, refused or ignored; of a signed one nothing is taken."""
        fed, name, data = self.random.choice(self.answers)
        bad, body = self.mutate(data), data
        if fed.signer is not None:
            letter = wire.decode(data, Letter)
            fed.signer._open[name], body = letter.nonce, letter.body
            taken = fed.signer.read(name, letter.study, bad)
            if taken is not None and wire.decode(bad, Letter) != letter:
                raise CrashError(f"a coordinator took a forged answer: {bad!r}")
            self.seen["coordinator: forgery ignored" if taken is None else "coordinator: the same"] += 1
            bad = self.mutate(body)
        envelope = wire.decode(body, Envelope)
        if envelope.kind not in KINDS:
            return
        asked = Asked(envelope.question, KINDS[envelope.kind], {})
        outcome = asked.read(name, bad)
        said = "taken" if isinstance(outcome, tuple) else "ignored" if outcome is None else "refused"
        self.seen[f"coordinator: {said}"] += 1

    def to_reader(self) -> None:
        """Change a file, or read any bytes as any kind."""
        if self.random.random() < 0.5:
            read, data = self.random.choice(self.files)
            bad = self.mutate(data)
        else:
            kind = self.random.choice([*KINDS.values(), *(k.reply for k in KINDS.values()), Envelope, Letter])
            bad, read = self.mutate(self.random.choice(self.mutate.pool)), lambda data: wire.decode(data, kind)
        try:
            read(bad)
        except (SilvanError, MemoryError):
            self.seen["reader: refused"] += 1
        else:
            self.seen["reader: read"] += 1


def main() -> None:
    """Run as a program."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--n", type=int, default=50_000)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    fuzzer = Fuzzer(given.seed)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    resource.setrlimit(resource.RLIMIT_AS, (used + (6 << 30),) * 2)  # what asks for more fails, as on a small machine
    start = time.monotonic()
    done = 0
    while done < given.n:
        fuzzer.run(min(10_000, given.n - done))
        done += min(10_000, given.n - done)
        print(f"{done:,} of {given.n:,}, {done / (time.monotonic() - start):,.0f} a second", flush=True)
    for what, n in sorted(fuzzer.seen.items()):
        print(f"{n:10,}  {what}")
    print(f"{given.n:,} mutated messages, seed {given.seed}: no crash, no hang, no forgery taken")


if __name__ == "__main__":
    main()
