"""Predictions: the leaves that rows reach, combined over trees as ``combine`` says."""

from collections.abc import Callable
from typing import Any

import numpy as np

from silvan.data.encode import encode_features
from silvan.data.schema import Schema
from silvan.data.typed_table import Frame
from silvan.errors import InputError
from silvan.forest.answers import Adding, Totals, add_leaf, add_weight
from silvan.forest.arrays import ForestArrays, not_none
from silvan.forest.curves import risks
from silvan.forest.flow import add_by_flow, lay_out, make_buffers
from silvan.forest.noted_leaves import add_noted
from silvan.forest.walk import BLOCK, Nodes, U, pack, walk
from silvan.util.kernels import njit
from silvan.util.readable import format_names
from silvan.util.threads import thread_count, thread_map

_MANY_ROWS = 1 << 10  # at least this many rows use ``flow``; fewer go block by block
_STAGE_ROWS = 1 << 16  # rows whose leaves are in memory at a time


def as_matrix(schema: Schema, X: Any) -> np.ndarray:
    """Convert a user's input to float32 (rows, features).

    Tables are read by column names. In arrays, categories are codes, and unknown codes count as missing.
    """
    if isinstance(X, np.ndarray | list):
        try:
            with np.errstate(over="ignore"):
                matrix = np.array(X, np.float32, order="C")
        except (TypeError, ValueError):
            raise InputError.about("X", "must hold numbers; pass columns of text in a data frame") from None
        if matrix.ndim != 2 or matrix.shape[1] != len(schema.features):
            raise InputError.about("X", f"must have {len(schema.features)} columns, got shape {matrix.shape}")
        if np.isinf(matrix).any():
            raise InputError("X holds infinite values; replace them by missing ones (NaN) or large finite numbers")
        for f, feature in enumerate(schema.features):
            if feature.categorical:
                matrix[:, f][~((matrix[:, f] >= 0) & (matrix[:, f] < feature.n_codes))] = np.nan
        return matrix
    return encode_features(_read(X, schema), schema)


def _read(source: Any, schema: Schema) -> Frame:
    """Read a table; prediction from arrays and training load no reader of files and databases."""
    from silvan.data.table import read_table

    return read_table(source, schema=schema)


