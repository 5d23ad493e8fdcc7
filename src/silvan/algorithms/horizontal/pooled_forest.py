"""The baseline for federated forests: all rows in one place, with the same bins, samples and plan."""

import numpy as np

from silvan.algorithms.horizontal.histogram_forest import binned
from silvan.algorithms.shared_bins import count_labels, pooled_bins
from silvan.algorithms.vertical.in_one_place import pooled_rows
from silvan.data.schema import Schema
from silvan.federation.federation import Federation
from silvan.forest.forest import Forest
from silvan.tree.fit import Settings, grow_forest
from silvan.tree.leaf_curves import with_curves
from silvan.tree.sampling import SamplingKeys, rows_of_trees
from silvan.util.threads import thread_count


def pooled_forest(federation: Federation, schema: Schema, settings: Settings, feature_key: np.ndarray) -> Forest:
    """Grow the forest of all sites' training rows, with all rows at hand."""
    rows, row_key = pooled_rows(federation, schema)
    bins = pooled_bins(rows.one_of_each(), schema, settings.max_bins)
    measure = settings.measure(schema, count_labels(rows, schema))
    threads = thread_count(federation.site(federation.active[0]).n_jobs)
    table = binned(rows, bins, measure, threads)
    plan = settings.federated_plan(len(schema.features))
    # between parties, only they know what decides between equal gains
    keys = SamplingKeys(row_key, feature_key, feature_key if federation.columns is None else row_key)
    forest = grow_forest(table, measure, schema, settings, plan, keys, threads)
    if not measure.times:
        return forest
    drawn = rows_of_trees(row_key, rows.row_keys, 0, len(forest), settings.row_sampling)
    return with_curves(forest, measure, rows.X, measure.codes(rows.y), drawn, threads)
