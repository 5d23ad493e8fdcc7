"""Differencing across tasks: a sum over five sites, then nearly the same over four of them in another task.

The coordinator has the categories of all sites counted, as every study does. Then it begins a new model, claims that
one site is lost, and has them counted again, in a slightly different form, so that it is another request: a column is
named twice, or one is left out. The difference of the two sums is the fifth site's part.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl
from experiments.attacks.outcome import Outcome

import silvan as sv
from silvan.errors import RefusedError
from silvan.federation.describe import CountCategories
from silvan.federation.federation import Federation

COLUMNS = ("ward", "sex")


def run(small: bool) -> list[Outcome]:
    """Read the fifth site's counts of categories."""
    forms = {"a column named twice": ("ward", "sex", "ward"), "a column left out": ("ward",)}
    return [_outcome(what, names, sums) for what, names in forms.items() for sums in ("trusted", "masked")]


def _outcome(what: str, names: Sequence[str], sums: str) -> Outcome:
    tables = _tables()
    federation = sv.federate_rows(tables, sums=sums, policy=sv.Policy(losses=0), n_jobs=1)  # type: ignore[arg-type]
    *others, victim = federation.sites
    truth = _counts(sv.federate_rows({victim: tables[victim]}, n_jobs=1), COLUMNS, [victim])[0]
    there, note = truth > 0, ""
    try:
        whole = _counts(federation, COLUMNS, federation.sites)[0]
        with federation.working_on("another model"):
            without = _counts(federation, names, others)[0]
        read = int(((whole - without)[there] == truth[there]).sum())
    except RefusedError as error:
        read, note = 0, str(error).rpartition(": ")[2]
    return Outcome(f"{there.sum()} counts of one site, {what}, {sums} sums", f"{there.sum()}", read, note=note)


def _counts(federation: Federation, names: Sequence[str], over: Sequence[str]) -> np.ndarray:
    counts: np.ndarray = federation.total(CountCategories(names=list(names)), over=over).counts
    return counts


def _tables() -> dict[str, pl.DataFrame]:
    rng = np.random.default_rng(0)
    return {
        f"site {i}": pl.DataFrame(
            {
                "ward": rng.choice(list("abcdef"), 60),
                "sex": rng.choice(["f", "m"], 60),
                "age": rng.normal(50, 10, 60),
                "label": rng.choice(["no", "yes"], 60),
            }
        )
        for i in range(5)
    }
