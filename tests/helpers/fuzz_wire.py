"""Mutated messages for every reader: sites, coordinators, and the validators of what messages contain.

Real messages of small studies, of every kind and every way of summing, signed and not, are changed at random
(``mutations.py``). Nothing may crash or hang, every outcome must be a well-formed reply or a deliberate error, and a
changed signed message must never be accepted.

    python tests/fuzz_wire.py --n 1000000 --seed 0 --results shares.jsonl

runs in shares, each with its own seed and line of results; shares that have a line are not run again.
"""

import argparse
import atexit
import faulthandler
import logging
import random
import resource
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import polars as pl
from helpers.column_studies import federate as federate_by_columns
from helpers.column_studies import split, wide
from helpers.mutations import Mutator
from helpers.private_study import schema as public_schema
from helpers.randomness import seeded_keys
from helpers.studies import Recorded, federate, parts, table

import silvan as sv
from silvan.algorithms.vertical import encrypted_labels
from silvan.data.schema import Schema
from silvan.deploy.studies.send_results import send_results
from silvan.errors import SilvanError
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.handlers import HANDLERS
from silvan.federation.message import Envelope, Missing, Trouble
from silvan.federation.outgoing import Asked
from silvan.federation.signed import TOLERANCE, SignedMessage, Signer
from silvan.forest.forest import Forest
from silvan.learners.result import Result
from silvan.privacy.aggregation.masked_site import Turn
from silvan.privacy.aggregation.ring import Hop
from silvan.privacy.close_study import close_study
from silvan.privacy.identity.shared_key import share_key
from silvan.privacy.ledger_heads import compare_ledgers
from silvan.study.parse import parse_remote_study
from silvan.study.run_folder import Record, Run, SiteRows

SLOW, STUCK = 20.0, 900.0
"""Seconds of work after which a message counts as one that hangs, and seconds after which the program gives up."""

SHARE = 50_000


class Hang(BaseException):
    """A message took too long; no error handler catches this."""


class CrashError(AssertionError):
    """A rule was broken."""


@contextmanager
def watched() -> Iterator[Callable[[], None]]:
    """Raises if something takes too long; yields a function to call before each step.

    A kernel that cannot be interrupted ends the program with a trace.
    """

    def ring(*_: object) -> None:
        raise Hang

    calls = 0

    def again() -> None:
        nonlocal calls
        signal.setitimer(signal.ITIMER_PROF, SLOW)  # CPU time, because the machine may be busy with something else
        if calls % 100 == 0:  # it starts a thread each time
            faulthandler.dump_traceback_later(STUCK, exit=True)
        calls += 1

    before = signal.signal(signal.SIGPROF, ring)
    try:
        yield again
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        faulthandler.cancel_dump_traceback_later()


# -- real messages


@contextmanager
def repeatable() -> Iterator[None]:
    """Gives signed messages the same keys and times in every run, if all other random values are the same."""
    clock = count(1_790_000_000_000_000_000).__next__
    with seeded_keys(), mock.patch.object(Signer.__init__, "__defaults__", (TOLERANCE, clock)):
        yield


@contextmanager
def _questions_kept() -> Iterator[None]:
    """Makes federations keep their requests by name, with the coordinator's checks of replies."""
    exchange = Federation.exchange

    def noted(self: Federation, question: Asked) -> Iterator[Any]:
        vars(self).setdefault("by_wave", {})[question.wave] = question
        return exchange(self, question)

    with mock.patch.object(Federation, "exchange", noted):
        yield


def studies(signed: bool) -> list[Federation]:
    """Small studies that together have every kind of message; all messages are kept."""
    with _questions_kept(), repeatable():
        made = [*_by_rows(signed), *_private(signed), *_by_columns(signed)]
        for fed in made if signed else ():
            close_study(fed)
        return made


