"""Rules on a coordinator's requests: a site records them and checks new ones against the record.

Arbitrary requests could reveal anything: two sums over sites that differ by one, two sets of trees that differ by
one, a tree that isolates one known person. So in a study a site replies only to

- sums of a quantity over one set of sites, and over no other;
- sums over sites that are only removed, starting with those in the study's text or the site's roster, and down to the
  owner's limit on losses;
- one of everything in a task (a model, an evaluation): one set of trees, one forest. A request that continues another
  repeats the earlier decisions, and fits the earlier requests;
- nothing once the study is closed (``close_study.py``), because then the key that proves its sums is public.

An identical request gets the same reply, so a restarted coordinator loses nothing. The record is in the site's store,
so a restarted site forgets nothing. docs/security.md says what each rule prevents and what it does not.
"""

from dataclasses import dataclass, field

import msgspec

from silvan.errors import RefusedError
from silvan.federation.message import Envelope, ProtocolPosition, Request
from silvan.federation.store import SEQUENCE, Store, digest
from silvan.util.readable import count_of


class History(msgspec.Struct, frozen=True):
    """A sequence of requests so far: the number of decisions, the traces at that point, and all requests."""

    n: int
    decided: str
    traces: list[bytes]
    asked: list[str]


class Summed(msgspec.Struct, frozen=True):
    """The request for a sum, and its sites."""

    question: str
    over: list[str]


class Participants(msgspec.Struct, frozen=True):
    """The sites at the start of a study, and the remaining ones."""

    first: list[str]
    left: list[str]


@dataclass(frozen=True)
class StudyLimits:
    """A site's limits on a study; None: any number, and the sites of the first sum.

    ``tasks`` are models and evaluations; ``sites`` are those at the start, of which ``losses`` may be lost.
    With ``clusters`` some kinds of requests are summed over some of the sites, all these kinds over the same.
    """

    tasks: int | None = None
    losses: int | None = None
    sites: frozenset[str] | None = None
    clusters: bool = True


@dataclass(frozen=True)
class CheckedRequest:
    """A request that breaks no rule, given the site's record: its digest, and what to record."""

    digest: str
    store: Store
    seen: dict[str, bytes | None] = field(default_factory=dict)
    changes: dict[str, bytes] = field(default_factory=dict)

    def get(self, key: str) -> bytes | None:
        """Read from the site's store, and remember what was read."""
        self.seen[key] = self.store.get(key)
        return self.seen[key]

    def still_valid(self) -> bool:
        """Whether the store is unchanged: no other request was handled meanwhile."""
        return all(self.store.get(key) == value for key, value in self.seen.items())


def check_sequence(
    site: str,
    store: Store,
    envelope: Envelope,
    request: Request,
    position: ProtocolPosition | None,
    *,
    draws: bytes | None,
    limits: StudyLimits,
) -> CheckedRequest:
    """Raise an error if a request breaks a rule; return what the site must record once it has replied.

    ``draws`` names the noise in a sum, if any: it is one statistic, whatever the form of the request.
    """
    question = CheckedRequest(envelope.asked, store)
    _check_tasks(question, envelope, limits.tasks)
    if position is not None:
        _check_position(question, envelope, request, position)
    if request.verb == "total":
        over = sorted(envelope.over)
        if len(set(over)) < len(over) or site not in over:
            raise RefusedError("the site takes part in sums that name every site once, this one too")
        _check_sites_of_sum(question, envelope, draws, over)
        _check_participants(question, envelope, request, over, limits)
    return question


def _check_tasks(question: CheckedRequest, envelope: Envelope, most: int | None) -> None:
    """Raise an error if the study has too many tasks."""
    if not envelope.task:
        return
    key = _key("tasks", envelope.study)
    known = msgspec.msgpack.decode(question.get(key) or b"\x90", type=list[str])
    if envelope.task in known:
        return
    if most is not None and len(known) >= most:
        raise RefusedError(
            f"the site takes part in {count_of(most, 'task')} of this study, models and evaluations, and no more"
        )
    question.changes[key] = msgspec.msgpack.encode([*known, envelope.task])


