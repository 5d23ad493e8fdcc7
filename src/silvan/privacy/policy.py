"""The owner's limits on what may leave a site, for all studies.

Message kinds that disclose something close to a row are closed unless a policy names them.
"""

from dataclasses import dataclass

from silvan.errors import InputError
from silvan.privacy.noise.laplace import check_epsilon
from silvan.privacy.site_folder import EVERYTHING, Approval

CLOSED_BY_DEFAULT = frozenset({"AdaptiveLevel"})
"""Kinds that must be named to be allowed: the mean of a bin with one row is a single value."""


@dataclass(frozen=True)
class Policy:
    """The owner's limits on what may leave a site. The study's text sets further limits.

    Parameters
    ----------
    messages
        Kinds of requests that the site accepts; the default "*" stands for all but those closed by default.
    min_leaf
        Minimum number of rows in a leaf of a tree that leaves the site; in sums over sites only if it is above the
        default.
    min_sites
        Minimum number of sites in a sum that the site takes part in, and of those that have each of its columns.
    epsilon
        Privacy budget of the site, for all studies together; None for no limit. With one, a request with an exact
        reply must be named in ``messages``, because no budget covers it.
    approve
        Whether the owner must approve each study before the first reply, see ``Gate.approve``.
    min_test
        Minimum number of test rows by which the site evaluates models: metrics of a single row reveal its label, so set
        it to 10 or more if that matters.
    max_trees
        Maximum number of trees that one request may grow on the site's rows; None for any number. Many trees that all
        use a row reveal its label.
    max_bins
        Maximum number of bins of a column in these trees; None for any number.
    bootstrap
        Whether trees must be grown on random samples of the rows: trees that use all rows are refused.
    losses
        Maximum number of sites that a study may lose: two sums over nearly the same sites reveal the part of the site
        that is missing in one. None for any number; between machines, as many as the
        study's quorum allows.

    Examples
    --------
    >>> import silvan as sv
    >>> policy = sv.Policy(min_leaf=5, min_sites=3, min_test=10)
    >>> policy.allows("GrowTrees"), policy.allows("AdaptiveLevel")
    (True, False)
    >>> sv.Policy(messages=("*", "AdaptiveLevel")).allows("AdaptiveLevel")
    True
    """

    # no fields, see ``PolicyBetweenMachines``
    score_groups = 1  # rows that share a score in metrics
    time_step = 0.0  # seconds; noisy replies leave after one, two, four of them; 0: at once

    messages: tuple[str, ...] | None = None
    min_leaf: int = 2
    min_sites: int = 1
    epsilon: float | None = None
    approve: bool = False
    min_test: int = 1
    max_trees: int | None = None
    max_bins: int | None = None
    bootstrap: bool = False
    losses: int | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        if self.messages is not None:
            if isinstance(self.messages, str):
                raise InputError.about("messages", "must be a list of kinds, got a single string")
            object.__setattr__(self, "messages", tuple(self.messages))
        least = {"min_leaf": 1, "min_sites": 1, "min_test": 1, "max_trees": 1, "max_bins": 2, "losses": 0}
        for name, low in least.items():
            given = getattr(self, name)
            if given is not None and given < low:
                raise InputError.wrong(name, f"at least {low}", given)
        if self.epsilon is not None:
            check_epsilon(self.epsilon)

    def allows(self, kind: str) -> bool:
        """Whether a kind of message is allowed."""
        messages = (EVERYTHING,) if self.messages is None else self.messages
        return kind in messages or (EVERYTHING in messages and kind not in CLOSED_BY_DEFAULT)

    def check_approval(self, approval: Approval) -> None:
        """Raise an error if an approval names a kind of message that the policy does not allow."""
        closed = [kind for kind in approval.messages or () if kind != EVERYTHING and not self.allows(kind)]
        if closed:
            raise InputError.about("messages", f"names {closed[0]!r}, which the site's policy does not allow")

    def allows_metrics(self, n_rows: int) -> bool:
        """Whether metrics of this many test rows may leave."""
        return n_rows >= max(self.min_test, self.score_groups)

    def allows_exact(self, kind: str) -> bool:
        """Whether a kind of message may get an exact reply, which no privacy budget covers."""
        return self.allows(kind) and (self.epsilon is None or kind in (self.messages or ()))


class PolicyBetweenMachines(Policy):
    """The policy of a site whose coordinator has no access to rows, unlike one in the same process.

    In metrics and counts of models at least five rows with similar scores share a score, and are counted such that a
    model built to isolate a row does not reveal its label. Noisy replies leave after one, two, four or more sixteenths
    of a second, because the time of a count depends on the rows.
    """

    score_groups = 5
    time_step = 0.0625
