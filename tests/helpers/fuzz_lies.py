"""Studies with a coordinator that follows the protocol's form but lies in its contents, against honest sites.

The program records small studies with every kind of message, and each site's state before each message. A study of lies
resumes at such a point with a few messages, most of them lies (``liar.py``), some true. In every case:

- a site replies or refuses, without failing and without taking long;
- no part of a masked sum leaves in the clear, and no sum is answered by the other verb;
- every reply is in the ledger with its digest, and the budget is not overspent;
- for a noisy reply, a table with one row fewer gives the same messages, and the exact counts differ by no more than the
noise covers;
- trees that no site of the study made are not scored;
- one quantity is summed over one set of sites, and what may be requested once per task gets one form of reply;
- every leaf of released trees has at least as many rows as the policy says;
- a site replies only over distinct sites, itself included, with the keys that it knows, and attributes trees to the
site that made them;
- the number and category that only one row has are in no reply.

    PYTHONPATH=tests python tests/helpers/fuzz_lies.py --n 100000 --seed 0 --results lies.jsonl

runs in shares, each with its own seed and line of results; shares that have a line are not run again.
"""

import logging
import random
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import polars as pl
from helpers import fuzz_wire
from helpers.column_studies import wide
from helpers.false_rosters import false_roster
from helpers.fuzz_wire import CrashError, Hang, watched
from helpers.liar import Liar, sort_of
from helpers.naive_answers import goes_left
from helpers.studies import Recorded, table

from silvan.errors import SilvanError
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.handlers import HANDLERS
from silvan.federation.message import Blob, Envelope, Missing, Request, Trouble, blobs_in
from silvan.federation.signed import SignedMessage
from silvan.federation.site import Site
from silvan.federation.site_table import SiteSettings
from silvan.federation.store import CacheKey, MemoryStore, digest
from silvan.forest.forest import Forest
from silvan.privacy.gate import Gate
from silvan.privacy.noise.budget import Budget
from silvan.privacy.noise.laplace import Noise
from silvan.privacy.noise.noisy_request import Noisy
from silvan.privacy.policy import Policy
from silvan.privacy.terms import Terms

SHARE = 5_000

NUMBER, CATEGORY = 41.98765432, "unheard-of"
"""What one row of the tables has, and nobody else."""

SHOWS_VALUES = {"AdaptiveLevel"}
"""Kinds whose answers hold values of rows by design; policies must name them."""

TAKES_MODELS = {
    "EvaluateModels",
    "CountByScore",
    "CompareHalves",
    "ChooseShare",
    "CountOutOfBag",
    "CountErrors",
    "KeepAdjusted",
    "SetColumns",
    "ShuffleColumns",
}
"""Kinds that score whole models without noise, which the coordinator put together: as many as a policy says."""

_OTHER_PART = "the site's part, or the question, is another than when it was hidden for this sum"

_KEPT = ("schema", "part", "encoded", "frame", "fingerprint")
"""What may be taken over from one study to the next of what sites keep to be faster."""


def planted(task: str = "binary", n: int = 240, seed: int = 0) -> pl.DataFrame:
    """The usual test table, with one row that has values nobody else has."""
    return _plant(table(task, n, seed))


def planted_wide(*given: Any, **named: Any) -> pl.DataFrame:
    """The same for columns."""
    return _plant(wide(*given, **named))


def _plant(frame: pl.DataFrame) -> pl.DataFrame:
    floats = [name for name in frame.columns if frame[name].dtype == pl.Float64 and name != "label"]
    texts = [name for name in frame.columns if frame[name].dtype == pl.String and name not in ("label", "sex")]
    here = pl.int_range(pl.len()) == len(frame) // 2
    changes = {name: pl.when(here).then(pl.lit(NUMBER)).otherwise(pl.col(name)) for name in floats}
    changes |= {name: pl.when(here).then(pl.lit(CATEGORY)).otherwise(pl.col(name)) for name in texts[:1]}
    return frame.with_columns(**changes)


# -- recorded studies


@dataclass(frozen=True)
class Point:
    """A message of a real study, and the state of its site before it arrived."""

    federation: Federation
    site: Site
    settings: SiteSettings
    store: dict[str, bytes]
    charges: list[tuple[Any, ...]]
    settled: list[tuple[Any, ...]]
    envelope: Envelope
    verb: str


