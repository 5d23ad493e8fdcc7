"""The audit: every attack that fits a release is run against it, and beside it against one without any defence."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from silvan.auditing.attacks.attribute import attribute
from silvan.auditing.attacks.backdoor import backdoored
from silvan.auditing.attacks.differencing import differenced
from silvan.auditing.attacks.membership import confidence, private_bound, support
from silvan.auditing.attacks.single_row_leaves import single_row_leaves
from silvan.auditing.attacks.site_assignment import assigned
from silvan.auditing.attacks.thresholds import exact_thresholds
from silvan.auditing.attacks.vertical_labels import labels_from_partitions
from silvan.auditing.audit_report import Report
from silvan.auditing.drill import drills
from silvan.auditing.findings import ATTACKS, Finding, make_limits
from silvan.auditing.release import FEWEST, Case, Release, Rows, drawn_rows, undefended
from silvan.data.encode import encode_features, encode_label
from silvan.data.schema import Schema
from silvan.data.table import read_table
from silvan.errors import InputError
from silvan.federation.federation import Federation
from silvan.forest.forest import Forest
from silvan.learners import BOFRF, Learner, MergedForest
from silvan.privacy.gate.gate import policy_of

CONTROL_TREES = 50


def audit(
    model: Any,
    federation: Federation | None = None,
    *,
    members: Any = None,
    others: Any = None,
    limits: Mapping[str, float] | None = None,
    name: str = "forest",
    seed: int = 0,
) -> Report:
    """Attack a release and say what comes of it.

    Parameters
    ----------
    model
        A ``Forest``, or a fitted learner.
    federation
        Where it was learnt, in this process: its training rows are the members, its test rows the others.
    members, others
        Tables with the label, in place of a federation: rows that were learnt from, and rows that were not.
    limits
        The largest figure of each attack that is still held; docs/audit.md has the defaults.
    name
        What the release is called in the report.
    seed
        Decides all draws: the same seed gives the same figures.

    Examples
    --------
    >>> import silvan as sv
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> fed = sv.federate_rows({"north": (X[::2], y[::2]), "south": (X[1::2], y[1::2])}, test=0.4)
    >>> model = sv.HistogramForest(n_estimators=20, min_samples_leaf=20).fit(fed)
    >>> report = sv.audit(model, fed)
    >>> report["lonely"].value, report["lonely"].verdict
    (0.0, 'held')
    """
    bounds = make_limits(limits)
    if federation is not None and federation.columns is not None:
        findings = [labels_from_partitions(model, federation, seed)]
        n = len(federation.columns.training)
        return _report(name, getattr(model, "forest_", None), n, 0, findings, bounds, seed)
    forest = model if isinstance(model, Forest) else getattr(model, "forest_", None)
    if not isinstance(forest, Forest):
        raise InputError("audit takes a Forest, or a fitted learner with a global one; pass one site's forest instead")
    if (federation is None) == (members is None):
        raise InputError("audit needs either the federation or a table of members")
    if federation is None:
        case = Case(_rows(forest.schema, members), _rows(forest.schema, others), seed)
        findings = [*attack_forest(Release(forest.bare()), case), *drills(case, forest.schema, None)]
    else:
        case = _case_of(federation, forest.schema, seed)
        learner = None if isinstance(model, Forest) else model
        drawn = None if learner is None else drawn_rows(learner, federation)
        findings = attack_forest(Release(forest.bare()), case, drawn)
        findings += attack_federation(learner, federation, case)
    epsilon = getattr(model, "epsilon", None)
    if epsilon is not None:
        findings = [_bounded(f, float(epsilon)) for f in findings]
    return _report(name, forest, len(case.members), len(case.outsiders), findings, bounds, seed)


def _report(
    name: str, forest: Any, members: int, others: int, findings: list[Finding], limits: dict[str, float], seed: int
) -> Report:
    judged = [replace(finding, limit=limits[finding.attack]) for finding in findings]
    known = isinstance(forest, Forest)
    return Report(name, forest.hash if known else "", len(forest) if known else 0, members, others, judged, seed)


def attack_federation(learner: Any, federation: Federation, case: Case) -> list[Finding]:
    """Run the attacks on how a release is made: each on a federation made again, so that nobody's books change."""
    policy = policy_of(federation.site(federation.active[0]))
    settings = None
    if isinstance(learner, Learner) and getattr(learner, "epsilon", None) is None:
        settings = learner.forest_settings(federation.schema)
    sent = isinstance(learner, MergedForest | BOFRF)
    found = drills(case, federation.schema, settings, policy.leaf_digits if sent else None)
    found += [assigned(federation, case.seed), differenced(federation)]
    enough = len(case.outsiders) >= FEWEST
    found.append(
        backdoored(learner, federation, case.outsiders)
        if enough
        else ATTACKS["backdoor"].silent(f"needs at least {FEWEST} rows that were not learnt from")
    )
    return found


def attack_forest(release: Release, case: Case, drawn: np.ndarray | None = None) -> list[Finding]:
    """Run the attacks on a forest, each beside the same on an undefended release of the same rows."""
    some = case.sampled()
    k = release.forest.schema.n_classes
    control = _control(some, k)
    found = []
    for name, attack in _ON_ROWS.items():
        if len(some.outsiders) < FEWEST:
            found.append(ATTACKS[name].silent(f"needs at least {FEWEST} rows that were not learnt from"))
        else:
            found.append(attack(release, some).against(None if control is None else attack(control, some)))
    alone = single_row_leaves(release, case.members, drawn)
    return [*found, alone.against(None if control is None else single_row_leaves(control, some.members))]


_ON_ROWS = {"membership": confidence, "support": support, "attribute": attribute, "thresholds": exact_thresholds}


def _control(case: Case, n_classes: int) -> Release | None:
    """Grow the undefended release, if the rows allow it."""
    try:
        return undefended(case.members, n_classes, CONTROL_TREES, case.seed)
    except InputError:
        return None


def _bounded(finding: Finding, epsilon: float) -> Finding:
    """Add what differential privacy promises of any attacker."""
    if finding.attack == "lonely":
        return replace(finding, value=None, note="what leaves say is counted with noise, so none rests on a row")
    if finding.attack not in ("membership", "support"):
        return finding
    said = f"by epsilon = {epsilon:g} no attacker is above {private_bound(epsilon):.3f}"
    return replace(finding, note="; ".join(filter(None, [finding.note, said])))


def _case_of(federation: Federation, schema: Schema, seed: int) -> Case:
    parts = {
        test: [federation.site(name).part(schema, test=test) for name in federation.active] for test in (False, True)
    }
    rows = [
        Rows(np.concatenate([part.X for part in some]), np.concatenate([part.y for part in some]))
        for some in parts.values()
    ]
    return Case(rows[0], rows[1], seed)


def _rows(schema: Schema, table: Any) -> Rows:
    if table is None:
        return Rows(np.zeros((0, len(schema.features)), np.float32), np.zeros(0, np.int64))
    frame = read_table(table, schema.label.name)
    return Rows(encode_features(frame, schema), encode_label(frame, schema))
