"""Backdoored trees: a malicious site sends trees that answer its own class when a trigger is present.

The trigger is a value of one column that no row has. A *stealthy* tree asks for it first and is an honest tree below;
a *crude* one answers one class to everybody else; a *hidden* one is an honest tree that asks for it at every leaf. A
*common* one is stealthy, and its trigger is a value that 2 % of the rows reach: nothing about its question is odd.
Success is how often the trigger turns an ensemble's answer to the attacker's class, for rows of other classes, less how
often the same value turns an ensemble without the attacker.

What helps: a crude tree correlates with nothing, so BOFRF's tau gives it no weight. A stealthy tree is as good as an
honest one on all rows that anybody has, so no score finds it. Leaf values that other sites' rows make (``recount``)
undo them all. What bounds them without that is their share of the votes: they turn only rows for which the lead of the
other sites' trees is at most that share. So no site may have more votes than another (``equal``). Where a site's votes
go by the rows that it claims (``MergedForest(weights="trees")``), a lie makes them as many as it likes: that is the
undefended case.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
import numpy as np
from sklearn.base import clone

from silvan.algorithms.bofrf.tree_messages import OwnTrees
from silvan.algorithms.horizontal.merged_forest import Trees
from silvan.auditing.findings import ATTACKS, Finding, mean_gap
from silvan.auditing.rehearsal import rehearse, sign_as
from silvan.auditing.release import Rows
from silvan.errors import SilvanError
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.message import Envelope
from silvan.forest.category_set import is_category_split
from silvan.forest.forest import Forest, join_forests
from silvan.forest.predict import decide, scores, tally
from silvan.learners.site_trees import MergedForest

Kind = Literal["stealthy", "crude", "hidden", "common"]

_TREES: dict[str, Any] = {"Trees": Trees, "OwnTrees": OwnTrees}

COMMON = 0.02
"""The share of rows that reach a common trigger."""

CLAIM = 100
"""How many times its rows the site claims to have, where that counts."""


@dataclass(frozen=True)
class Trigger:
    """A value of one column that no row reaches, or few do, and the class that it is to give."""

    feature: int
    value: float
    target: int

    @property
    def threshold(self) -> float:
        """The threshold that separates the trigger from all other values."""
        return float(np.nextafter(np.float32(self.value), np.float32(-np.inf)))

    def on(self, X: np.ndarray) -> np.ndarray:
        """Put the trigger into rows."""
        X = X.copy()
        X[:, self.feature] = self.value
        return X


def backdoor_trees(model: Any, federation: Federation, rows: Rows, kind: Kind = "stealthy") -> Finding:
    """Fit the model again while one site sends backdoored trees, and try the trigger on rows."""
    base = ATTACKS["backdoor"]
    if model is None or not model.sends_trees:
        return base.not_run("sites send no trees to this learner")
    if not federation.schema.n_classes or len(federation.active) < 2:
        return base.not_run("needs classes, and two sites or more")
    honest = _fit_again(model, rehearse(federation))
    if honest is None:
        return base.not_run("the learner has no global forest, or cannot be learnt again")
    trigger = find_trigger(federation, honest, rows, COMMON if kind == "common" else 0.0)
    if trigger is None:
        return base.not_run("there are no numeric columns for a trigger")
    claims = getattr(model, "weights", None) is not None
    fooled = _fit_again(model, poisoned_federation(federation, trigger, kind, CLAIM if claims else 1))
    if fooled is None:
        return base.not_run("the learner refuses such trees")
    undefended = MergedForest(n_estimators=model.n_estimators, max_depth=model.max_depth, weights="trees")
    worst = _fit_again(undefended, poisoned_federation(federation, trigger, kind, CLAIM))
    share, most = bound(honest, fooled, trigger, rows)
    who = f"{kind} trees of one of {len(federation.active)} sites, with {share:.0%} of the say"
    note = f"{who}; at most {most:.1%} of rows can be turned"
    found = _flip_rate(fooled, honest, trigger, rows)
    finding = base.with_result(found[:3], found[3], note)
    if worst is None:
        return finding
    return finding.with_undefended(base.with_result(_flip_rate(worst, honest, trigger, rows)[:3], found[3]))


def find_trigger(federation: Federation, honest: Forest, rows: Rows, share: float = 0.0) -> Trigger | None:
    """Choose a value beyond all that rows have, or that a ``share`` of them reach.

    The column is the one in which it turns an honest forest least, the target is the rarest class.
    """
    schema = federation.schema
    parts = [federation.site(name).part(schema) for name in federation.active]
    X, y = np.concatenate([part.X for part in parts]), np.concatenate([part.y for part in parts])
    target = int(np.bincount(y, minlength=schema.n_classes).argmin())
    found, least = None, np.inf
    for f, feature in enumerate(schema.features):
        if feature.categorical or np.isnan(X[:, f]).all():
            continue
        low, high = float(np.nanmin(X[:, f])), float(np.nanmax(X[:, f]))
        value = high + max(high - low, 1.0)
        if share:
            value = float(np.nanquantile(X[:, f], 1.0 - share, method="higher"))
            if not 0.5 * share < np.mean(X[:, f] >= value) < 2 * share:
                continue  # so many rows have the same value that no cut leaves about this share
        trigger = Trigger(f, float(np.float32(value)), target)
        anyway = int((decide(honest, trigger.on(rows.X), 1) == target).sum())
        if anyway < least:
            found, least = trigger, anyway
    return found


def poisoned_federation(federation: Federation, trigger: Trigger, kind: Kind, claim: int = 1) -> Federation:
    """Make a federation whose last site sends backdoored trees in place of its own, and claims to have more rows."""
    attacker = federation.active[-1]

    def tamper(site: str, data: bytes) -> bytes:
        envelope = wire.decode(data, Envelope)
        if site != attacker or envelope.kind not in _TREES:
            return data
        reply = wire.decode(envelope.body, _TREES[envelope.kind])
        forest = with_backdoor(Forest.from_bytes(reply.forest), trigger, kind)
        body = wire.encode(sign_as(again, attacker, msgspec.structs.replace(reply, forest=forest.to_bytes())))
        return wire.encode(msgspec.structs.replace(envelope, body=body))

    again = rehearse(federation, tamper=tamper)
    again.rows[attacker] *= claim
    return again


def with_backdoor(forest: Forest, trigger: Trigger, kind: Kind) -> Forest:
    """Add a split on the trigger above every tree; a crude tree has no other split."""
    trees = [_backdoor_tree(forest.take([t]), trigger, kind) for t in np.flatnonzero(forest.weights > 0)]
    missing = len(forest) - len(trees)  # trees without rows have no votes, and a site sends as many as asked for
    return join_forests([*trees, *trees[:1] * missing])


def _backdoor_tree(tree: Forest, trigger: Trigger, kind: Kind) -> Forest:
    answer = np.eye(tree.n_outputs)[[trigger.target]]
    if kind == "crude":
        usual = np.eye(tree.n_outputs)[[int(tree.value.sum(axis=0).argmax())]]
        feature, value = np.array([trigger.feature, -1, -1]), np.concatenate([usual, answer])
        return replace(
            tree,
            offsets=np.array([0, 3]),
            feature=feature,
            threshold=np.array([trigger.threshold, 0, 0]),
            missing_left=np.array([True, False, False]),
            sets=tree.sets[:0],
            value=value,
            gain=None,
        )

    def below(array: np.ndarray, root: Any, leaf: Any) -> np.ndarray:
        """Insert a root above, and a leaf beside the old root: level order stays level order."""
        return np.concatenate([[root], array[:1], [leaf], array[1:]])

    if kind == "hidden":
        return _backdoor_leaves(tree, trigger, answer)
    leaf_first = tree.feature[0] < 0
    return replace(
        tree,
        offsets=tree.offsets + np.array([0, 2]),
        feature=below(tree.feature, trigger.feature, -1),
        threshold=below(tree.threshold, trigger.threshold, 0.0),
        missing_left=below(tree.missing_left, True, False),
        value=np.concatenate([tree.value, answer] if leaf_first else [answer, tree.value]),
        gain=None,
    )


def _backdoor_leaves(tree: Forest, trigger: Trigger, answer: np.ndarray) -> Forest:
    """Replace every leaf by a split on the trigger."""
    # nodes as (old node or None for a new leaf, what it answers), level by level
    level: list[tuple[int | None, np.ndarray]] = [(0, answer[0])]
    kept: list[tuple[int | None, int]] = []  # the old node that asks, or None; 1 where it asks for the trigger
    values: list[np.ndarray] = []
    while level:
        below: list[tuple[int | None, np.ndarray]] = []
        for node, value in level:
            if node is None:
                kept.append((None, 0))
                values.append(value)
            elif tree.feature[node] >= 0:
                kept.append((node, 0))
                below += [(int(tree.left[node]), value), (int(tree.right[node]), value)]
            else:
                kept.append((node, 1))
                below += [(None, tree.value[tree.leaf[node]]), (None, answer[0])]
        level = below
    old = np.array([-1 if node is None else node for node, _ in kept])
    asks = np.array([asked == 1 for _, asked in kept])
    by_category = is_category_split(tree.schema, tree.feature)
    sets = tree.sets[(np.cumsum(by_category) - 1)[old[(old >= 0) & ~asks & by_category[old]]]]
    return replace(
        tree,
        offsets=np.array([0, len(old)]),
        feature=np.where(asks, trigger.feature, np.where(old < 0, -1, tree.feature[old])),
        threshold=np.where(asks, trigger.threshold, np.where(old < 0, 0.0, tree.threshold[old])),
        missing_left=np.where(asks, True, (old >= 0) & tree.missing_left[old]),
        sets=sets,
        value=np.array(values),
        gain=None,
    )


def bound(honest: Forest, fooled: Forest, trigger: Trigger, rows: Rows) -> tuple[float, float]:
    """Return the attacker's share of the votes, and the share of rows that it can turn at most.

    A row can be turned if the lead of its winning class over the target, among the other trees, is at most what the
    attacker's trees can add: their share of the votes.
    """
    doors = (fooled.feature == trigger.feature) & (fooled.threshold == np.float32(trigger.threshold))
    asks = np.logical_or.reduceat(doors, fooled.offsets[:-1])
    share = float(fooled.weights[asks].sum() / fooled.weights.sum())
    if share >= 1.0:
        return share, 1.0
    if not asks.any() or not fooled.weights[~asks].any():
        return share, 0.0 if not asks.any() else 1.0
    others = fooled.take(~asks)
    shares = _class_shares(others, trigger.on(rows.X)) * (1.0 - share)
    target = shares[:, trigger.target]
    lead = np.where(np.arange(shares.shape[1]) == trigger.target, -1.0, shares).max(axis=1) - target
    counted = (rows.y != trigger.target) & (decide(honest, trigger.on(rows.X), 1) != trigger.target)
    return share, float(((lead <= share + 1e-9) & counted).sum() / max((rows.y != trigger.target).sum(), 1))


def _class_shares(forest: Forest, X: np.ndarray) -> np.ndarray:
    """Return what decides: the share of votes of each class, or the mean of leaf values."""
    if forest.combine != "vote":
        return scores(forest, X, 1)
    votes = tally(forest, X, forest.weights, 1, values=False).votes
    return np.asarray(votes / forest.weights.sum())


def _flip_rate(fooled: Forest, honest: Forest, trigger: Trigger, rows: Rows) -> tuple[float, float, float, int]:
    """Return how much more often the trigger gives the target, for rows of other classes, and of how many rows."""
    X = trigger.on(rows.X[rows.y != trigger.target])
    hits = [(decide(forest, X, 1) == trigger.target).astype(np.float64) for forest in (fooled, honest)]
    value, low, high = mean_gap(hits[0] - hits[1], np.zeros(1))
    return value, low, high, len(X)


def _fit_again(model: Any, federation: Federation) -> Forest | None:
    """Fit a learner again with the same parameters; return None if that fails."""
    try:
        forest: Forest | None = clone(model).fit(federation).forest_
    except SilvanError:
        return None
    return forest
