"""Labels from row partitions in vertical forests: a party without the label groups rows by which side they take.

``certain``: a node that stays unsplit despite enough rows and depth must have a single class; its rows are linked, and
the links of many trees join up. ``likely``: rows that often end up together lie on the same side of the second
eigenvector of the matrix that counts this. The first method is used if it links most rows. The attacker has the
partitions, the settings, and the rows of each tree (parties share that key), but no label.

The metric is the share of rows assigned to the right one of two sides, whatever their names, as the mean over both
classes; chance is 0.5, or slightly more for few rows. Columns may predict labels in any case, so labels are shuffled
first: the partitions alone then reveal what is found. The note has the value with the original labels.
"""

from typing import Any

import narwhals as nw
import numpy as np
from sklearn.base import clone

from silvan.algorithms.vertical.columns import columns_of, row_draws
from silvan.algorithms.vertical.party_rows import GrowingContext, Round
from silvan.algorithms.vertical.party_shares import KeepShare
from silvan.auditing.findings import ATTACKS, Finding, mean_gap
from silvan.auditing.rehearsal import Wiretap, tap_of
from silvan.data.table import read_table
from silvan.federate.by_columns import federate_columns
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.party import Party
from silvan.learners.in_one_place import joined
from silvan.learners.vertical import VerticalForest
from silvan.privacy.gate import policy_of
from silvan.privacy.policy import Policy
from silvan.tree.fit import Settings
from silvan.tree.sampling import rows_of_trees

Groups = list[tuple[np.ndarray, bool]]
"""Sets of rows separated by partitions, and whether each stayed unsplit."""

MOST = 2000
"""Most rows, since ``likely`` compares all pairs."""


def labels_from_partitions(model: VerticalForest, federation: Federation, seed: int = 0) -> Finding:
    """Fit the model again and group rows by what a party without the label sees."""
    base = ATTACKS["labels"]
    curious = next((name for name in federation.active if name != federation.label_holder), None)
    if federation.schema.n_classes != 2 or curious is None:
        return base.not_run("needs two classes, and a party without the label")
    n = len(columns_of(federation).training)
    if n > MOST:
        return base.not_run(f"for at most {MOST} rows")
    found = _grouped(model, federation, curious, seed)
    as_is = _grouped(model, federation, curious, seed, shuffle=False)
    bare = clone(model).set_params(min_samples_leaf=1)
    control = _grouped(bare, federation, curious, seed, Policy(min_leaf=1))
    note = f"labels shuffled, so that no column predicts them; as they are {as_is[0]:.0%}"
    return base.with_result(found, n, note).with_undefended(base.with_result(control, n))


def _grouped(
    model: VerticalForest,
    federation: Federation,
    curious: str,
    seed: int,
    policy: Policy | None = None,
    *,
    shuffle: bool = True,
) -> tuple[float, float, float]:
    """Return the share of rows on the right side, as the mean over classes, and its interval."""
    parties = {name: federation.party(name) for name in federation.active}
    one = next(iter(parties.values()))
    again = federate_columns(
        {
            name: _shuffled(party, seed) if shuffle and name == federation.label_holder else party.source
            for name, party in parties.items()
        },
        id=one.id_column,
        label=federation.schema.label.name,
        exclude=[name for name in one.exclude if any(name in party.excluded for party in parties.values())],
        random_state=seed,
        schema=federation.schema,
        match="psi" if columns_of(federation).known is None else "keyed",
        policy=policy_of(one) if policy is None else policy,
        sums=federation.sums.name,  # type: ignore[arg-type]  # it is one of the names
        n_jobs=one.n_jobs,
        transport=Wiretap,
    )
    clone(model).fit(again)
    kept = [e for site, e in tap_of(again).received if site == curious and e.kind == "KeepShare"]
    ground = wire.decode(kept[-1].body, KeepShare).ground
    rounds = [wire.decode(again.content(blob), Round) for blob in ground.rounds]
    drawn = drawn_by(again, curious, ground)
    truth = joined(again, columns_of(again).training).y == 1
    return sides_right(sides(groups(rounds, drawn), len(truth), ground.settings), truth)


