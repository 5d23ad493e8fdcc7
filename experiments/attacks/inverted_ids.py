"""The coordinator identifies rows by hashing every possible id.

Ids are numbers of six digits. The coordinator has the digests that parties send, knows the study and its random_state,
and tries every id under every key that it can derive from them.
"""

import hmac

import numpy as np
import polars as pl
from experiments.attacks.names_in_clear import ID, Recording, federate
from experiments.attacks.outcome import Outcome

from silvan.federation import wire
from silvan.federation.message import Envelope
from silvan.privacy.identity.identity import Introduction, digest_ids


def _tables(ids: np.ndarray) -> dict[str, pl.DataFrame]:
    rng = np.random.default_rng(1)
    bank = pl.DataFrame({ID: ids, "balance": rng.normal(size=len(ids)), "label": rng.integers(0, 2, len(ids))})
    return {"bank": bank, "shop": pl.DataFrame({ID: ids[::-1], "visits": rng.normal(size=len(ids))})}


def _digests(transport: Recording) -> set[bytes]:
    """Return the row digests that the coordinator received."""
    envelopes = [wire.decode(data, Envelope) for data in transport.seen]
    replies = [wire.decode(e.body, Introduction) for e in envelopes if e.kind == Introduction.__name__]
    return {row.tobytes() for reply in replies for row in reply.digests}


def run(small: bool) -> list[Outcome]:
    """Hash every id under the keys that follow from what the coordinator knows; count the matches."""
    space, n = (10_000, 200) if small else (1_000_000, 5_000)
    ids = np.random.default_rng(0).choice(space, n, replace=False)
    fed = federate(_tables(ids), label="label", match="keyed")
    shown = _digests(fed.transport)  # type: ignore[arg-type]
    found: set[int] = set()
    for word in ("silvan 0", fed.study):
        for purpose in ("parties", "test part", "rows of trees"):
            key = hmac.digest(word.encode(), purpose.encode(), "sha256")
            hashed = digest_ids(key, "whole numbers", map(str, range(space)))
            found |= {number for number, row in enumerate(hashed) if row.tobytes() in shown}
    return [Outcome(f"ids among {space:,}, of {n:,}", "all, 10^6 tried in 3 s", len(found & set(ids.tolist())))]
