"""Evidence: requests that deviate from the study's text, kept at the site as their coordinator signed them.

Head, signature and body of a message prove the coordinator's request to anybody with its public key. A site keeps only
a few small ones, so that a coordinator cannot fill its disk.
"""

from pathlib import Path

from silvan.federation import wire
from silvan.federation.signed import SignedMessage
from silvan.federation.store import digest
from silvan.util.files import write_whole

EVIDENCE = "evidence"
"""The folder of evidence in a site's folder."""

_MOST, _LARGEST = 100, 1 << 22
"""Maximum number of stored messages, and of bytes per message."""


def keep_evidence(folder: Path, message: SignedMessage) -> str:
    """Store a message in a site's folder; return the note for the ledger, empty if it was not stored."""
    data, kept = wire.encode(message), folder / EVIDENCE
    path = kept / f"{digest(message.body)[:16]}.msg"
    if len(data) > _LARGEST:
        return "; too large to be kept as evidence"
    if not path.exists():
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        if sum(1 for _ in kept.iterdir()) >= _MOST:
            return f"; there are {_MOST} messages in {EVIDENCE} already, so it is not kept"
        write_whole(path, data)
        path.chmod(0o600)
    return f"; the signed request is kept as evidence in {EVIDENCE}/{path.name}"
