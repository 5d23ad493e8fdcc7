"""The key of row draws: the sites agree on it, so the coordinator cannot know which rows are in which tree.

The first site draws the key and seals it for each of the others, by the keys on its roster; the coordinator carries the
boxes and can open none. A site stores the key that it drew or was sent, so that a resumed study goes on with it.
"""

import secrets
from typing import ClassVar

import numpy as np

from silvan.errors import FederationError, FormatError, RefusedError
from silvan.federation.federation import Federation
from silvan.federation.message import Ask, Reply
from silvan.federation.site import Site, answers
from silvan.privacy.identity.seal import pair_key, seal, secret_key, unseal

KEY_BYTES = 16
_MOST_SITES = 10_000


# -- messages


class SamplingBoxes(Reply, frozen=True, kw_only=True):
    """The key of row draws, sealed for each other site; the coordinator cannot open it."""

    boxes: dict[str, bytes]


class OfferSampling(Ask[SamplingBoxes], frozen=True, kw_only=True):
    """Draw the key of row draws, and seal it for other sites."""

    of_rows: ClassVar[bool] = False

    study: str
    sites: list[str]


class SamplingTaken(Reply, frozen=True, kw_only=True):
    """That the key of row draws was taken in."""


class TakeSampling(Ask[SamplingTaken], frozen=True, kw_only=True):
    """Take in the key of row draws that another site sealed."""

    of_rows: ClassVar[bool] = False

    study: str
    by: str
    box: bytes


# -- at a site


def _stored_as(study: str) -> str:
    return f"sampling {study}"


def restore_sampling_key(site: Site, study: str) -> None:
    """Use the key that the site has stored for a study; until there is one, a temporary key."""
    kept = site.store.get(_stored_as(study)) or secrets.token_bytes(KEY_BYTES)
    site.sampling_key = np.frombuffer(kept, "<u8").astype(np.uint64)


def _public_key_of(site: Site, other: str) -> bytes:
    """Return the key of another site by this site's roster."""
    seals = {} if site.signer is None else site.signer.roster.seals
    if other not in seals:
        raise RefusedError("the site's roster has no such site to share its draws with")
    return seals[other]


def _purpose(study: str, by: str, to: str) -> bytes:
    return "\0".join(["sampling", study, by, to]).encode()


def _keep(site: Site, study: str, key: bytes) -> None:
    kept = site.store.get(_stored_as(study))
    if kept is not None and kept != key:
        raise RefusedError("the site has a key of row draws for this study already, and it is another")
    site.store.put(_stored_as(study), key)
    restore_sampling_key(site, study)


@answers(OfferSampling)
def offer_sampling(site: Site, request: OfferSampling) -> SamplingBoxes:
    """Draw the key, or read the stored one, and seal it for each other site."""
    if len(request.sites) > _MOST_SITES or len(set(request.sites)) < len(request.sites) or site.name in request.sites:
        raise FormatError("not a list of other sites")
    key = site.store.get(_stored_as(request.study)) or secrets.token_bytes(KEY_BYTES)
    _keep(site, request.study, key)
    own = secret_key(site.store)
    return SamplingBoxes(
        boxes={
            other: seal(pair_key(own, _public_key_of(site, other), _purpose(request.study, site.name, other)), key)
            for other in request.sites
        }
    )


@answers(TakeSampling)
def take_sampling(site: Site, request: TakeSampling) -> SamplingTaken:
    """Open the box and store the key."""
    purpose = _purpose(request.study, request.by, site.name)
    key = unseal(pair_key(secret_key(site.store), _public_key_of(site, request.by), purpose), request.box)
    if len(key) != KEY_BYTES:
        raise FormatError("not a key of row draws")
    _keep(site, request.study, key)
    return SamplingTaken()


# -- at the coordinator


def share_sampling_key(federation: Federation) -> None:
    """Ask the first site to draw the key of row draws, and send it, sealed, to the others."""
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
