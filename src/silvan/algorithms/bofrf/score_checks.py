"""What scores of trees must be like to be believed: a site's, and their sum."""

from collections.abc import Collection
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from silvan.data.schema import Schema
from silvan.errors import FederationError, FormatError
from silvan.federation.agreement.agree import MAX_ROWS
from silvan.federation.federation import OVERALL
from silvan.federation.question import Check

if TYPE_CHECKING:
    from silvan.algorithms.bofrf.weigh import TreeScores


def check_scores(schema: Schema, expected: dict[str, tuple[np.ndarray, int]]) -> Check:
    """Make the check of one site's scores."""

    def check(site: str, reply: "TreeScores") -> None:
        if site != OVERALL:  # the sum is looked at when it is there
            silent, rows = expected[site]
            check_sum(reply, schema, np.where(silent, 0, rows), silent[None])

    return check


def check_reply(
    replies: "TreeScores", schema: Schema, expected: dict[str, tuple[np.ndarray, int]], lost: Collection[str]
) -> None:
    """Refuse a sum that cannot be; a site that was lost on the way may have its part in it, or not."""
    left, doubtful = [s for s in expected if s not in lost], [s for s in expected if s in lost]
    found: FormatError | None = None
    for n in range(len(doubtful) + 1):
        for more in combinations(doubtful, n):
            parts = [expected[site] for site in expected if site in left or site in more]
            try:
                check_sum(
                    replies,
                    schema,
                    np.sum([np.where(silent, 0, rows) for silent, rows in parts], axis=0),
                    np.array([silent for silent, _ in parts]),
                )
            except FormatError as error:
                found = found or error
            else:
                return
    raise FederationError(f"the sum over the sites cannot be: {found}; one of them answered nonsense")


def check_sum(replies: "TreeScores", schema: Schema, rows: np.ndarray, silent: np.ndarray) -> None:
    """Refuse scores that do not add up to the rows, or whose labels are not the same for all trees.

    ``silent`` says which sites' rows (sites, trees) are not among those of a tree.
    """
    k = schema.n_classes
    shape = (len(rows), k, k) if k else (len(rows), 3)
    if replies.counts.shape != shape or replies.rows.shape != rows.shape:
        raise FormatError("scores of other trees than asked for")
    if replies.counts.dtype != np.int64 or replies.rows.dtype != np.int64:
        raise FormatError("scores of another type")
    if not np.array_equal(replies.rows, rows):
        raise FormatError("scores of more or fewer rows than there are")
    if k:
        margins = replies.counts.sum(axis=2)
        if replies.counts.min() < 0 or replies.counts.max() > MAX_ROWS or not np.array_equal(margins.sum(axis=1), rows):
            raise FormatError("a matrix does not add up to the rows scored")
    else:
        margins = replies.counts[:, 1:]
        if (replies.counts[:, [0, 2]] < 0).any():
            raise FormatError("a squared error or label is negative")
    _, group = np.unique(silent, axis=1, return_inverse=True)
    _, first = np.unique(group, return_index=True)
    if not np.array_equal(margins, margins[first[group.reshape(-1)]]):
        raise FormatError("trees were scored on different labels")
