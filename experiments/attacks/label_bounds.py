"""A coordinator that chooses bounds for the label, so narrow that one row exceeds what the noise covers."""

import math
from collections.abc import Callable

import msgspec
import numpy as np
import polars as pl
from experiments.attacks.outcome import Outcome
from experiments.privacy.measured_epsilon import audit_counts

import silvan as sv
from silvan.algorithms.private.table_counts import CountTables, SumTargets
from silvan.errors import SilvanError
from silvan.federation.federation import Federation

LOW, HIGH = 0.0, 100.0
CUTS = np.arange(5.0, 100.0, 5.0, dtype=np.float32)
FEATURE = sv.Feature("age", bounds=(0.0, 100.0))
OWN = sv.Schema.of([FEATURE], sv.Label("label", bounds=(LOW, HIGH)))
CHEAP = 1e-6
"""What one question is charged; noise for it has a scale of a hundred million."""


def run(small: bool) -> list[Outcome]:
    """Read parities of cells through the noise, and measure what bounds one float apart reveal about a row."""
    draws, sure = (4_000, 1 - 1e-7) if small else (40_000, 0.999)
    cells = len(CUTS) + 1
    apart = 1.0, math.nextafter(1.0, math.inf)
    narrow = 1.0, 1.0 + 2.0**-39
    return [
        _parities("trusted", f"parities of {cells} cells through trusted sums, at epsilon {CHEAP:g}", "20 of 20"),
        _parities("masked", f"parities of {cells} cells through masked sums, at epsilon {CHEAP:g}", "20 of 20"),
        _measured(apart, "epsilon of 1, bounds one float apart", "1.90", draws, sure),
        _measured(narrow, "epsilon of 1, the narrowest bounds that are accepted", "0.92", draws, sure),
    ]


def _people(n: int = 60, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    return pl.DataFrame({"age": rng.uniform(0, 100, n), "label": rng.uniform(LOW, HIGH, n)})


def _ask(federation: Federation, schema: sv.Schema, cuts: np.ndarray) -> np.ndarray:
    request = CountTables(
        epsilon=CHEAP,
        schema=federation.blob(schema.to_json().encode()),
        columns=np.array([0], np.int32),
        sizes=np.array([len(cuts)]),
        cuts=cuts,
        missing=np.array([0]),
        table_sizes=np.array([1]),
        table_columns=np.array([0]),
    )
    with federation.working_on("a model"):
        counts: np.ndarray = federation.total(request).counts
    return counts


def _parities(sums: str, target: str, before: str) -> Outcome:
    """Use a label so narrow that every row counts as the least 64-bit integer: odd cells stand out."""
    schema = sv.Schema.of([FEATURE], sv.Label("label", bounds=(0.0, 5e-324)))
    frame = _people()
    cells = np.searchsorted(CUTS, frame["age"].to_numpy().astype(np.float32))
    odd = np.bincount(cells, minlength=len(CUTS) + 1) % 2 == 1
    tables = {"alone": frame}
    if sums == "masked":  # the other rows come in pairs
        pairs = _people(20, 1)
        tables |= {"other": pl.concat([pairs, pairs]), "third": pl.concat([pairs, pairs])}
    # its owner gave no schema: the least that a site knows
    policy = sv.Policy(epsilon=1.0, messages=("*", "Describe"))
    federation = sv.federate_rows(tables, sums=sums, policy=policy, n_jobs=1)
    with np.errstate(all="ignore"):
        found, note = (_by_size if sums == "trusted" else _by_refusal)(federation, schema)
    return Outcome(target, before, 0 if found is None else int((found == odd).sum()), note=note)


def _by_size(federation: Federation, schema: sv.Schema) -> tuple[np.ndarray | None, str]:
    try:
        sums = _ask(federation, schema, CUTS)[:, 1]
    except SilvanError as error:
        return None, str(error)
    odd = np.abs(sums.astype(np.float64)) > 2.0**60
    return (odd, "") if odd.any() else (None, "")


def _by_refusal(federation: Federation, schema: sv.Schema) -> tuple[np.ndarray | None, str]:
    """Request two cells at a time: a part too large for a sum is refused, which happens if a cell is odd."""
    below, notes = [], set()
    for cut in CUTS:
        try:
            _ask(federation, schema, CUTS[cut == CUTS])
            below.append(False)
        except SilvanError as error:
            below.append(True)
            notes.add(str(error))
    parity = np.diff(np.array([False, *below, False]).astype(int)) != 0
    told = len(set(below)) > 1  # always refused, or never, reveals nothing
    return (parity, "") if told else (None, "".join(notes))


def _measured(bounds: tuple[float, float], target: str, before: str, draws: int, sure: float) -> Outcome:
    """Measure what the sum of a number reveals about one row at the upper bound."""
    schema = sv.Schema.of([FEATURE], sv.Label("label", bounds=bounds))
    far = pl.DataFrame({"age": [50.0], "label": [bounds[1]]})
    answers: list[np.ndarray] = []
    for frame in (_people(), pl.concat([_people(), far])):
        federation = sv.federate_rows({"alone": frame.with_columns(pl.col("label").clip(*bounds))}, n_jobs=1)
        request = SumTargets(epsilon=1.0, schema=federation.blob(schema.to_json().encode()))
        try:
            answers.append(_without_noise(federation, request))
        except SilvanError as error:
            return Outcome(target, before, 0.0, 1.0, str(error))
    bound = audit_counts(request, schema, answers[1], answers[0], draws, confidence=sure)
    return Outcome(target, before, round(bound.at_least, 3), 1.0)


def _without_noise(federation: Federation, request: SumTargets) -> np.ndarray:
    """Make a request to a site without noise, so that noise can be added many times to its counts."""
    kept: Callable[..., np.ndarray] = SumTargets.add
    try:
        SumTargets.add = lambda self, counts, schema: np.array(counts, np.int64)  # type: ignore[method-assign]
        counts: np.ndarray = federation.total(msgspec.structs.replace(request)).counts
    finally:
        SumTargets.add = kept  # type: ignore[method-assign]
    return counts
