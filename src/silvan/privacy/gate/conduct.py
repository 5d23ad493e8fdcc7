"""How a coordinator must conduct itself: what a site remembers of its questions, and holds it to.

Whoever may ask anything can find out anything: two sums over sites that differ by one, two sets of trees that differ by
one, a tree that sends one known person to a node of its own. So a site answers, in a study,

- what is named once, as it was first asked;
- a sum over one set of sites, and over no other, whatever became of them;
- in a task (a model, a judgement), sums over sites that only become fewer;
- in a task, one of everything: one set of trees, one forest. A question that goes on where another ended repeats what
  was decided before, and fits to what was asked before.

Asked again word for word, a question is answered again: a coordinator that was restarted loses nothing. All that is
remembered is in the site's store, so a site that was restarted forgets nothing. What each rule stops, and what it does
not, is in docs/security.md.
"""

from dataclasses import dataclass, field

import msgspec

from silvan.errors import RefusedError
from silvan.federation.message import Course, Envelope, Request
from silvan.federation.store import CONDUCT, Store, digest


class History(msgspec.Struct, frozen=True):
    """A course of questions so far: how much was decided, what the questions at that point left, all that was asked."""

    n: int
    decided: str
    traces: list[bytes]
    asked: list[str]


class Summed(msgspec.Struct, frozen=True):
    """Which question asked for a sum, and over which sites."""

    question: str
    over: list[str]


class Participants(msgspec.Struct, frozen=True):
    """The sites that a task began with, and those that are left."""

    first: list[str]
    left: list[str]


@dataclass(frozen=True)
class Held:
    """A question that breaks no rule, given what the site remembered: its name, and what to remember of it."""

    named: str
    store: Store
    seen: dict[str, bytes | None] = field(default_factory=dict)
    news: dict[str, bytes] = field(default_factory=dict)

    def get(self, key: str) -> bytes | None:
        """Read from the site's store, and note what was there."""
        self.seen[key] = self.store.get(key)
        return self.seen[key]

    def stands(self) -> bool:
        """Whether the site still remembers what it did then: no other question was answered meanwhile."""
        return all(self.store.get(key) == value for key, value in self.seen.items())


def hold(
    site: str,
    store: Store,
    envelope: Envelope,
    request: Request,
    course: Course | None,
    *,
    draws: bytes | None,
    tasks: int | None,
    losses: int | None,
) -> Held:
    """Refuse a question that breaks a rule; give what the site must remember of it once it is answered.

    ``draws`` names the noise that a sum is made of, if there is any: it is one statistic whatever else is asked. A
    study may have so many ``tasks``, and a task so many ``losses`` of sites; None for any number.
    """
    held = Held(digest(envelope.kind.encode() + b"\0" + envelope.body), store)
    _one_meaning(held, envelope)
    _few_tasks(held, envelope, tasks)
    if course is not None:
        _one_course(held, envelope, request, course)
    if request.verb == "total":
        over = sorted(envelope.over)
        if len(set(over)) < len(over) or site not in over:
            raise RefusedError("the site takes part in sums that name every site once, this one too")
        _one_set(held, envelope, draws, over)
        _fewer(held, envelope, over, losses)
    return held


def _one_meaning(held: Held, envelope: Envelope) -> None:
    """Refuse a second question under a name that stood for another."""
    step = None if envelope.step is None else digest(envelope.step.body)
    # not the sites of a sum: some may be lost between two times of asking
    meaning = digest(msgspec.json.encode([held.named, envelope.task, envelope.whole, step])).encode()
    key = _key("question", envelope.study, envelope.question)
    if held.get(key) not in (None, meaning):
        raise RefusedError("the site was asked something else under this name")
    held.news[key] = meaning


def _few_tasks(held: Held, envelope: Envelope, most: int | None) -> None:
    """Refuse one task too many."""
    if not envelope.task:
        return
    key = _key("tasks", envelope.study)
    known = msgspec.msgpack.decode(held.get(key) or b"\x90", type=list[str])
    if envelope.task in known:
        return
    if most is not None and len(known) >= most:
        raise RefusedError(f"the site takes part in {most} tasks of this study, models and judgements, and no more")
    held.news[key] = msgspec.msgpack.encode([*known, envelope.task])


def _one_course(held: Held, envelope: Envelope, request: Request, course: Course) -> None:
    """Refuse a question that is not the next of its course."""
    key = _key("course", envelope.study, envelope.task, course.name)
    data, n = held.get(key), len(course.decided)
    if data is None:
        trace = request.follow([], further=True) if course.anywhere or not n else None
        if trace is None:
            raise RefusedError("the question goes on from something that the site has not answered")
        held.news[key] = msgspec.msgpack.encode(History(n, _joined(course.decided), [trace], [held.named]))
        return
    history = msgspec.msgpack.decode(data, type=History)
    if held.named in history.asked:
        return
    if n < history.n or _joined(course.decided[: history.n]) != history.decided:
        raise RefusedError("the question does not go on from where the site's answers ended")
    further = n > history.n
    trace = request.follow(history.traces, further)
    if trace is None:
        raise RefusedError(
            "the question does not go on from what the site was asked before"
            if further
            else "the site has answered this in another form, and answers one form in a task"
        )
    traces = [trace] if further else [*history.traces, trace]
    history = History(n, _joined(course.decided), traces, [*history.asked, held.named])
    held.news[key] = msgspec.msgpack.encode(history)


def _one_set(held: Held, envelope: Envelope, draws: bytes | None, over: list[str]) -> None:
    """Refuse to sum something over other sites than before; while a sum in steps is on its way, it may lose some."""
    key = _key("sum", envelope.study, held.named if draws is None else digest(draws))
    question, data = envelope.whole or envelope.question, held.get(key)
    if data is not None:
        known = msgspec.msgpack.decode(data, type=Summed)
        if known.over == over:
            return
        on_its_way = envelope.step is not None and known.question == question
        if not on_its_way or not set(over) < set(known.over):
            raise RefusedError("the site sums one thing over one set of sites, and this was summed over another")
    held.news[key] = msgspec.msgpack.encode(Summed(question, over))


def _fewer(held: Held, envelope: Envelope, over: list[str], losses: int | None) -> None:
    """Refuse sites that were not in the task, or were left out; and too many that are."""
    key = _key("company", envelope.study, envelope.task)
    data = held.get(key)
    known = Participants(over, over) if data is None else msgspec.msgpack.decode(data, type=Participants)
    if not set(over) <= set(known.left):
        raise RefusedError("the sites of a task's sums only become fewer, and this sum has others")
    if losses is not None and len(known.first) - len(over) > losses:
        raise RefusedError(f"the site's policy lets a task lose {losses} sites at most")
    if data is None or known.left != over:
        held.news[key] = msgspec.msgpack.encode(Participants(known.first, over))


def _key(what: str, *names: str) -> str:
    return f"{CONDUCT} {what} {digest(msgspec.json.encode(names))}"


def _joined(decided: tuple[str, ...]) -> str:
    return digest(msgspec.json.encode(decided))
