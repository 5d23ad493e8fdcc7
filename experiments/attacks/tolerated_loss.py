"""A coordinator with too little noise in a sum: no spare share was requested, or a site is lost, and one is curious.

A curious site knows its own share of the noise, and subtracts it from the sum.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
from experiments.attacks.outcome import Outcome
from experiments.privacy.measured_epsilon import audit_counts

import silvan as sv
from silvan.algorithms.private.table_counts import CountPeople
from silvan.errors import SilvanError
from silvan.federation import wire
from silvan.federation.message import Envelope
from silvan.privacy.aggregation.masked_site import Turn

SITES = 4
SCHEMA = sv.Schema.of([sv.Feature("age", bounds=(0, 100))], sv.Label("label", (0, 1)))


def run(small: bool) -> list[Outcome]:
    """Measure what the sum reveals about a row, for given numbers of shares, lost and curious sites."""
    draws, sure = (4_000, 1 - 1e-7) if small else (40_000, 0.999)
    cases = [
        ("no spare share requested, one site curious", 4, 0, 1, "1.18"),
        ("one spare share, one site lost and one curious", 3, 1, 1, "1.28"),
        ("two spare shares, one site lost and one curious", 2, 1, 1, "0.95"),
        ("one spare share, one site curious", 3, 0, 1, "0.93"),
    ]
    return [_measured(f"epsilon of 1, {what}", *numbers, draws, sure) for what, *numbers in cases]


def _measured(target: str, sharers: int, lost: int, curious: int, before: str, draws: int, sure: float) -> Outcome:
    request = CountPeople(epsilon=1.0, sharers=sharers)
    try:
        _opened(request, lost)
    except SilvanError as error:
        return Outcome(target, before, 0.0, 1.0, str(error).rsplit(";", 1)[-1].strip())
    exact = np.array([100])
    bound = audit_counts(request, SCHEMA, exact + 1, exact, draws, SITES - lost - curious, sure)
    return Outcome(target, before, round(bound.at_least, 3), 1.0)


def _opened(request: CountPeople, lost: int) -> None:
    """Make the sites open a masked sum without some of them, whose masked parts never arrive."""
    rng = np.random.default_rng(0)
    tables = {f"site {i}": pl.DataFrame({"age": rng.uniform(0, 100, 25), "label": [0, 1] * 12 + [0]}) for i in range(4)}
    federation = sv.federate_rows(
        tables, schema=SCHEMA, sums="masked", quorum=3, policy=sv.Policy(epsilon=2.0), n_jobs=1
    )
    deliver = federation.transport.deliver
    gone = [f"site {SITES - 1 - i}" for i in range(lost)]

    def some(messages: Any, verb: Any, timeout: Any) -> Iterator[Any]:
        for site, answer in deliver(messages, verb, timeout):
            step = wire.decode(messages[site], Envelope).step
            if site not in gone or step is None or wire.decode(step.body, Turn).what == "key":
                yield site, answer

    federation.transport.deliver = some  # type: ignore[method-assign]
    federation.total(request)