class Remembered(Recorded):
    """Keeps all messages, with the state of the sites."""

    def deliver(self, messages: dict[str, bytes], verb: str, timeout: float | None) -> Iterator[Any]:
        kept = vars(self).setdefault("kept", [])
        for name, data in messages.items():
            site = self.local_sites[name]
            kept.append((site, site.settings, dict(site.store._values), *_rows(site), data, verb))
        yield from super().deliver(messages, verb, timeout)


def _rows(site: Site) -> tuple[list[Any], list[Any]]:
    """The content of a site's budget."""
    with site.outbox.budget._using() as db:
        return db.execute("SELECT * FROM charge").fetchall(), db.execute("SELECT * FROM settled").fetchall()


def recorded(ways: Sequence[bool]) -> list[Point]:
    """All messages of small studies: signed, not signed, or both."""
    points = []
    with (
        warnings.catch_warnings(),
        mock.patch.object(fuzz_wire, "Recorded", Remembered),
        mock.patch.object(fuzz_wire, "table", planted),
        mock.patch.object(fuzz_wire, "wide", planted_wide),
    ):
        warnings.simplefilter("ignore")
        for signed in ways:
            for fed in fuzz_wire.studies(signed):
                for site, settings, store, charges, settled, data, verb in fed.transport.kept:
                    body = wire.decode(data, SignedMessage).body if signed else data
                    envelope = wire.decode(body, Envelope)
                    points.append(Point(fed, site, settings, store, charges, settled, envelope, verb))
    return points


# -- what must hold


