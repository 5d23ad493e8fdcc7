"""The gate: checks requests against the site's policy, and writes every reply to its ledger."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from silvan.errors import RefusedError
from silvan.federation.message import Envelope, Missing, Request, Trouble
from silvan.federation.site import Outbox, Site
from silvan.federation.store import CacheKey, Store, digest
from silvan.privacy.evidence import keep_evidence
from silvan.privacy.file_marks import FileMarks
from silvan.privacy.held_columns import check_columns
from silvan.privacy.ledger import Ledger, Outcome, clean
from silvan.privacy.noise.budget import Budget, StudyShare
from silvan.privacy.noise.noisy_request import Noisy, check_noisy, draw_name
from silvan.privacy.policy import Policy
from silvan.privacy.request_sequence import CheckedRequest, StudyLimits, check_open, check_sequence
from silvan.privacy.site_folder import Approval, Approvals
from silvan.privacy.terms import DeviationError, StudyText, Terms, columns_of
from silvan.util.readable import count_of


class Clock(NamedTuple):
    """What tells the time in seconds, and waits."""

    now: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep


class Gate(Outbox):
    """The outbox of one site: its policy, privacy budget, ledger and approvals.

    Missing parts are created in memory. ``terms`` come from the study's text, if the site has it: then the site serves
    only this study, starts with its sites, and loses no more of them than allowed. ``store`` is the site's store if it
    is in the same folder as the ledger: then none of these files may be behind another.
    """

    def __init__(
        self,
        policy: Policy,
        budget: Budget | None = None,
        ledger: Ledger | None = None,
        approvals: Approvals | None = None,
        terms: Terms | None = None,
        store: Store | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.policy, self.clock = policy, Clock() if clock is None else clock
        self.budget = Budget(policy.epsilon) if budget is None else budget
        self.ledger = Ledger() if ledger is None else ledger
        self.approvals = Approvals() if approvals is None else approvals
        self.terms = Terms() if terms is None else terms
        self.marks = FileMarks(self.ledger, self.budget, store)
        self.marks.check()
        self._rows_closed = ""
        self._admitted: tuple[Envelope, CheckedRequest] | None = None
        self._thread = threading.local()

    @property
    def over(self) -> list[str]:
        """The sites in the sum last admitted in this thread, which now computes the reply."""
        over: list[str] = getattr(self._thread, "over", [])
        return over

    def close_rows(self, why: str) -> None:
        """Refuse all further requests about the table, and reply with the reason."""
        self._rows_closed = why

    def approve(self, study: str, messages: Iterable[str], **what: Any) -> Approval:
        """Approve a study, as the site's owner; ``messages`` and ``what`` limit it, see ``Approval``."""
        approval = Approval(study=study, messages=list(messages), **what)
        self.policy.check_approval(approval)
        return self.approvals.approve(approval)

    def admit(self, site: Site, request: Request, envelope: Envelope) -> None:
        """Raise an error if the policy forbids a request, before anything is computed."""
        kind, self._thread.began = type(request), self.clock.now()
        check_open(site.store, envelope, kind)
        self.check_kind(kind, envelope.study, envelope.over)
        self.check_leaves(kind, getattr(request, "min_leaf", None))
        self.check_trees(request)
        self.terms.check(site, request)
        self._thread.over = envelope.over
        if kind.verb == "total" and self.policy.min_sites > 1 and not isinstance(request, Noisy):
            study, columns = self.terms.approved or envelope.study, columns_of(site, request)
            check_columns(site, study, columns, envelope.over, self.policy.min_sites)
        if isinstance(request, Noisy):
            check_noisy(request, envelope.among)
            self.check_test_rows(site)
            self.check_sharers(site, request.sharers, envelope.among)
            if request.sharers == 1 or envelope.step is None:
                # later steps of a sum may be over fewer sites than its shares: then the sampling checks
                self.budget.check(draw_name(site, request), request.epsilon, self.study_share(envelope.study))
        self._admitted = envelope, self._check_sequence(site, request, envelope)

    # -- requirements on a request's kind and settings alone; also checked for announcements

    def check_kind(self, kind: type[Request], study: str, over: Sequence[str]) -> None:
        """Raise an error if a study may not send a kind of message or, for a sum, not over these sites."""
        if self.terms.study not in (None, study):
            raise RefusedError("the site is at work on another study")
        if self.policy.approve:
            self.approvals.check(self.terms.approved or study, kind, over if kind.verb == "total" else ())
        if not kind.of_rows:
            return
        if self._rows_closed:
            raise RefusedError(self._rows_closed)
        if not self.policy.allows(kind.kind()):
            raise RefusedError(f"the site's policy does not allow {kind.kind()}")
        if not issubclass(kind, Noisy) and not self.policy.allows_exact(kind.kind()):
            raise RefusedError(
                f"the site has a privacy budget, and {kind.kind()} is answered without noise: the policy must name "
                "it in messages to allow it"
            )
        if kind.verb == "total" and len(over) < self.policy.min_sites:
            raise RefusedError(
                f"the site's policy asks for sums over at least {count_of(self.policy.min_sites, 'site')}"
            )

    def check_leaves(self, kind: type[Request], min_leaf: int | None) -> None:
        """Raise an error if a kind of message would request trees with smaller leaves than the policy allows."""
        # the default concerns disclosed trees; sums are limited only by an explicit minimum
        least = self.policy.min_leaf if kind.verb == "ask" or self.policy.min_leaf > Policy.min_leaf else 1
        if min_leaf is not None and hasattr(kind, "min_leaf") and min_leaf < least:
            raise RefusedError(
                f"the site's policy asks for leaves of at least {count_of(least, 'row')}: set min_samples_leaf"
            )

    def check_trees(self, request: Request) -> None:
        """Raise an error if a request grows more trees, or trees of more bins or rows, than the policy allows.

        The names of a request's fields, or of its settings, show this. Noisy counts are exempt.
        """
        asked = {} if isinstance(request, Noisy) else _tree_fields(request)
        policy = self.policy
        if policy.max_trees is not None and asked.get("n_trees", 0) > policy.max_trees:
            raise RefusedError(f"the site's policy allows {count_of(policy.max_trees, 'tree')} at most")
        if policy.max_bins is not None and asked.get("max_bins", 0) > policy.max_bins:
            raise RefusedError(
                f"the site's policy allows {count_of(policy.max_bins, 'bin')} of a column at most: set max_bins"
            )
        if policy.bootstrap and not asked.get("bootstrap", "n_trees" not in asked):
            raise RefusedError("the site's policy asks for trees grown on samples of its rows: set bootstrap=True")

    def check_test_rows(self, site: Site) -> None:
        """Raise an error if another row would move rows between the training and test sets.

        A site without a budget has made no promise that this would break.
        """
        if not site.samples_singly and self.policy.epsilon is not None:
            raise RefusedError(
                "the site keeps test rows that were sampled by class, so one row more moves others, and no "
                "epsilon covers that: keep none, or draw each by itself, by a schema that is given and test_by='row'"
            )

    def check_sharers(self, site: Site, sharers: int, among: int) -> None:
        """Raise an error if a share of the noise would be too little, in a sum over the remaining sites."""
        if sharers > 1 and self.policy.epsilon is not None and site.secure_sum is None:
            raise RefusedError(
                "the site adds a share of the noise only in sums that hide their parts: whoever adds would see "
                "less noise than the budget asks for"
            )
        spare = self.terms.tolerate
        if sharers > 1 and site.secure_sum is not None and spare > site.secure_sum.withstands(among):
            raise RefusedError(
                f"the site assumes that {count_of(spare, 'site')} may collude, and so many would see its part of this "
                "sum, with a share of the noise alone: ask for noise='site'"
            )
        if sharers > max(among - spare, 1):
            raise RefusedError(
                f"the site asks that the noise on a sum be enough without the shares of {spare} of its sites, "
                f"and of these {among} it is not: set tolerate to {spare}, and higher by how many sites may be lost"
            )

    def most_tasks(self, study: str) -> int | None:
        """Return the maximum number of tasks of a study, by its text and its approval; None for any number."""
        approval = self._approval(study)
        return _least([self.terms.tasks, None if approval is None else approval.tasks])

    def study_share(self, study: str) -> StudyShare:
        """Return the maximum cost of a study in privacy budget."""
        return StudyShare(study, self.terms.epsilon)

    def _approval(self, study: str) -> Approval | None:
        """Return the owner's approval of a study, if approvals are required."""
        return self.approvals.find(self.terms.approved or study) if self.policy.approve else None

    def _check_sequence(self, site: Site, request: Request, envelope: Envelope) -> CheckedRequest:
        """Check a request against the coordinator's earlier ones."""
        # a noisy request may have any form, because the budget limits it; but a share of noise protects only its sum
        return check_sequence(
            site.name,
            site.store,
            envelope,
            request,
            position=None
            if isinstance(request, Noisy)
            else site.cache.once(CacheKey("course", envelope.asked), request.position),
            draws=msgspec.json.encode(request.draws()) if isinstance(request, Noisy) and request.sharers > 1 else None,
            limits=self._limits(site, envelope),
        )

    def _limits(self, site: Site, envelope: Envelope) -> StudyLimits:
        """Return the limits of a study: by the policy, by its text, and by the owner's approval."""
        approval = self._approval(envelope.study)
        losses, sites = [self.policy.losses, self.terms.losses], self.terms.sites
        if approval is not None:
            losses.append(approval.losses)
            sites = approval.sites or sites
        if not sites and site.signer is not None:
            sites = list(site.signer.roster.sites)
        clusters = self.terms.text is None or self.terms.text.clusters
        first = None if sites is None else frozenset(sites) - self.terms.left_out
        return StudyLimits(self.most_tasks(envelope.study), _least(losses), first, clusters)

    def _remembered(self, site: Site, request: Request, envelope: Envelope) -> dict[str, bytes]:
        """Return the record of a request; check it again if there was another reply since it was admitted."""
        admitted = self._admitted
        if admitted is not None and admitted[0] is envelope and admitted[1].still_valid():
            return admitted[1].changes
        return self._check_sequence(site, request, envelope).changes

    def note(self, site: Site, envelope: Envelope, request: Request | None, reply: msgspec.Struct, body: bytes) -> None:
        """Record a reply in the site's store and ledger, before it leaves."""
        if not envelope.kind:
            return  # unreadable messages are in the site's log
        outcome: Outcome = "answered"
        charged, marks = False, {}
        with self.ledger.locked():
            if isinstance(reply, Trouble):
                outcome = "refused" if reply.code == "refused" else "failed"
            elif request is not None and not isinstance(reply, Missing):
                charged = isinstance(request, Noisy)
                marks = self.marks.before_line(site.store, self._remembered(site, request, envelope), charged)
            what, how = _describe(site, envelope, request, reply)
            if isinstance(site.last_error, DeviationError) and site.message is not None and self.ledger.folder:
                how += keep_evidence(self.ledger.folder, site.message)
            self.ledger.write(
                site=site.name,
                study=clean(envelope.study),
                task=clean(envelope.task),
                round=envelope.round,
                kind=clean(envelope.kind),
                outcome=outcome,
                what=clean(what),
                how=clean(how),
                bytes=len(body),
                question=clean(envelope.question),
                asked=envelope.asked,
                answer="" if isinstance(reply, Missing) else digest(body),
                **marks,
            )
            self.marks.after_line(charged)
        if isinstance(request, Noisy):
            self._wait()

    def _wait(self) -> None:
        """Wait until a power of two of time steps has passed since the request arrived."""
        began, self._thread.began = getattr(self._thread, "began", None), None
        step = self.policy.time_step
        if began is None or not step:
            return
        took, due = self.clock.now() - began, step
        while due < took:
            due *= 2
        self.clock.wait(due - took)


