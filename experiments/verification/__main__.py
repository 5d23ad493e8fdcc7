"""``python -m experiments.verification --n 1000``: random deviations of small studies, and how many are detected.

A deviation is detected if a site refuses it, if the coordinator's own program stops at it, or if verification names
it. All others are printed.
"""

import argparse
import logging
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from experiments.verification.deviations import AFTERWARDS, DURING
from experiments.verification.studies import (
    HISTOGRAM,
    LINEAR,
    MERGED,
    NOISY,
    SCHEMA,
    VERTICAL,
    carry_out,
    make_federation,
    study_of,
)

from silvan.errors import SilvanError
from silvan.study.study import Study
from silvan.study.verify import verify_study

STUDIES = {
    "histograms, trusted sums": lambda: study_of(HISTOGRAM),
    "histograms, ring sums": lambda: study_of(HISTOGRAM, 'sums = "ring"'),
    "histograms, masked sums": lambda: study_of(HISTOGRAM, 'sums = "masked"'),
    "histograms with noise": lambda: study_of(NOISY, sections=f"[evaluation]\nepsilon = 1.0\n{SCHEMA}"),
    "another positive class": lambda: study_of(HISTOGRAM + '\nthreshold = "youden"', 'positive = "no"'),
    "merged trees": lambda: study_of(MERGED),
    "linear, by columns": lambda: study_of(LINEAR, 'sums = "masked"'),
    "trees, by columns": lambda: study_of(VERTICAL),
}


class Tried(NamedTuple):
    """One deviation: the study, its kind, its effect, and who detected it, if anybody."""

    study: str
    kind: str
    what: str
    found: str


def try_one(name: str, study: Study, kind: str, rng: np.random.Generator) -> Tried | None:
    """Run a study with a deviation, and verify it; None if there was nothing to change."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        federation = make_federation(study, path, seed=int(rng.integers(1000)))
        told = DURING[kind](federation, rng) if kind in DURING else None
        try:
            carry_out(study, path, federation)
        except SilvanError as error:
            what = told() if told is not None else None
            return None if what is None else Tried(name, kind, what, f"refused: {error}")
        except (ArithmeticError, LookupError, TypeError, ValueError, AssertionError) as error:
            what = told() if told is not None else None
            return None if what is None else Tried(name, kind, what, f"the coordinator's program stopped: {error!r}")
        what = told() if told is not None else AFTERWARDS[kind](path, rng)
        if what is None:
            return None
        try:
            return Tried(name, kind, what, "; ".join(verify_study(path).deviations))
        except SilvanError as error:  # a record that no study has, such as two sites with one name
            return Tried(name, kind, what, f"the record cannot be read: {error}")


def main() -> None:
    """Try deviations at random."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    rng, kinds, counts, n = np.random.default_rng(given.seed), [*DURING, *AFTERWARDS], Counter[tuple[str, str]](), 0
    studies = {name: make() for name, make in STUDIES.items()}
    while n < given.n:
        kind, tried = str(rng.choice(kinds)), None
        while tried is None:  # not every study has what a deviation changes
            name = str(rng.choice(list(studies)))
            tried = try_one(name, studies[name], kind, rng)
        n += 1
        how = (
            "missed" if not tried.found else "refused" if tried.found.startswith(("refused", "the coord")) else "named"
        )
        counts[kind, how] += 1
        if how == "missed":
            print(f"MISSED: {tried.study}: {tried.kind}: {tried.what}", flush=True)
        if n % 50 == 0:
            print(
                n,
                {how: sum(c for (_, h), c in counts.items() if h == how) for how in ("named", "refused", "missed")},
                flush=True,
            )
    for kind in kinds:
        print(f"{kind:24} " + "  ".join(f"{how} {counts[kind, how]:4}" for how in ("named", "refused", "missed")))


if __name__ == "__main__":
    main()
