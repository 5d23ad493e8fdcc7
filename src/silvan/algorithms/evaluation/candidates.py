"""Candidates: the models that sites evaluate, few at a time, and no more in a study than an honest one needs.

A coordinator that could have any number of models evaluated would send models that differ in the score of one row. So a
site counts the models that it receives. It cannot know how they were made: leaf values come from sums over sites, and
the coordinator sets the weights of signed trees.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import msgspec

from silvan.algorithms.boosting.stumps import Boosting
from silvan.algorithms.keyed_rows import RowSamples
from silvan.data.schema import Schema
from silvan.errors import InputError, RefusedError, reject
from silvan.federation.federation import Federation
from silvan.federation.message import Blob
from silvan.federation.site import Site
from silvan.federation.store import SEQUENCE, CacheKey, digest
from silvan.forest.forest import Forest
from silvan.privacy.gate import most_models
from silvan.tree.fit import Settings

MOST = 8  # maximum number of candidates in one request


# -- on the wire
class SentModel(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A model that the coordinator sends. With ``made_in``, trees that the site itself made in that task.

    With ``adjust`` the site adjusts its curve and errors to its own rows (``reliability.py``).
    """

    model: Blob
    made_in: str = ""
    draws: RowSamples | None = None  # the rows that its trees sampled, if known
    threshold: float | None = None  # decision threshold for the positive class of two; None: the most probable class
    adjust: bool = False