@contextmanager
def holding_to(text: StudyText, sites: Iterable[Site], tolerate: int = 1) -> Iterator[None]:
    """Enforce a study's text at sites of this process, as long as the study runs.

    ``tolerate`` is how many sites may collude, see ``Terms``.
    """
    gates = [site.outbox for site in sites if isinstance(site.outbox, Gate)]
    before = [gate.terms for gate in gates]
    for gate in gates:
        gate.terms = replace(gate.terms, text=text, tolerate=tolerate)
    try:
        yield
    finally:
        for gate, terms in zip(gates, before, strict=True):
            gate.terms = terms


def _tree_fields(request: Request) -> dict[str, Any]:
    """Return a request's, or its settings', description of the trees to grow; empty if it grows none."""
    settings = getattr(getattr(request, "ground", request), "settings", None)
    known = {"n_estimators": "n_trees", "n_trees": "n_trees", "max_bins": "max_bins", "bootstrap": "bootstrap"}
    return {
        meaning: getattr(holder, name)
        for holder in (settings, request)
        for name, meaning in known.items()
        if hasattr(holder, name)
    }


def _least(limits: list[int | None]) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def policy_of(site: Site) -> Policy:
    """Return a site's policy; the default one if none is set."""
    policy = getattr(site.outbox, "policy", None)
    return policy if isinstance(policy, Policy) else Policy()