class Lies:
    """Runs studies of lies; ``seen`` counts the outcomes."""

    def __init__(self, seed: int = 0, go_on: bool = False, signed: Sequence[bool] = (False, True)) -> None:
        self.go_on = go_on  # count failures instead of raising them
        logging.getLogger("silvan.site").setLevel(logging.CRITICAL)
        self.points = recorded(signed)
        self.by_kind: dict[str, list[int]] = {}
        self.content: dict[int, dict[str, bytes]] = {}  # blobs, by federation
        for i, point in enumerate(self.points):
            self.by_kind.setdefault(point.envelope.kind, []).append(i)
            self.content.setdefault(id(point.federation), {}).update(point.envelope.blobs)
        self.liar = Liar([point.envelope for point in self.points])
        self.bases: dict[tuple[int, bool], Site] = {}  # sites, by name and missing row
        self.noised: list[tuple[Noise, np.ndarray]] = []
        self.start(seed)

    def start(self, seed: int) -> None:
        """Starts again with another seed."""
        self.random = random.Random(seed)  # noqa: S311
        self.liar.random = random.Random(seed + 1)  # noqa: S311
        self.seen: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()

    def run(self, n: int) -> "Lies":
        """Runs this many studies."""

        def add(noise: Noise, counts: np.ndarray) -> np.ndarray:
            self.noised.append((noise, np.array(counts, np.int64)))
            return np.array(counts, np.int64)

        with watched() as again, mock.patch.object(Noise, "add", add):
            for _ in range(n):
                again()
                try:
                    self.study()
                except (Exception, Hang) as error:
                    if not self.go_on:
                        raise
                    said = str(error) or f"at {self.asked} in {where(error)}"
                    self.failures[f"{type(error).__name__}: {said[:300]}"] += 1
        return self

    def study(self) -> None:
        """Resumes at some point of some study with a few messages, most of them lies."""
        pick = self.random
        kinds = [*self.by_kind, *(kind for kind in self.by_kind if issubclass(HANDLERS[kind][0], Noisy))]
        point = self.points[pick.choice(self.by_kind[pick.choice(kinds)])]
        policy = self._policy(point)
        terms = Terms(tasks=pick.choice((None, 1, 2)), models=pick.choice((None, 1, 2)))
        site, other, past = self._site(point, policy, terms), None, []
        others = [i for i, p in enumerate(self.points) if p.site is point.site]
        for _ in range(pick.choice((1, 2, 2, 3, 4))):
            source = point if pick.random() < 0.8 else self.points[pick.choice(others)]
            if pick.random() < 0.85:
                envelope = self.liar.lie(source.envelope, self.content[id(point.federation)])
            else:
                content = self.content[id(point.federation)]
                envelope = msgspec.structs.replace(source.envelope, blobs={**content, **source.envelope.blobs})
            verb = source.verb if pick.random() < 0.97 else {"ask": "total", "total": "ask"}[source.verb]
            outcome = self.tell(point, site, envelope, verb)
            noised, self.noised = self.noised, []
            if issubclass(HANDLERS[envelope.kind][0], Noisy):
                other = self._site(point, policy, terms, lacking=True)
                for before in past:  # it received everything that the other one did
                    self.tell(point, other, *before)
                self.noised = []
                self._compare(outcome, noised, self.tell(point, other, envelope, verb), envelope)
                self.noised = []
            past.append((envelope, verb))
        self.seen["studies"] += 1

    def _policy(self, point: Point) -> Policy:
        """A random policy of the site's owner."""
        pick, policy = self.random, point.site.outbox.policy
        if pick.random() < 0.5:
            return policy
        spent = sum(charge[1] for charge in point.charges)
        rules = {
            "min_leaf": pick.choice((1, 2, 5)),
            "min_sites": pick.choice((1, 2, 3)),
            "losses": pick.choice((None, 0, 1)),
            "epsilon": pick.choice((None, spent + 1e-3, spent + 1.0, spent + 60.0)),
            "messages": pick.choice((policy.messages, ("*", *HANDLERS))),
        }
        return replace(policy, **rules)

    def _site(self, point: Point, policy: Policy, terms: Terms, lacking: bool = False) -> Site:
        """Makes a site in a recorded state, or one whose table lacks the planted row."""
        base = self._base(point, lacking)
        store = MemoryStore()
        store.put_all(point.store)
        gate = point.site.outbox
        budget = Budget(policy.epsilon)
        if point.charges or point.settled:
            with budget._using() as db:
                db.executemany("INSERT INTO charge VALUES (?, ?, ?, ?, ?, ?)", point.charges)
                db.executemany("INSERT INTO settled VALUES (?, ?)", point.settled)
        site = base.rebuilt(point.settings, store=store, outbox=Gate(policy, budget, None, gate.approvals, terms))
        for name in ("table", "frame", "held_out", "ids"):
            if name in vars(base):
                vars(site)[name] = vars(base)[name]
        for key, value in base.cache.items():
            if key[0] in _KEPT:
                dict.__setitem__(site.cache, key, value)
        return site

    def _base(self, point: Point, lacking: bool) -> Site:
        key = id(point.site), lacking
        if key not in self.bases:
            base = point.site.rebuilt()
            # one name for both tables, so that charges for one apply to the other
            base.cache[CacheKey("fingerprint")] = point.site.fingerprint()
            if lacking:
                frame = pl.DataFrame(base.source)
                there = [frame[name] == CATEGORY for name in frame.columns if frame[name].dtype == pl.String]
                row = next((mask.arg_true()[0] for mask in there if mask.any()), len(frame) // 2)
                base.source = pl.concat([frame[:row], frame[row + 1 :]])
            _ = base.table, base.held_out
            with suppress(SilvanError):
                base.part(point.federation.schema)
            self.bases[key] = base
        return self.bases[key]

    # -- one message

    def tell(self, point: Point, site: Site, envelope: Envelope, verb: str) -> tuple[str, str, str]:
        """Sends a message and checks the reply; returns the outcome, its kind or code, and its text."""
        lines = len(site.outbox.ledger)
        data, self.asked = wire.encode(envelope), envelope.kind
        signer = point.federation.signer
        if signer is not None:
            data = signer.send(site.name, envelope.study, verb, data)
        answer = site.receive(data, verb)
        if signer is not None:
            answer = wire.decode(answer, SignedMessage).body
        reply = wire.decode(answer, Envelope)
        ledger, noted = site.outbox.ledger.lines(), "" if reply.kind == Missing.__name__ else digest(reply.body)
        if len(ledger) != lines + 1 or ledger[-1].answer != noted:
            raise CrashError(f"an answer to {envelope.kind} is not in the ledger")
        limit = site.outbox.policy.epsilon
        if limit is not None and site.outbox.budget.spent > limit + 1e-6:
            raise CrashError(f"the budget is overspent by {envelope.kind}")
        self._search(envelope.kind, reply)
        if reply.kind == Trouble.__name__:
            trouble = wire.decode(reply.body, Trouble)
            if trouble.code == "internal":
                error = site.last_error
                private = issubclass(HANDLERS[envelope.kind][0], Noisy)
                if not (private and type(error).__name__ == "UncountedError"):
                    raise CrashError(f"a site failed at {envelope.kind}: {error!r}, {where(error)}") from error
            if ledger[-1].outcome == "answered":
                raise CrashError(f"the ledger calls trouble with {envelope.kind} an answer")
            self.seen[trouble.code] += 1
            return "trouble", trouble.code, trouble.text
        if reply.kind == Missing.__name__:
            self.seen["asked for data"] += 1
            return "missing", "", ""
        self._check_answer(site, envelope, verb, reply)
        self._check_sequence(point, site, envelope)
        said = false_roster(site, envelope, lambda hash_: {o.site for o in point.federation.makers(Blob(hash_))})
        if said:
            raise CrashError(f"{envelope.kind} is answered, and {said}")
        self.seen["answered"] += 1
        return "answered", reply.kind, ""

    def _check_answer(self, site: Site, envelope: Envelope, verb: str, reply: Envelope) -> None:
        kind = HANDLERS[envelope.kind][0]
        if kind.verb != verb:
            raise CrashError(f"{envelope.kind} was answered by the verb {verb}")
        inside = opened(reply.body)
        if kind.verb == "total" and site.secure_sum is not None:
            parts = [value for key, value in site.cache.items() if key[0] == "part of a sum"]
            for part in parts:
                own = {n: getattr(part, n) for n in part.__struct_fields__}
                shown = [n for n in own if isinstance(inside.get(n), np.ndarray) and np.array_equal(inside[n], own[n])]
                if len(shown) == len(own) and any(np.any(own[n]) for n in shown):
                    raise CrashError(f"a part of {envelope.kind} left in the clear")
        if kind.verb == "ask":
            for value in inside.values():
                if isinstance(value, bytes) and (forest := _forest(value)) is not None:
                    self._check_leaves(site, envelope.kind, forest)

    def _check_sequence(self, point: Point, site: Site, envelope: Envelope) -> None:
        """Checks that the reply was allowed, given all earlier replies."""
        request = wire.decode(envelope.body, HANDLERS[envelope.kind][0])
        honest, past = self.content[id(point.federation)], vars(site).setdefault("past", {})
        forged = {hash_ for hash_ in blobs_in(request) if hash_ not in honest and sort_of(site.blob(hash_)) is Forest}
        if forged and not isinstance(request, Noisy):
            judged, most = past.setdefault(("judged", envelope.study), set()), site.outbox.terms.models
            judged |= forged
            if request.kind() not in TAKES_MODELS or (most is not None and len(judged) > most):
                raise CrashError(f"{envelope.kind} scores forged trees, {len(judged)} models")
        if request.verb == "total" and not isinstance(request, Noisy):
            over = past.setdefault(
                ("sum", envelope.study, digest(envelope.body)), (envelope.question, set(envelope.over))
            )
            if over[1] != set(envelope.over) and not (envelope.step and set(envelope.over) < over[1]):
                raise CrashError(f"{envelope.kind} is summed over {over[1]} and {envelope.over}")
        position = None if isinstance(request, Noisy) else request.position()
        if position is not None and type(request).follow is Request.follow and not position.decided:
            form = past.setdefault(("form", envelope.study, envelope.task, position.name), digest(envelope.body))
            if form != digest(envelope.body):
                raise CrashError(f"{envelope.kind} is answered in two forms in one task")

    def _check_leaves(self, site: Site, kind: str, forest: Forest) -> None:
        """Checks that no leaf of a released tree has fewer rows than the policy says."""
        part = site.part(forest.schema)
        least = site.outbox.policy.min_leaf
        for t in range(len(forest)):
            tree = forest.take(np.arange(len(forest)) == t)
            if len(tree.value) > 1:
                rows = np.bincount(_leaves(tree, part.X), minlength=len(tree.value))
                if rows.min() < min(least, len(part)):
                    raise CrashError(f"{kind} shows a leaf of {rows.min()} rows, under a minimum of {least}")

    def _search(self, kind: str, reply: Envelope) -> None:
        if kind in SHOWS_VALUES:
            return
        what = found_in(opened(reply.body))
        if what:
            raise CrashError(f"an answer to {kind} holds {what}")

    def _compare(self, one: Any, counts: list[Any], two: Any, envelope: Envelope) -> None:
        """Checks that one more row changes only counts, and by no more than the noise covers."""
        kind = envelope.kind
        if _OTHER_PART in (one[2], two[2]):  # the other site's part was masked before: their histories differ
            return
        if one != two:
            raise CrashError(f"{kind} is answered differently with a row less: {one}, {two}")
        if len(counts) != len(self.noised):
            raise CrashError(f"{kind} is counted differently with a row less")
        if not counts:
            return
        cost = 0.0
        for (noise, a), (again, b) in zip(counts, self.noised, strict=True):
            if noise != again:
                raise CrashError(f"{kind} has other noise with a row less")
            if a.shape == b.shape:
                cost += float(np.abs(a - b).sum()) / noise.sensitivity * float(noise.epsilon)
        epsilon = wire.decode(envelope.body, HANDLERS[kind][0]).epsilon
        if cost > epsilon * (1 + 1e-9):
            raise CrashError(f"{kind} costs {cost} for {epsilon}")
        self.seen["counts compared"] += len(counts)


def opened(body: bytes) -> Any:
    """Reads a reply without knowing its kind."""
    return msgspec.msgpack.decode(body, ext_hook=lambda code, data: wire.unpack_array(data))


def _forest(data: bytes) -> Forest | None:
    with suppress(SilvanError, ValueError):
        return Forest.from_bytes(data)
    return None


def _leaves(tree: Forest, X: np.ndarray) -> np.ndarray:
    """The leaf that each row reaches in a tree."""
    found = np.zeros(len(X), int)
    for i, x in enumerate(X):
        node = 0
        while tree.feature[node] >= 0:
            node = int(tree.left[node] if goes_left(tree, node, x) else tree.right[node])
        found[i] = tree.leaf[node]
    return found


def found_in(value: Any) -> str:
    """Describes what a reply contains of the planted row; empty if nothing."""
    if isinstance(value, dict):
        return next(filter(None, (found_in(v) for pair in value.items() for v in pair)), "")
    if isinstance(value, list | tuple):
        return next(filter(None, map(found_in, value)), "")
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return "the planted number" if ((value == NUMBER) | (value == np.float32(NUMBER))).any() else ""
    if isinstance(value, float):
        return "the planted number" if value == NUMBER or value == float(np.float32(NUMBER)) else ""
    if isinstance(value, str):
        return "the planted category" if CATEGORY in value else ""
    if isinstance(value, bytes):
        forest = _forest(value)
        if forest is not None and (forest.threshold == np.float32(NUMBER)).any():
            return "the planted number"
        return "the planted row" if CATEGORY.encode() in value or np.float64(NUMBER).tobytes() in value else ""
    return ""


def where(error: BaseException | None) -> str:
    """Describes a failure in one line."""
    frames = []
    trace = None if error is None else error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if "silvan" in code.co_filename:
            frames.append(f"{Path(code.co_filename).name}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " > ".join(frames[-3:])


# -- as a program


def main() -> None:
    """Run as a program."""
    given = fuzz_wire.read_options(__doc__, SHARE)
    known = {} if given.results is None else fuzz_wire.known_shares(given.results)
    seen: Counter[str] = Counter()
    lies: Lies | None = None
    for i, first in enumerate(range(0, given.n, SHARE)):
        seed, n = given.seed + i, min(SHARE, given.n - first)
        if (seed, n) not in known:
            lies = lies or Lies(seed, given.go_on)
            lies.start(seed)
            begun = time.monotonic()
            lies.run(n)
            print(f"seed {seed}: {n:,} studies, {n / (time.monotonic() - begun):,.0f} a second", flush=True)
            known[seed, n] = lies.seen + Counter({f"FAILED: {what}": k for what, k in lies.failures.items()})
            if given.results is not None:
                with given.results.open("ab") as file:
                    file.write(msgspec.json.encode({"seed": seed, "n": n, "seen": known[seed, n]}) + b"\n")
        seen.update(known[seed, n])
    for what, n in sorted(seen.items()):
        print(f"{n:10,}  {what}")
    failed = sum(n for what, n in seen.items() if what.startswith("FAILED"))
    print(f"{given.n:,} studies of lies, from seed {given.seed}: {failed:,} failed")
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
