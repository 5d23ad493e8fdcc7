"""Rows scored in groups: as many rows as a site's policy says share one score and one decision, before all else.

Whoever may choose a model can have it score one row unlike all others, and would read the row's label from any figure
or count. In groups of rows that score about alike, figures of an honest model hardly change, since what it tells apart
within a group is little; and of a model made to single out a row nothing is seen but the labels of a group together.
"""

import numpy as np

from silvan.algorithms.evaluation.figures import Answer

_DIGITS = 9
"""Digits of a group's score: rows that score the same do so in groups of any size."""


def in_groups(answer: Answer, n_classes: int, least: int) -> Answer:
    """Return an answer in which rows of a group have the same scores, their mean, and the same decision, most rows'.

    Groups have at least so many rows, in the order of their scores: of the second of two classes, of a number, and
    otherwise by the class that is decided on and how sure that is. Rows with the same score are in the same group.
    """
    scores, decided = answer
    if least == 1 or answer.silent or not len(scores):
        return answer
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
    grouped, votes = np.empty_like(scores), decided.copy()
    grouped[order] = np.repeat(means, sizes, axis=0)
    if n_classes:
        decisions = np.eye(n_classes, dtype=np.int64)[decided[order]]
        votes[order] = np.repeat(np.add.reduceat(decisions, starts, axis=0).argmax(axis=1), sizes)
    return Answer(grouped, votes)


def _group_starts(levels: np.ndarray, n: int, least: int) -> np.ndarray:
    """Join levels, given where each but the first begins, to groups of at least so many rows."""
    starts = [0]
    for begins in levels.tolist():
        if begins - starts[-1] >= least:
            starts.append(begins)
    if len(starts) > 1 and n - starts[-1] < least:
        starts.pop()
    return np.array(starts)
