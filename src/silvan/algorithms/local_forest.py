"""The forest that a site grows on its own training rows: what it has without joining, and what it sends to others."""

from dataclasses import replace

import numpy as np

from silvan.algorithms.keyed_rows import possible_draw
from silvan.algorithms.requests import MAX_TREES
from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError
from silvan.federation.describe import FLOOR
from silvan.federation.part import Part
from silvan.federation.site import Site
from silvan.forest.forest import Forest
from silvan.tree.fit import Settings, fit_forest
from silvan.tree.sampling import SamplingKeys, key_of_site


def local_forest(
    site: Site,
    schema: Schema,
    settings: Settings,
    feature_key: np.ndarray,
    n_trees: int,
    part: Part | None = None,
) -> Forest:
    """Grow trees on one site's training rows, or on those of ``part``."""
    if not 1 <= n_trees <= MAX_TREES:
        raise InputError(f"the trees of a site must be 1 to {MAX_TREES}, got {n_trees}")
    if feature_key.shape != (2,) or feature_key.dtype != np.uint64:
        raise FormatError("a key is two numbers of 64 bits")
    part = site.part(schema) if part is None else part
    target = settings.target(schema, part.y)
    if not possible_draw(site, part, settings.row_sampling, n_trees):
        settings = replace(settings, bootstrap=False, max_samples=None)
    return fit_forest(
        part.X,
        target,
        schema,
        replace(settings, n_estimators=n_trees),
        SamplingKeys(site.sampling_key, key_of_site(feature_key, site.name)),
        row_keys=part.row_keys,
        n_jobs=site.n_jobs,
        floor=FLOOR,
    ).forest