def sides(found: Groups, n: int, settings: Settings) -> np.ndarray:
    """Divide rows into two sides: by certain links if these connect most rows, otherwise by likely ones.

    Rows that differ only in their labels cannot be split, so their node links both classes by mistake. The certain
    links are then used as likely ones: how often rows share a set that should have a single class.
    """
    cluster = certain(found, n, settings)
    sizes = np.bincount(cluster, minlength=n)
    largest = np.argsort(-sizes, kind="stable")[:2]
    if sizes[largest].sum() * 2 <= n:
        return likely(found, n)
    if sizes[largest[0]] > _ALL * n:
        least = _least(settings)
        return likely([(rows, unsplit) for rows, unsplit in found if unsplit and len(rows) >= least], n, True)
    guess: np.ndarray = cluster == largest[0]
    return guess


_ALL = 0.85
"""A cluster with a larger share of the rows is two clusters linked by mistake."""


def sides_right(guess: np.ndarray, truth: np.ndarray) -> tuple[float, float, float]:
    """Return the mean over both classes of the share on the right side, and its 95% CI."""
    hits = [(guess == truth)[truth == side].astype(np.float64) for side in (False, True)]
    if sum(float(h.mean()) for h in hits) < 1.0:
        hits = [1.0 - h for h in hits]  # the names of the sides are arbitrary
    value, low, high = mean_gap(hits[0], -hits[1])
    return value / 2, low / 2, high / 2


def _shuffled(party: Party, seed: int) -> Any:
    """Return a table with shuffled labels."""
    frame = read_table(party.source, party.label)
    labels = frame[party.label].to_list()
    order = np.random.default_rng(seed).permutation(len(labels))
    mixed = nw.new_series(party.label, [labels[i] for i in order], backend=frame.implementation)
    return frame.with_columns(mixed).to_native()


def drawn_by(federation: Federation, party: str, ground: GrowingContext) -> np.ndarray:
    """Return which rows are in which tree, which parties know from their shared key."""
    key, words = row_draws(federation.party(party), ground.draws, ground.rows)
    return rows_of_trees(key, words, 0, ground.settings.n_estimators, ground.settings.row_sampling)


def groups(rounds: list[Round], drawn: np.ndarray) -> Groups:
    """Return the smallest sets of rows separated by partitions, and whether each stayed unsplit."""
    rows = [np.flatnonzero(d) for d in drawn]
    unsplit = [True] * len(rows)
    for level in rounds:
        at = 0
        for node, needed in zip(level.nodes.tolist(), level.needed.tolist(), strict=True):
            here = rows[node]
            unsplit[node] = False
            if not needed:
                rows += [here[:0], here[:0]]  # its children are leaves, whose rows are not sent
                unsplit += [False, False]
                continue
            size = (len(here) + 7) // 8
            left = np.unpackbits(level.bits[at : at + size], count=len(here), bitorder="little").astype(bool)
            at += size
            rows += [here[left], here[~left]]
            unsplit += [True, True]
            rows[node] = here[:0]
    return [(r, u) for r, u in zip(rows, unsplit, strict=True) if len(r) > 1]


def certain(found: Groups, n: int, settings: Settings) -> np.ndarray:
    """Cluster rows by sets that must have a single class."""
    least = _least(settings)
    cluster = np.arange(n)
    for rows, unsplit in found:
        if unsplit and len(rows) >= least:
            cluster[np.isin(cluster, cluster[rows])] = cluster[rows[0]]
    return cluster


def _least(settings: Settings) -> int:
    """Return the number of rows at which a node with both classes would be split."""
    return max(settings.min_samples_split, 2 * settings.min_samples_leaf)


def likely(found: Groups, n: int, clear: bool = False) -> np.ndarray:
    """Divide the rows by how often they are together, into halves, or at zero if the cut is ``clear``."""
    together = np.zeros((n, n))
    for rows, _ in found:
        together[np.ix_(rows, rows)] += 1 / len(rows)
    np.fill_diagonal(together, 0)
    root = np.sqrt(together.sum(axis=1) + 1e-9)
    _, vectors = np.linalg.eigh(together / root[:, None] / root)
    side = vectors[:, -2] / root
    guess: np.ndarray = side > (0.0 if clear else np.median(side))
    return guess
