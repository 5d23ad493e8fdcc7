"""The baseline that federated forests are held to: all rows in one place, the same bins, draws and plan."""

import numpy as np

from silvan.algorithms.histogram import binned
from silvan.algorithms.shared_bins import label_counts, pooled_bins
from silvan.data.schema import Schema
from silvan.federation.federation import Federation
from silvan.federation.local import LocalFederation
from silvan.federation.site import Part
from silvan.threads import thread_count
from silvan.tree.fit import Settings, grow_forest
from silvan.tree.forest import Forest


def pooled_forest(federation: Federation, schema: Schema, settings: Settings, feature_key: np.ndarray) -> Forest:
    """Grow the forest of all sites' training rows, with all rows at hand."""
    assert isinstance(federation, LocalFederation)  # noqa: S101
    sites = [federation.site(name) for name in federation.active]
    parts = [site.part(schema) for site in sites]
    rows = Part(*(np.concatenate([getattr(p, f) for p in parts]) for f in ("X", "y", "row_keys")))
    bins = pooled_bins([rows], schema, settings.max_bins)
    measure = settings.measure(schema, label_counts(rows.y, schema))
    threads = thread_count(sites[0].n_jobs)
    table = binned(rows, bins, measure, threads)
    plan = settings.federated_plan(len(schema.features))
    return grow_forest(table, measure, schema, settings, plan, sites[0].sampling_key, feature_key, threads)