class LocalModel(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The local forest that a site has without joining, grown when it is evaluated."""

    settings: Settings
    threshold: float | str | None = None  # a decision threshold, or the rule by which the site chooses one


class LocalBoosting(msgspec.Struct, frozen=True, tag=True):
    """The boosted stumps that a site has without joining, grown there when they are evaluated."""

    boosting: Boosting


class PersonalModel(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A forest that the site makes from a shared forest, local trees and its rows, and keeps (``personal_forest.py``).

    A curve and errors that the shared one has are adjusted to the site's rows.

    ``own`` are the site's trees, as it signed them in the task ``made_in``. With ``fit`` it refits shared leaves.
    """

    shared: Blob
    draws: RowSamples  # the rows that the trees of the shared forest sampled
    own: Blob
    made_in: str
    fit: bool = True
    threshold: float | None = None


Candidate = SentModel | LocalModel | LocalBoosting | PersonalModel


def alike(candidate: Candidate) -> Candidate:
    """Return the part of a candidate that must be equal at all sites of a sum: all except trees made at the site."""
    if isinstance(candidate, SentModel) and candidate.made_in:
        return msgspec.structs.replace(candidate, model=Blob(""), draws=None)
    if isinstance(candidate, PersonalModel):
        return msgspec.structs.replace(candidate, own=Blob(""), made_in="")
    return candidate


# -- at a site
def check_candidates(site: Site, candidates: Sequence[Candidate], by: Sequence[int] = ()) -> None:
    """Refuse models beyond the study's limit, before any row is read.

    A model with other subgroups, or other declared samples, counts as another one.
    """
    if not 1 <= len(candidates) <= MOST:
        raise RefusedError(f"the site evaluates at most {MOST} models at a time")
    counted = set()
    for one in candidates:
        if isinstance(one, LocalModel | LocalBoosting):
            continue
        if isinstance(one, PersonalModel) and not _is_own(site, one.own, one.made_in):
            raise RefusedError("not this site's own trees")
        if isinstance(one, SentModel) and one.made_in:
            if not _is_own(site, one.model, one.made_in):
                raise RefusedError("not this site's own model")
            continue
        counted.add(digest(msgspec.json.encode([one, list(by)] if by else one)))
    count_models(site, counted)


def _is_own(site: Site, blob: Blob, task: str) -> bool:
    """Whether the site made and signed something in a task."""
    return any(owner.site == site.name and owner.task == task for owner in site.owners(blob.hash))


def count_models(site: Site, sent: set[str]) -> None:
    """Refuse models, by their digests, beyond the study's limit; each counts once."""
    most, key = most_models(site), f"{SEQUENCE} models {hashlib.sha256(site.study.encode()).hexdigest()}"
    known = msgspec.msgpack.decode(site.store.get(key) or b"\x90", type=list[str])
    new = sorted(sent - set(known))
    if most is not None and len(known) + len(new) > most:
        raise RefusedError(f"external models that the site evaluates in a study: {most} at most")
    if new:
        site.store.put_all({key: msgspec.msgpack.encode([*known, *new])})


def model_of(site: Site, schema: Schema, blob: Blob) -> Forest:
    """Read a model that a request refers to."""

    def read() -> Forest:
        forest = Forest.from_bytes(site.blob(blob.hash))
        reject(forest.schema != schema, "a model of another schema than the rows are encoded by")
        return forest

    return site.cache.once(CacheKey[Forest]("model", schema.hash, blob.hash), read)


# -- at the coordinator
@dataclass(frozen=True)
class PersonalForest:
    """The parts of a forest that a site makes and keeps, see ``PersonalModel``.

    In one process the ``forest`` is known. A site may also disclose that it ``takes_shared``, unchanged.
    """

    shared: Forest
    draws: RowSamples
    own: Blob
    made_in: str
    fit: bool = True
    forest: Forest | None = None
    takes_shared: bool = False

    def candidate(self, federation: Federation, threshold: float | None) -> PersonalModel:
        """Return the part that is sent to a site."""
        shared = federation.blob(self.shared.to_bytes())
        return PersonalModel(shared, self.draws, self.own, self.made_in, self.fit, threshold)


@dataclass(frozen=True)
class AdjustedForest:
    """A forest with a curve or errors that a site adjusts to its rows and keeps; known in one process."""

    shared: Forest
    forest: Forest | None = None


Model = Forest | PersonalForest | AdjustedForest | Settings | Boosting
"""A model as learners name it; ``Settings`` and ``Boosting`` stand for what each site trains by itself."""

Models = Model | Mapping[str, Forest | PersonalForest | AdjustedForest]  # one model for all sites, or one for each
Named = tuple[str, Models]  # a candidate by the name that tables show
T = TypeVar("T")


class Thresholds(NamedTuple):
    """Decision thresholds for the positive class of two: of models that are sent, and of local ones."""

    sent: float | None = None
    local: float | str | None = None


NO_THRESHOLDS = Thresholds()


def for_site(models: Mapping[str, T], site: str) -> T:
    """Return the model of a site; raise ``InputError`` if it has none."""
    if site not in models:
        raise InputError(f"there is no model for site {site!r}; it was not there when the learner was fitted")
    return models[site]


def list_candidates(
    federation: Federation,
    models: Sequence[Models],
    draws: Mapping[str, RowSamples],
    thresholds: Thresholds = NO_THRESHOLDS,
) -> dict[str, list[Candidate]]:
    """Return the candidates of each site; ``draws`` has the sampled rows of each model's trees, by the model's hash."""

    def candidate(site: str, models: Models) -> Candidate:
        model = for_site(models, site) if isinstance(models, Mapping) else models
        if isinstance(model, Settings):
            return LocalModel(model, thresholds.local)
        if isinstance(model, Boosting):
            return LocalBoosting(model)
        if isinstance(model, PersonalForest):
            made_here = any((by.site, by.task) == (site, model.made_in) for by in federation.makers(model.own))
            if model.forest is None or made_here:
                return model.candidate(federation, thresholds.sent)
            model = model.forest  # the sites of another federation than the training one
        if isinstance(model, AdjustedForest):
            return msgspec.structs.replace(sent_model(federation, model.shared, draws, thresholds, site), adjust=True)
        return sent_model(federation, model, draws, thresholds, site)

    return {site: [candidate(site, model) for model in models] for site in federation.active}


def sent_model(
    federation: Federation,
    model: Forest,
    draws: Mapping[str, RowSamples],
    thresholds: Thresholds = NO_THRESHOLDS,
    site: str | None = None,
) -> SentModel:
    """Return the candidate for a forest, with a note if the site made it itself."""
    blob = federation.blob(model.to_bytes())
    made = [owner.task for owner in federation.makers(blob) if owner.site == site]
    return SentModel(blob, made[-1] if made else "", draws.get(model.hash), thresholds.sent)
