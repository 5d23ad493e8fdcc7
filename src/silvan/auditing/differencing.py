"""Differencing: a sum over all sites minus the same sum over all but one reveals that site's part.

The attacker is the coordinator and sends two harmless requests, each for a sum that reveals nothing about a single
site. Sites that remember what they summed, and with whom, refuse the second (``privacy/request_sequence.py``). The
metric is the share of a site's non-zero counts that are recovered exactly; chance is 0.
"""

import numpy as np

from silvan.algorithms.shared_bins import CountGrid, GridCounts
from silvan.auditing.findings import ATTACKS, Finding
from silvan.auditing.rehearsal import rehearse
from silvan.errors import FederationError, RefusedError
from silvan.federation.federation import Federation
from silvan.federation.site import Outbox


def difference_sums(federation: Federation) -> Finding:
    """Request two sums that differ by one site; for comparison, also from sites that remember nothing."""
    base = ATTACKS["differencing"]
    if len(federation.active) < 2:
        return base.not_run("needs two sites or more")
    control, n, _ = _recover_counts(_careless(federation))
    share, _, why = _recover_counts(rehearse(federation))
    undefended = base.with_result((control, control, control), n)
    return base.with_result((share, share, share), n, why).with_undefended(undefended)


def _careless(federation: Federation) -> Federation:
    """Copy a federation, with sites that answer everything and remember nothing."""
    again = rehearse(federation, "trusted")
    for name in again.active:
        again.site(name).outbox = Outbox()
    return again


def _counts(federation: Federation, over: list[str]) -> np.ndarray:
    request = CountGrid(schema=federation.blob(federation.schema.to_json().encode()))
    counts: GridCounts = federation.total(request, over=over)
    return np.concatenate([counts.cells.reshape(-1), counts.label.reshape(-1)]).astype(np.int64)


def _recover_counts(federation: Federation) -> tuple[float, int, str]:
    """Return the share of the last site's counts that are recovered, their number, and the reason if none are."""
    *others, victim = federation.active
    try:
        recovered = _counts(federation, [*others, victim]) - _counts(federation, others)
    except RefusedError as error:
        return 0.0, 0, f"the second sum is refused: {error.reason}"
    except FederationError as error:  # such as masked sums over two of three sites
        return 0.0, 0, f"the second sum cannot be made: {error}"
    truth = _counts(_careless(federation), [victim])
    there = truth > 0
    return float((recovered[there] == truth[there]).mean()), int(there.sum()), ""
