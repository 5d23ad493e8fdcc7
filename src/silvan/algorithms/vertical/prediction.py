"""Prediction by a forest in shares.

One round serves any number of trees and rows. Every party reports the leaves that each row can reach according to its
columns; the row falls into the one leaf that is in all sets (Algs 3 and 4 of Federated Forest).
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
from silvan.federation.party import party_of
from silvan.federation.site import Site, answers
from silvan.forest.forest_shares import Structure
from silvan.forest.reach import meet, reach_leaves, row_bytes

_REPLY_BYTES = 1 << 26
"""Larger leaf sets are requested in several messages."""

# -- messages


class LeafSets(Reply, frozen=True, kw_only=True):
    """The leaves that rows can reach, one bit a leaf: (rows, bytes)."""

    bits: np.ndarray


class ReachLeaves(Ask[LeafSets], frozen=True, kw_only=True):
    """The leaves that each row can reach, according to the party's columns."""

    model: Derived[str]
    rows: Derived[Blob]
    start: Derived[int]
    stop: Derived[int]


# -- at a party


@answers(ReachLeaves)
def reach(site: Site, request: ReachLeaves) -> LeafSets:
    """Return the leaves that each row can reach, according to the party's columns."""
    party = party_of(site)
    share = share_of(party, request.model)
    X = encode_rows(party, share.schema, request.rows)
    if not 0 <= request.start < request.stop <= len(X):
        raise FormatError("there are no such rows")
    return LeafSets(bits=reach_leaves(share, X[request.start : request.stop], party.n_jobs))


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
