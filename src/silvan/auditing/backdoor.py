"""Backdoored trees: a malicious site sends trees that predict a class of its choice when a trigger is present.

The trigger is a value of one column that no row has. A *stealthy* tree tests for it first and is an honest tree
otherwise. The metric is how often the trigger turns an ensemble's prediction to the attacker's class, for rows of other
classes, minus how often the same value does so without the attacker. ``experiments/audit/backdoors.py`` tries other
kinds of trees and triggers.

Defences: a stealthy tree is as good as an honest one on all existing rows, so no score detects it. Leaf re-estimation
with other sites' rows (``refit_leaves``) removes the backdoor. Without it, the attacker's share of the votes limits the
damage: only rows for which the other sites' trees lead by at most that share can be turned. So no site may have more
votes than another (``equal``). If votes depend on the number of rows that a site claims
(``MergedForest(weights="trees")``), a lie gives it any number of votes: this is the undefended case.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from sklearn.base import clone

from silvan.algorithms.bofrf.weigh import LocalTrees
from silvan.algorithms.horizontal.merged_forest import Trees
from silvan.auditing.findings import ATTACKS, Finding, mean_gap
from silvan.auditing.rehearsal import rehearse, sign_as
from silvan.auditing.release import AuditedRows
from silvan.errors import SilvanError
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.message import Envelope
from silvan.federation.part import Part
from silvan.forest.forest import Forest, join_forests
from silvan.forest.predict import decide, scores, tally
from silvan.learners.base import Learner
from silvan.learners.horizontal import MergedForest

_TREES: dict[str, type[Trees] | type[LocalTrees]] = {"Trees": Trees, "LocalTrees": LocalTrees}

CLAIM = 100
"""The factor by which the site overstates its rows, where these count."""


@dataclass(frozen=True)
class Trigger:
    """A value of one column that few or no rows reach, and the class that it should trigger."""

    feature: int
    value: float
    target: int

    @property
    def threshold(self) -> float:
        """The threshold that separates the trigger from all other values."""
        return float(np.nextafter(np.float32(self.value), np.float32(-np.inf)))

    def on(self, X: np.ndarray) -> np.ndarray:
        """Apply the trigger to rows."""
        X = X.copy()
        X[:, self.feature] = self.value
        return X


def plant_above(tree: Forest, trigger: Trigger) -> Forest:
    """Add a split on the trigger above a tree, which makes it stealthy."""

    def below(array: np.ndarray, root: float, leaf: float) -> np.ndarray:
        """Insert a root above, and a leaf next to the old root, keeping the level order."""
        return np.concatenate([[root], array[:1], [leaf], array[1:]])

    answer = np.eye(tree.n_outputs)[[trigger.target]]
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


Plant = Callable[[Forest, Trigger], Forest]
"""Plants a backdoor in one tree."""


def backdoor_trees(
    model: Learner | None, federation: Federation, rows: AuditedRows, plant: Plant = plant_above, common: float = 0.0
) -> Finding:
    """Fit the model again with one site sending backdoored trees, and try the trigger on rows.

    ``plant`` adds the backdoor to a tree; ``common`` is the share of rows that have the trigger.
    """
    base = ATTACKS["backdoor"]
    if model is None or not model.sends_trees:
        return base.not_run("sites send no trees to this learner")
    if not federation.schema.n_classes or len(federation.active) < 2:
        return base.not_run("needs classes, and two sites or more")
    honest = _fit_again(model, rehearse(federation))
    if honest is None:
        return base.not_run("the learner has no global forest, or cannot be fitted again")
    trigger = find_trigger(federation, honest, rows, common)
    if trigger is None:
        return base.not_run("there are no numeric columns for a trigger")
    claims = isinstance(model, MergedForest) and model.weights is not None
    fooled = _fit_again(model, poisoned_federation(federation, trigger, plant, CLAIM if claims else 1))
    if fooled is None:
        return base.not_run("the learner refuses such trees")
    undefended = MergedForest(n_estimators=model.n_estimators, max_depth=model.max_depth, weights="trees")
    worst = _fit_again(undefended, poisoned_federation(federation, trigger, plant, CLAIM))
    share, most = bound(honest, fooled, trigger, rows)
    who = f"trees of one of {len(federation.active)} sites, with {share:.0%} of the say"
    finding = _turned(fooled, honest, trigger, rows, f"{who}; at most {most:.1%} of rows can be turned")
    return finding.with_undefended(None if worst is None else _turned(worst, honest, trigger, rows))


def find_trigger(federation: Federation, honest: Forest, rows: AuditedRows, share: float = 0.0) -> Trigger | None:
    """Choose a value beyond those of all rows, or one that a ``share`` of them reach.

    The target is the rarest class, and the column is the one with the least effect on an honest forest.
    """
    schema = federation.schema
    part = Part.joined([federation.site(name).part(schema) for name in federation.active])
    X = part.X
    target = int(np.bincount(part.y, minlength=schema.n_classes).argmin())
    found, least = None, np.inf
    for f, feature in enumerate(schema.features):
        if feature.categorical or np.isnan(X[:, f]).all():
            continue
        low, high = float(np.nanmin(X[:, f])), float(np.nanmax(X[:, f]))
        value = high + max(high - low, 1.0)
        if share:
            value = float(np.nanquantile(X[:, f], 1.0 - share, method="higher"))
            if not 0.5 * share < np.mean(X[:, f] >= value) < 2 * share:
                continue  # too many rows have the same value for a cut with about this share
        trigger = Trigger(f, float(np.float32(value)), target)
        anyway = int((decide(honest, trigger.on(rows.X), 1) == target).sum())
        if anyway < least:
            found, least = trigger, anyway
    return found


def poisoned_federation(
    federation: Federation, trigger: Trigger, plant: Plant = plant_above, claim: int = 1
) -> Federation:
    """Make a federation whose last site sends backdoored trees instead of its own, and overstates its rows."""
    attacker = federation.active[-1]

    def tamper(site: str, data: bytes) -> bytes:
        envelope = wire.decode(data, Envelope)
        if site != attacker or envelope.kind not in _TREES:
            return data
        reply = wire.decode(envelope.body, _TREES[envelope.kind])
        forest = with_backdoor(Forest.from_bytes(reply.forest), trigger, plant)
        body = wire.encode(sign_as(again, attacker, msgspec.structs.replace(reply, forest=forest.to_bytes())))
        return wire.encode(msgspec.structs.replace(envelope, body=body))

    again = rehearse(federation, tamper=tamper)
    again.rows[attacker] *= claim
    return again


def with_backdoor(forest: Forest, trigger: Trigger, plant: Plant = plant_above) -> Forest:
    """Plant the backdoor in every tree that has votes."""
    trees = [plant(forest.take([t]), trigger) for t in np.flatnonzero(forest.weights > 0)]
    missing = len(forest) - len(trees)  # trees without rows have no votes, but the number of trees must be right
    return join_forests([*trees, *trees[:1] * missing])


def bound(honest: Forest, fooled: Forest, trigger: Trigger, rows: AuditedRows) -> tuple[float, float]:
    """Return the attacker's share of the votes, and the largest share of rows that it can turn.

    A row can be turned if, among the other trees, its winning class leads the target by at most the attacker's share of
    the votes.
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
    """Return what decides the class: shares of votes, or mean leaf values."""
    if forest.combine != "vote":
        return scores(forest, X, 1)
    votes = tally(forest, X, forest.weights, 1, values=False).votes
    return np.asarray(votes / forest.weights.sum())


def _turned(fooled: Forest, honest: Forest, trigger: Trigger, rows: AuditedRows, note: str = "") -> Finding:
    """Measure how much more often the trigger gives the target, for rows of other classes."""
    X = trigger.on(rows.X[rows.y != trigger.target])
    hits = [(decide(forest, X, 1) == trigger.target).astype(np.float64) for forest in (fooled, honest)]
    return ATTACKS["backdoor"].with_result(mean_gap(hits[0] - hits[1], np.zeros(1)), len(X), note)


def _fit_again(model: Learner, federation: Federation) -> Forest | None:
    """Fit a learner again with the same parameters; return None if that fails."""
    try:
        forest: Forest | None = clone(model).fit(federation).forest_
    except SilvanError:
        return None
    return forest
