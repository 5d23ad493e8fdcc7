"""Differencing: one statistic over all sites, and over all but one; what lies between the two is that site's part.

The attacker has the coordinator's role and asks two questions that could be honest, each a sum that shows nothing of
one site. Sites that remember what they summed, and with whom, refuse the second (``privacy/gate/conduct.py``). Success
is
the share of a site's counts that are read off exactly, of those that are not zero; chance is 0.
"""

import numpy as np

from silvan.algorithms.shared.shared_bins import CountGrid, GridCounts
from silvan.auditing.findings import ATTACKS, Finding
from silvan.auditing.rehearsal import rehearse
from silvan.errors import SilvanError
from silvan.federation.federation import Federation
from silvan.federation.site import Outbox


def differenced(federation: Federation) -> Finding:
    """Ask twice; beside it, of sites that remember nothing."""
    replies = ATTACKS["differencing"]
    if len(federation.active) < 2:
        return replies.silent("needs two sites or more")
    control, n, _ = _read_off(_careless(federation))
    found, _, why = _read_off(rehearse(federation))
    finding = replies.with_result((found, found, found), n, why)
    return finding.against(replies.with_result((control, control, control), n))


def _careless(federation: Federation) -> Federation:
    """Make a federation again whose sites answer all and remember nothing."""
    again = rehearse(federation, "trusted")
    for name in again.active:
        again.site(name).outbox = Outbox()
    return again


def _counts(federation: Federation, over: list[str]) -> np.ndarray:
    request = CountGrid(schema=federation.blob(federation.schema.to_json().encode()))
    replies: GridCounts = federation.total(request, over=over)
    return np.concatenate([replies.cells.reshape(-1), replies.label.reshape(-1)]).astype(np.int64)


def _read_off(federation: Federation) -> tuple[float, int, str]:
    """Give the share of the last site's counts that are found, of how many, and why not more."""
    *others, victim = federation.active
    try:
        found = _counts(federation, [*others, victim]) - _counts(federation, others)
    except SilvanError as error:
        return 0.0, 0, f"the second sum is refused: {str(error).rpartition(': ')[2]}"
    truth = _counts(_careless(federation), [victim])
    there = truth > 0
    return float((found[there] == truth[there]).mean()), int(there.sum()), ""
