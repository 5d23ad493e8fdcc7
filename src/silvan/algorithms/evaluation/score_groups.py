"""Rows and labels in groups, so that metrics and counts reveal no row's label.

Somebody who chooses a model can make it score one row unlike all others, and would read the row's label from any metric
or count. So before counting, as many rows as the site's policy says share one score and one decision, in groups that
follow from the scores alone. A group with rows of several classes reveals no row's label. For groups with one class, or
one class in all but one row, the report does not say which of the two it is: the exceptions of all such groups of a
class are counted together, at least one, and placed where the model is least certain. So any row may have another class
than its group, whatever the model and the labels, and metrics change by at most one row per class.

With subgroups, by categorical columns, rows are grouped by score within each subgroup, and metrics over all rows of a
site use the same groups, because two groupings of the same rows could be compared with each other. Subgroups that
are too small are merged with others until they are large enough, so that subtracting the shown subgroups from all rows
never leaves a single one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from silvan.algorithms.evaluation.details import Detail, Floors
from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError, reject
from silvan.privacy.policy import Policy

_SURE = 1e-6, 1.0 - 1e-6  # the lowest and highest probability that a score counts as
_STRETCHES = np.linspace(0.0, 6.0, 25)  # factors by which log-odds of scores may be stretched
_DIGITS = 9  # digits of a group's score, so that equal scores stay equal in groups of any size


class Answer(NamedTuple):
    """A model's scores of rows, (rows, outputs), all NaN if it abstains, and the classes that it decides on."""

    scores: np.ndarray
    decided: np.ndarray

    @property
    def silent(self) -> bool:
        """Whether the model abstains."""
        return bool(np.isnan(self.scores).any())


def in_groups(answer: Answer, y: np.ndarray, n_classes: int, least: int) -> tuple[Answer, np.ndarray]:
    """Return an answer in which rows of a group have the same scores and decision, and the labels to count them by.

    Groups have at least this many rows, in the order of their scores: of the second of two classes, of a number, and
    otherwise by the class that is decided on and how sure that is. Rows with the same score are in the same group. Its
    score is the mean, its decision that of most rows. Of fewer rows than a group has, the answer is silent.
    """
    scores, decided = answer
    if least == 1 or answer.silent or not len(scores):
        return answer, y
    if len(y) < least:
        return Answer(np.full_like(scores, np.nan), decided), y
    if n_classes > 2:
        order = np.lexsort((scores.max(axis=1), decided))
        level = np.stack([decided[order], scores.max(axis=1)[order]])
    else:
        order = np.argsort(scores[:, -1], kind="stable")
        level = scores[order, -1][None]
    changes = 1 + np.flatnonzero((level[:, 1:] != level[:, :-1]).any(axis=0))
    starts = _group_starts(changes, len(order), least)
    sizes = np.diff([*starts, len(order)])
    means = np.round(np.add.reduceat(scores[order], starts, axis=0) / sizes[:, None], _DIGITS)
    grouped, votes, labels = np.empty_like(scores), decided.copy(), y.copy()
    grouped[order] = np.repeat(means, sizes, axis=0)
    if n_classes:
        votes[order] = np.repeat(_by_class(decided[order], starts, n_classes).argmax(axis=1), sizes)
        counts = _untold(_by_class(y[order], starts, n_classes), means)
        labels[order] = np.repeat(np.tile(np.arange(n_classes), len(counts)), counts.ravel())
    return Answer(grouped, votes), labels


def one_class(labels: np.ndarray, n_classes: int) -> bool:
    """Whether all labels, or all but one, have one class: groups hide the difference, so metrics must hide it too."""
    return bool(n_classes) and bool(len(labels) - np.bincount(labels).max(initial=0) <= 1)


def hides_one_class(policy: Policy, labels: np.ndarray, n_classes: int) -> bool:
    """Whether metrics of labels must be withheld, because a policy has groups and the labels have one class."""
    return policy.score_groups > 1 and one_class(labels, n_classes)