def _by_rows(signed: bool) -> list[Federation]:
    tables, made = parts(table(n=60), 3), []
    for sums, learners in {
        "trusted": [
            sv.HistogramForest(2, max_depth=3),
            sv.MergedForest(3, refit_leaves=True, class_weight="balanced"),
            sv.BOFRF(2, clusters=2),
            sv.BOPPID(2),
            sv.AutoForest(2, max_depth=2),
        ],
        "ring": [sv.HistogramForest(2, max_depth=2), sv.MultBoost(2)],
        "masked": [sv.HistogramForest(2, max_depth=2), sv.BOFRF(2, personal=True, threshold="f1")],
    }.items():
        fed = federate(tables, Recorded, sums=sums, signed=signed, test=0.25)
        if signed:
            share_key(fed)
        for learner in learners:
            learner.fit(fed)
        learners[0].evaluate(fed)
        if signed:
            _send_results(learners[0], fed)
        made.append(fed)
    numbers = parts(table(n=60).select("dose", "noise", "label"), 3)  # what adaptive bins accept
    policy = sv.Policy(messages=("*", "AdaptiveLevel"), min_sites=2)
    fed = federate(numbers, Recorded, signed=signed, policy=policy)
    sv.HistogramForest(2, max_depth=2, bins="adaptive").fit(fed)
    return [*made, fed, _explained(signed), _reliable(signed), _survival(signed)]


def _explained(signed: bool) -> Federation:
    """Enough test rows for sites to report the effect of columns."""
    fed = federate(parts(table(n=90), 3), Recorded, sums="masked", signed=signed, test=0.5)
    model = sv.MergedForest(2, max_depth=2).fit(fed)
    model.evaluate(fed, by=["sex"])
    model.permutation_importance(fed, repeats=1)
    model.partial_dependence(fed, "dose", grid=[1, 4])
    return fed


def _reliable(signed: bool) -> Federation:
    """Sites report a model's errors and describe their tables; those that sign also compare their ledgers."""
    fed = federate(parts(table("number", n=90), 3), Recorded, sums="masked", signed=signed)
    sv.describe(fed)
    sv.HistogramForest(4, max_depth=2, intervals=True).fit(fed)
    if signed:
        compare_ledgers(fed, {})
    return fed


def _survival(signed: bool) -> Federation:
    """Sites count times until an event."""
    tables = {
        site: frame.with_columns(time=pl.int_range(1, pl.len() + 1), died=pl.int_range(pl.len()) % 3 > 0).drop("label")
        for site, frame in parts(table(n=90), 3).items()
    }
    fed = federate(tables, Recorded, sums="masked", signed=signed, time="time", event="died")
    sv.HistogramForest(2, max_depth=2).fit(fed)
    return fed


def _private(signed: bool) -> list[Federation]:
    """Sums with noise; their schema is public."""
    made = []
    for task, forms in {"binary": ("tables", "levels", "input"), "number": ("tables",)}.items():
        tables = parts(table(task, n=60), 3)
        how = {"sums": "masked", "signed": signed, "test": 0.25, "test_by": "row"}
        fed = federate(tables, Recorded, schema=public_schema(task), **how)
        for form in forms:
            model = sv.HistogramForest(2, max_depth=2, epsilon=50.0, private=form).fit(fed)
        model.evaluate(fed, epsilon=50.0)
        made.append(fed)
    return made


def _by_columns(signed: bool) -> list[Federation]:
    tables = split(wide(n=60), 2)
    fed = federate_by_columns(tables, Recorded, signed=signed, test=0.25, random_state=None)
    model = sv.VerticalForest(2, max_depth=2, auditor=True).fit(fed)
    model.evaluate(fed)
    model.predict(fed)
    _send_predictions(model, fed)
    sv.VerticalLinear(max_iter=2, tol=0.5).fit(fed).predict(fed)
    made = [fed]
    try:
        import gmpy2  # noqa: F401
    except ImportError:
        return made
    with mock.patch.object(encrypted_labels, "TESTING", True):
        fed = federate_by_columns(tables, Recorded, signed=signed, test=0.25)
        model = sv.VerticalForest(2, max_depth=2, labels="encrypted", key_bits=256).fit(fed)
        model.predict(fed)
        _send_predictions(model, fed)
    return [*made, fed]


def _send_results(model: Any, fed: Federation) -> None:
    """Makes all sites keep a model, in a folder that is removed when the program ends."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    run = Run(folder.name)
    models = run.save_models(Result(0, {}, model.forest_))
    record = Record(name="results", status="done", fingerprint=fed.study, models=models)
    record.sites = [SiteRows(name, 0) for name in fed.sites]
    run.write(record)
    for name in fed.sites:
        fed.site(name).results = run.file(name)
    assert send_results(fed, parse_remote_study("[learner]\n"), run) == {}


def _send_predictions(model: Any, fed: Federation) -> None:
    """Makes the label holder keep predictions, in a folder that is removed when the program ends."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    assert fed.label_holder is not None
    assert fed.columns is not None
    fed.party(fed.label_holder).predictions = Path(folder.name) / "predictions.csv"
    model.send_predictions(fed, fed.columns.common)