def _check_position(question: CheckedRequest, envelope: Envelope, request: Request, position: ProtocolPosition) -> None:
    """Raise an error if a request does not continue its sequence."""
    key = _key("course", envelope.study, envelope.task, position.name)
    data, n = question.get(key), len(position.decided)
    if data is None:
        trace = request.follow([], further=True) if position.anywhere or not n else None
        if trace is None:
            raise RefusedError("the question goes on from something that the site has not answered")
        question.changes[key] = msgspec.msgpack.encode(
            History(n, _joined(position.decided), [trace], [question.digest])
        )
        return
    history = msgspec.msgpack.decode(data, type=History)
    if question.digest in history.asked:
        return
    if n < history.n or _joined(position.decided[: history.n]) != history.decided:
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
    history = History(n, _joined(position.decided), traces, [*history.asked, question.digest])
    question.changes[key] = msgspec.msgpack.encode(history)


def _check_sites_of_sum(question: CheckedRequest, envelope: Envelope, draws: bytes | None, over: list[str]) -> None:
    """Raise an error if the same was summed over other sites; a sum in steps may lose some on its way."""
    key = _key("sum", envelope.study, question.digest if draws is None else digest(draws))
    name, data = envelope.whole or envelope.question, question.get(key)
    if data is not None:
        known = msgspec.msgpack.decode(data, type=Summed)
        if known.over == over:
            return
        on_its_way = envelope.step is not None and known.question == name
        if not on_its_way or not set(over) < set(known.over):
            raise RefusedError("the site sums one thing over one set of sites, and this was summed over another")
    question.changes[key] = msgspec.msgpack.encode(Summed(name, over))


def _check_participants(
    question: CheckedRequest, envelope: Envelope, request: Request, over: list[str], limits: StudyLimits
) -> None:
    """Raise an error if a sum has sites that the study never had or has lost, or if it has lost too many."""
    names, first = [envelope.study], limits.sites
    if first is not None and not first.issuperset(over):
        raise RefusedError("the sum has sites that are not in the study")
    # sums over a cluster begin with its sites, the same for all kinds, because two kinds reveal the same rows. Where
    # few sites may be lost, the whole study has one cluster
    if request.some_sites and limits.clusters:
        names += ["cluster"] if limits.losses is not None else ["cluster", envelope.task]
        first = None
    key = _key("participants", *names)
    data, start = question.get(key), over if first is None else sorted(first)
    known = Participants(start, start) if data is None else msgspec.msgpack.decode(data, type=Participants)
    if not set(over) <= set(known.left):
        raise RefusedError("the sites of a study's sums only become fewer, and this sum has others")
    if limits.losses is not None and len(known.first) - len(over) > limits.losses:
        raise RefusedError(f"the site lets a study lose {count_of(limits.losses, 'site')} at most")
    if data is None or known.left != over:
        question.changes[key] = msgspec.msgpack.encode(Participants(known.first, over))


# -- the end of a study


def close(store: Store, study: str, asked: str, answer: bytes) -> None:
    """Record that a study is closed, by which request and with which reply."""
    store.put(_key("closed", study), msgspec.msgpack.encode((asked, answer)))


def closing_answer(store: Store, study: str, asked: str) -> bytes | None:
    """Return the reply that closed a study; raise ``RefusedError`` if another request closed it."""
    data = store.get(_key("closed", study))
    if data is None:
        return None
    known, answer = msgspec.msgpack.decode(data, type=tuple[str, bytes])
    if known != asked:
        raise RefusedError(
            "the study is closed: the site has signed what it answered, and answers nothing more in it; a study of "
            "another name can ask again"
        )
    return answer


def check_open(store: Store, envelope: Envelope, kind: type[Request]) -> None:
    """Raise ``RefusedError`` for a request in a closed study; the results may still come."""
    if not kind.after_close:
        closing_answer(store, envelope.study, envelope.asked)


def _key(what: str, *names: str) -> str:
    return f"{SEQUENCE} {what} {digest(msgspec.json.encode(names))}"


def _joined(decided: tuple[str, ...]) -> str:
    return digest(msgspec.json.encode(decided))