def arrange(answer: Answer, labels: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return labels in the order within groups that agrees with others as far as possible."""
    _, group = np.unique(np.column_stack([answer.scores, answer.decided]), axis=0, return_inverse=True)
    arranged = np.empty_like(labels)
    arranged[np.lexsort((other, group.ravel()))] = labels[np.lexsort((labels, group.ravel()))]
    return arranged


def _by_class(classes: np.ndarray, starts: np.ndarray, n_classes: int) -> np.ndarray:
    """Count the rows of each group by class."""
    return np.add.reduceat(np.eye(n_classes, dtype=np.int64)[classes], starts, axis=0)


def _untold(counts: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Return counts (groups, classes) in which a group of one class looks like a group with one row of another.

    The rows of other classes in all such groups of a class are counted, at least one, and put where they are likeliest.
    """
    told, sizes, main = counts.copy(), counts.sum(axis=1), counts.argmax(axis=1)
    alike = sizes - counts.max(axis=1) <= 1
    for c in np.unique(main[alike]):
        among = np.flatnonzero(alike & (main == c))
        others, scores = counts[among].sum(axis=0), means[among].sum(axis=0)
        others[c], scores[c] = 0, -1.0
        if not others.any():
            others[scores.argmax()] = 1
        n = int(others.sum())
        places = among[_spread(_likely(means[among, c], sizes[among], n), n)]
        told[among] = 0
        told[among, c] = sizes[among]
        told[places, c] -= 1
        told[places, np.repeat(np.arange(len(others)), others)] += 1
    return told


def _likely(scores: np.ndarray, sizes: np.ndarray, n: int) -> np.ndarray:
    """Return how likely a group of mostly one class, by its score, has a row of another: about ``n`` in all.

    Scores may be over- or underconfident: their log-odds are stretched by the factor that fits the total best.
    """
    scores = np.clip(scores, *_SURE)
    odds = sizes * ((1.0 - scores) / scores) ** _STRETCHES[:, None]
    likely = odds / (1.0 + odds)
    return np.asarray(likely[np.abs(likely.sum(axis=1) - n).argmin()])


def _spread(weights: np.ndarray, n: int) -> np.ndarray:
    """Return ``n`` different positions, as evenly as possible over their weights."""
    reach = np.cumsum(weights)
    places = np.searchsorted(reach, (np.arange(n) + 0.5) / n * reach[-1])
    places = np.maximum.accumulate(places - np.arange(n)) + np.arange(n)
    return np.minimum(places, len(weights) - n + np.arange(n))


def _group_starts(levels: np.ndarray, n: int, least: int) -> np.ndarray:
    """Merge levels, given the starts of all but the first, into groups with at least this many rows."""
    starts = [0]
    for begins in levels.tolist():
        if begins - starts[-1] >= least:
            starts.append(begins)
    if len(starts) > 1 and n - starts[-1] < least:
        starts.pop()
    return np.array(starts)


MOST_COLUMNS = 3  # columns of subgroups
MISSING = -1  # the code of a missing value in a subgroup
_MOST_SHOWN = 200


class Subgroup(msgspec.Struct, frozen=True):
    """A site's metrics of a subgroup, one row per model: its codes in the columns, its rows, metrics and details."""

    codes: list[int]
    rows: int
    metrics: np.ndarray
    details: tuple[Detail, ...]


class SubgroupRows(NamedTuple):
    """Test rows by subgroup: each row's position among the shown subgroups, or their number if it is in none."""

    place: np.ndarray
    shown: list[list[int]]

    def rows(self) -> list[np.ndarray]:
        """Return the rows of each subgroup that is shown, and of all others together if there are any."""
        found = [np.flatnonzero(self.place == i) for i in range(len(self.shown) + 1)]
        return found if len(found[-1]) else found[:-1]


# -- at a site
def check_by(schema: Schema, by: Sequence[int]) -> None:
    """Raise ``FormatError`` for invalid columns of subgroups."""
    right = len(by) <= MOST_COLUMNS and len(set(by)) == len(by)
    if not right or not all(0 <= f < len(schema.features) and schema.features[f].categorical for f in by):
        raise FormatError("subgroups are by different columns of categories")


def cells_of(X: np.ndarray, by: Sequence[int], policy: Policy) -> SubgroupRows:
    """Return which subgroups may be shown, and which rows are in them.

    Those with too few rows are hidden, and the smallest others with them, until at least two are hidden and these
    together have enough.
    """
    codes = np.nan_to_num(X[:, list(by)], nan=float(MISSING)).astype(np.int64)
    kinds, place = np.unique(codes, axis=0, return_inverse=True)
    place = place.ravel()
    order = np.argsort(np.bincount(place, minlength=len(kinds)), kind="stable").tolist()
    least = Floors.of(policy).rows

    def enough(some: list[int]) -> bool:
        return bool(np.isin(place, some).sum() >= least)

    hidden = [i for i in order if not enough([i])]
    rest = [i for i in order if i not in hidden]
    while rest and ((hidden and (len(hidden) < 2 or not enough(hidden))) or len(rest) > _MOST_SHOWN):
        hidden.append(rest.pop(0))
    rest.sort()
    where = np.full(len(kinds), len(rest))
    where[rest] = np.arange(len(rest))
    return SubgroupRows(where[place], [kinds[i].tolist() for i in rest])


def in_groups_by_cell(
    answer: Answer, y: np.ndarray, n_classes: int, least: int, cells: SubgroupRows | None
) -> tuple[Answer, np.ndarray]:
    """Return scores in groups of rows (``score_groups.py``); no group has rows from several subgroups."""
    if cells is None:
        return in_groups(answer, y, n_classes, least)
    scores, decided, labels = answer.scores.copy(), answer.decided.copy(), y.copy()
    for rows in cells.rows():
        (scores[rows], decided[rows]), labels[rows] = in_groups(
            Answer(answer.scores[rows], answer.decided[rows]), y[rows], n_classes, least
        )
    return Answer(scores, decided), labels


# -- at the coordinator
def places_of(schema: Schema, by: Sequence[str]) -> tuple[int, ...]:
    """Return the positions of subgroup columns; raise ``InputError`` for invalid ones."""
    if isinstance(by, str) or len(by) > MOST_COLUMNS or len(set(by)) < len(by):
        raise InputError.about("by", f"must be a list of at most {MOST_COLUMNS} columns, each once")
    for name in by:
        if name not in schema.names:
            raise InputError.about("by", f"names {name!r}, which is not a feature")
        if not schema.features[schema.names.index(name)].categorical:
            raise InputError.about(
                "by", f"names {name!r}, which has numbers: if it has few, set its kind to 'categorical' (kinds)"
            )
    return tuple(schema.names.index(name) for name in by)


def check_subgroups(subgroups: Sequence[Subgroup], schema: Schema, by: Sequence[int], rows: int) -> None:
    """Raise ``FormatError`` for impossible subgroups; their metrics are checked as others are."""
    codes = [tuple(one.codes) for one in subgroups]
    fits = len(subgroups) <= (_MOST_SHOWN if by else 0) and len(set(codes)) == len(codes)
    for one in subgroups:
        fits = fits and one.rows > 0 and len(one.codes) == len(by)
        fits = fits and all(
            MISSING <= code < schema.features[f].n_codes for code, f in zip(one.codes, by, strict=False)
        )
    reject(not fits or sum(one.rows for one in subgroups) > rows, "its subgroups are not possible")


def name_of(schema: Schema, by: Sequence[int], codes: Sequence[int]) -> str:
    """Return the name of a subgroup, such as ``sex = f``."""
    named = []
    for f, code in zip(by, codes, strict=True):
        feature = schema.features[f]
        names = feature.categories or ()
        value = "missing" if code == MISSING else names[code] if code < len(names) else "other"
        named.append(f"{feature.name} = {value}")
    return ", ".join(named)
