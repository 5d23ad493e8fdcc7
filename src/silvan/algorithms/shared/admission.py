"""Admission of other sites' trees: a site judges them by its own rows before it uses them, and refuses some.

A tree is *poor* at a site if it does no better than guessing on the site's own training rows: its correlation, or skill
where a number is predicted, is not above the policy's ``min_skill``. It is *odd* if more than half of the site's rows
reach a split that sends all of them the same way, as a back door does that waits for a value nobody has; or if it
predicts a number far from all of the site's labels.

A site does not use what it refuses. What most of the other sites refuse, nobody uses. The coordinator sees which trees
a site refuses, and that discloses something of the site's rows: as much as ``Choose`` and ``Judge``, and no more often.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from silvan import metrics
from silvan.algorithms.shared.requests import MAX_TREES, check_owners, forests_of, schema_of
from silvan.algorithms.shared.validation_rows import learning_rows
from silvan.data.schema import Schema
from silvan.errors import FormatError
from silvan.federation.agreement.describe import FLOOR
from silvan.federation.federation import Federation
from silvan.federation.message import Blob, Course, Reply, Request, Verb
from silvan.federation.part import Part
from silvan.federation.site import Site, answers
from silvan.forest.forest import Forest, join_forests
from silvan.forest.predict import abstaining
from silvan.forest.score import blind_rows, score_numbers, score_trees
from silvan.privacy.gate.gate import policy_of
from silvan.util.user_warnings import warn_user

TAKEN, POOR, ODD = 0, 1, 2
"""Verdicts on a tree."""

_REASONS = {POOR: "poor", ODD: "odd"}

MOST_BLIND = 0.5
"""A tree is odd if more than this share of the site's rows reach a split that sends all of them the same way."""

FAR = 3.0
"""A number is far from the site's labels if it is outside of them by more than so many times their range."""

_SCALE = 2.0**40
"""Fixed point of squared errors, in units of the range of the labels."""


# -- messages


class Admitted(Reply, frozen=True, kw_only=True):
    """Which trees of others the site refuses, and whether it has rows enough to tell."""

    verdicts: np.ndarray  # uint8, by tree; the site's own are taken
    judged: bool


class AdmitTrees(Request, frozen=True, kw_only=True):
    """Which trees of other sites the site refuses to use: poor on its own rows, or odd."""

    verb: ClassVar[Verb] = "ask"
    reply: ClassVar[type[Reply]] = Admitted

    schema: Blob
    forests: list[Blob]
    own: int  # which of them is the site's
    validation: float = 0.0  # the share of training rows that nothing may be judged by

    def describe(self, reply: Any = None) -> str:
        """Describe what is asked for, or answered."""
        if reply is None:
            return f"which trees of {len(self.forests) - 1} other sites the site refuses to use"
        refused = int((reply.verdicts != TAKEN).sum())
        return f"which of {len(reply.verdicts):,} trees the site refuses to use: {refused:,}"

    def course(self) -> Course:
        """Allow the question once."""
        return Course(self.kind())


# -- at a site


@answers(AdmitTrees)
def admit_trees(site: Site, request: AdmitTrees) -> Admitted:
    """Judge the trees of other sites."""
    schema = schema_of(site, request.schema)
    verdicts = verdicts_of(site, schema, request.forests, request.own, request.validation)
    judged = len(learning_rows(site, schema, request.validation)[0]) >= FLOOR
    return Admitted(verdicts=verdicts, judged=judged)


def verdicts_of(site: Site, schema: Schema, blobs: Sequence[Blob], own: int, validation: float) -> np.ndarray:
    """Return the site's verdict on each tree, its own ones taken; the same verdicts whenever it is asked.

    Rows that were split off for ``validation`` take no part: whoever chooses on them chooses among trees that they did
    not help to select.
    """
    check_owners(site, blobs, own)
    forests = forests_of(site, schema, blobs)
    key = ("verdicts", schema.hash, own, validation, *(blob.hash for blob in blobs))
    if key not in site.cache:
        forest, part = join_forests(forests), learning_rows(site, schema, validation)[0]
        verdicts = np.zeros(len(forest), np.uint8)
        if len(part) >= FLOOR:
            verdicts = judge_trees(forest, part, site.absent(schema), policy_of(site).min_skill, site.n_jobs)
        starts = np.cumsum([0, *map(len, forests)])
        verdicts[starts[own] : starts[own + 1]] = TAKEN
        site.cache[key] = verdicts
    found: np.ndarray = site.cache[key]
    return found


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


