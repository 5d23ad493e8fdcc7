"""Prediction by a forest in shares.

In one round, for any number of trees and rows, every party says which leaves each row can reach as far as it knows; the
row falls into the leaf that all sets have in common (Algs 3 and 4 of Federated Forest). The classical way asks the
owner of one node after the other which rows go left.
"""

import numpy as np

from silvan.algorithms.level_checks import check_arrays
from silvan.algorithms.vertical.columns import encode_rows, rows_blob
from silvan.algorithms.vertical.kept_shares import check_parties
from silvan.algorithms.vertical.party_shares import share_of
from silvan.errors import FederationError, FormatError
from silvan.federation.bound import Derived
from silvan.federation.federation import Federation
from silvan.federation.message import Ask, Blob, Reply
from silvan.federation.party import Party, party_of
from silvan.federation.site import Site, answers
from silvan.forest.forest_shares import Share, Structure
from silvan.forest.reach import goes_left, meet, reach_leaves, row_bytes

_REPLY_BYTES = 1 << 26
"""Leaf sets that take more are asked for in several messages."""

# -- messages


class LeafSets(Reply, frozen=True, kw_only=True):
    """The leaves that rows can reach, one bit a leaf: (rows, bytes)."""

    bits: np.ndarray


class ReachLeaves(Ask[LeafSets], frozen=True, kw_only=True):
    """Which leaves each row can reach, as far as the party's columns tell."""

    model: Derived[str]
    rows: Derived[Blob]
    start: Derived[int]
    stop: Derived[int]


class LeftRows(Reply, frozen=True, kw_only=True):
    """Which of the rows go left, one bit each."""

    bits: np.ndarray


class GoLeft(Ask[LeftRows], frozen=True, kw_only=True):
    """Which rows go left at one node that the party splits."""

    model: Derived[str]
    rows: Derived[Blob]
    node: Derived[int]
    which: Derived[np.ndarray]  # places among the rows


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
    check_arrays("its leaf sets have the wrong number of bits", (bits, (n_rows, row_bytes(n_leaves)), np.uint8))
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
        expected, complaint = ((len(which) + 7) >> 3,), "a partition with the wrong number of bits"
        reply: LeftRows = federation.ask(
            request, to=[owner], check=lambda _, reply: check_arrays(complaint, (reply.bits, expected, np.uint8))
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