def most_models(site: Site) -> int | None:
    """Return the maximum number of external models that a site evaluates in a study; None for any number."""
    return site.outbox.terms.models if isinstance(site.outbox, Gate) else None


def first_sites(site: Site) -> list[str] | None:
    """Return the sites at the start of a study, as a site knows them; None if unknown."""
    known = site.outbox.terms.sites if isinstance(site.outbox, Gate) else None
    return None if known is None else sorted(known)


def _describe(site: Site, envelope: Envelope, request: Request | None, reply: msgspec.Struct) -> tuple[str, str]:
    """Describe a reply, and who sees it, in plain words."""
    if request is None:
        return f"a message of a kind that the site does not know, {envelope.kind!r}", getattr(reply, "text", "")
    if isinstance(reply, Trouble):
        return request.describe(), reply.text
    if isinstance(reply, Missing):
        return f"which data the site lacks to answer {envelope.kind}", "shown to the coordinator"
    if request.verb == "ask":
        return request.describe(reply), "shown to the coordinator"
    n = envelope.among - 1
    others = "no other site" if n < 1 else "1 other site" if n == 1 else f"{n} other sites"
    if site.secure_sum is None:
        return request.describe(reply), f"summed with {others}; whoever adds sees this part"
    step = (type(reply).__doc__ or type(reply).__name__).split("\n")[0].rstrip(".")
    if type(reply) is request.reply:
        return request.describe(reply), f"the sum with {others}, as the last step of it"
    return (
        f"{request.describe()}: {step[0].lower()}{step[1:]}",
        f"summed with {others}, hidden ({site.secure_sum.name})",
    )
