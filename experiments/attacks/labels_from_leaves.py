"""Labels of people with known columns, by least squares over leaves; ``silvan audit`` does the same.

The attack uses two requests of approved kinds: trees that the study does not grow (``GrowTrees``), and rows counted by
class at leaves of untrimmed trees without sampling (``CountLeafLabels``; neither ``few`` nor ``min_leaf`` binds the
coordinator). Sites that know the study's text refuse both. The table also shows what honest requests of the same study
reveal: exact sums and exact trees are not protected against somebody who knows all columns; only ``epsilon`` helps.
"""

from dataclasses import replace

import numpy as np
import polars as pl
from experiments.attacks.outcome import Outcome
from sklearn.datasets import load_breast_cancer

import silvan as sv
from silvan.algorithms.horizontal.merged_forest import GrowTrees, Trees
from silvan.algorithms.refit_leaves import CountLeafLabels
from silvan.auditing.labels_from_leaves import solve_for_labels
from silvan.errors import SilvanError
from silvan.federation.federation import Federation
from silvan.forest.forest import Forest, join_forests
from silvan.privacy.gate import holding_to
from silvan.study.parse import parse_remote_study
from silvan.study.study_text import text_of
from silvan.tree.fit import Settings
from silvan.tree.sampling import make_key

STUDY = parse_remote_study('name = "risk"\nlabel = "label"\n[learner]\nkind = "MergedForest"\n')
SITES = 4
HONEST = Settings(n_estimators=100)
MADE = Settings(n_estimators=400, min_samples_leaf=50, bootstrap=False, max_features=1)
"""Trees that the study's text does not allow, all of whose leaves hold 50 rows or more."""

BEFORE = {"GrowTrees": "300 of 300", "CountLeafLabels": "569 of 569"}
ALLOWED = {
    "GrowTrees": "the same, from the 25 trees that the study requests",
    "CountLeafLabels": "the same, at leaves of the study's own trees, none of them cut back",
}
"""What the study's text allows."""


def run(small: bool) -> list[Outcome]:
    """Send requests beyond the text, and those of the text."""
    return [_held(kind, made, small) for made in (True, False) for kind in BEFORE]


def unheld() -> dict[str, float]:
    """Return the share of labels that each request reveals if sites do not know the study's text."""
    found = {}
    for kind in BEFORE:
        read, n = _read(_federation(kind, small=True), kind, made=True)
        found[kind] = read / n
    return found


def _held(kind: str, made: bool, small: bool) -> Outcome:
    federation = _federation(kind, small)
    n = sum(federation.rows.values())
    with holding_to(text_of(STUDY, federation.study), federation.local_sites.values()):
        if not made:
            return Outcome(f"{ALLOWED[kind]}: labels of {n}", "as now", _read(federation, kind, made)[0], n)
        target = f"labels of {n} people whose columns are known, by {kind} beyond the text"
        try:
            return Outcome(target, BEFORE[kind], _read(federation, kind, made)[0])
        except SilvanError as error:
            return Outcome(target, BEFORE[kind], 0.0, note=str(error).split(": ", 1)[-1])


def _federation(kind: str, small: bool) -> Federation:
    """Return one site whose labels are coin flips, or four with real patients and masked sums."""
    rng = np.random.default_rng(0)
    if kind == "GrowTrees":
        X, y = rng.normal(size=(300, 5)), rng.integers(0, 2, 300)
    else:
        X, y = load_breast_cancer(return_X_y=True)
        order = rng.permutation(len(X))[: 240 if small else None]
        X, y = X[order], y[order]
    sites = 1 if kind == "GrowTrees" else SITES
    columns = [f"x{f}" for f in range(X.shape[1])]
    table = pl.DataFrame(X, schema=columns).with_columns(label=pl.Series(np.where(y == 1, "yes", "no")))
    sums = "trusted" if sites == 1 else "masked"
    tables = {f"site {i}": table[i::sites] for i in range(sites)}
    return sv.federate_rows(tables, sums=sums, n_jobs=1, signed=True)  # type: ignore[arg-type]


def _read(federation: Federation, kind: str, made: bool) -> tuple[float, int]:
    """Solve for all labels; return how many are right, and of how many."""
    parts = [federation.site(name).part(federation.schema) for name in federation.active]
    X, y = np.concatenate([part.X for part in parts]), np.concatenate([part.y for part in parts])
    settings = MADE if made and kind == "GrowTrees" else HONEST
    with federation.working_on("a model"):
        request = GrowTrees(
            schema=federation.blob(federation.schema.to_json().encode()),
            settings=settings,
            n_trees=settings.n_estimators // (1 if settings is MADE else SITES),
            feature_key=make_key(STUDY.random_state, "features"),
        )
        replies: dict[str, Trees] = federation.ask(request)
        forests = [Forest.from_bytes(reply.forest) for reply in replies.values()]
        if kind == "GrowTrees":
            found = solve_for_labels(forests[0], X)
        else:
            tree_of = np.repeat(np.arange(len(forests)), [len(one) for one in forests])
            site_of = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
            forest = _counted(federation, replies, join_forests(forests), bootstrap=not made)
            found = solve_for_labels(forest, X, tree_of[:, None] != site_of)
    return float((found.argmax(axis=1) == y).sum()), len(y)


def _counted(federation: Federation, replies: dict[str, Trees], forest: Forest, *, bootstrap: bool) -> Forest:
    """Count other sites' rows by class at the leaves of all trees; the coordinator claims that many rows reach each."""
    request = CountLeafLabels(
        schema=federation.blob(federation.schema.to_json().encode()),
        forests=[federation.work(site, reply) for site, reply in replies.items()],
        owners=list(replies),
        validation=0.0,
        bootstrap=bootstrap,
        few=np.zeros(len(forest.feature), np.bool_),
        min_leaf=10,
        offset=0.0,
        scale=1.0,
    )
    counts = federation.total(request).counts
    rows = counts.sum(axis=1, keepdims=True)
    return replace(forest, value=np.where(rows > 0, counts / np.maximum(rows, 1), forest.value))
