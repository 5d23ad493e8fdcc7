"""A study with a public schema, as private forests need."""

import msgspec
import numpy as np
import polars as pl
from helpers.studies import table

import silvan as sv
from silvan.algorithms.horizontal.histogram_forest import GrowLevel
from silvan.algorithms.private.noisy_counts import public_schema_of
from silvan.algorithms.private.noisy_evaluation import CountByScoreWithNoise, plan_tally
from silvan.algorithms.private.noisy_levels import NoisyLevel, plan_level, public_measure
from silvan.algorithms.private.noisy_rows import disguise
from silvan.algorithms.private.table_counts import (
    CountColumns,
    CountPeople,
    CountScores,
    CountTables,
    SumSlopes,
    SumTargets,
    plan_counts,
)
from silvan.algorithms.private.tables_forest import Group, table_forest
from silvan.algorithms.shared_bins import CutPoints
from silvan.federation import wire
from silvan.federation.message import Blob
from silvan.federation.part import Part
from silvan.federation.site import Site
from silvan.federation.store import digest
from silvan.tree.fit import Settings

FEATURES = (
    sv.Feature("age", bounds=(0, 100)),
    sv.Feature("dose", bounds=(1, 5)),
    sv.Feature("sex", "categorical", categories=("f", "m")),
    sv.Feature("ward", "categorical", categories=("a", "b", "c"), other=True),
    sv.Feature("noise", bounds=(-20, 60)),
)
LABELS = {
    "binary": sv.Label("label", ("no", "yes")),
    "several": sv.Label("label", ("high", "low", "middle", "top")),
    "number": sv.Label("label", bounds=(1000.0, 1150.0)),
}


def schema(task="binary"):
    return sv.Schema.of(FEATURES, LABELS[task])


def federate(task="binary", n=2000, n_sites=3, frame=None, **settings):
    frame = table(task, n) if frame is None else frame
    tables = {f"site {i}": frame[i::n_sites] for i in range(n_sites)}
    return sv.federate_rows(tables, schema=schema(task), n_jobs=1, **settings)


def unseen(task="binary", n=1000):
    """Rows that nobody has trained on, and their labels."""
    frame = table(task, n, seed=99)
    return frame.drop("label"), frame["label"].to_numpy()


def one_more(frame: pl.DataFrame, **values) -> pl.DataFrame:
    """A table with one more row, far from the others."""
    row = {"age": 99.5, "dose": 5, "sex": "m", "ward": "c", "noise": 59.0, "label": "yes", **values}
    return pl.concat([frame, pl.DataFrame([row], schema=frame.schema)])


def budgets(fed):
    return {name: member.outbox.budget for name, member in fed.local_sites.items()}


def spent(fed):
    return np.array([budget.spent for budget in budgets(fed).values()])


# -- the requests of all private forests, with their exact replies


def table_model(known):
    """A small model of tables, as private forests have them."""
    groups = [Group(0, 0, np.array([40, 60], np.float32), 0), Group(3, 4, np.zeros(0, np.float32), 3)]
    rng = np.random.default_rng(0)
    if not known.n_classes:
        return table_forest(known, [groups], [1075 + 20 * rng.normal(size=(12, 1))], weights=np.ones(1))
    knots = np.tile([-1.0, 1.0], (known.n_classes, 1))
    values = [rng.normal(size=(12, known.n_classes))]
    return table_forest(known, [groups], values, weights=np.ones(1), combine="log_odds", knots=knots, odds=knots)


def grow_level(known, schema_blob, bins):
    """The request for a level of two trees."""
    return GrowLevel(
        schema=schema_blob,
        bins=bins,
        measure=Settings().measure(known, np.ones(known.n_classes)) if known.n_classes else public_measure(known),
        n_trees=2,
        bootstrap=False,
        nodes=np.array([2, 3, 1], np.int32),
        features=np.array([[0, 3], [1, 4], [0, 2]], np.int32),
        round_sizes=np.array([1]),
        split_node=np.array([0], np.int32),
        split_feature=np.array([0], np.int32),
        split_bin=np.array([1], np.int32),
        split_missing_left=np.array([True]),
        split_words=np.zeros((1, 4), np.uint64),
    )


COLUMNS = {
    "columns": np.array([0, 1, 4], np.int32),
    "sizes": np.array([2, 1, 1], np.int64),
    "cuts": np.array([40, 60, 2.5, 20], np.float32),
}
CELLS = {
    "columns": np.array([0, 1, 2, 3, 4], np.int32),
    "sizes": np.array([2, 1, 0, 0, 3], np.int64),
    "cuts": np.array([40, 60, 2.5, 10, 20, 30], np.float32),
    "missing": np.array([3, 0, 0, 3, 0], np.int64),
    "table_sizes": np.array([2, 3, 1], np.int64),
    "table_columns": np.array([0, 3, 1, 2, 4, 0], np.int64),
}