def not_used(dropped: np.ndarray, verdicts: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Return which trees a site does not use, given what most sites refuse and what it refuses itself."""
    return np.asarray((dropped | (verdicts != TAKEN)) & ~own)


# -- at the coordinator


@dataclass(frozen=True)
class Refusals:
    """The sites' verdicts on the trees of a group of sites, in the order of the sites and their trees."""

    owners: np.ndarray  # whose each tree is
    verdicts: dict[str, np.ndarray]  # by site
    judges: list[str]  # the sites that had enough rows to judge

    @cached_property
    def dropped(self) -> np.ndarray:
        """Which trees nobody uses: those that more than half of the other sites that judged refuse; never all."""
        against, asked = np.zeros(len(self.owners), np.int64), np.zeros(len(self.owners), np.int64)
        for site in self.judges:
            others = self.owners != site
            asked += others
            against += others & (self.verdicts[site] != TAKEN)
        gone = np.asarray(2 * against > asked)
        return np.zeros_like(gone) if gone.all() else gone

    def unused_by(self, site: str) -> np.ndarray:
        """Return which trees a site does not use, including those that nobody uses; it uses all of its own."""
        return not_used(
            self.dropped, self.verdicts.get(site, np.zeros(len(self.owners), np.uint8)), self.owners == site
        )

    def keep_sites(self, sites: Sequence[str]) -> "Refusals":
        """Return the verdicts of some sites on their trees, without sites that were lost."""
        kept = np.isin(self.owners, sites)
        verdicts = {site: found[kept] for site, found in self.verdicts.items() if site in sites}
        return Refusals(self.owners[kept], verdicts, [site for site in self.judges if site in sites])

    def counted(self) -> dict[str, dict[str, dict[str, int]]]:
        """Count refusals by the site that refuses, the site that the trees are from, and the reason."""
        counts: dict[str, dict[str, dict[str, int]]] = {}
        for site, verdicts in self.verdicts.items():
            for owner in dict.fromkeys(self.owners.tolist()):
                here = verdicts[self.owners == owner]
                found = {reason: int((here == code).sum()) for code, reason in _REASONS.items() if (here == code).any()}
                if found:
                    counts.setdefault(site, {})[owner] = found
        return counts


def ask_admission(
    federation: Federation,
    schema: Schema,
    groups: Sequence[Mapping[str, tuple[Forest, Blob]]],
    validation: float = 0.0,
) -> list[Refusals]:
    """Ask every site to judge the others' trees: one round for all groups of sites that learn together.

    ``validation`` is the share of training rows that sites split off before.
    """
    named = federation.blob(schema.to_json().encode())
    requests, sizes = {}, {}
    for group in groups:
        sites, blobs = list(group), [blob for _, blob in group.values()]
        for place, site in enumerate(sites):
            if site in federation.active and len(sites) > 1:
                requests[site] = AdmitTrees(schema=named, forests=blobs, own=place, validation=validation)
                sizes[site] = [len(forest) for forest, _ in group.values()], place
    replies: dict[str, Admitted] = {}
    if requests:
        replies = federation.ask(requests, check=lambda site, reply: _check(reply, *sizes[site]))
    found = []
    for group in groups:
        owners = np.repeat(np.array(list(group)), [len(forest) for forest, _ in group.values()])
        answered = {site: replies[site] for site in group if site in replies}
        judges = [site for site, reply in answered.items() if reply.judged]
        found.append(Refusals(owners, {site: reply.verdicts for site, reply in answered.items()}, judges))
    return found


def _check(reply: Admitted, sizes: list[int], own: int) -> None:
    verdicts = reply.verdicts
    if verdicts.shape != (sum(sizes),) or verdicts.dtype != np.uint8 or verdicts.max(initial=0) > ODD:
        raise FormatError("its verdicts are not those of the trees")
    start = sum(sizes[:own])
    if verdicts[start : start + sizes[own]].any():
        raise FormatError("it refuses its own trees")
    if sum(sizes) > MAX_TREES:
        raise FormatError(f"the trees must be 1 to {MAX_TREES}")


def warn_refused(refusals: Refusals) -> None:
    """Warn of each site most of whose trees nobody uses."""
    counts = refusals.counted()
    for owner in dict.fromkeys(refusals.owners.tolist()):
        gone = refusals.dropped[refusals.owners == owner]
        if 2 * gone.sum() > len(gone):
            why = [f"{site!r} finds {_list_reasons(found[owner])}" for site, found in counts.items() if owner in found]
            warn_user(
                f"{gone.sum()} of {len(gone)} trees of site {owner!r} are not used, since most other sites refuse "
                f"them: {', '.join(why)}"
            )


def _list_reasons(found: dict[str, int]) -> str:
    return " and ".join(f"{n} {reason}" for reason, n in found.items())
