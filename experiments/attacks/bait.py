"""Trees that isolate known patients, and tables to try them on; shared by several attacks on labels."""

from typing import Any

import numpy as np
import polars as pl
from sklearn.datasets import load_breast_cancer

from silvan.data.schema import Schema
from silvan.federate.by_rows import federate_rows
from silvan.federation.federation import Federation
from silvan.federation.part import Part
from silvan.forest.category_set import SET_WORDS
from silvan.forest.forest import Forest, join_forests
from silvan.privacy.gate import Gate
from silvan.privacy.policy import PolicyBetweenMachines
from silvan.privacy.terms import Terms

TARGET = "target"
"""The site whose patients the attacker knows, but for their labels."""


def tables(n: int, others: int) -> dict[str, pl.DataFrame]:
    """Return tables of real patients: ``n`` rows of the target, and 40 of each of some other sites."""
    X, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    frame = pl.DataFrame(X[order, :4], schema=["radius", "texture", "perimeter", "area"]).with_columns(
        label=pl.Series(np.where(y[order] == 1, "yes", "no"))
    )
    rest = {f"other {i}": frame[-40 * (i + 1) : -40 * i or None] for i in range(others)}
    return {TARGET: frame[: min(n, len(frame))], **rest}


def as_between_machines(
    tables: dict[str, pl.DataFrame], models: int, min_sites: int = 1, **settings: Any
) -> Federation:
    """Make a federation whose sites return metrics as between machines, and evaluate a number of external models."""
    policy = PolicyBetweenMachines(min_sites=min_sites)
    federation = federate_rows(tables, n_jobs=1, policy=policy, **settings)
    for site in federation.local_sites.values():
        site.outbox = Gate(policy, terms=Terms(models=models))
    return federation


def known(federation: Federation, test: bool) -> Part:
    """Return the target's rows: the attacker knows all but the labels, which serve to check its guesses."""
    return federation.site(TARGET).part(federation.schema, test=test)


def single_out(schema: Schema, X: np.ndarray, row: int) -> Forest:
    """Return a tree that votes "yes" only for one known row, by its rarest value, and "no" for all others."""
    same = [(np.sum(X[:, f] == X[row, f]), f) for f in range(X.shape[1])]
    f = min(same)[1]
    value = X[row, f]
    below = np.nextafter(value, np.float32(-np.inf))
    leaves = {"no": [1.0, 0.0], "yes": [0.0, 1.0]}
    if (X[:, f] <= value).all():  # a first split that sends everybody to one side would look odd
        cuts, votes = (below, value), ("no", "yes", "no")
        feature, threshold = [f, -1, f, -1, -1], [cuts[0], 0, cuts[1], 0, 0]
    else:
        cuts, votes = (value, below), ("no", "no", "yes")
        feature, threshold = [f, f, -1, -1, -1], [cuts[0], cuts[1], 0, 0, 0]
    return forest_of(schema, feature, threshold, [leaves[vote] for vote in votes])


def rank_all(schema: Schema, X: np.ndarray) -> Forest:
    """Return trees that score rows by their values in a many-valued column, all above 0."""
    f = max(range(X.shape[1]), key=lambda f: len(np.unique(X[:, f])))
    cuts = np.concatenate([np.unique(X[:, f])[:-1], [X[:, f].min() - 1]])
    yes, no = [0.0, 1.0], [1.0, 0.0]
    return join_forests([forest_of(schema, [f, -1, -1], [cut, 0, 0], [no, yes]) for cut in cuts])


def never_yes(schema: Schema) -> Forest:
    """Return a tree that votes "no" for everybody."""
    return forest_of(schema, [0, -1, -1], [0.0, 0, 0], [[1.0, 0.0], [1.0, 0.0]])


def forest_of(schema: Schema, feature: list[int], threshold: list[float], value: list[list[float]]) -> Forest:
    """Return a tree of numeric splits."""
    n = len(feature)
    return Forest(
        schema=schema,
        offsets=np.array([0, n]),
        feature=np.array(feature, np.int32),
        threshold=np.array(threshold, np.float32),
        missing_left=np.zeros(n, np.bool_),
        sets=np.zeros((0, SET_WORDS), np.uint64),
        value=np.array(value),
        weights=np.ones(1),
    )