def as_rows(forest: ForestArrays, X: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Convert a user's input to rows; also return which features a table lacks, if trees abstain then."""
    if isinstance(X, np.ndarray | list) or forest.combine != "vote":
        return as_matrix(forest.schema, X), None
    frame = _read(X, forest.schema)
    present = set(frame.columns)
    absent = np.array([name not in present for name in forest.schema.columns])
    return encode_features(frame, forest.schema, fill_absent=True), absent


@njit(nogil=True, cache=True)
def _add_by_walk(X: np.ndarray, first: int, stop: int, nodes: Nodes, adding: Adding, total: Totals) -> None:
    """Add the answers of trees for rows ``first`` to ``stop``, block by block."""
    place = np.empty(BLOCK, np.uint32)
    for begin in range(first, stop, BLOCK):
        n = min(BLOCK, stop - begin)
        for t in range(len(adding.weights)):
            if adding.weights[t] == 0.0:
                continue
            walk(X, begin, n, t, nodes, place)
            add_weight(begin, n, t, adding, total)
            line = adding.skip_row[t]
            for i in range(n):
                if line < 0 or not adding.skip[line, begin + i]:
                    add_leaf(U(begin + i), nodes.leaf[U(place[i])], adding.weights[t], adding, total)


class Tally(Totals):
    """Weighted sums of the trees' answers for rows."""

    def means(self) -> np.ndarray:
        """Return the mean leaf values; NaN for a row without any participating tree."""
        with np.errstate(invalid="ignore"):
            return self.values / self.weight[:, None]


def tally(
    forest: ForestArrays,
    X: np.ndarray,
    weights: np.ndarray,
    n_jobs: int | None = None,
    *,
    values: bool = True,
    votes: bool = True,
    skip: np.ndarray | None = None,
    skipping: np.ndarray | None = None,
    leaves: np.ndarray | None = None,
    value: np.ndarray | None = None,
) -> Tally:
    """Add up leaf values, votes or both; trees without weight are skipped.

    ``skip`` has lines of rows to be skipped, and ``skipping`` is the line of each tree, -1 for none; if None, there is
    a line a tree. If the ``leaves`` of the rows were noted, values are added up without going down trees. ``value``
    takes the place of the forest's leaf values.
    """
    n = len(X)
    total = Tally(
        np.zeros((n, forest.n_outputs if values else 0)),
        np.zeros((n, forest.schema.n_classes if votes else 0)),
        np.full(n, np.cumsum(weights)[-1] if skip is None or not len(skip) else 0.0),
    )
    mask = np.zeros((0, n), np.bool_) if skip is None else skip
    line_of = np.arange(len(mask)) if skipping is None else skipping
    skip_row = np.full(len(forest), -1)
    skip_row[: len(line_of)] = line_of
    summed, voted = forest.value if value is None else value, leaf_votes(forest) if votes else np.zeros(0, np.int64)
    adding = Adding(summed, voted, weights, mask, skip_row)
    _in_parts(_way_of_adding(forest, X, None if votes else leaves, adding, Totals(*total)), n, n_jobs)
    return total


def _way_of_adding(
    forest: ForestArrays, X: np.ndarray, leaves: np.ndarray | None, adding: Adding, total: Totals
) -> Callable[[int, int], None]:
    """Return the function that adds answers for a range of rows; all work tree by tree, with identical results."""
    if leaves is not None:
        return lambda first, stop: add_noted(leaves, first, stop, forest.offsets, adding, total)
    nodes = pack(forest)
    if len(X) < _MANY_ROWS:
        return lambda first, stop: _add_by_walk(X, first, stop, nodes, adding, total)
    columns = lay_out(forest, X)

    def one(first: int, stop: int) -> None:
        add_by_flow(columns, first, stop, nodes, make_buffers(forest, stop - first), adding, total)

    return one


def _in_parts(work: Callable[[int, int], None], n: int, n_jobs: int | None) -> None:
    """Distribute rows to threads, in whole blocks."""
    threads = thread_count(n_jobs)
    step = max(BLOCK, -(-n // (4 * threads)) // BLOCK * BLOCK)
    thread_map(lambda first: work(first, min(first + step, n)), range(0, n, step), threads)


def leaf_votes(forest: ForestArrays) -> np.ndarray:
    """Return the class that each leaf votes for: the most probable one; in a tie, the first."""
    return forest.value.argmax(axis=1)


def abstaining(forest: ForestArrays, absent: np.ndarray) -> np.ndarray:
    """Return which trees use an absent feature."""
    if absent.shape != (forest.n_features,) or absent.dtype != np.bool_:
        raise InputError.about("absent", f"must have {forest.n_features} entries, true or false, one per feature")
    if not absent.any():
        return np.zeros(len(forest), np.bool_)
    used = np.append(absent, False)[forest.feature]  # the last entry is for leaves, whose feature is -1
    return np.logical_or.reduceat(used, forest.offsets[:-1])


def voting_weights(forest: ForestArrays, absent: np.ndarray | None) -> np.ndarray:
    """Return the weights of the trees, zero for those that abstain; only voting trees abstain."""
    if absent is None or forest.combine != "vote":
        return forest.weights
    return np.where(abstaining(forest, absent), 0.0, forest.weights)


def _answering_weights(forest: ForestArrays, absent: np.ndarray | None) -> np.ndarray:
    """Return the weights of the trees; raise ``InputError`` if all abstain."""
    weights = voting_weights(forest, absent)
    if absent is None or weights.any():
        return weights
    lacking = absent & forest.take(forest.weights > 0).uses.any(axis=0)
    names = [name for name, lacks in zip(forest.schema.names, lacking, strict=True) if lacks]
    raise InputError(
        f"no tree can answer: each uses a column that the table lacks, of {format_names(names)}; add some of these "
        "columns, empty if unknown"
    )


@njit(nogil=True, cache=True)
def _leaves(X: np.ndarray, first: int, stop: int, nodes: Nodes, out: np.ndarray) -> None:
    place = np.empty(BLOCK, np.uint32)
    for begin in range(first, stop, BLOCK):
        n = min(BLOCK, stop - begin)
        for t in range(out.shape[1]):
            walk(X, begin, n, t, nodes, place)
            for i in range(n):
                out[begin + i, t] = place[i] - nodes.offsets[t]


def leaves_of(forest: ForestArrays, X: np.ndarray, n_jobs: int | None = None) -> np.ndarray:
    """Return the leaf of each row in each tree, by its number in the tree: int64 (rows, trees)."""
    nodes, out = pack(forest), np.zeros((len(X), len(forest)), np.int64)
    _in_parts(lambda first, stop: _leaves(X, first, stop, nodes, out), len(X), n_jobs)
    return out


def scores(
    forest: ForestArrays,
    X: np.ndarray,
    n_jobs: int | None = None,
    absent: np.ndarray | None = None,
    *,
    skip: np.ndarray | None = None,
    value: np.ndarray | None = None,
) -> np.ndarray:
    """Score rows as ``combine`` says: (rows, outputs).

    ``absent`` marks the features that a table lacks: trees that vote and ask about one abstain; for others these
    values are missing. ``skip`` is (tree, row): out-of-bag scores leave out the trees that saw a row, and a
    row that every tree skips gets NaN. ``value`` takes the place of leaf values, which means are of.
    """
    if forest.combine == "stages":
        if skip is not None:
            raise InputError("the trees of a stage cannot be skipped: the others would take its whole say")
        return _stage_scores(forest, X, n_jobs)
    if forest.combine == "log_odds":
        if skip is not None:
            raise InputError("trees that add log-odds cannot be skipped: each covers other columns")
        return _odds_scores(forest, tally(forest, X, forest.weights, n_jobs, votes=False).values)
    weights = _answering_weights(forest, absent)
    return calibrated(forest, tally(forest, X, weights, n_jobs, votes=False, skip=skip, value=value).means())


def decide(
    forest: ForestArrays, X: np.ndarray, n_jobs: int | None = None, absent: np.ndarray | None = None
) -> np.ndarray:
    """Return the code of each row's class, its number, or its risk; the first of classes with equal scores."""
    if forest.classes is None:
        return number_of(forest, scores(forest, X, n_jobs, absent))
    if not forest.decides_by_votes:
        return scores(forest, X, n_jobs, absent).argmax(axis=1)
    return tally(forest, X, _answering_weights(forest, absent), n_jobs, values=False).votes.argmax(axis=1)


def scores_and_decisions(
    forest: ForestArrays,
    X: np.ndarray,
    n_jobs: int | None = None,
    absent: np.ndarray | None = None,
    *,
    skip: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the results of ``scores`` and ``decide`` from one traversal."""
    if forest.decides_by_votes:
        total = tally(forest, X, _answering_weights(forest, absent), n_jobs, skip=skip)
        return total.means(), total.votes.argmax(axis=1)
    means = scores(forest, X, n_jobs, absent, skip=skip)
    return means, number_of(forest, means) if forest.classes is None else means.argmax(axis=1)


def number_of(forest: ForestArrays, means: np.ndarray) -> np.ndarray:
    """Return the number that scores of a forest without classes say; the risk where they are curves."""
    return means[:, 0] if forest.times is None else risks(means)


def scores_if_any(
    forest: ForestArrays, X: np.ndarray, absent: np.ndarray, n_jobs: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and decisions for rows of a table that may lack columns; NaN if every tree abstains."""
    if not voting_weights(forest, absent).any():
        return np.full((len(X), forest.n_outputs), np.nan), np.zeros(len(X), np.int64)
    return scores_and_decisions(forest, X, n_jobs, absent)


def _stage_scores(forest: ForestArrays, X: np.ndarray, n_jobs: int | None) -> np.ndarray:
    """Count the votes of each stage's trees; the winners share its weight."""
    out, vote = np.zeros((len(X), forest.n_outputs)), leaf_votes(forest)
    group, say = not_none(forest.group), not_none(forest.say)
    for first in range(0, len(X), _STAGE_ROWS):
        some = out[first : first + _STAGE_ROWS]
        nodes = leaves_of(forest, X[first : first + _STAGE_ROWS], n_jobs) + forest.offsets[:-1]
        for stage, says in enumerate(say):
            votes = np.zeros_like(some)
            for t in np.flatnonzero((group == stage) & (forest.weights > 0)):
                votes[np.arange(len(some)), vote[forest.leaf[nodes[:, t]]]] += forest.weights[t]
            won = votes == votes.max(axis=1, keepdims=True)
            some += won * (says / won.sum(axis=1, keepdims=True))
    return out / say.sum()


def _odds_scores(forest: ForestArrays, sums: np.ndarray) -> np.ndarray:
    """Map sums to log-odds, linearly between and beyond the knots, and these to probabilities."""
    shares = np.empty_like(sums)
    for k, (knots, odds) in enumerate(zip(not_none(forest.knots), not_none(forest.odds), strict=True)):
        piece = np.clip(np.searchsorted(knots, sums[:, k]) - 1, 0, len(knots) - 2)
        slope = np.diff(odds)[piece] / np.diff(knots)[piece]
        log_odds = odds[piece] + slope * (sums[:, k] - knots[piece])
        shares[:, k] = 1.0 / (1.0 + np.exp(-np.clip(log_odds, -FAR_ODDS, FAR_ODDS)))
    return shares / shares.sum(axis=1, keepdims=True)


def calibrated(forest: ForestArrays, means: np.ndarray) -> np.ndarray:
    """Map mean leaf values to probabilities along the calibration curve, if the forest has one.

    The order of rows by score is preserved: exactly for two classes, for more classes before scaling to 1.
    """
    if forest.curve is None:
        return means
    z = forest.curve[:, 0] + forest.curve[:, 1] * log_odds(means)
    shares = 1.0 / (1.0 + np.exp(-np.clip(z, -FAR_ODDS, FAR_ODDS)))
    total = shares.sum(axis=1, keepdims=True)
    return shares if shares.shape[1] == 2 else shares / np.where(total > 0, total, 1.0)


SURE = 0.5 / 1024  # scores closer to 0 or 1 are too rare to calibrate: log-odds continue along a straight line


def log_odds(scores: np.ndarray) -> np.ndarray:
    """Return log-odds of scores, finite and increasing from 0 to 1."""
    inner = np.clip(scores, SURE, 1.0 - SURE)
    return np.log(inner / (1.0 - inner)) + (scores - inner) / (SURE * (1.0 - SURE))


FAR_ODDS = 500.0  # more extreme log-odds are practically certain, and exponentials stay finite
