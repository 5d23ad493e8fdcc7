"""Prediction by a forest in shares, node by node: the owner of each node says which rows go left.

Figures 6 to 8 compare it with the publication's prediction in one round, which silvan uses. Nothing else needs it.
"""

from copy import copy

import numpy as np

from silvan.algorithms.level_checks import check_arrays
from silvan.algorithms.vertical.columns import encode_rows, rows_blob
from silvan.algorithms.vertical.kept_shares import restore_shares
from silvan.algorithms.vertical.party_shares import share_key, share_of
from silvan.errors import FormatError
from silvan.federation.federation import Federation
from silvan.federation.message import Ask, Blob, Derived, Reply
from silvan.federation.party import party_of
from silvan.federation.site import Site, answers
from silvan.forest.forest_shares import Share, Structure
from silvan.learners.vertical import VerticalForest


class LeftRows(Reply, frozen=True, kw_only=True):
    """Which of the rows go left, one bit each."""

    bits: np.ndarray


class GoLeft(Ask[LeftRows], frozen=True, kw_only=True):
    """Which rows go left at one node that the party splits."""

    model: Derived[str]
    rows: Derived[Blob]
    node: Derived[int]
    which: Derived[np.ndarray]  # places among the rows


@answers(GoLeft)
def go_left(site: Site, request: GoLeft) -> LeftRows:
    """Return which rows go left at one node."""
    party, which = party_of(site), request.which
    share = share_of(party, request.model)
    X = encode_rows(party, share.schema, request.rows)
    if which.ndim != 1 or which.dtype != np.int64 or which.min(initial=0) < 0 or which.max(initial=0) >= len(X):
        raise FormatError("there are no such rows")
    at = np.flatnonzero(share.node == request.node)
    if len(at) != 1:
        raise FormatError("the party does not split this node")
    return LeftRows(bits=np.packbits(_goes_left(share, int(at[0]), X[which]), bitorder="little"))


def _goes_left(share: Share, k: int, X: np.ndarray) -> np.ndarray:
    """Return which rows go left at the ``k``-th node of a share."""
    x = X[:, share.feature[k]]
    missing = np.isnan(x)
    if share.categorical[k]:
        code = np.where(missing, 0, x).astype(np.int64) + 1
        left = (share.words[k][code >> 6] >> (code & 63).astype(np.uint64)) & np.uint64(1) != 0
    else:
        left = x <= share.threshold[k]
    result: np.ndarray = np.where(missing, share.missing_left[k], left)
    return result


def find_leaves(federation: Federation, structure: Structure, digests: np.ndarray) -> np.ndarray:
    """Find every row's leaf in every tree: one round for each node, (rows, trees)."""
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


class NodeByNode(VerticalForest):
    """A vertical forest that finds the leaves of rows node by node."""

    @classmethod
    def of(cls, model: VerticalForest) -> "NodeByNode":
        """Return a copy of a fitted forest that predicts in this way."""
        slow = copy(model)
        slow.__class__ = cls
        return slow  # type: ignore[return-value]

    def leaves_of_rows(self, federation: Federation, digests: np.ndarray) -> np.ndarray:
        """Find every row's leaf in every tree, by number from left to right: (rows, trees)."""
        structure = self.kept
        restore_shares(federation, structure, share_key(structure.model), self.shares_, self.share_schemas)
        return find_leaves(federation, structure, digests)
