"""A key that sites, or parties, share and the coordinator does not have.

The first site creates the key and seals it for each of the others, only with the keys on its roster; the coordinator
forwards the boxes and can open none. A site stores the key, so that a resumed study continues with it, and accepts no
other in the same study.

Sites with rows use it for sampling, so the coordinator cannot know which rows are in which tree. Parties with columns
use it to identify rows (``identity.py``). The key that proves the sites' parts of sums is derived from it
(``Site.proof_key``), and revealed when the study is closed.
"""

import secrets
from typing import ClassVar

import numpy as np

from silvan.errors import FederationError, FormatError, RefusedError
from silvan.federation.federation import Federation
from silvan.federation.message import Ask, Derived, Fixed, Reply
from silvan.federation.party import KEY_BYTES, Party
from silvan.federation.site import Site, answers
from silvan.federation.store import shared_key_name
from silvan.privacy.identity.seal import pair_key, seal, secret_key, unseal

# -- messages


class SealedKeys(Reply, frozen=True, kw_only=True):
    """The shared key, sealed for each other site; the coordinator cannot open it."""

    boxes: dict[str, bytes]


class DealKey(Ask[SealedKeys], frozen=True, kw_only=True):
    """Create a key for all sites, and seal it so that only they can read it."""

    of_rows: ClassVar[bool] = False

    study: Fixed[str]
    sites: Derived[list[str]]  # the others


class KeyTaken(Reply, frozen=True, kw_only=True):
    """Confirmation that the site has the shared key."""


class TakeKey(Ask[KeyTaken], frozen=True, kw_only=True):
    """Store the key that another site sealed."""

    of_rows: ClassVar[bool] = False

    study: Fixed[str]
    by: Derived[str]
    box: Derived[bytes]


# -- at a site


def restore_sampling_key(site: Site, study: str) -> None:
    """Sample rows by the key that the site has stored for a study, unless sampling is ``published``.

    Until there is one, a temporary key is used.
    """
    if not site.published:
        kept = site.store.get(shared_key_name(study)) or secrets.token_bytes(KEY_BYTES)
        site.sampling_key = np.frombuffer(kept[:16], "<u8").astype(np.uint64)


@answers(DealKey)
def deal_key(site: Site, request: DealKey) -> SealedKeys:
    """Create the key, or read the stored one, and seal it for each other site."""
    if len(set(request.sites)) < len(request.sites):
        raise FormatError("not a list of other sites")
    keys = {other: key_of_pair(site, other, request.study) for other in request.sites}
    shared = site.store.get(site.key_name) or secrets.token_bytes(KEY_BYTES)
    _keep(site, request.study, shared)
    return SealedKeys(boxes={other: seal(key, shared) for other, key in keys.items()})


@answers(TakeKey)
def take_key(site: Site, request: TakeKey) -> KeyTaken:
    """Open the box and store the key."""
    key = unseal(key_of_pair(site, request.by, request.study), request.box)
    if len(key) != KEY_BYTES:
        raise FormatError("the key has another length")
    _keep(site, request.study, key)
    return KeyTaken()


def key_of_pair(site: Site, other: str, study: str) -> bytes:
    """Return the key that this site has with one on its roster, to seal the shared key of a study."""
    seals = site.seals if isinstance(site, Party) else site.signer.roster.seals if site.signer is not None else {}
    if other not in seals or other == site.name:
        raise RefusedError(f"the site shares its key with the others on its roster, and {other!r} is none of them")
    return pair_key(secret_key(site.store), seals[other], f"shared key of {study}".encode())


def _keep(site: Site, study: str, key: bytes) -> None:
    if isinstance(site, Party):
        site.check_study(study)
    elif study != site.study:
        raise RefusedError("the site is asked about a key of another study")
    if not site.store.settles(site.key_name, key):
        raise RefusedError("the site has a shared key for this study already, and it is another")
    if not isinstance(site, Party):
        restore_sampling_key(site, study)


# -- at the coordinator


def share_key(federation: Federation) -> None:
    """Let the first site create the shared key and send it, sealed, to the others: two rounds, counted separately.

    Nothing is asked a second time. A site that is lost meanwhile is left out, as it would be of what follows.
    """
    if federation.key_shared == federation.study:
        return

    def check(site: str, reply: SealedKeys) -> None:
        if set(reply.boxes) != set(others):
            raise FormatError("its boxes are not for the other sites")

    with federation.counted_apart():
        boxes: dict[str, bytes] | None = None
        while boxes is None:
            first, *others = federation.active
            request = DealKey(study=federation.study, sites=others)
            try:
                boxes = federation.ask(request, to=[first], check=check)[first].boxes
            except FederationError:
                if first not in federation.lost or len(federation.active) < (federation.quorum or 1):
                    raise
        taken = {site: TakeKey(study=federation.study, by=first, box=boxes[site]) for site in others}
        if taken:
            federation.ask(taken)
    federation.key_shared = federation.study