def requests(task, frame, epsilon, sharers=1, known=None, **settings):
    """Returns (name, request, exact reply) of every kind, on a table at a single site.

    ``known`` is the coordinator's schema, which the site must accept; None is the honest one. ``settings`` are further
    settings of the site's table.
    """
    known, shared = known or schema(task), {"epsilon": epsilon, "sharers": sharers}
    blobs = [known.to_json().encode(), wire.encode(POINTS), table_model(known).to_bytes()]
    schema_blob, bins, forest = (Blob(digest(data)) for data in blobs)
    asked = {
        "columns": CountColumns(schema=schema_blob, **COLUMNS, **shared),
        "tables": CountTables(schema=schema_blob, **CELLS, **shared),
        "level": NoisyLevel(level=grow_level(known, schema_blob, bins), **shared),
    }
    if known.n_classes:
        edges = np.tile([-1.0, 0.0, 1.0], (1 if known.n_classes == 2 else known.n_classes, 1))
        asked["scores"] = CountScores(schema=schema_blob, model=forest, edges=edges, **shared)
    else:
        asked["targets"] = SumTargets(schema=schema_blob, **shared)
        asked["slopes"] = SumSlopes(schema=schema_blob, model=forest, centre=1075.0, reach=40.0, **shared)
    asked["tally"] = CountByScoreWithNoise(schema=schema_blob, model=forest, **shared)
    site = site_with(frame, blobs, **settings)
    assert public_schema_of(site, schema_blob) == known
    answered = [
        (name, request, PLANS.get(name, plan_counts)(site, request, known)()) for name, request in asked.items()
    ]
    return [*answered, ("people", CountPeople(**shared), np.array([site.n_train]))]


PLANS = {"level": plan_level, "tally": plan_tally}
"""What checks questions and counts rows for them; for all others ``plan_counts``."""

SHARES = {
    "tables": (("people", 0.05), ("columns", 0.2), ("scores", 0.1), ("tables", 0.65)),
    "tables of a number": (("people", 0.05), ("columns", 0.15), ("targets", 0.1), ("slopes", 0.1), ("tables", 0.6)),
    "levels": (("level", 0.25),) * 4,
}
"""Of epsilon, for every question of a form."""

FAR = {"binary": "yes", "several": "top", "number": 1149.0}


def hostile_schema(task):
    """A schema that a site accepts: bounds as close as possible, or classes that some rows lack."""
    labels = {
        "binary": sv.Label("label", ("unheard of", "yes")),
        "several": sv.Label("label", ("top", "unheard of")),
        "number": sv.Label("label", bounds=(1149.0, 1149.0 * (1 + 2.0**-39))),
    }
    return sv.Schema.of(FEATURES, labels[task])


def composed(form, frame, epsilon, task="binary", sharers=1, known=None):
    """Returns every request of a form with its share of epsilon, with and without a distant row; and their sum."""
    far = one_more(frame, label=known.label.bounds[1] if known and known.label.bounds else FAR[task])
    pair = (requests(task, rows, epsilon, sharers, known) for rows in (far, frame))
    exact = {
        name: (request, with_row, without) for (name, request, with_row), (_, _, without) in zip(*pair, strict=True)
    }
    asked = []
    for name, share in SHARES.get(f"{form} of a {task}", SHARES[form]):
        request, with_row, without = exact[name]
        asked.append((msgspec.structs.replace(request, epsilon=epsilon * share), with_row, without))
    return asked, sum(request.epsilon for request, _, _ in asked)


class JudgingSite(Site):
    """A site that evaluates on its training rows."""

    def part(self, schema, test=False, *, strict=True):
        return super().part(schema, strict=strict)


def site_with(frame, blobs, **settings):
    site = JudgingSite("here", frame, n_jobs=1, **settings)
    for data in blobs:
        site.store.put(f"blob {digest(data)}", data)
        KNOWN[digest(data)] = data
    return site


KNOWN: dict[str, bytes] = {}
"""Blobs that questions refer to, by hash."""

POINTS = CutPoints(np.array([2, 1, 0, 0, 3]), np.array([40, 60, 2.5, 10, 20, 30], np.float32))


def rows_scored(task, row, draws, epsilon, known=None):
    """Randomises one of two rows that differ in everything, many times; scores the similarity to the second."""
    known = known or schema(task)
    ends = np.array([[0, 1, 0, 0, -20], [100, 5, 1, 3, 60]], np.float32)
    labels = [0, known.n_classes - 1] if known.n_classes else known.label.bounds
    y = np.full(draws, labels[row])
    worn = disguise(Part(np.tile(ends[row], (draws, 1)), y, np.zeros(draws, np.uint64)), known, epsilon)
    each, score = epsilon / 6, np.zeros(draws)
    for f, feature in enumerate([*known.features, known.label]):
        values = worn.X[:, f] if f < 5 else worn.y
        low, high = (ends[0, f], ends[1, f]) if f < 5 else labels
        if getattr(feature, "categorical", task != "number"):
            score += each * ((values == high).astype(float) - (values == low))
        else:
            score += each * (2 * (values - low) / (high - low) - 1)
    return score
