"""The models behind candidates at a site: forests read, made, grown or adjusted there, and cached."""

from collections.abc import Mapping
from typing import ClassVar

import msgspec
import numpy as np

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
from silvan.algorithms.evaluation.personal_forest import Ingredients, SiteForest, make_forest
from silvan.algorithms.evaluation.reliability import adjusted
from silvan.algorithms.kept_results import keep_made_model
from silvan.algorithms.keyed_rows import RowSamples, local_forest
from silvan.algorithms.requests import schema_of
from silvan.data.schema import Schema
from silvan.errors import reject
from silvan.federation.bound import Agreed, Fixed
from silvan.federation.cache import CacheKey
from silvan.federation.federation import Federation
from silvan.federation.message import Ask, Blob, PartitionsWay, Reply
from silvan.federation.site import Site, answers
from silvan.forest.forest import Forest

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
