"""The test rows that explain a model at a site: which are taken, and whether there are enough of them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from silvan.algorithms.evaluation.candidates import SentModel, check_candidates, model_of
from silvan.algorithms.evaluation.details import Floors
from silvan.algorithms.evaluation.evaluation import answer_of
from silvan.algorithms.evaluation.subgroups import check_by
from silvan.data.schema import Schema
from silvan.federation.site import Site
from silvan.forest.forest import Forest
from silvan.privacy.gate import policy_of

MOST_ROWS = 5_000
"""Test rows of a site that explain a model; of more, evenly spread ones are taken."""


class Explained(NamedTuple):
    """A model that is sent, and the test rows that explain it; ``taken`` are their places in the test part."""

    forest: Forest
    X: np.ndarray
    y: np.ndarray
    taken: np.ndarray
    absent: np.ndarray
    n_jobs: int | None

    @property
    def usable(self) -> bool:
        """Whether there are rows, and trees that answer for them."""
        return len(self.X) > 0 and not np.isnan(self.scores(self.X[:1])).any()

    def scores(self, X: np.ndarray) -> np.ndarray:
        """Return the model's scores of rows: of the second of two classes, of each of several, or the number."""
        found = answer_of(self.forest, X, self.absent, self.n_jobs).scores
        return found[:, 1:] if self.forest.schema.n_classes == 2 else found


def explained_rows(site: Site, schema: Schema, model: SentModel, by: Sequence[int] = ()) -> Explained:
    """Read a model that is sent, which counts as one that is evaluated; there are no rows where they are too few."""
    check_by(schema, by)
    check_candidates(site, [model], by)
    forest, part = model_of(site, schema, model.model), site.part(schema, test=True)
    policy = policy_of(site)
    n = len(part)
    if n < Floors.of(policy).rows or not policy.allows_figures(part.y, schema.n_classes):
        n = 0
    taken = np.arange(n) if n <= MOST_ROWS else np.linspace(0, n - 1, MOST_ROWS).astype(np.int64)
    return Explained(forest, part.take(taken), np.asarray(part.y)[taken], taken, site.absent(schema), site.n_jobs)


def score_range(forest: Forest) -> tuple[float, float]:
    """Return the least score that there can be, and how far scores spread: 0 and 1 of classes."""
    if forest.schema.n_classes:
        return 0.0, 1.0
    low, high = float(forest.value.min()), float(forest.value.max())
    return low, high - low if high > low else 1.0
