"""The outbox: a site's own rules on what may leave, whatever the coordinator asks.

Message kinds that show something close to a row are closed unless a policy names them.
"""

from dataclasses import dataclass

from silvan.errors import InputError, RefusedError
from silvan.federation.message import Envelope, Reply, Request
from silvan.federation.site import Outbox, Site
from silvan.privacy.budget import Budget
from silvan.privacy.noise import check_epsilon
from silvan.privacy.noisy import Noisy, check_noisy, draw_name

CLOSED_BY_DEFAULT = frozenset({"AdaptiveLevel"})
"""Kinds that must be named to be allowed: bins with means are single values where a bin holds one row."""


@dataclass(frozen=True)
class Policy:
    """What a site lets out.

    Parameters
    ----------
    messages
        Kinds of messages it answers; "*" stands for all but those closed by default, and is the default.
    min_leaf
        Fewest rows in a leaf of a tree that leaves the site.
    min_sites
        Fewest sites in a sum that the site takes part in.
    epsilon
        Privacy budget of the site, for all studies together; None for no limit. With one, a message that is answered
        without noise must be named in ``messages``, since no budget covers it.
    approve
        Whether the owner approves each study first. Not built yet.
    """

    messages: tuple[str, ...] | None = None
    min_leaf: int = 2
    min_sites: int = 1
    epsilon: float | None = None
    approve: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        if self.messages is not None:
            if isinstance(self.messages, str):
                raise InputError("messages must be a list of kinds, got a single string")
            object.__setattr__(self, "messages", tuple(self.messages))
        if self.min_leaf < 1 or self.min_sites < 1:
            raise InputError("min_leaf and min_sites must be at least 1")
        if self.epsilon is not None:
            check_epsilon(self.epsilon)
        if self.approve:
            raise InputError("approve is not built yet; leave it out of the policy")

    def allows(self, kind: str) -> bool:
        """Whether a kind of message is answered."""
        messages = ("*",) if self.messages is None else self.messages
        return kind in messages or ("*" in messages and kind not in CLOSED_BY_DEFAULT)

    def tells(self, kind: str) -> bool:
        """Whether a kind of message that is answered without noise is answered beside the privacy budget."""
        return self.allows(kind) and (self.epsilon is None or kind in (self.messages or ()))


class Gate(Outbox):
    """The outbox of one site, with its privacy budget: one in memory, if none is given."""

    def __init__(self, policy: Policy, budget: Budget | None = None) -> None:
        self.policy = policy
        self.budget = Budget(policy.epsilon) if budget is None else budget

    def admit(self, site: Site, request: Request, envelope: Envelope) -> None:
        """Refuse a request that the policy forbids, before anything is computed."""
        among = envelope.among
        if not self.policy.allows(request.kind()):
            raise RefusedError(f"the site's policy does not allow {request.kind()}")
        leaf = getattr(request, "min_leaf", None)
        if leaf is not None and leaf < self.policy.min_leaf:
            raise RefusedError(f"the site's policy asks for leaves of at least {self.policy.min_leaf} rows")
        if request.verb == "total" and among < self.policy.min_sites:
            raise RefusedError(f"the site's policy asks for sums over at least {self.policy.min_sites} sites")
        self._admit_cost(site, request, among)

    def _admit_cost(self, site: Site, request: Request, among: int) -> None:
        """Refuse what the privacy budget does not cover."""
        if isinstance(request, Noisy):
            check_noisy(request, among)
            if request.sharers > 1 and self.policy.epsilon is not None and site.cover is None:
                raise RefusedError(
                    "the site adds a share of the noise only in sums that hide their parts: whoever adds would see "
                    "less noise than the budget asks for"
                )
            self.budget.check(draw_name(site, request), request.epsilon)
        elif not self.policy.tells(request.kind()):
            raise RefusedError(
                f"the site has a privacy budget, and {request.kind()} is answered without noise: the policy must name "
                "it in messages to allow it"
            )

    def release(self, site: Site, request: Request, reply: Reply) -> Reply:
        """Let a reply leave."""
        return reply
