"""Which rows each tree of a model was grown on: known where all sites live in this process."""

from typing import Any

import numpy as np

from silvan.algorithms.merge import draws_rows, share_out
from silvan.federation.local import LocalFederation
from silvan.learners import BOFRF, HistogramForest, MergedForest
from silvan.tree.draw import rows_of_trees


def drawn_rows(model: Any, federation: LocalFederation) -> np.ndarray | None:
    """Give (trees of the global forest, all sites' training rows in the order of the sites); None if unknown."""
    if isinstance(model, HistogramForest):
        if model.epsilon is not None or model.forest_ is None:
            return None
        rows, key = federation.pooled(model.schema_)
        return rows_of_trees(key, rows.row_keys, 0, len(model.forest_), bool(model.bootstrap))
    if isinstance(model, MergedForest):
        shares = {site: federation.rows[site] if model.weights == "trees" else 1 for site in federation.active}
        return _by_site(model, federation, share_out(model.n_estimators, shares))
    if isinstance(model, BOFRF) and model.clusters is None and not (model.validation or model.tune or model._brought):
        return _by_site(model, federation, dict.fromkeys(federation.active, model.n_estimators))
    return None


def _by_site(model: Any, federation: LocalFederation, n_trees: dict[str, int]) -> np.ndarray:
    """Put sites' draws together: a site's trees see rows of that site alone."""
    blocks = []
    for name, n in n_trees.items():
        site = federation.site(name)
        part = site.part(model.schema_)
        bootstrap = draws_rows(site, part, bool(model.bootstrap), n) if n else False
        blocks.append(rows_of_trees(site.sampling_key, part.row_keys, 0, n, bootstrap))
    drawn = np.zeros((sum(map(len, blocks)), sum(block.shape[1] for block in blocks)), np.bool_)
    tree = row = 0
    for block in blocks:
        drawn[tree : tree + len(block), row : row + block.shape[1]] = block
        tree, row = tree + len(block), row + block.shape[1]
    return drawn
