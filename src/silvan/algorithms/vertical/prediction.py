"""Prediction by a forest in shares.

In one round, for any number of trees and rows, every party says which leaves each row can reach as far as it knows; the
row falls into the leaf that all sets have in common (Algs 3 and 4 of Federated Forest). The classical way asks the
owner of one node after the other which rows go left. Where only the label holder knows the leaf values, it is asked for
the scores, one round more.
"""

import numpy as np
from msgspec import UNSET, UnsetType

from silvan.algorithms.vertical.columns import encode_rows, rows_blob
from silvan.algorithms.vertical.kept_shares import check_parties
from silvan.algorithms.vertical.party_shares import share_of
from silvan.errors import FederationError, FormatError, RefusedError
from silvan.federation.federation import Federation
from silvan.federation.message import Ask, Blob, Reply
from silvan.federation.party import Party, party_of
from silvan.federation.site import Site, answers
from silvan.forest.forest_shares import Share, Structure
from silvan.forest.reach import goes_left, leaf_scores, meet, reach_leaves, row_bytes, votes_of_leaves

_REPLY_BYTES = 1 << 26
"""Leaf sets that take more are asked for in several messages."""

# -- messages


class LeafSets(Reply, frozen=True, kw_only=True):
    """The leaves that rows can reach, one bit a leaf: (rows, bytes)."""

    bits: np.ndarray


class ReachLeaves(Ask[LeafSets], frozen=True, kw_only=True):
    """Which leaves each row can reach, as far as the party's columns tell."""

    model: str
    rows: Blob
    start: int
    stop: int


class LeftRows(Reply, frozen=True, kw_only=True):
    """Which of the rows go left, one bit each."""

    bits: np.ndarray


class GoLeft(Ask[LeftRows], frozen=True, kw_only=True):
    """Which rows go left at one node that the party splits."""

    model: str
    rows: Blob
    node: int
    which: np.ndarray  # places among the rows


class LeafScores(Reply, frozen=True, kw_only=True):
    """What the leaves in which rows fall are worth on average: (rows, outputs)."""

    scores: np.ndarray


class LookUp(Ask[LeafScores], frozen=True, kw_only=True):
    """What leaves are worth that only the label holder knows: the mean over trees for each row."""

    model: str
    leaves: np.ndarray  # (rows, trees), by number from left to right
    weights: np.ndarray  # of the trees
    votes: bool = False  # whether trees vote for the most probable class of their leaf: then the share of votes


# -- at a party


def _scored(site: Site, model: str, rows: Blob) -> tuple[Party, Share, np.ndarray]:
    """Return a party, its share of a model, and its columns of the rows to score."""
    party = party_of(site)
    share = share_of(party, model)
    return party, share, encode_rows(party, share.schema, rows)


@answers(ReachLeaves)
def reach(site: Site, request: ReachLeaves) -> LeafSets:
    """Return the leaves that each row can reach, as far as the party's columns tell."""
    party, share, X = _scored(site, request.model, request.rows)
    if not 0 <= request.start < request.stop <= len(X):
        raise FormatError("there are no such rows")
    return LeafSets(bits=reach_leaves(share, X[request.start : request.stop], party.n_jobs))


@answers(GoLeft)
def go_left(site: Site, request: GoLeft) -> LeftRows:
    """Return which rows go left at one node."""
    _, share, X = _scored(site, request.model, request.rows)
    which = request.which
    if which.ndim != 1 or which.dtype != np.int64 or which.min(initial=0) < 0 or which.max(initial=0) >= len(X):
        raise FormatError("there are no such rows")
    at = np.flatnonzero(share.node == request.node)
    if len(at) != 1:
        raise FormatError("the party does not split this node")
    return LeftRows(bits=np.packbits(goes_left(share, int(at[0]), X[which]), bitorder="little"))


# -- at the label holder


@answers(LookUp)
def look_up(site: Site, request: LookUp) -> LeafScores:
    """Return the mean leaf value of each row."""
    party = party_of(site)
    return LeafScores(scores=own_scores(party, request.model, request.leaves, request.weights, request.votes))


def own_scores(party: Party, model: str, leaves: np.ndarray, weights: np.ndarray, votes: bool) -> np.ndarray:
    """Return the mean leaf value of each row, or shares of votes, by the values that the label holder keeps."""
    share = share_of(party, model)
    if not len(share.value):
        raise RefusedError("the party does not keep what leaves are worth")
    if leaves.ndim != 2 or leaves.dtype != np.int64 or weights.shape != leaves.shape[1:] or weights.dtype != np.float64:
        raise FormatError("the leaves do not match the trees")
    if leaves.min(initial=0) < 0 or leaves.max(initial=0) >= share.n_leaves:
        raise FormatError("there is no such leaf")
    if not np.isin(weights, (0.0, 1.0)).all() or not weights.any():
        raise FormatError("the trees have other weights")
    return leaf_scores(leaves, votes_of_leaves(share.value) if votes else share.value, weights)


