"""Announcements: before its first request, a study lists all requests, and each site replies which it would refuse.

A study that a site refuses halfway has spent the privacy budgets of all. A refusal follows from a site's policy, its
approvals and its budget, so it can be known in advance; the reply depends on no row. An announcement binds nobody:
every request is checked again when it arrives.
"""

from dataclasses import dataclass
from typing import ClassVar

import msgspec
import numpy as np

from silvan.errors import FormatError, RefusedError
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.handlers import HANDLERS
from silvan.federation.message import Ask, Derived, Reply, Request
from silvan.federation.site import Site, answers
from silvan.federation.store import digest
from silvan.privacy.gate import Gate
from silvan.privacy.ledger import clean
from silvan.privacy.noise.laplace import load_opendp
from silvan.util.readable import count_of

_MOST_REASONS = 20


# -- messages


class Announced(Reply, frozen=True, kw_only=True):
    """The requests that the site would refuse, by its policy, approvals and budget alone; empty if there are none."""

    refused: list[str]


class Announce(Ask[Announced], frozen=True, kw_only=True, omit_defaults=True):
    """Whether the site would accept all requests of the study."""

    of_rows: ClassVar[bool] = False

    study: Derived[str]
    settings: Derived[str]  # a digest of what determines the requests: equal for a study that is run again
    kinds: Derived[list[str]]
    over: Derived[list[str]]  # sites in sums
    tasks: Derived[int]
    epsilon: Derived[float]  # of all noisy requests together; 0 without any
    sharers: Derived[int]
    leaf: Derived[int | None]  # smallest leaf; None if no trees are requested
    models: Derived[int] = 0  # number of external models for evaluation


@dataclass(frozen=True)
class RequestPlan:
    """A learner's coming requests: kinds of messages, and what they need.

    ``settings`` determines the requests, as text. ``hint`` says what to do if a site refuses.
    """

    kinds: tuple[type[Request], ...]
    epsilon: float = 0.0
    sharers: int = 1
    min_leaf: int | None = None
    settings: str = ""
    tasks: int = 1
    hint: str = ""
    models: int = 0

    def __add__(self, other: "RequestPlan") -> "RequestPlan":
        leaves = [leaf for leaf in (self.min_leaf, other.min_leaf) if leaf is not None]
        return RequestPlan(
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
    """List the reasons why the site would refuse the announced requests, each once."""
    whole = request.sharers >= 1 and request.tasks >= 0 and request.models >= 0
    if not (np.isfinite(request.epsilon) and request.epsilon >= 0.0 and whole):
        raise FormatError("an announcement of what cannot be")
    gate, reasons = site.outbox, list[str]()
    if isinstance(gate, Gate):
        reasons = _check_kinds(site, gate, request)
        tasks, models = gate.most_tasks(request.study), gate.terms.models
        if tasks is not None and request.tasks > tasks:
            reasons.append(
                f"it takes part in {count_of(tasks, 'task')} of a study, models and evaluations, and no more"
            )
        if models is not None and request.models > models:
            reasons.append(f"external models that it evaluates in a study: {models} at most")
        reasons += _check_cost(site, gate, request)
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


def _check_cost(site: Site, gate: Gate, request: Announce) -> list[str]:
    if not request.epsilon:
        return []
    try:
        gate.check_test_rows(site)
        gate.check_sharers(site, request.sharers, len(request.over))
        if request.sharers == 1:
            load_opendp()
        named = msgspec.structs.replace(request, over=sorted(request.over))
        gate.budget.admit(digest(wire.encode(named)), request.epsilon, gate.study_share(site.study))
    except RefusedError as error:
        return [str(error)]
    return []


# -- at the coordinator


def announce(federation: Federation, request_plan: RequestPlan) -> None:
    """Raise an error that lists what sites would refuse, before the first request."""
    told = [
        f"site {site!r} refused this before anything was asked: {'; '.join(map(clean, reasons))}"
        for site, reasons in refusals(federation, request_plan).items()
    ]
    if told:
        raise RefusedError("\n".join([*told, *([request_plan.hint] if request_plan.hint else [])]))


def refusals(federation: Federation, request_plan: RequestPlan) -> dict[str, list[str]]:
    """Return the reasons of the sites that would refuse the announced requests."""
    if not request_plan.kinds:
        return {}
    request = Announce(
        study=federation.study,
        settings=digest(request_plan.settings.encode()),
        kinds=sorted(kind.kind() for kind in request_plan.kinds),
        over=list(federation.active),
        tasks=request_plan.tasks,
        epsilon=request_plan.epsilon,
        sharers=request_plan.sharers,
        leaf=request_plan.min_leaf,
        models=request_plan.models,
    )
    with federation.aside():
        replies: dict[str, Announced] = federation.ask(request)
    return {site: reply.refused[:_MOST_REASONS] for site, reply in replies.items() if reply.refused}
