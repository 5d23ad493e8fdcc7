"""Run an audit: all attacks that apply to a release, also on a release without any defence."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from silvan.auditing.attribute import guess_attributes
from silvan.auditing.audit_report import Report
from silvan.auditing.backdoor import backdoor_trees
from silvan.auditing.differencing import difference_sums
from silvan.auditing.drill import run_drills
from silvan.auditing.findings import ATTACKS, Finding, make_limits
from silvan.auditing.labels_from_leaves import labels_from_leaves
from silvan.auditing.membership import membership_by_confidence, membership_by_support, private_bound
from silvan.auditing.release import FEWEST, MOST_ROWS, AuditedRows, Case, Release, case_of, undefended_release
from silvan.auditing.single_row_leaves import single_row_leaves
from silvan.auditing.site_assignment import assign_patients
from silvan.auditing.thresholds import exact_thresholds
from silvan.auditing.vertical_labels import labels_from_partitions
from silvan.data.encode import encode_features, encode_label
from silvan.data.schema import Schema
from silvan.data.table import read_table
from silvan.errors import InputError
from silvan.federation.federation import Federation
from silvan.forest.forest import Forest
from silvan.learners.base import Learner
from silvan.learners.forest_estimators import ForestClassifier, ForestRegressor
from silvan.learners.horizontal import HistogramForest
from silvan.learners.vertical import VerticalForest

CONTROL_TREES = 50


def audit(
    model: Forest | Learner | ForestClassifier | ForestRegressor,
    federation: Federation | None = None,
    *,
    members: Any = None,
    others: Any = None,
    limits: Mapping[str, float] | None = None,
    name: str = "forest",
    seed: int = 0,
) -> Report:
    """Attack a release and report what the attacks find.

    Parameters
    ----------
    model
        A ``Forest``, or a fitted learner.
    federation
        The federation that trained it, in this process: training rows are the members, test rows the others.
    members, others
        Tables with the label, instead of a federation: training rows, and other rows.
    limits
        The largest acceptable value of each attack; docs/audit.md has the defaults.
    name
        The name of the release in the report.
    seed
        The seed of all random choices; the same seed gives the same results.

    Returns
    -------
    Report
        A finding for each attack, by name: its value, the limit, and the verdict.

    Examples
    --------
    >>> import silvan as sv
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X, y = X[:300, :10], y[:300]
    >>> fed = sv.federate_rows({"north": (X[::2], y[::2]), "south": (X[1::2], y[1::2])}, test=0.4)
    >>> model = sv.HistogramForest(n_estimators=20, min_samples_leaf=20).fit(fed)
    >>> report = sv.audit(model, fed)
    >>> report["lonely"].value, report["lonely"].verdict
    (0.0, 'held')
    """
    bounds = make_limits(limits)

    def report(forest: Forest | None, members: int, others: int, findings: list[Finding]) -> Report:
        identity = ("", 0) if forest is None else (forest.hash, len(forest))
        return Report(name, *identity, members, others, [replace(f, limit=bounds[f.attack]) for f in findings], seed)

    if federation is not None and federation.columns is not None:
        if not isinstance(model, VerticalForest):
            raise InputError("the audit of a vertical federation takes a fitted VerticalForest")
        finding = labels_from_partitions(model, federation, seed)
        return report(model.result().forest, len(federation.columns.training), 0, [finding])
    if (federation is None) == (members is None):
        raise InputError("audit needs either a federation or a table of members")
    learner = model if isinstance(model, Learner) else None
    forest = model if isinstance(model, Forest) else model.forest_
    if forest is None:
        raise InputError("audit needs a Forest, or a fitted learner with a global one; pass one site's forest instead")
    if federation is None:
        case = Case(_rows(forest.schema, members), _rows(forest.schema, others), seed)
        findings = [*attack_forest(Release(forest.bare()), case), *run_drills(case, forest.schema, None)]
    else:
        case = case_of(federation, forest.schema, seed)
        sampled = None if learner is None else learner.sampled_rows(federation)
        seen = None if learner is None else seen_by_trees(learner, federation, forest)
        findings = attack_forest(Release(forest.bare()), case, sampled, seen)
        findings += attack_federation(learner, federation, case)
    if isinstance(learner, HistogramForest) and learner.epsilon is not None:
        findings = [_bounded(f, float(learner.epsilon)) for f in findings]
    return report(forest, len(case.members), len(case.outsiders), findings)


def attack_federation(learner: Learner | None, federation: Federation, case: Case) -> list[Finding]:
    """Run the attacks on the training protocol, on copies of the federation, so that no ledger or budget changes."""
    schema = federation.schema
    settings = None if learner is None or learner.is_private else learner.forest_settings(schema)
    findings = run_drills(case, schema, settings)
    findings += [assign_patients(federation, case.seed), difference_sums(federation)]
    if len(case.outsiders) < FEWEST:
        return [*findings, _too_few("backdoor")]
    return [*findings, backdoor_trees(learner, federation, case.outsiders)]


def _too_few(attack: str) -> Finding:
    return ATTACKS[attack].not_run(f"needs at least {FEWEST} rows outside the training set")


def seen_by_trees(learner: Learner, federation: Federation, forest: Forest) -> np.ndarray | None:
    """Return which training rows each tree may have seen, by the site it comes from; None if unknown.

    Sites keep secret which of their rows a tree sampled. Re-estimated leaves come from the rows of other sites.
    """
    draws = learner.draws(federation, []).get(forest.hash)
    if draws is None or sum(draws.sizes) != len(forest):
        return None
    owner = np.repeat(draws.owners or ("",), draws.sizes)[:, None]
    site = np.repeat(federation.active, [federation.site(name).n_train for name in federation.active])
    return np.asarray((owner == "") | ((owner != site) if draws.refitted else (owner == site)))


def attack_forest(
    release: Release, case: Case, sampled: np.ndarray | None = None, seen: np.ndarray | None = None
) -> list[Finding]:
    """Run the attacks on a forest, each also on an undefended release of the same rows."""
    some = Case(case.members.some(MOST_ROWS, case.seed), case.outsiders.some(MOST_ROWS, case.seed + 1), case.seed)
    try:
        control = undefended_release(some.members, release.forest.schema.n_classes, CONTROL_TREES, case.seed)
    except InputError:
        control = None  # impossible with these rows

    def attacked(attack: Callable[..., Finding], *more: np.ndarray | None, rows: Case = some) -> Finding:
        return attack(release, rows, *more).with_undefended(None if control is None else attack(control, some))

    lonely = attacked(single_row_leaves, sampled, rows=case)
    if len(some.outsiders) < FEWEST:
        return [*map(_too_few, ("membership", "support", "attribute", "thresholds", "leaf_labels")), lonely]
    leaf_labels = attacked(labels_from_leaves, seen, rows=Case(case.members, some.outsiders, case.seed))
    others = (membership_by_confidence, membership_by_support, guess_attributes, exact_thresholds)
    return [*map(attacked, others), leaf_labels, lonely]


def _bounded(finding: Finding, epsilon: float) -> Finding:
    """Add the bound that differential privacy sets for any attacker."""
    if finding.attack == "lonely":
        return replace(finding, value=None, note="leaf values come from noisy counts, so none depends on a single row")
    if finding.attack not in ("membership", "support"):
        return finding
    promise = f"with epsilon = {epsilon:g}, no attacker exceeds {private_bound(epsilon):.3f}"
    return replace(finding, note="; ".join(filter(None, [finding.note, promise])))


def _rows(schema: Schema, table: Any) -> AuditedRows:
    if table is None:
        return AuditedRows(np.zeros((0, len(schema.features)), np.float32), np.zeros(0, np.int64))
    frame = read_table(table, schema.label.name, schema)
    return AuditedRows(encode_features(frame, schema), encode_label(frame, schema))
