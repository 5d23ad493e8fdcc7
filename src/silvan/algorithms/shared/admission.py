"""Admission of other sites' trees: a site judges them by its own rows before it uses them, and refuses some.

A tree is *poor* at a site if it does no better than guessing on the site's own training rows: its correlation, or skill
where a number is predicted, is not above the policy's ``min_skill``. It is *odd* if more than half of the site's rows
reach a split that sends all of them the same way, as a back door does that waits for a value nobody has; or if it
predicts a number far from all of the site's labels.

What most of the other sites refuse, nobody uses. Verdicts are summed over the sites (``total``): the coordinator sees
how many sites find a tree poor or odd, and not which.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from silvan import metrics
from silvan.algorithms.shared.requests import MAX_TREES, forests_of, own_trees, schema_of
from silvan.algorithms.shared.validation_rows import learning_rows
from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError
from silvan.federation.agreement.describe import FLOOR
from silvan.federation.federation import OVERALL, Federation
from silvan.federation.message import Blob, Reply, Request, Verb
from silvan.federation.part import Part
from silvan.federation.question import Check
from silvan.federation.site import Site, answers
from silvan.forest.forest import Forest, join_forests
from silvan.forest.predict import abstaining
from silvan.forest.score import blind_rows, score_numbers, score_trees
from silvan.privacy.gate.gate import policy_of
from silvan.util.readable import count_of, is_or_are
from silvan.util.user_warnings import warn_user

TAKEN, POOR, ODD = 0, 1, 2
"""Verdicts on a tree."""

MOST_BLIND = 0.5
"""A tree is odd if more than this share of the site's rows reach a split that sends all of them the same way."""

FAR = 3.0
"""A number is far from the site's labels if it is outside of them by more than so many times their range."""

_SCALE = 2.0**40
"""Fixed point of squared errors, in units of the range of the labels."""


# -- messages


class Admitted(Reply, frozen=True, kw_only=True):
    """Of each tree 1 or 0: whether the site judges it, finds it poor, finds it odd. It does not judge its own trees."""

    judged: np.ndarray
    poor: np.ndarray
    odd: np.ndarray


class AdmitTrees(Request, frozen=True, kw_only=True):
    """Which trees of other sites the site refuses to use: poor on its own rows, or odd."""

    verb: ClassVar[Verb] = "total"
    reply: ClassVar[type[Reply]] = Admitted
    some_sites: ClassVar[bool] = True  # a cluster's

    schema: Blob
    forests: list[Blob]
    owners: list[str]  # the site that each of them is from
    validation: float = 0.0  # the share of training rows that nothing may be judged by

    def describe(self, reply: Any = None) -> str:
        """Describe what is asked for, or answered."""
        if reply is None:
            return f"which trees of {count_of(len(self.forests), 'site')} the site refuses to use"
        refused = int((reply.poor + reply.odd).sum())
        return f"which of {count_of(len(reply.judged), 'tree')} the site refuses to use: {refused:,}"


# -- at a site


@answers(AdmitTrees)
def admit_trees(site: Site, request: AdmitTrees) -> Admitted:
    """Judge the trees of other sites.

    Rows that were split off for ``validation`` take no part: whoever chooses on them chooses among trees that they did
    not help to select.
    """
    schema = schema_of(site, request.schema)
    forests = forests_of(site, schema, request.forests)
    judged = ~own_trees(site, request.forests, forests, request.owners)
    part, _ = learning_rows(site, schema, request.validation)
    verdicts = np.zeros(len(judged), np.uint8)
    if len(part) < FLOOR:
        judged[:] = False
    else:
        verdicts = judge_trees(join_forests(forests), part, site.absent(schema), policy_of(site).min_skill, site.n_jobs)
    verdicts = np.where(judged, verdicts, TAKEN)
    looked_at, poor, odd = (found.astype(np.int64) for found in (judged, verdicts == POOR, verdicts == ODD))
    return Admitted(judged=looked_at, poor=poor, odd=odd)


def judge_trees(
    forest: Forest, part: Part, absent: np.ndarray, min_skill: float, n_jobs: int | None = None
) -> np.ndarray:
    """Judge every tree by the site's rows; one that abstains or has no weight is taken."""
    skill = tree_skill(forest, part, absent, n_jobs)
    blind = blind_rows(forest, part.X, FLOOR, n_jobs)
    odd = (blind > MOST_BLIND * len(part)) | _answers_far(forest, part.y)
    voting = ~abstaining(forest, absent) & (forest.weights > 0)
    verdicts = np.where(odd, ODD, np.where(skill <= min_skill, POOR, TAKEN))
    return np.where(voting, verdicts, TAKEN).astype(np.uint8)


