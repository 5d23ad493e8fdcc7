"""One of four sites sends trees with a backdoor whose trigger 2% of all rows reach: the trees look normal.

The result is the share of rows that the trigger flips to the attacker's class, beyond those that flip in a forest
without the attacker, as a mean over seeds. In the last attack, with trusted sums, the site also lies in its counts: it
counts rows at its own trees.
"""

import warnings
from typing import Any

import msgspec
import numpy as np
from experiments.attacks.outcome import Outcome
from experiments.audit.backdoors import COMMON

import silvan as sv
from silvan.algorithms.bofrf.weigh import LocalTrees
from silvan.algorithms.refit_leaves import LeafLabels, LeafRows
from silvan.auditing.backdoor import backdoor_trees, find_trigger, with_backdoor
from silvan.auditing.rehearsal import rehearse, sign_as
from silvan.auditing.release import AuditedRows
from silvan.errors import SiteError
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.message import Envelope
from silvan.forest.forest import Forest
from silvan.study.parse import parse_remote_study

ATTACKER = "site 3"
STUDIES = (
    ("MergedForest", "n_estimators = 24", "0.163 (0.148 in small)", 0.01),
    ("MergedForest", 'n_estimators = 24\nweights = "trees"', "0.917 (0.920 in small)", 0.03),
    ("MergedForest", 'n_estimators = 24\nweights = "votes"', "0.917 (0.920 in small)", 0.05),
    ("BOFRF", "n_estimators = 6", "0.109 (0.079 in small)", 0.01),
)
"""Learner, parameters, rows turned before and rows turned at most; with weights, the site claims a hundredfold rows.

Before is without re-estimation where there are weights, and with the earlier defence elsewhere, by which sites looked
at each other's trees and refused odd ones.
"""


def run(small: bool) -> list[Outcome]:
    """Try the trigger on merged forests and on BOFRF, with the defaults of studies between machines."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind, given, before, allowed in STUDIES:
            study = parse_remote_study(f'[learner]\nkind = "{kind}"\nmax_depth = 6\n{given}\n')
            turned = [
                _turned(study.spec.load()(**study.parameters, random_state=s), s) for s in range(1 if small else 5)
            ]
            weights = given.partition("\n")[2]
            target = f"rows flipped by a trigger that 2% of rows reach, {' with '.join(filter(None, [kind, weights]))}"
            found.append(Outcome(target, before, float(np.mean(turned)), allowed))
        lied, note = _lied(0)
    found.append(Outcome("the same, if the site also counts rows for its trigger, BOFRF", "none", lied, 0.01, note))
    return found


def _federation(seed: int) -> tuple[Federation, AuditedRows]:
    """Return four sites of 200 rows with a label that is hard to predict, and as many rows to test the trigger."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(1600, 6)).astype(np.float32)
    y = (X[:, 0] + X[:, 1] + 1.5 * rng.normal(size=len(X)) > 0.8).astype(int)
    tables = {f"site {i}": (X[i:800:4], y[i:800:4]) for i in range(4)}
    return sv.federate_rows(tables, random_state=seed, n_jobs=1), AuditedRows(X[800:], y[800:])


def _turned(model: Any, seed: int) -> float:
    fed, rows = _federation(seed)
    finding = backdoor_trees(model, fed, rows, common=COMMON)
    return float(finding.value or 0.0)


def _lied(seed: int) -> tuple[float, str]:
    """Send trees with a backdoor and counts that keep it; return the flipped rows, or the refusal."""
    fed, rows = _federation(seed)
    honest = sv.BOFRF(6, max_depth=6, refit_leaves=True, random_state=seed).fit(rehearse(fed)).forest_
    trigger = find_trigger(fed, honest, rows, COMMON)
    if trigger is None or honest is None:
        raise AssertionError("there is no trigger")
    own, kinds = slice(None), {kind.__name__: kind for kind in (LocalTrees, LeafRows, LeafLabels)}

    def tamper(site: str, data: bytes) -> bytes:
        nonlocal own
        envelope = wire.decode(data, Envelope)
        if site != ATTACKER or envelope.kind not in kinds:
            return data
        reply: Any = wire.decode(envelope.body, kinds[envelope.kind])
        if isinstance(reply, LocalTrees):
            forest = with_backdoor(Forest.from_bytes(reply.forest), trigger)
            reply, own = msgspec.structs.replace(reply, forest=forest.to_bytes()), slice(-len(forest.value), None)
            reply = sign_as(poisoned, site, reply)
        elif isinstance(reply, LeafRows):
            reply.rows[own] += 1
        else:
            reply.counts[own, trigger.target] += 100
        return wire.encode(msgspec.structs.replace(envelope, body=wire.encode(reply)))

    poisoned = rehearse(fed, tamper=tamper)
    try:
        fooled = sv.BOFRF(6, max_depth=6, refit_leaves=True, random_state=seed).fit(poisoned).forest_
    except SiteError as error:
        return 0.0, str(error)
    X = trigger.on(rows.X[rows.y != trigger.target])
    hits = [float(np.mean(forest.predict(X) == trigger.target)) for forest in (fooled, honest)]
    return hits[0] - hits[1], ""
