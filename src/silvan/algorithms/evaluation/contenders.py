"""Models that are judged at sites: few in a judgement, and no more in a study than an honest one needs.

A coordinator that could have any number of models judged would have models that differ in how they score one row. So a
site counts the models that it is sent. It cannot know how they were made: leaf values come from sums over sites, and
weights of trees that sites signed are the coordinator's word.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from silvan.algorithms.boosting.stumps import Boosting
from silvan.algorithms.evaluation.figures import for_site
from silvan.algorithms.evaluation.site_thresholds import Draws
from silvan.data.schema import Schema
from silvan.errors import FormatError, RefusedError
from silvan.federation.federation import Federation
from silvan.federation.message import Blob
from silvan.federation.site import Site
from silvan.federation.store import CONDUCT, digest
from silvan.forest.forest import Forest
from silvan.privacy.gate.gate import most_models
from silvan.tree.fit import Settings

MOST = 8
"""The most models in a judgement."""


class Mixing(msgspec.Struct, frozen=True):
    """What a site makes a forest of, beside one that it is sent: its own trees, as it signed them in a task.

    And, with ``fit``, the trees that it is sent with leaf values from its rows.
    """

    own: Blob | None
    work: str
    fit: bool = True


class Contender(msgspec.Struct, frozen=True):
    """A model to judge: one that is sent, or the site's own, grown there when it is judged.

    With ``work``, what is sent are trees that the site made itself in that task, and nothing else. With ``mixed``, the
    model is what the site makes of the one that is sent, which stays there.
    """

    sent: Blob | None = None
    own: Settings | None = None
    boosted: Boosting | None = None
    work: str = ""
    draws: Draws | UnsetType = UNSET  # which rows the trees that are sent drew, if that is known
    # of two classes: from which score on the second is decided on, or by which rule the site chooses that for its own
    threshold: float | str | UnsetType = UNSET
    mixed: Mixing | UnsetType = UNSET

    def alike(self) -> "Contender":
        """Return what must be alike at all sites of a sum: the model, or that it is the site's own.

        Of a mix, what it is made of beside the site's own trees: that and the site's rows make it.
        """
        if isinstance(self.mixed, Mixing):
            return msgspec.structs.replace(self, mixed=msgspec.structs.replace(self.mixed, own=None, work=""))
        return msgspec.structs.replace(self, sent=None, draws=UNSET) if self.work else self


@dataclass(frozen=True)
class MadeAtSite:
    """A model that a site makes of one that all share and of its own trees, and keeps: see ``Mixing``.

    In one process the ``forest`` that it makes is known. A site may also tell that it ``takes_shared``, unchanged.
    """

    shared: Forest
    draws: Draws  # which rows the trees of the shared forest drew
    mixing: Mixing
    forest: Forest | None = None
    takes_shared: bool = False


class Decide(NamedTuple):
    """From which score on the second of two classes is decided on: by models that are sent, and by sites' own."""

    sent: float | UnsetType = UNSET
    own: float | str | UnsetType = UNSET


NO_RULE = Decide()


# -- at a site


def check_contenders(site: Site, contenders: Sequence[Contender], by: Sequence[int] = ()) -> None:
    """Refuse more models than a study may have judged, before any row is touched; by other subgroups it is another."""
    if not 1 <= len(contenders) <= MOST:
        raise RefusedError(f"the site judges at most {MOST} models at a time")
    sent = set()
    for one in contenders:
        if one.sent is None:
            continue
        if isinstance(one.mixed, Mixing):
            _check_mixing(site, one, one.mixed)
        if not one.work:
            sent.add(
                digest(msgspec.json.encode([one, list(by)] if by else one))
            )  # other draws of its trees make other figures
        elif not _is_own(site, one.sent, one.work):
            raise RefusedError("what is said to be the site's own model is not")
    count_models(site, sent)


def _check_mixing(site: Site, contender: Contender, mixing: Mixing) -> None:
    """Refuse a mix of anything but a forest that is sent and the site's own trees: each counts as a model."""
    if contender.work or contender.own is not None or contender.boosted is not None:
        raise RefusedError("a mix is of a forest that is sent, and of nothing else")
    if mixing.own is None or not _is_own(site, mixing.own, mixing.work):
        raise RefusedError("what are said to be the site's own trees are not")


def _is_own(site: Site, blob: Blob, task: str) -> bool:
    """Whether the site made and signed something in a task."""
    return any(owner.site == site.name and owner.task == task for owner in site.owners(blob.hash))


def count_models(site: Site, sent: set[str]) -> None:
    """Refuse models, by their digests, beyond those that a study may have judged; one that comes again is no other."""
    most, key = most_models(site), f"{CONDUCT} models {hashlib.sha256(site.study.encode()).hexdigest()}"
    known = msgspec.msgpack.decode(site.store.get(key) or b"\x90", type=list[str])
    new = sorted(sent - set(known))
    if most is not None and len(known) + len(new) > most:
        raise RefusedError(f"models of others that the site judges in a study: {most} at most")
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


# -- at the coordinator


def list_contenders(
    federation: Federation,
    models: Sequence[object],
    draws: Mapping[str, Draws],
    decide: Decide = NO_RULE,
    sites: Sequence[str] | None = None,
) -> dict[str, list[Contender]]:
    """Return the models to judge by site, of all sites or of some.

    ``draws`` says which rows the trees of a model drew, by the model's hash; ``decide``, how a class is decided on.
    """
    asked = federation.active if sites is None else sites
    return {site: [_contender(federation, site, model, draws, decide) for model in models] for site in asked}


def _contender(
    federation: Federation, site: str, model: object, draws: Mapping[str, Draws], decide: Decide
) -> Contender:
    model = for_site(model, site)
    if isinstance(model, MadeAtSite):
        mixing = model.mixing
        makers = [] if mixing.own is None else federation.makers(mixing.own)
        if model.forest is None or any((by.site, by.task) == (site, mixing.work) for by in makers):
            shared = federation.blob(model.shared.to_bytes())
            return Contender(sent=shared, draws=model.draws, threshold=decide.sent, mixed=mixing)
        model = model.forest  # the sites of another federation than the one it was learnt in
    if isinstance(model, Settings):
        return Contender(own=model, threshold=decide.own)
    if isinstance(model, Boosting):
        return Contender(boosted=model)
    if not isinstance(model, Forest):
        raise TypeError(f"a model of type {type(model).__name__} cannot be judged")
    blob = federation.blob(model.to_bytes())
    made = [owner.task for owner in federation.makers(blob) if owner.site == site]
    return Contender(
        sent=blob, work=made[-1] if made else "", draws=draws.get(model.hash, UNSET), threshold=decide.sent
    )
