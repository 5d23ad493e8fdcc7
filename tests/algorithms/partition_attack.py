"""An attacker who sees row partitions and no label, and tries to tell which rows have the same one.

Two ways. ``certain``: a node that is left unsplit though it has rows enough, and depth to go, must be of one class; its
rows are linked, and links of many trees join up. ``likely``: rows that often end up together are put on one side of the
second eigenvector of how often they do.
"""

import numpy as np

from silvan.algorithms.vertical_rows import Round
from silvan.algorithms.vertical_shares import KeepShare
from silvan.federation import wire
from silvan.tree.draw import rows_of_trees


def last_rounds(fed, party):
    """The partitions that a party was sent while trees grew, and what they grew on."""
    kept = [e for site, way, e in fed.record if (site, way, e.kind) == (party, "received", "KeepShare")]
    ground = wire.decode(kept[-1].body, KeepShare).ground
    return [wire.decode(fed._blobs[blob.hash], Round) for blob in ground.rounds], ground


def drawn_by(fed, party, ground):
    """Which rows are in which tree: parties know, since they share the key."""
    keys = fed.columns.training[:, 0].copy()
    return rows_of_trees(fed.party(party).row_key, keys, 0, ground.settings.n_estimators, ground.settings.bootstrap)


def groups(rounds, drawn):
    """The smallest sets of rows that partitions tell apart, and whether each was left unsplit."""
    rows = [np.flatnonzero(d) for d in drawn]
    unsplit = [True] * len(rows)
    for level in rounds:
        at = 0
        for node, needed in zip(level.nodes.tolist(), level.needed.tolist(), strict=True):
            here = rows[node]
            unsplit[node] = False
            if not needed:
                rows += [here[:0], here[:0]]  # its children are leaves, and who is in which was not told
                unsplit += [False, False]
                continue
            size = (len(here) + 7) // 8
            left = np.unpackbits(level.bits[at : at + size], count=len(here), bitorder="little").astype(bool)
            at += size
            rows += [here[left], here[~left]]
            unsplit += [True, True]
            rows[node] = here[:0]
    return [(r, u) for r, u in zip(rows, unsplit, strict=True) if len(r) > 1]


def certain(found, n, settings):
    """Cluster rows by sets that must be of one class."""
    least = max(settings.min_samples_split, 2 * settings.min_samples_leaf)
    cluster = np.arange(n)
    for rows, unsplit in found:
        if unsplit and len(rows) >= least:
            cluster[np.isin(cluster, cluster[rows])] = cluster[rows[0]]
    return cluster


def likely(found, n):
    """Cut the rows in two by how often they are together."""
    together = np.zeros((n, n))
    for rows, _ in found:
        together[np.ix_(rows, rows)] += 1 / len(rows)
    np.fill_diagonal(together, 0)
    root = np.sqrt(together.sum(axis=1) + 1e-9)
    _, vectors = np.linalg.eigh(together / root[:, None] / root)
    side = vectors[:, -2] / root
    return side > np.median(side)


def accuracy(guess, truth):
    """How many rows are on the right side, whatever the sides are called."""
    right = float((guess == truth).mean())
    return max(right, 1 - right)
