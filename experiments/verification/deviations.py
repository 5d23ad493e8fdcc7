"""Ways in which a coordinator, or the owner of its journal, can deviate from a study; each is chosen at random.

A deviation is inserted into a federation before its study runs, or into its run folder afterwards. It describes its
effect, or returns None if there was nothing to change. Its journal always looks as if nothing had happened.
"""

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from silvan.federation import wire
from silvan.federation.describe import CountRows, Describe
from silvan.federation.federation import Federation
from silvan.federation.handlers import HANDLERS
from silvan.federation.journal import LOST, SUM, Entry
from silvan.federation.message import Blob, Request
from silvan.federation.outgoing import Asked
from silvan.federation.store import digest
from silvan.privacy.close_study import Statement
from silvan.study.run_folder import EVALUATION, JOURNAL, MODEL, SHARES, Run
from silvan.study.verify import OF_THE_RUN

Told = Callable[[], str | None]
"""What a deviation did, once the study is over."""

DuringStudy = Callable[[Federation, np.random.Generator], Told]
Afterwards = Callable[[Path, np.random.Generator], str | None]

_SKIPPED = ("DealKey", "TakeKey", "CloseStudy", "Announce")


# -- while the study runs


def another_count(federation: Federation, rng: np.random.Generator) -> Told:
    """Continue with a sum in which one count is changed."""
    sums, at, done = federation.sums, int(rng.integers(0, 8)), list[str]()
    seen = 0
    honest = sums.total

    def total(of: Federation, question: Asked) -> Any:
        nonlocal seen
        reply, traffic = honest(of, question)
        seen += 1
        if seen == at + 1:
            names = [name for name in reply.__struct_fields__ if getattr(reply, name).size]
            if names:
                name = names[int(rng.integers(len(names)))]
                array = getattr(reply, name).copy()
                place = int(rng.integers(array.size))
                array.reshape(-1)[place] += 1
                reply = msgspec.structs.replace(reply, **{name: array})
                done.append(f"a count of {question.kind.__name__}.{name}")
        return reply, traffic

    federation.sums = _with(sums, total=total)
    return lambda: done[0] if done else None


def _with(sums: Any, **methods: Any) -> Any:
    """Return a way of summing with other methods."""
    made = type("Other", (), {"name": sums.name, "least": sums.least, "must_stay": sums.must_stay, **methods})
    made.total = staticmethod(methods["total"])  # type: ignore[attr-defined]
    return made()


def another_request(federation: Federation, rng: np.random.Generator) -> Told:
    """Send a request with other contents, and record the reply as that to the right request."""
    honest, at, done = federation._question, int(rng.integers(0, 14)), list[str]()
    seen = 0

    def question(request: Any, verb: Any, to: Any, check: Any) -> Asked:
        nonlocal seen
        made = honest(request, verb, to, check)
        if made.kind.__name__ in _SKIPPED:
            return made
        seen += 1
        if seen != at + 1:
            return made
        first = next(iter(made.requests.values()))
        names = list(first.__struct_fields__)
        rng.shuffle(names)
        for name in names:
            other = changed(getattr(first, name), rng)
            if other is None:
                continue
            requests = {site: msgspec.structs.replace(one, **{name: other}) for site, one in made.requests.items()}
            if wire.encode(requests[next(iter(requests))]) == wire.encode(first):
                continue
            # replies are checked as always: kernels trust the shapes of checked arrays
            twisted = replace(made, requests=requests, _written={})
            federation.questions[-1].asked = {site: twisted.asked(site) for site in requests}
            done.append(f"{made.kind.__name__}.{name}")
            return twisted
        return made

    federation._question = question  # type: ignore[method-assign]
    return lambda: done[0] if done else None


def changed(value: Any, rng: np.random.Generator) -> Any:
    """Return another value of the same type; None if there is none."""
    if isinstance(value, np.ndarray) and value.size:
        other = value.copy().reshape(-1)
        place = int(rng.integers(other.size))
        other[place] = not other[place] if other.dtype == np.bool_ else other[place] + type(other[place])(1)
        return other.reshape(value.shape)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str) and value:
        return value + "x"
    if isinstance(value, list) and value:
        return value[:-1]
    if isinstance(value, Blob):
        return None  # its content would have to travel too: see another_blob
    return None


