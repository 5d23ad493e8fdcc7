"""A key that sites, or parties, share and the coordinator does not have.

The first site creates the key and seals it for each of the others, only with the keys on its roster; the coordinator
forwards the boxes and can open none. A site stores the key, so that a resumed study continues with it, and accepts no
other in the same study.

Sites with rows use it for sampling, so the coordinator cannot know which rows are in which tree. Parties with columns
use it to identify rows (``identity.py``). A second key proves the sites' parts of sums (``federation/proven_sums.py``);
it is revealed when the study is closed.
"""

import secrets
from typing import ClassVar, Literal

import numpy as np

from silvan.errors import FederationError, FormatError, RefusedError
from silvan.federation.federation import Federation
from silvan.federation.message import Ask, Derived, Fixed, Reply
from silvan.federation.party import KEY_BYTES, Party
from silvan.federation.site import Site, answers
from silvan.federation.store import proof_key_name
from silvan.privacy.identity.seal import pair_key, seal, secret_key, unseal

Purpose = Literal["rows", "sums"]
"""What a key is for."""

# -- messages


class SealedKeys(Reply, frozen=True, kw_only=True):
    """The shared key, sealed for each other site; the coordinator cannot open it."""

    boxes: dict[str, bytes]


class DealKey(Ask[SealedKeys], frozen=True, kw_only=True):
    """Create a key for all sites, and seal it so that only they can read it."""

    of_rows: ClassVar[bool] = False

    study: Fixed[str]
    sites: Derived[list[str]]  # the others
    purpose: Derived[Purpose] = "rows"


class KeyTaken(Reply, frozen=True, kw_only=True):
    """Confirmation that the site has the shared key."""


class TakeKey(Ask[KeyTaken], frozen=True, kw_only=True):
    """Store the key that another site sealed."""

    of_rows: ClassVar[bool] = False

    study: Fixed[str]
    by: Derived[str]
    box: Derived[bytes]
    purpose: Derived[Purpose] = "rows"


# -- at a site


def restore_sampling_key(site: Site, study: str) -> None:
    """Sample rows by the key that the site has stored for a study, unless sampling is ``published``.

    Until there is one, a temporary key is used.
    """
    if not site.published:
        kept = site.store.get(f"sampling {study}") or secrets.token_bytes(KEY_BYTES)
        site.sampling_key = np.frombuffer(kept[:16], "<u8").astype(np.uint64)


@answers(DealKey)
def deal_key(site: Site, request: DealKey) -> SealedKeys:
    """Create the key, or read the stored one, and seal it for each other site."""
    if len(set(request.sites)) < len(request.sites):
        raise FormatError("not a list of other sites")
    keys = {other: key_of_pair(site, other, request.study, request.purpose) for other in request.sites}
    shared = site.store.get(_stored_as(site, request.study, request.purpose)) or secrets.token_bytes(KEY_BYTES)
    _keep(site, request.study, request.purpose, shared)
    return SealedKeys(boxes={other: seal(key, shared) for other, key in keys.items()})


@answers(TakeKey)
def take_key(site: Site, request: TakeKey) -> KeyTaken:
    """Open the box and store the key."""
    key = unseal(key_of_pair(site, request.by, request.study, request.purpose), request.box)
    if len(key) != KEY_BYTES:
        raise FormatError("the key has another length")
    _keep(site, request.study, request.purpose, key)
    return KeyTaken()


def key_of_pair(site: Site, other: str, study: str, purpose: str) -> bytes:
    """Return the key that this site shares with one on its roster, for one purpose in a study."""
    seals = site.seals if isinstance(site, Party) else site.signer.roster.seals if site.signer is not None else {}
    if other not in seals or other == site.name:
        raise RefusedError(f"the site shares its key with the others on its roster, and {other!r} is none of them")
    return pair_key(secret_key(site.store), seals[other], f"shared key of {study}, for {purpose}".encode())


def _stored_as(site: Site, study: str, purpose: Purpose) -> str:
    if isinstance(site, Party):
        site.check_study(study)
    elif study != site.study:
        raise RefusedError("the site is asked about a key of another study")
    if purpose == "sums":
        return proof_key_name(study)
    return site.key_name if isinstance(site, Party) else f"sampling {study}"


def _keep(site: Site, study: str, purpose: Purpose, key: bytes) -> None:
    name = _stored_as(site, study, purpose)
    if site.store.get(name) not in (None, key):
        raise RefusedError("the site has a shared key for this study already, and it is another")
    site.store.put(name, key)
    if purpose == "rows" and not isinstance(site, Party):
        restore_sampling_key(site, study)


# -- at the coordinator


def share_proof_key(federation: Federation) -> None:
    """Share the key for proofs of sums; a site that is lost meanwhile is left out, as it would be of the sums."""
    with federation.aside():
        boxes: dict[str, bytes] | None = None
        while boxes is None:
            first, *others = federation.active
            request = DealKey(study=federation.study, sites=others, purpose="sums")
            try:
                boxes = federation.ask(request, to=[first])[first].boxes
            except FederationError:
                if first not in federation.lost or len(federation.active) < (federation.quorum or 1):
                    raise
        taken = {
            site: TakeKey(study=federation.study, by=first, box=boxes[site], purpose="sums")
            for site in others
            if site in boxes
        }
        if taken:
            federation.ask(taken)


def share_key(federation: Federation) -> None:
    """Let the first site create the shared key and send it, sealed, to the others: two rounds, counted separately.

    Nothing is asked a second time.
    """
    if federation.key_shared == federation.study:
        return
    first, *others = federation.active

    def check(site: str, reply: SealedKeys) -> None:
        if set(reply.boxes) != set(others):
            raise FormatError("its boxes are not for the other sites")

    with federation.counted_apart():
        request = DealKey(study=federation.study, sites=others)
        boxes: dict[str, bytes] = federation.ask(request, to=[first], check=check)[first].boxes
        if others:
            taken = {site: TakeKey(study=federation.study, by=first, box=boxes[site]) for site in others}
            if set(federation.ask(taken)) != set(others):
                raise FederationError("a site was lost before it had the shared key; run the study again")
    federation.key_shared = federation.study