def own_answer(
    party: Party,
    model: str,
    leaves: np.ndarray,
    weights: np.ndarray,
    votes: bool,
    threshold: float | UnsetType,
) -> tuple[np.ndarray, np.ndarray | UnsetType]:
    """Return the scores of rows by the values that the label holder keeps, and their classes if these need not follow.

    Of two classes the second is decided on from a ``threshold`` on, if there is one; otherwise trees may vote.
    """
    scores = own_scores(party, model, leaves, weights, votes=False)
    if not isinstance(threshold, UnsetType) and scores.shape[1] == 2:
        return scores, (scores[:, 1] >= threshold).astype(np.int64)
    return scores, own_scores(party, model, leaves, weights, votes=True).argmax(axis=1) if votes else UNSET


# -- at the coordinator


def find_leaves(federation: Federation, structure: Structure, digests: np.ndarray) -> np.ndarray:
    """Find every row's leaf in every tree, by number from left to right: one round, (rows, trees)."""
    check_parties(federation, structure.parties)
    rows = rows_blob(federation, digests)
    step = max(1, _REPLY_BYTES // row_bytes(structure.n_leaves))

    def some(start: int, stop: int) -> np.ndarray:
        replies: dict[str, LeafSets] = federation.ask(
            ReachLeaves(model=structure.model, rows=rows, start=start, stop=stop),
            to=structure.parties,
            check=lambda _, reply: _check_sets(reply.bits, stop - start, structure.n_leaves),
        )
        bits = np.bitwise_and.reduce([reply.bits for reply in replies.values()])
        leaves = meet(bits, structure)
        if leaves is None:
            raise FederationError(
                "the parties' leaf sets do not meet in one leaf a tree: some party answers from another model"
            )
        return leaves

    with federation.one_round():
        return np.concatenate([some(a, min(a + step, len(digests))) for a in range(0, len(digests), step)])


def _check_sets(bits: np.ndarray, n_rows: int, n_leaves: int) -> None:
    if bits.shape != (n_rows, row_bytes(n_leaves)) or bits.dtype != np.uint8:
        raise FormatError("its leaf sets have the wrong number of bits")
    if n_leaves & 7 and (bits[:, -1] >> (n_leaves & 7)).any():
        raise FormatError("its leaf sets have the wrong number of bits")


def find_leaves_classically(federation: Federation, structure: Structure, digests: np.ndarray) -> np.ndarray:
    """Find every row's leaf in every tree by asking the owner of one node after the other: a round a node."""
    check_parties(federation, structure.parties)
    rows = rows_blob(federation, digests)
    first = structure.spans[0]

    def sides(node: int, which: np.ndarray) -> np.ndarray:
        owner = structure.parties[structure.owner[node]]
        request = GoLeft(model=structure.model, rows=rows, node=node, which=which)
        reply: LeftRows = federation.ask(
            request, to=[owner], check=lambda _, reply: _check_left(reply.bits, len(which))
        )[owner]
        return np.unpackbits(reply.bits, count=len(which), bitorder="little").astype(np.bool_)

    leaves = np.empty((len(digests), len(structure)), np.int64)
    for tree in range(len(structure)):
        waiting = [(int(structure.offsets[tree]), np.arange(len(digests)))]
        while waiting:
            node, which = waiting.pop(0)
            if structure.owner[node] < 0:
                leaves[which, tree] = first[node]
                continue
            left, child = sides(node, which), int(structure.left[node])
            waiting += [(n, rest) for n, rest in ((child, which[left]), (child + 1, which[~left])) if len(rest)]
    return leaves


def _check_left(bits: np.ndarray, n_rows: int) -> None:
    if bits.shape != ((n_rows + 7) >> 3,) or bits.dtype != np.uint8:
        raise FormatError("a partition with the wrong number of bits")


def score_leaves(federation: Federation, structure: Structure, leaves: np.ndarray, votes: bool = False) -> np.ndarray:
    """Return mean leaf values, given the rows' leaves, or shares of votes; one more round if these are a secret."""
    if len(structure.value):
        value = votes_of_leaves(structure.value) if votes else structure.value
        return leaf_scores(structure.leaf_row[leaves], value, structure.weights)
    holder, step = structure.label_holder, max(1, _REPLY_BYTES // (4 * len(structure)))

    def some(start: int) -> np.ndarray:
        part = leaves[start : start + step]
        reply: LeafScores = federation.ask(
            LookUp(model=structure.model, leaves=part, weights=structure.weights, votes=votes),
            to=[holder],
            check=lambda _, reply: _check_scores(reply.scores, (len(part), structure.value.shape[1])),
        )[holder]
        return reply.scores

    with federation.one_round():
        return np.concatenate([some(start) for start in range(0, len(leaves), step)])


def _check_scores(scores: np.ndarray, shape: tuple[int, int]) -> None:
    if scores.shape != shape or scores.dtype != np.float64 or not np.isfinite(scores).all():
        raise FormatError("its scores are not as many as the rows")
