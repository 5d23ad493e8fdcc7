"""Signatures of sites in tests that talk to a site without a federation, or for a malicious site."""

import msgspec

from silvan.algorithms.horizontal.merged_forest import Trees
from silvan.auditing.rehearsal import sign_as
from silvan.federation.federation import Federation
from silvan.federation.message import Blob, Envelope, Owner
from silvan.federation.signed import Signer
from silvan.federation.store import digest


def work_of(federation: Federation, site: str, data: bytes) -> Blob:
    """Trees that a site of a federation signs as its own in the current task, whoever made them."""
    return federation.work(site, sign_as(federation, site, Trees(forest=data, rows=1)))


def with_owner(envelope: Envelope, signer: Signer, *blobs: bytes) -> Envelope:
    """A message whose blobs a site has signed."""
    owners = {}
    for blob in blobs:
        signature = signer.sign_work(envelope.study, envelope.task, digest(blob))
        owners[digest(blob)] = [Owner(signer.name, envelope.task, signature)]
    return msgspec.structs.replace(envelope, owners={**envelope.owners, **owners})