# -- what must hold


class Fuzzer:
    """Sends changed messages to every reader; ``seen`` counts the outcomes."""

    def __init__(self, seed: int = 0, go_on: bool = False) -> None:
        self.go_on = go_on  # count failures instead of raising them
        logging.getLogger("silvan.site").setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = [*studies(False), *studies(True)]
        self.messages: dict[str, list[tuple[Any, bytes]]] = {}  # by kind: sites, and messages to them
        self.answers: dict[str, list[tuple[Federation, str, bytes]]] = {}  # by kind: sites' replies
        for fed in made:
            for name, way, data in fed.transport.record:
                body = data if fed.signer is None else wire.decode(data, SignedMessage).body
                kind = wire.decode(body, Envelope).kind
                if way == "received":
                    self.messages.setdefault(kind, []).append((fed.site(name), data))
                elif kind not in (Missing.__name__, Trouble.__name__):
                    self.answers.setdefault(kind, []).append((fed, name, data))
        self.pool = [data for some in self.messages.values() for *_, data in some]
        self.pool += [data for some in self.answers.values() for *_, data in some]
        asked = [kind for kind, _ in HANDLERS.values()]
        self.kinds = [*asked, *(kind.reply for kind in asked), Envelope, SignedMessage, Turn, Hop]
        self.files = self._files(made[0])
        self.start(seed)

    def start(self, seed: int) -> None:
        """Starts again with another seed."""
        self.random, self.mutate = random.Random(seed), Mutator(seed, self.pool)  # noqa: S311
        self.seen: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()

    def _files(self, fed: Federation) -> list[tuple[Callable[[bytes], object], bytes]]:
        """Blobs that travel inside messages, with their readers."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            forest = sv.MergedForest(3).fit(fed).forest_
        assert forest is not None
        return [(Forest.from_bytes, forest.to_bytes()), (Schema.from_json, forest.schema.to_json().encode())]

    def run(self, n: int) -> "Fuzzer":
        """Sends this many."""
        with watched() as again:
            for _ in range(n):
                chance = self.random.random()
                throw = self.to_site if chance < 0.6 else self.to_coordinator if chance < 0.9 else self.to_reader
                again()
                try:
                    throw()
                except (Exception, Hang) as error:
                    if not self.go_on:
                        raise
                    self.failures[_where(error)] += 1
        return self

    def _pick(self, by_kind: dict[str, list[Any]]) -> tuple[str, Any]:
        """Chooses a message; rare kinds are as likely as frequent ones."""
        kind = self.random.choice(list(by_kind))
        return kind, self.random.choice(by_kind[kind])

    def to_site(self) -> None:
        """Changes a message to a site: it replies, with an error or the result, and never raises."""
        kind, (site, data) = self._pick(self.messages)
        bad = self.mutate(data)
        gate, site.outbox = site.outbox, site.outbox if self.random.random() < 0.5 else None
        try:
            answer = site.receive(bad, HANDLERS[kind][0].verb)
        finally:
            site.outbox = gate
        if site.signer is not None:
            answer = wire.decode(answer, SignedMessage).body
        envelope = wire.decode(answer, Envelope)
        if envelope.kind == Trouble.__name__:
            trouble = wire.decode(envelope.body, Trouble)
            if trouble.code == "internal" and not isinstance(site.last_error, MemoryError):
                raise CrashError(f"a site failed at {kind}: {bad!r}") from site.last_error
            self.seen[f"site: {trouble.code}"] += 1
        elif site.signer is not None and wire.decode(bad, SignedMessage) != wire.decode(data, SignedMessage):
            raise CrashError(f"a site took a forged {kind}: {bad!r}")
        else:
            self.seen["site: asked for data" if envelope.kind == Missing.__name__ else "site: answered"] += 1

    def to_coordinator(self) -> None:
        """Changes a reply: it is read, refused or ignored; nothing of a changed signed one is accepted."""
        _, (fed, name, data) = self._pick(self.answers)
        bad, body = self.mutate(data), data
        if fed.signer is not None:
            letter = wire.decode(data, SignedMessage)
            fed.signer._open[name], body = letter.nonce, letter.body
            taken = fed.signer.read(name, letter.study, bad)
            if taken is not None and wire.decode(bad, SignedMessage) != letter:
                raise CrashError(f"a coordinator took a forged answer: {bad!r}")
            self.seen["coordinator: forgery ignored" if taken is None else "coordinator: the same"] += 1
            bad = self.mutate(body)  # as if the site itself had sent it
        outcome = fed.by_wave[wire.decode(body, Envelope).question].read(name, bad)
        said = "taken" if isinstance(outcome, tuple) else "ignored" if outcome is None else "refused"
        self.seen[f"coordinator: {said}"] += 1

    def to_reader(self) -> None:
        """Changes a file, or reads random bytes as any kind."""
        if self.random.random() < 0.5:
            read, data = self.random.choice(self.files)
            bad = self.mutate(data)
        else:
            kind = self.random.choice(self.kinds)
            bad, read = self.mutate(self.random.choice(self.pool)), lambda data: wire.decode(data, kind)
        try:
            read(bad)
        except (SilvanError, MemoryError):
            self.seen["reader: refused"] += 1
        else:
            self.seen["reader: read"] += 1


def _where(error: BaseException) -> str:
    """Describes a failure and its place in one line."""
    error = error.__cause__ or error
    frames = traceback.extract_tb(error.__traceback__)
    frame = [frame for frame in frames if "silvan" in frame.filename or len(frames) == 1][-1]
    return f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}, {str(error)[:100]}"


# -- as a program


def read_options(about: str, share: int) -> argparse.Namespace:
    """Reads the options of a program that fuzzes in shares, each with its own seed."""
    options = argparse.ArgumentParser(description=about.splitlines()[0])
    options.add_argument("--n", type=int, default=share)
    options.add_argument("--seed", type=int, default=0, help="of the first share; the others count on from it")
    options.add_argument("--results", type=Path, default=None, help="a file with a line for each share")
    options.add_argument("--go-on", action="store_true", help="list all failures at the end, and stop at none")
    return options.parse_args()


def main() -> None:
    """Run as a program."""
    given = read_options(__doc__, SHARE)
    known = {} if given.results is None else known_shares(given.results)
    seen: Counter[str] = Counter()
    fuzzer: Fuzzer | None = None
    for i, first in enumerate(range(0, given.n, SHARE)):
        seed, n = given.seed + i, min(SHARE, given.n - first)
        if (seed, n) not in known:
            fuzzer = fuzzer or Fuzzer(seed, given.go_on)
            known[seed, n] = _share(fuzzer, seed, n)
            if given.results is not None:
                with given.results.open("ab") as file:
                    file.write(msgspec.json.encode({"seed": seed, "n": n, "seen": known[seed, n]}) + b"\n")
        seen.update(known[seed, n])
    for what, n in sorted(seen.items()):
        print(f"{n:10,}  {what}")
    last = given.seed + len(range(0, given.n, SHARE)) - 1
    failed = sum(n for what, n in seen.items() if what.startswith("FAILED"))
    said = f"{failed:,} failed" if failed else "no crash, no hang, no forgery taken"
    print(f"{given.n:,} mutated messages, seeds {given.seed} to {last}: {said}")
    if failed:
        raise SystemExit(1)


def known_shares(path: Path) -> dict[tuple[int, int], dict[str, int]]:
    lines = path.read_bytes().splitlines() if path.exists() else []
    read = [msgspec.json.decode(line) for line in lines]
    return {(line["seed"], line["n"]): line["seen"] for line in read}


def _share(fuzzer: Fuzzer, seed: int, n: int) -> Counter[str]:
    fuzzer.start(seed)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (used + (6 << 30), hard))  # larger allocations fail, as on a small machine
    start = time.monotonic()
    fuzzer.run(n)
    print(f"seed {seed}: {n:,} messages, {n / (time.monotonic() - start):,.0f} a second", flush=True)
    return fuzzer.seen + Counter({f"FAILED: {what}": n for what, n in fuzzer.failures.items()})


if __name__ == "__main__":
    main()