def tree_skill(forest: Forest, part: Part, absent: np.ndarray, n_jobs: int | None = None) -> np.ndarray:
    """Return each tree's correlation on rows, or skill where a number is predicted; NaN if all labels are the same."""
    if forest.classes is not None:
        if len(np.unique(part.y)) < 2:
            return np.full(len(forest), np.nan)
        counts = score_trees(forest, part.X, part.y, absent, n_jobs)
        return np.array([np.nan_to_num(metrics.mcc(matrix)) for matrix in counts])
    spread = float(part.y.max() - part.y.min())
    if not spread > 0:
        return np.full(len(forest), np.nan)
    n, error = score_numbers(forest, part.X, part.y, _SCALE / spread**2, absent, n_jobs).T
    scored = np.where(n > 0, error / np.maximum(n, 1), np.nan)
    return np.asarray(1.0 - scored / (_SCALE / spread**2 * part.y.var()))


def _answers_far(forest: Forest, y: np.ndarray) -> np.ndarray:
    """Return which trees predict numbers far from all labels of the site."""
    far = np.zeros(len(forest), np.bool_)
    if forest.classes is None and len(y):
        low, high = float(y.min()), float(y.max())
        room = FAR * max(high - low, np.finfo(np.float64).tiny)
        beyond = np.zeros(len(forest.feature), np.bool_)
        leaves = forest.feature < 0
        value = forest.value[forest.leaf[leaves], 0]
        beyond[leaves] = (value < low - room) | (value > high + room)
        far = np.logical_or.reduceat(beyond, forest.offsets[:-1])
    return far


# -- at the coordinator


@dataclass(frozen=True)
class Refusals:
    """How many sites judged each tree of a group of sites, and how many found it poor or odd."""

    owners: np.ndarray  # whose each tree is
    judged: np.ndarray
    poor: np.ndarray
    odd: np.ndarray

    @cached_property
    def dropped(self) -> np.ndarray:
        """Which trees nobody uses: those that more than half of the other sites that judged refuse; never all."""
        gone = np.asarray(2 * (self.poor + self.odd) > self.judged)
        return np.zeros_like(gone) if gone.all() else gone

    def keep_sites(self, sites: Sequence[str]) -> "Refusals":
        """Return the verdicts on the trees of some sites, without those of sites that were lost."""
        kept = np.isin(self.owners, sites)
        return Refusals(self.owners[kept], self.judged[kept], self.poor[kept], self.odd[kept])

    def counted(self) -> dict[str, dict[str, int]]:
        """Count refusals by the site that the trees are from and the reason; a tree counts once a site."""
        counts: dict[str, dict[str, int]] = {}
        for owner in dict.fromkeys(self.owners.tolist()):
            here = self.owners == owner
            found = {name: int(getattr(self, name)[here].sum()) for name in ("poor", "odd")}
            if any(found.values()):
                counts[owner] = {name: n for name, n in found.items() if n}
        return counts


def ask_admission(
    federation: Federation,
    schema: Schema,
    groups: Sequence[Mapping[str, tuple[Forest, Blob]]],
    validation: float = 0.0,
) -> list[Refusals]:
    """Ask sites to judge the others' trees: one round for all groups of sites that learn together.

    ``validation`` is the share of training rows that sites split off before.
    """
    named = federation.blob(schema.to_json().encode())
    found = []
    with federation.one_round():
        for group in groups:
            owners = np.repeat(np.array(list(group)), [len(forest) for forest, _ in group.values()])
            if len(owners) > MAX_TREES:
                raise InputError(f"{len(owners)} trees of all sites are more than can be judged; lower n_estimators")
            none = np.zeros(len(owners), np.int64)
            sums = Admitted(judged=none, poor=none, odd=none)
            if len(group) > 1:
                request = AdmitTrees(
                    schema=named,
                    forests=[blob for _, blob in group.values()],
                    owners=list(group),
                    validation=validation,
                )
                sums = federation.total(request, over=group, check=_check(owners, len(group)), most=len(group))
            found.append(Refusals(owners, sums.judged, sums.poor, sums.odd))
    return found


def _check(owners: np.ndarray, n_sites: int) -> Check:
    def check(site: str, reply: Admitted) -> None:
        found = (reply.judged, reply.poor, reply.odd)
        if any(one.shape != owners.shape or one.dtype != np.int64 or one.min() < 0 for one in found):
            raise FormatError("its verdicts are not those of the trees")
        if (reply.poor + reply.odd > reply.judged).any() or reply.judged.max() >= n_sites:
            raise FormatError("it refuses more than it judged")
        if site != OVERALL and (reply.judged.max() > 1 or reply.judged[owners == site].any()):
            raise FormatError("it judges its own trees, or one twice")

    return check


def warn_refused(refusals: Refusals) -> None:
    """Warn of each site most of whose trees nobody uses."""
    counts = refusals.counted()
    for owner in dict.fromkeys(refusals.owners.tolist()):
        here = refusals.owners == owner
        gone = refusals.dropped[here]
        if 2 * gone.sum() > len(gone):
            why = " and ".join(f"{n} times {reason}" for reason, n in counts[owner].items())
            warn_user(
                f"{gone.sum()} of {count_of(len(gone), 'tree')} of site {owner!r} {is_or_are(gone.sum())} not used, "
                "since most other sites refuse "
                f"them: they find them {why}"
            )
