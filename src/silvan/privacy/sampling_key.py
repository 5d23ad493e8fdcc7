"""The sites' own key of row draws: which rows are in which tree is for the sites to know, not for the coordinator.

The first site draws the key and seals it for each of the others, by the keys on its roster; the coordinator carries the
boxes and can open none. A site keeps what it drew or was given, so that a study that is resumed goes on with it.
"""

import secrets
from typing import ClassVar

import numpy as np

from silvan.errors import FederationError, FormatError, RefusedError
from silvan.federation.federation import Federation
from silvan.federation.message import Reply, Request, Verb
from silvan.federation.site import Site, answers
from silvan.privacy.seal import pair_key, seal, secret_key, unseal

KEY = 16
_MOST_SITES = 10_000


# -- messages


class SamplingBoxes(Reply, frozen=True, kw_only=True):
    """The key of row draws, sealed for each other site; the coordinator cannot open it."""

    boxes: dict[str, bytes]


class OfferSampling(Request, frozen=True, kw_only=True):
    """Draw the key of row draws, and seal it for other sites."""

    verb: ClassVar[Verb] = "ask"
    reply: ClassVar[type[Reply]] = SamplingBoxes

    study: str
    sites: list[str]


class SamplingTaken(Reply, frozen=True, kw_only=True):
    """That the key of row draws was taken in."""


class TakeSampling(Request, frozen=True, kw_only=True):
    """Take in the key of row draws that another site sealed."""

    verb: ClassVar[Verb] = "ask"
    reply: ClassVar[type[Reply]] = SamplingTaken

    study: str
    by: str
    box: bytes


# -- at a site


def _name(study: str) -> str:
    return f"sampling {study}"


def use_kept(site: Site, study: str) -> None:
    """Go on with the key that a site drew or was given before; until there is one, draw by a key for the moment."""
    kept = site.store.get(_name(study)) or secrets.token_bytes(KEY)
    site.sampling_key = np.frombuffer(kept, "<u8").astype(np.uint64)


def _seal_of(site: Site, other: str) -> bytes:
    seals = {} if site.signer is None else site.signer.roster.seals
    if other not in seals:
        raise RefusedError("the site's roster has no such site to share its draws with")
    return seals[other]


def _about(study: str, by: str, to: str) -> bytes:
    return "\0".join(["sampling", study, by, to]).encode()


def _keep(site: Site, study: str, key: bytes) -> None:
    kept = site.store.get(_name(study))
    if kept is not None and kept != key:
        raise RefusedError("the site has a key of row draws for this study already, and it is another")
    site.store.put(_name(study), key)
    use_kept(site, study)


@answers(OfferSampling)
def offer_sampling(site: Site, request: OfferSampling) -> SamplingBoxes:
    """Draw the key, or find it; seal it."""
    if len(request.sites) > _MOST_SITES or len(set(request.sites)) < len(request.sites) or site.name in request.sites:
        raise FormatError("not a list of other sites")
    key = site.store.get(_name(request.study)) or secrets.token_bytes(KEY)
    _keep(site, request.study, key)
    own = secret_key(site.store)
    return SamplingBoxes(
        boxes={
            other: seal(pair_key(own, _seal_of(site, other), _about(request.study, site.name, other)), key)
            for other in request.sites
        }
    )


@answers(TakeSampling)
def take_sampling(site: Site, request: TakeSampling) -> SamplingTaken:
    """Open the box."""
    about = _about(request.study, request.by, site.name)
    key = unseal(pair_key(secret_key(site.store), _seal_of(site, request.by), about), request.box)
    if len(key) != KEY:
        raise FormatError("not a key of row draws")
    _keep(site, request.study, key)
    return SamplingTaken()


# -- at the coordinator


def share_sampling(federation: Federation) -> None:
    """Have the sites agree on a key of row draws that nobody else knows."""
    first, *others = federation.active

    def check(site: str, reply: SamplingBoxes) -> None:
        if set(reply.boxes) != set(others):
            raise FormatError("its boxes are for other sites")

    with federation.counted_apart():
        offer = OfferSampling(study=federation.study, sites=others)
        boxes: dict[str, bytes] = federation.ask(offer, to=[first], check=check)[first].boxes
        if others:
            taken = {site: TakeSampling(study=federation.study, by=first, box=boxes[site]) for site in others}
            if set(federation.ask(taken)) != set(others):
                raise FederationError("a site was lost before it had the key of row draws; run the study again")
