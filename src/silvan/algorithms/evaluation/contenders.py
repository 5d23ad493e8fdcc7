"""Models that are judged at sites: few in a judgement, and few in a study that are not made of signed trees.

A coordinator that could have any model judged would have models that differ in how they score one row. So a site counts
the models that it is sent which are not made of signed trees: those of sums over sites, whose leaf values no site can
check. Weights of trees are the coordinator's word in any case.
"""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from silvan.algorithms.boosting.stumps import Boosting, Stumps, check_stumps
from silvan.algorithms.evaluation.figures import for_site
from silvan.algorithms.evaluation.site_thresholds import Draws
from silvan.algorithms.shared.requests import MAX_TREES
from silvan.data.schema import Schema
from silvan.errors import FormatError, RefusedError
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.message import Blob
from silvan.federation.site import Site
from silvan.federation.store import CONDUCT
from silvan.forest.category_set import is_category_split
from silvan.forest.forest import Forest
from silvan.privacy.gate.gate import policy_of
from silvan.tree.fit import Settings

MOST = 8
"""The most models in a judgement."""


class Contender(msgspec.Struct, frozen=True):
    """A model to judge: one that is sent, or the site's own, grown there when it is judged.

    With ``work``, what is sent are trees that the site made itself in that task, and nothing else.
    """

    sent: Blob | None = None
    own: Settings | None = None
    boosted: Boosting | None = None
    work: str = ""
    draws: Draws | UnsetType = UNSET  # which rows the trees that are sent drew, if that is known

    def alike(self) -> "Contender":
        """Return what must be alike at all sites of a sum: the model, or that it is the site's own."""
        return msgspec.structs.replace(self, sent=None, draws=UNSET) if self.work else self


# -- at a site


def check_contenders(site: Site, schema: Schema, contenders: Sequence[Contender], trees: Sequence[Blob]) -> None:
    """Refuse models that only a coordinator could have made, before any row is touched.

    ``trees`` are what the models that are sent are made of, with the signatures of the sites that made it.
    """
    if not 1 <= len(contenders) <= MOST:
        raise RefusedError(f"the site judges at most {MOST} models at a time")
    signed = _signed_trees(site, schema, trees)
    unsigned = set()
    for one in contenders:
        if one.sent is None:
            continue
        if one.work:
            if not any(owner.site == site.name and owner.task == one.work for owner in site.owners(one.sent.hash)):
                raise RefusedError("what is said to be the site's own model is not")
        elif not signed.issuperset(tree_digests(model_of(site, schema, one.sent))):
            unsigned.add(one.sent.hash)
    _count_models(site, unsigned)


def _signed_trees(site: Site, schema: Schema, works: Sequence[Blob]) -> set[bytes]:
    """Return the digests of all trees that sites made and signed; they are kept for the next question."""
    if not all(site.owners(blob.hash) for blob in works):
        raise RefusedError("the site judges models of trees that a site made and signed in this study")
    key = ("signed trees", schema.hash, *(blob.hash for blob in works))
    if key not in site.cache:
        site.cache[key] = {one for blob in works for one in _digests_in(site.blob(blob.hash), schema)}
    signed: set[bytes] = site.cache[key]
    return signed


def _count_models(site: Site, unsigned: set[str]) -> None:
    """Refuse a model beyond those that the site's policy allows a study."""
    most, key = policy_of(site).models, f"{CONDUCT} models {hashlib.sha256(site.study.encode()).hexdigest()}"
    known = msgspec.msgpack.decode(site.store.get(key) or b"\x90", type=list[str])
    new = sorted(unsigned - set(known))
    if most is not None and len(known) + len(new) > most:
        raise RefusedError(
            f"the site's policy lets a study have {most} models judged that are not made of trees which sites signed"
        )
    if new:
        site.store.put_all({key: msgspec.msgpack.encode([*known, *new])})


def model_of(site: Site, schema: Schema, blob: Blob) -> Forest:
    """Read a model that a request refers to."""
    key = ("model", schema.hash, blob.hash)
    if key not in site.cache:
        forest = Forest.from_bytes(site.blob(blob.hash))
        if forest.schema != schema:
            raise FormatError("a model of another schema than the rows are encoded by")
        site.cache[key] = forest
    found: Forest = site.cache[key]
    return found


# -- both sides


def tree_digests(forest: Forest) -> list[bytes]:
    """Return a digest of each tree that has a vote: of its splits and leaf values, not of its weight."""
    leaves = np.concatenate([[0], np.cumsum(forest.feature < 0)])[forest.offsets]
    sets = np.concatenate([[0], np.cumsum(is_category_split(forest.schema, forest.feature))])[forest.offsets]
    bounds = zip(pairwise(forest.offsets), pairwise(leaves), pairwise(sets), forest.weights, strict=True)
    digests = []
    for (first, stop), (leaf, last), (begin, end), weight in bounds:
        if weight:
            parts = [array[first:stop] for array in (forest.feature, forest.threshold, forest.missing_left)]
            parts += [forest.sets[begin:end], forest.value[leaf:last]]
            digests.append(hashlib.sha256(b"".join(part.tobytes() for part in parts)).digest())
    return digests


def _digests_in(work: bytes, schema: Schema) -> list[bytes]:
    """Return the digests of trees, or stumps, that a site made."""
    try:
        forest = Forest.from_bytes(work)
    except FormatError:
        stumps = wire.decode(work, Stumps)
        check_stumps(stumps, schema, MAX_TREES)
        forest = stumps.weighted(np.ones(len(stumps))).forest(schema)
    return tree_digests(forest) if forest.schema == schema else []


# -- at the coordinator


def list_contenders(
    federation: Federation, schema: Schema, models: Sequence[object], draws: Mapping[str, Draws]
) -> tuple[dict[str, list[Contender]], list[Blob]]:
    """Return the models to judge by site, and the signed trees that they are made of.

    ``draws`` says which rows the trees of a model drew, by the model's hash.
    """
    listed = {site: [_contender(federation, site, model, draws) for model in models] for site in federation.active}
    needed: set[bytes] = set()
    for model in models:
        for one in model.values() if isinstance(model, dict) else [model]:
            if isinstance(one, Forest):
                needed.update(tree_digests(one))
    works = federation.works() if needed else []
    return listed, [blob for blob in works if not needed.isdisjoint(_digests_in(federation.content(blob), schema))]


def _contender(federation: Federation, site: str, model: object, draws: Mapping[str, Draws]) -> Contender:
    model = for_site(model, site)
    if isinstance(model, Settings):
        return Contender(own=model)
    if isinstance(model, Boosting):
        return Contender(boosted=model)
    if not isinstance(model, Forest):
        raise TypeError(f"cannot judge a {type(model).__name__}")
    blob = federation.blob(model.to_bytes())
    made = [owner.task for owner in federation.makers(blob) if owner.site == site]
    return Contender(sent=blob, work=made[-1] if made else "", draws=draws.get(model.hash, UNSET))
