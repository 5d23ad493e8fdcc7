"""Announcements: before a study asks anything, each site learns what it will ask, and replies what it would refuse.

A study that a site refuses halfway has spent the privacy budgets of all. Whether a site will refuse follows from its
policy, its approvals and its budget, so it can be asked for before; the answer does not depend on a single row. An
announcement binds nobody: every question is checked again when it comes.
"""

from dataclasses import dataclass
from typing import ClassVar

import msgspec
import numpy as np

from silvan.errors import FormatError, RefusedError
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.handlers import HANDLERS
from silvan.federation.message import Ask, Reply, Request
from silvan.federation.site import Site, answers
from silvan.federation.store import CONDUCT, digest
from silvan.privacy.conduct import tasks_so_far
from silvan.privacy.gate import Gate
from silvan.privacy.noise.laplace import load_opendp
from silvan.util.readable import count_of

_MOST_KINDS = 1000
_MOST_SITES = 10_000
_MOST_REASONS = 20
_LONGEST = 300


# -- messages


class Announced(Reply, frozen=True, kw_only=True):
    """What of it the site would refuse, by its policy, its approvals and its budget alone; nothing if it is empty."""

    refused: list[str]


class Announce(Ask[Announced], frozen=True, kw_only=True, omit_defaults=True):
    """Whether the site would answer all that is about to be asked."""

    of_rows: ClassVar[bool] = False

    study: str
    settings: str  # a digest of what decides the questions: equal for a study that is run again
    kinds: list[str]
    over: list[str]  # sites in sums
    tasks: int
    epsilon: float  # of all noisy questions together; 0 without any
    sharers: int
    leaf: int | None  # fewest rows of a leaf; None where no trees are asked for
    models: int = 0  # of those that a site is sent to judge


@dataclass(frozen=True)
class Questions:
    """What a learner is about to ask: kinds of messages, and what they need.

    ``settings`` is what decides the questions, as text. ``hint`` says what to do if a site refuses.
    """

    kinds: tuple[type[Request], ...]
    epsilon: float = 0.0
    sharers: int = 1
    min_leaf: int | None = None
    settings: str = ""
    tasks: int = 1
    hint: str = ""
    models: int = 0

    def __add__(self, other: "Questions") -> "Questions":
        leaves = [leaf for leaf in (self.min_leaf, other.min_leaf) if leaf is not None]
        return Questions(
            tuple(dict.fromkeys([*self.kinds, *other.kinds])),
            self.epsilon + other.epsilon,
            max(self.sharers, other.sharers),
            min(leaves, default=None),
            f"{self.settings}\n{other.settings}",
            self.tasks + other.tasks,
            self.hint or other.hint,
            self.models + other.models,
        )


# -- at a site


@answers(Announce)
def would_refuse(site: Site, request: Announce) -> Announced:
    """List why the site would refuse what is announced, each reason once."""
    if len(request.kinds) > _MOST_KINDS or len(request.over) > _MOST_SITES:
        raise FormatError("an announcement of too much")
    if not (np.isfinite(request.epsilon) and request.epsilon >= 0.0) or request.sharers < 1:
        raise FormatError("an announcement of what cannot be")
    if request.tasks < 0 or request.models < 0:
        raise FormatError("an announcement of what cannot be")
    gate, reasons = site.outbox, []
    for check in (_check_kinds, _check_tasks, _check_models, _check_cost):
        reasons += [] if not isinstance(gate, Gate) else check(site, gate, request)
    return Announced(refused=list(dict.fromkeys(reasons))[:_MOST_REASONS])


def _check_kinds(site: Site, gate: Gate, request: Announce) -> list[str]:
    reasons = []
    for name in request.kinds:
        if name not in HANDLERS:
            reasons.append("it does not know one of the messages; versions may differ")
            continue
        kind = HANDLERS[name][0]
        try:
            site.check_kind(kind)
            gate.check_kind(kind, request.study, request.over)
            gate.check_leaves(kind, request.leaf)
        except RefusedError as error:
            reasons.append(str(error))
    return reasons


def _check_tasks(site: Site, gate: Gate, request: Announce) -> list[str]:
    most = gate.most_tasks(request.study)
    if most is None:
        return []
    # a coordinator that lost its journal announces the same tasks again
    key = f"{CONDUCT} announced {digest(msgspec.json.encode([request.study, request.settings]))}"
    known = site.store.get(key)
    before = tasks_so_far(site.store, request.study) if known is None else int(known)
    if before + request.tasks <= most:
        site.store.put(key, str(before).encode())
        return []
    return [f"it takes part in {count_of(most, 'task')} of a study, models and judgements, and no more"]


def _check_models(site: Site, gate: Gate, request: Announce) -> list[str]:
    most = gate.most_models()
    if most is None or request.models <= most:
        return []
    return [f"models of others that it judges in a study: {most} at most"]


def _check_cost(site: Site, gate: Gate, request: Announce) -> list[str]:
    if not request.epsilon:
        return []
    try:
        gate.check_test_rows(site)
        gate.check_sharers(site, request.sharers, len(request.over))
        if request.sharers == 1:
            load_opendp()
        named = msgspec.structs.replace(request, over=sorted(request.over))
        gate.budget.admit(digest(wire.encode(named)), request.epsilon)
    except RefusedError as error:
        return [str(error)]
    return []


# -- at the coordinator


def announce(federation: Federation, questions: Questions) -> None:
    """Raise an error that lists what sites would refuse, before anything is asked of any."""
    if not questions.kinds:
        return
    request = Announce(
        study=federation.study,
        settings=digest(questions.settings.encode()),
        kinds=sorted(kind.kind() for kind in questions.kinds),
        over=list(federation.active),
        tasks=questions.tasks,
        epsilon=questions.epsilon,
        sharers=questions.sharers,
        leaf=questions.min_leaf,
        models=questions.models,
    )
    with federation.aside():
        replies: dict[str, Announced] = federation.ask(request)
    refused = {site: list(map(_clean, reply.refused)) for site, reply in replies.items() if reply.refused}
    if refused:
        told = [
            f"site {site!r} refused this before anything was asked: {_joined(why)}" for site, why in refused.items()
        ]
        raise RefusedError("\n".join([*told, *([questions.hint] if questions.hint else [])]))


def _joined(reasons: list[str]) -> str:
    return "; ".join(reasons[:_MOST_REASONS])


def _clean(text: str) -> str:
    return "".join(c for c in text if c.isprintable())[:_LONGEST]  # it may be made to harm a terminal
