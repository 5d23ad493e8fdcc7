"""A party that infers the number, position and direction of the others' columns from its requests.

It needs the number of its own first column, which decides between equal gains. With that, the seeds of nodes and the
list of its sampled columns, it can try all total numbers of columns: only one explains the samples. So the total is not
secret from parties (docs/vertical.md); what the columns are and whose they are is.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import polars as pl
from experiments.attacks.outcome import Outcome

import silvan as sv
from silvan.algorithms.vertical import encrypted_labels
from silvan.algorithms.vertical.encoded import FindValues
from silvan.auditing.rehearsal import Wiretap, tap_of
from silvan.federation import wire
from silvan.federation.handlers import HANDLERS
from silvan.federation.message import Request
from silvan.tree.grow import Frontier, Plan
from silvan.tree.level import sample_level

_WIDTHS = {"bank": 9, "shop": 3, "clinic": 33}
_DRAWN = 29
_SECRETS = {
    "columns in all": sum(_WIDTHS.values()),
    "columns drawn at a node": _DRAWN,
    "the first column of another party": _WIDTHS["bank"] + _WIDTHS["shop"],
}


def run(small: bool) -> list[Outcome]:
    """Grow forests both ways and search all requests to one party."""
    n, outcomes = 60 if small else 300, []
    for labels in ("encoded", "encrypted"):
        read = found_in(asked_of_shop(n, labels, 2))
        outcomes.append(Outcome(f"3 numbers about other columns, {labels}", "2 of 3", float(read)))
    asked = asked_of_shop(n, "encoded", 20)
    possible = _possible([request for request in asked if isinstance(request, FindValues)])
    found = float(possible == [(_SECRETS["columns in all"], _DRAWN)])
    return [*outcomes, Outcome("total columns, inferred from samples and seeds", "1", found, 1.0)]


def found_in(requests: list[Request]) -> int:
    """Count what requests state directly: numbers of columns, and directions of other parties' columns."""
    told = {number for request in requests for number in _numbers(request)}
    signs = {len(way) for request in requests for way in _lists_of_signs(request)}
    return sum(secret in told for secret in _SECRETS.values()) + len(signs - {_WIDTHS["shop"]})


def asked_of_shop(n: int, labels: str, n_trees: int) -> list[Request]:
    """Return all requests to one party, which has neither the first columns nor the label."""
    rng = np.random.default_rng(1)
    tables = {
        party: pl.DataFrame({"person": np.arange(n), **{f"{party} {i}": rng.normal(size=n) for i in range(width)}})
        for party, width in _WIDTHS.items()
    }
    tables["bank"] = tables["bank"].with_columns(event=pl.Series(rng.choice(["no", "yes"], n)))
    ways = [0] * sum(_WIDTHS.values())
    ways[_WIDTHS["bank"]] = 1
    with mock.patch.object(encrypted_labels, "TESTING", True):
        federation = sv.federate_columns(tables, id="person", label="event", match="keyed", n_jobs=1, transport=Wiretap)
        forest = sv.VerticalForest(
            n_estimators=n_trees, max_depth=2, max_features=_DRAWN, labels=labels, key_bits=256, monotonic_cst=ways
        )
        forest.fit(federation)
    received = [envelope for party, envelope in tap_of(federation).received if party == "shop"]
    return [wire.decode(envelope.body, HANDLERS[envelope.kind][0]) for envelope in received if envelope.task]


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """List the fields of a request, and of everything in it."""
    if isinstance(value, msgspec.Struct):
        found = [(name, getattr(value, name)) for name in value.__struct_fields__]
    elif dataclasses.is_dataclass(value):
        found = list(vars(value).items())
    else:
        found = []
    for name, one in found:
        yield name, one
        yield from _fields(one)


def _numbers(request: Request) -> Iterator[int]:
    """List the numbers that a request states directly."""
    for _, value in _fields(request):
        if isinstance(value, int) and not isinstance(value, bool):
            yield value


def _lists_of_signs(request: Request) -> Iterator[list[int]]:
    """List what a request states about the direction of predictions."""
    for name, value in _fields(request):
        if name == "monotonic_cst" and value:
            yield value


def _possible(requests: list[FindValues]) -> list[tuple[int, int]]:
    """Return the pairs of total and sampled columns that explain a party's samples."""
    first, own = _WIDTHS["bank"], _WIDTHS["shop"]
    possible = [(n, drawn) for n in range(first + own, 60) for drawn in range(1, n + 1)]
    for request in requests:
        possible = [one for one in possible if _explains(request, *one, first, own)]
    return possible


def _explains(request: FindValues, n: int, drawn: int, first: int, own: int) -> bool:
    k, zeros = len(request.seeds), np.zeros(len(request.seeds), np.int32)
    frontier = Frontier(request.nodes, zeros, zeros, request.seeds, zeros, np.zeros(k, np.bool_))
    features = sample_level(frontier, Plan(n, drawn))
    for listed, mine in zip(features, request.features, strict=True):
        if set(listed[(listed >= first) & (listed < first + own)] - first) != set(mine[mine >= 0]):
            return False
    return True