def another_cut_point(federation: Federation, rng: np.random.Generator) -> Told:
    """Send sites another blob than the study implies: one moved cut point, another model, another schema."""
    honest, at, done = federation.blob, int(rng.integers(0, 4)), list[str]()
    seen = 0

    def blob(data: bytes) -> Blob:
        nonlocal seen
        made = honest(data)
        seen += 1
        if seen != at + 1 or data[:1] == b"{":
            return made
        place = int(rng.integers(len(data)))
        other = data[:place] + bytes([data[place] ^ (1 << int(rng.integers(8)))]) + data[place + 1 :]
        done.append(digest(other))
        return honest(other)

    def told() -> str | None:
        stores = [site.store for site in federation.transport.sites.values()]
        sent = done and any(
            store.get(f"blob {done[0]}") is not None for store in stores
        )  # leaves of merged trees are not
        return "a bit of cut points or of a model" if sent else None

    federation.blob = blob  # type: ignore[method-assign]
    return told


def extra_request(federation: Federation, rng: np.random.Generator) -> Told:
    """Send a request that is not part of the study."""
    honest, at, done = federation.ask, int(rng.integers(0, 4)), list[str]()
    extra: Request = CountRows() if rng.random() < 0.5 else Describe(task="classification")
    seen = 0

    def ask(request: Any, *given: Any, **named: Any) -> Any:
        nonlocal seen
        replies = honest(request, *given, **named)
        kind = type(next(iter(request.values())) if isinstance(request, dict) else request).__name__
        seen += kind not in _SKIPPED
        if seen == at + 1 and not done and kind not in _SKIPPED:
            done.append(type(extra).__name__)
            known = list(federation.questions)
            with federation.aside():
                honest(extra)
            federation.questions[:] = known
        return replies

    federation.ask = ask  # type: ignore[method-assign]
    return lambda: done[0] if done else None


def dropped_site(federation: Federation, rng: np.random.Generator) -> Told:
    """Leave a site out, and record that it was lost."""
    honest, at, done = federation._question, int(rng.integers(1, 9)), list[str]()
    seen = 0

    def question(request: Any, verb: Any, to: Any, check: Any) -> Asked:
        nonlocal seen
        made = honest(request, verb, to, check)
        seen += made.kind.__name__ not in _SKIPPED
        if seen == at and len(made.requests) > 1 and not done and made.kind.__name__ not in _SKIPPED:
            site = list(made.requests)[int(rng.integers(len(made.requests)))]
            federation.lost[site] = f"site {site!r} did not answer"
            federation.journal.keep(made.name, {site: Entry(LOST, federation.lost[site].encode(), 0, 0)})
            del made.requests[site]
            done.append(f"site {site!r}")
        return made

    federation._question = question  # type: ignore[method-assign]
    return lambda: done[0] if done else None


# -- afterwards, in the run folder


def _rewrite(
    path: Path,
    choose: Callable[[str, str, str], bool],
    change: Callable[[str, str, bytes], bytes | None],
    rng: np.random.Generator,
) -> str | None:
    """Rewrite a reply in a journal, with a matching digest."""
    with sqlite3.connect(path) as db:
        rows = db.execute("SELECT question, site, kind, body, sent, received FROM reply").fetchall()
        rows = [row for row in rows if row[3] and choose(row[0], row[1], row[2])]
        for i in rng.permutation(len(rows)):
            question, site, kind, body, sent, received = rows[i]
            other = change(site, kind, body)
            if other is not None and other != body:
                entry = Entry(kind, other, sent, received)
                db.execute(
                    "UPDATE reply SET body = ?, digest = ? WHERE question = ? AND site = ?",
                    (other, entry.digest(question, site), question, site),
                )
                return kind
    return None


_REPLIES = {kind: HANDLERS[kind][0].reply for kind in HANDLERS}
_BY_NAME = {reply.__name__: reply for reply in _REPLIES.values()}


def _other_reply(rng: np.random.Generator) -> Callable[[str, str, bytes], bytes | None]:
    def change(site: str, kind: str, body: bytes) -> bytes | None:
        reply = wire.decode(body, _BY_NAME[kind])
        names = list(reply.__struct_fields__)
        rng.shuffle(names)
        for name in names:
            other = changed(getattr(reply, name), rng)
            if other is not None:
                return wire.encode(msgspec.structs.replace(reply, **{name: other}))
        return None

    return change


