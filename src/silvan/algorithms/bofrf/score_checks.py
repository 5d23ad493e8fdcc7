"""Checks of the scores of trees: those of one site, and their sum over all sites."""

from collections.abc import Collection
from itertools import combinations

import numpy as np

from silvan.algorithms.bofrf.tree_messages import TreeScores
from silvan.data.schema import Schema
from silvan.errors import FederationError, FormatError
from silvan.federation.agree import MAX_ROWS
from silvan.federation.federation import OVERALL
from silvan.federation.question import Check


def check_scores(schema: Schema, expected: dict[str, tuple[np.ndarray, int]]) -> Check:
    """Return the check of one site's scores, given which trees abstain at each site and how many rows it has."""

    def check(site: str, reply: TreeScores) -> None:
        if site != OVERALL:  # the sum has a check of its own, see ``check_total``
            silent, rows = expected[site]
            _check_counts(reply, schema, np.where(silent, 0, rows), silent[None])

    return check


def check_total(
    total: TreeScores, schema: Schema, expected: dict[str, tuple[np.ndarray, int]], lost: Collection[str]
) -> None:
    """Raise ``FederationError`` for an impossible sum; a site that was lost on the way may be part of it, or not."""
    left, doubtful = [s for s in expected if s not in lost], [s for s in expected if s in lost]
    found: FormatError | None = None
    for n in range(len(doubtful) + 1):
        for more in combinations(doubtful, n):
            parts = [expected[site] for site in expected if site in left or site in more]
            try:
                _check_counts(
                    total,
                    schema,
                    np.sum([np.where(silent, 0, rows) for silent, rows in parts], axis=0),
                    np.array([silent for silent, _ in parts]),
                )
            except FormatError as error:
                found = found or error
            else:
                return
    raise FederationError(f"the sum over the sites cannot be: {found}; one of them answered nonsense")


def _check_counts(scores: TreeScores, schema: Schema, rows: np.ndarray, silent: np.ndarray) -> None:
    """Raise ``FormatError`` if scores do not add up to the rows, or their labels are not the same for all trees.

    ``silent`` (sites, trees) says at which sites a tree abstains: these rows are not among its scores.
    """
    k = schema.n_classes
    shape = (len(rows), k, k) if k else (len(rows), 3)
    if scores.counts.shape != shape or scores.rows.shape != rows.shape:
        raise FormatError("scores of other trees than asked for")
    if scores.counts.dtype != np.int64 or scores.rows.dtype != np.int64:
        raise FormatError("scores of another type")
    if not np.array_equal(scores.rows, rows):
        raise FormatError("scores of more or fewer rows than there are")
    if k:
        margins = scores.counts.sum(axis=2)
        if scores.counts.min() < 0 or scores.counts.max() > MAX_ROWS or not np.array_equal(margins.sum(axis=1), rows):
            raise FormatError("a matrix does not add up to the rows scored")
    else:
        margins = scores.counts[:, 1:]
        if (scores.counts[:, [0, 2]] < 0).any():
            raise FormatError("a squared error or label is negative")
    _, group = np.unique(silent, axis=1, return_inverse=True)
    _, first = np.unique(group, return_index=True)
    if not np.array_equal(margins, margins[first[group.reshape(-1)]]):
        raise FormatError("trees were scored on different labels")
