"""Candidates at a site: the forest behind each one, its scores of test rows in groups, its decision threshold."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec
import numpy as np

from silvan import metrics
from silvan.algorithms.boosting.adaboost import local_boost
from silvan.algorithms.evaluation.candidates import (
    AdjustedForest,
    Candidate,
    LocalBoosting,
    LocalModel,
    PersonalModel,
    SentModel,
    check_candidates,
    list_candidates,
    model_of,
)
from silvan.algorithms.evaluation.out_of_bag import site_threshold
from silvan.algorithms.evaluation.personal_forest import Ingredients, SiteForest, make_forest
from silvan.algorithms.evaluation.reliability import adjusted
from silvan.algorithms.evaluation.score_groups import (
    Answer,
    SubgroupRows,
    cells_of,
    check_by,
    in_groups_by_cell,
)
from silvan.algorithms.kept_results import keep_made_model
from silvan.algorithms.keyed_rows import RowSamples, local_forest
from silvan.algorithms.requests import schema_of
from silvan.data.schema import Schema
from silvan.errors import reject
from silvan.federation.federation import Federation
from silvan.federation.message import Agreed, Ask, Blob, Fixed, PartitionsWay, Reply
from silvan.federation.site import Site, answers
from silvan.federation.store import CacheKey
from silvan.forest.forest import Forest
from silvan.forest.intervals import reach_of
from silvan.metrics import COVERAGE
from silvan.privacy.gate import policy_of

_NO_KEY = np.zeros(2, np.uint64)  # of features: nothing is grown


def model_here(site: Site, schema: Schema, candidate: Candidate, feature_key: np.ndarray) -> SiteForest | None:
    """Read, make, grow or adjust the model; cache it unless it was only read.

    None where the site cannot have it: to grow one itself takes all rows in one place.
    """
    if isinstance(candidate, SentModel) and not candidate.adjust:
        return SiteForest(model_of(site, schema, candidate.model), candidate.draws)
    if isinstance(candidate, LocalModel | LocalBoosting) and not site.in_one_place:
        return None

    def make() -> SiteForest:
        if isinstance(candidate, SentModel):
            forest = model_of(site, schema, candidate.model)
            return SiteForest(adjusted(site, schema, forest, candidate.draws), candidate.draws)
        if isinstance(candidate, PersonalModel):
            return make_forest(site, schema, Ingredients.read(site, schema, candidate))
        if isinstance(candidate, LocalBoosting):
            return SiteForest(local_boost(site, schema, candidate.boosting), None)
        settings = candidate.settings
        forest = local_forest(site, schema, settings, feature_key, settings.n_estimators)
        return SiteForest(forest, RowSamples((settings.n_estimators,), (site.name,), settings.row_sampling))

    key = CacheKey[SiteForest]("model here", msgspec.json.encode(candidate), feature_key.tobytes(), schema.hash, most=4)
    return site.cache.once(key, make)


# -- messages
class AdjustedKept(Reply, frozen=True, kw_only=True):
    """Confirmation that the site has the adjusted forest."""


class KeepAdjusted(Ask[AdjustedKept], frozen=True, kw_only=True):
    """Adjust the calibration and the errors of a forest to the site's rows, and keep it with the study's results."""

    partitions: ClassVar[PartitionsWay] = "site"

    schema: Agreed[Blob]
    model: Fixed[SentModel]


# -- at a site
@answers(KeepAdjusted)
def keep_adjusted_here(site: Site, request: KeepAdjusted) -> AdjustedKept:
    """Adjust the forest, and keep it if results of the study will be kept."""
    schema = schema_of(site, request.schema)
    reject(not request.model.adjust, "the model is kept as it is")
    check_candidates(site, [request.model])
    made = model_here(site, schema, request.model, _NO_KEY)
    if site.results is not None and made is not None:
        keep_made_model(site.results, made.forest)
    return AdjustedKept()


# -- at the coordinator
def keep_adjusted(
    federation: Federation, schema: Schema, forests: Mapping[str, Forest], draws: Mapping[str, RowSamples]
) -> dict[str, AdjustedForest]:
    """Let each site adjust its forest to its rows: one round. Forests of sites in this process are known."""
    models = {site: AdjustedForest(forests[site]) for site in federation.active}
    listed = list_candidates(federation, [models], draws)
    blob = federation.blob(schema.to_json().encode())
    sent = {site: one for site, [one] in listed.items() if isinstance(one, SentModel)}
    requests = {site: KeepAdjusted(schema=blob, model=one) for site, one in sent.items()}
    federation.ask(requests)
    found = {}
    for site, request in requests.items():
        here = federation.local_sites.get(site)
        made = None if here is None else model_here(here, schema, request.model, _NO_KEY)
        found[site] = AdjustedForest(forests[site], None if made is None else made.forest)
    return found


def answer_on_test_rows(
    site: Site, schema: Schema, candidate: Candidate, feature_key: np.ndarray, by: Sequence[int] = ()
) -> tuple[Answer, np.ndarray]:
    """Score the test rows in groups; return the scores and the assigned labels, cached for both rounds."""

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
    """Return the test rows by subgroup; None without subgroup columns."""
    if not by:
        return None
    check_by(schema, by)

    def sort() -> SubgroupRows:
        part = site.part(schema, test=True)
        return cells_of(part.columns(by), range(len(by)), policy_of(site))

    return site.cache.once(CacheKey[SubgroupRows]("cells", schema.hash, *by), sort)


def _threshold_at(site: Site, schema: Schema, candidate: Candidate, feature_key: np.ndarray) -> float:
    """Return the decision threshold for the positive class of two; NaN if the most probable class is predicted."""
    given = None if isinstance(candidate, LocalBoosting) else candidate.threshold
    if given is None or schema.n_classes != 2:
        return np.nan
    if isinstance(given, float):
        return given
    reject(given not in metrics.THRESHOLD_RULES, "an unknown rule for thresholds")
    return threshold_of(site, schema, candidate, feature_key, given)


def shown_threshold(site: Site, schema: Schema, candidate: Candidate, feature_key: np.ndarray) -> float:
    """Return a model's decision threshold or, if it has none, one chosen on training rows."""
    at = _threshold_at(site, schema, candidate, feature_key)
    return threshold_of(site, schema, candidate, feature_key) if np.isnan(at) else at


def shown_reach(site: Site, schema: Schema, candidate: Candidate, feature_key: np.ndarray) -> float:
    """Return the half-widths of a model's intervals or sets; NaN if it has none."""
    model = model_here(site, schema, candidate, feature_key)
    return np.nan if model is None else reach_of(model.forest, COVERAGE)


def threshold_of(
    site: Site, schema: Schema, candidate: Candidate, feature_key: np.ndarray, rule: str = "youden"
) -> float:
    """Choose the threshold of a two-class model on training rows; NaN if the trees' samples are unknown."""
    model = model_here(site, schema, candidate, feature_key) if schema.n_classes == 2 else None
    return np.nan if model is None else site_threshold(site, schema, model.forest, model.draws, rule)