def journal_sum(folder: Path, rng: np.random.Generator) -> str | None:
    """Change a count of a sum in the journal."""
    return _rewrite(folder / JOURNAL, lambda q, site, kind: site == SUM and kind in _BY_NAME, _other_reply(rng), rng)


def journal_reply(folder: Path, rng: np.random.Generator) -> str | None:
    """Change a site's reply in the journal."""

    def choose(question: str, site: str, kind: str) -> bool:
        return site != SUM and kind in _BY_NAME and kind != Statement.__name__ and kind != "Announced"

    return _rewrite(folder / JOURNAL, choose, _other_reply(rng), rng)


def forged_statement(folder: Path, rng: np.random.Generator) -> str | None:
    """Change a site's statement."""

    def change(site: str, kind: str, body: bytes) -> bytes | None:
        statement = wire.decode(body, Statement)
        answered = list(statement.answered)
        del answered[int(rng.integers(len(answered)))]
        key = bytes([*(statement.key or b"")[:-1], 0])
        other = {"answered": answered} if rng.random() < 0.5 else {"key": key}
        return wire.encode(msgspec.structs.replace(statement, **other))

    return _rewrite(folder / JOURNAL, lambda q, site, kind: kind == Statement.__name__, change, rng)


def another_result(folder: Path, rng: np.random.Generator) -> str | None:
    """Change something in the record of the run that follows from the replies."""
    run = Run(folder)
    record = run.read()
    names = [name for name in record.__struct_fields__ if name not in OF_THE_RUN | {"format", "version"}]
    for name in rng.permutation(names).tolist():
        other = other_value(getattr(record, name), rng)
        if other is not None:
            setattr(record, name, other)
            run.write(record)
            return f"{name} in the record"
    return None


def other_value(value: Any, rng: np.random.Generator) -> Any:
    """Return another value that a record could contain; None if there is none."""
    if isinstance(value, msgspec.Struct):
        for name in rng.permutation(value.__struct_fields__).tolist():
            other = other_value(getattr(value, name), rng)
            if other is not None:
                return msgspec.structs.replace(value, **{name: other})
        return None
    if isinstance(value, list | tuple) and value:
        place = int(rng.integers(len(value)))
        other = other_value(value[place], rng)
        return None if other is None else type(value)([*value[:place], other, *value[place + 1 :]])
    if isinstance(value, dict) and value:
        key = list(value)[int(rng.integers(len(value)))]
        other = other_value(value[key], rng)
        return None if other is None else {**value, key: other}
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return value + "x" if isinstance(value, str) and value else None


def another_file(folder: Path, rng: np.random.Generator) -> str | None:
    """Replace the study's model or metrics with others; the record stays as it is."""
    made = [path for name in (MODEL, EVALUATION, SHARES) for path in [folder / name, *(folder / name).rglob("*")]]
    files = [path for path in made if path.is_file()]
    if not files:
        return None
    path = files[int(rng.integers(len(files)))]
    data = bytearray(path.read_bytes())
    data[int(rng.integers(len(data)))] ^= 1
    path.write_bytes(data)
    return f"a bit of {path.name}"


def unnamed_site(federation: Federation, rng: np.random.Generator) -> Told:
    """Run the study without one of its sites, as if the site had never existed."""
    site = list(federation.sites)[int(rng.integers(len(federation.sites)))]
    if len(federation.sites) <= max(2, federation.sums.least) or federation.columns is not None:
        return lambda: None
    federation.sites = [name for name in federation.sites if name != site]
    for key in [key for key in federation.traffic if key[0] == site]:
        del federation.traffic[key]
    return lambda: f"site {site!r} was never asked"


DURING: dict[str, DuringStudy] = {
    "a count of a sum": another_count,
    "another request": another_request,
    "another cut point": another_cut_point,
    "an extra request": extra_request,
    "a dropped site": dropped_site,
    "a site that is never named": unnamed_site,
}
AFTERWARDS: dict[str, Afterwards] = {
    "a sum in the journal": journal_sum,
    "a reply in the journal": journal_reply,
    "a forged statement": forged_statement,
    "a result in the record": another_result,
    "a file of the results": another_file,
}
