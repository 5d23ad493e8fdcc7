"""Subgroups of test rows, by columns of categories: which a site shows, and what is told of each.

Rows are put into groups of scores within each subgroup, and metrics over all rows of a site are made of the same
groups: two ways of grouping the same rows could be set against each other. Subgroups that are too small are taken
together with others until they are large enough, so that what is left of all rows when those shown are taken off is no
single one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from silvan.algorithms.evaluation.details import Detail, Floors
from silvan.algorithms.evaluation.score_groups import Answer, in_groups
from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError
from silvan.privacy.gate import Policy

MOST_COLUMNS = 3
"""Columns that make subgroups."""

MISSING = -1
"""What stands for a missing value among the codes of a subgroup."""

_MOST_SHOWN = 200


class Subgroup(msgspec.Struct, frozen=True):
    """A site's metrics of a subgroup, one row per model: its codes in the columns, its rows, metrics and details."""

    codes: list[int]
    rows: int
    metrics: np.ndarray
    details: tuple[Detail, ...]


class Cells(NamedTuple):
    """Test rows by subgroup: each row's place among those that are shown, or the number of these if it is in none."""

    place: np.ndarray
    shown: list[list[int]]

    def rows(self) -> list[np.ndarray]:
        """Return the rows of each subgroup that is shown, and of all others together if there are any."""
        found = [np.flatnonzero(self.place == i) for i in range(len(self.shown) + 1)]
        return found if len(found[-1]) else found[:-1]


# -- at a site


def check_by(schema: Schema, by: Sequence[int]) -> None:
    """Raise ``FormatError`` for columns that cannot make subgroups."""
    right = len(by) <= MOST_COLUMNS and len(set(by)) == len(by)
    if not right or not all(0 <= f < len(schema.features) and schema.features[f].categorical for f in by):
        raise FormatError("subgroups are by different columns of categories")


def cells_of(X: np.ndarray, y: np.ndarray, by: Sequence[int], n_classes: int, policy: Policy) -> Cells:
    """Return which subgroups may be shown, and which rows are in them.

    Those with too few rows, or too few of a class where the policy says so, are hidden, and the smallest others with
    them, until at least two are and these together have enough.
    """
    codes = np.nan_to_num(X[:, list(by)], nan=float(MISSING)).astype(np.int64)
    kinds, place = np.unique(codes, axis=0, return_inverse=True)
    place = place.ravel()
    order = np.argsort(np.bincount(place, minlength=len(kinds)), kind="stable").tolist()
    least = Floors.of(policy).rows

    def enough(some: list[int]) -> bool:
        rows = np.isin(place, some)
        return bool(rows.sum() >= least) and policy.allows_figures(y[rows], n_classes)

    hidden = [i for i in order if not enough([i])]
    rest = [i for i in order if i not in hidden]
    while rest and ((hidden and (len(hidden) < 2 or not enough(hidden))) or len(rest) > _MOST_SHOWN):
        hidden.append(rest.pop(0))
    rest.sort()
    where = np.full(len(kinds), len(rest))
    where[rest] = np.arange(len(rest))
    return Cells(where[place], [kinds[i].tolist() for i in rest])


def in_groups_by_cell(
    answer: Answer, y: np.ndarray, n_classes: int, least: int, cells: Cells | None
) -> tuple[Answer, np.ndarray]:
    """Return an answer in groups of rows (``score_groups.py``), none of which has rows of several subgroups."""
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
    """Return the places of columns that make subgroups; raise ``InputError`` for those that cannot."""
    if isinstance(by, str) or len(by) > MOST_COLUMNS or len(set(by)) < len(by):
        raise InputError.about("by", f"must be a list of at most {MOST_COLUMNS} columns, each once")
    for name in by:
        if name not in schema.names:
            raise InputError.about("by", f"names {name!r}, which is no column to learn from")
        if not schema.features[schema.names.index(name)].categorical:
            raise InputError.about(
                "by", f"names {name!r}, which has numbers: if it has few, set its kind to 'categorical' (kinds)"
            )
    return tuple(schema.names.index(name) for name in by)


def check_subgroups(subgroups: Sequence[Subgroup], schema: Schema, by: Sequence[int], rows: int) -> None:
    """Raise ``FormatError`` for subgroups that are not possible; their metrics are checked as others are."""
    codes = [tuple(one.codes) for one in subgroups]
    fits = len(subgroups) <= (_MOST_SHOWN if by else 0) and len(set(codes)) == len(codes)
    for one in subgroups:
        fits = fits and one.rows > 0 and len(one.codes) == len(by)
        fits = fits and all(
            MISSING <= code < schema.features[f].n_codes for code, f in zip(one.codes, by, strict=False)
        )
    if not fits or sum(one.rows for one in subgroups) > rows:
        raise FormatError("its subgroups are not possible")


def name_of(schema: Schema, by: Sequence[int], codes: Sequence[int]) -> str:
    """Return what a subgroup is called, such as ``sex = f``."""
    named = []
    for f, code in zip(by, codes, strict=True):
        feature = schema.features[f]
        names = feature.categories or ()
        value = "missing" if code == MISSING else names[code] if code < len(names) else "other"
        named.append(f"{feature.name} = {value}")
    return ", ".join(named)
