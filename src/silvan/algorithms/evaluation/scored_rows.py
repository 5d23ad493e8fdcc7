"""Candidates at a site: the forest that each stands for, its scores of test rows in groups, its decision threshold."""

from collections.abc import Sequence

import msgspec
import numpy as np

from silvan import metrics
from silvan.algorithms.evaluation.candidates import Candidate, LocalBoosting
from silvan.algorithms.evaluation.out_of_bag import site_threshold
from silvan.algorithms.evaluation.score_groups import (
    Answer,
    SubgroupRows,
    cells_of,
    check_by,
    in_groups_by_cell,
)
from silvan.algorithms.evaluation.site_models import model_here
from silvan.data.schema import Schema
from silvan.errors import reject
from silvan.federation.cache import CacheKey
from silvan.federation.site import Site
from silvan.privacy.gate import policy_of


def answer_on_test_rows(
    site: Site, schema: Schema, candidate: Candidate, feature_key: np.ndarray, by: Sequence[int] = ()
) -> tuple[Answer, np.ndarray]:
    """Score the test part in groups of rows; return the scores and the labels to count by, kept for both rounds."""

    def score() -> tuple[Answer, np.ndarray]:
        part = site.part(schema, test=True)
        model = model_here(site, schema, candidate, feature_key)
        if model is not None:
            whole = Answer(*part.answers(model.forest, site.absent(schema), site.n_jobs))
        else:
            whole = Answer(np.full((len(part), max(schema.n_classes, 1)), np.nan), np.zeros(len(part), np.int64))
        at = _threshold_at(site, schema, candidate, feature_key)
        if not np.isnan(at):
            whole = Answer(whole.scores, metrics.decided_at(at, whole.scores, schema.label.positive_code))
        least, cells = policy_of(site).score_groups, test_cells(site, schema, by)
        return in_groups_by_cell(whole, part.y, schema.n_classes, least, cells)

    return site.cache.once(
        CacheKey[tuple[Answer, np.ndarray]](
            "scores", msgspec.json.encode(candidate), feature_key.tobytes(), schema.hash, *by, most=64
        ),
        score,
    )


def test_cells(site: Site, schema: Schema, by: Sequence[int]) -> SubgroupRows | None:
    """Return the test rows by subgroup; None without columns that make some."""
    if not by:
        return None
    check_by(schema, by)

    def sort() -> SubgroupRows:
        part = site.part(schema, test=True)
        return cells_of(part.columns(by), range(len(by)), policy_of(site))

    return site.cache.once(CacheKey[SubgroupRows]("cells", schema.hash, *by), sort)


def _threshold_at(site: Site, schema: Schema, candidate: Candidate, feature_key: np.ndarray) -> float:
    """Return the decision threshold for the positive class of two; NaN where the most probable class is decided on."""
    given = None if isinstance(candidate, LocalBoosting) else candidate.threshold
    if given is None or schema.n_classes != 2:
        return np.nan
    if isinstance(given, float):
        return given
    reject(given not in metrics.THRESHOLD_RULES, "an unknown rule for thresholds")
    return threshold_of(site, schema, candidate, feature_key, given)


def shown_threshold(site: Site, schema: Schema, candidate: Candidate, feature_key: np.ndarray) -> float:
    """Return the threshold that a model decides by, or, where it decides by none, one chosen on training rows."""
    at = _threshold_at(site, schema, candidate, feature_key)
    return threshold_of(site, schema, candidate, feature_key) if np.isnan(at) else at


def threshold_of(
    site: Site, schema: Schema, candidate: Candidate, feature_key: np.ndarray, rule: str = "youden"
) -> float:
    """Choose the threshold of a two-class model on training rows; NaN if the trees' samples are unknown."""
    model = model_here(site, schema, candidate, feature_key) if schema.n_classes == 2 else None
    return np.nan if model is None else site_threshold(site, schema, model.forest, model.draws, rule)
