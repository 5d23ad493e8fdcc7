"""The available tables of the Federated Forest paper, with columns distributed to parties."""

from functools import cache

import numpy as np
import polars as pl
from experiments.reproduce.data import load

ID = "row"

NAMES = {
    "ionosphere": "ionosphere",
    "spambase": "spambase",
    "waveform": "waveform_v1",
    "parkinson": "parkinson_speech_subject_mean",
    "kdd cup 99": "kddcup99_10pct",
    "superconduct": "superconductivity_20pct",
    "covertype": "covtype",
}

DOMAINS = {
    "baseline": 20,
    "intensity": 3,
    "formant frequencies": 4,
    "bandwidth": 4,
    "vocal fold": 22,
    "MFCC": 84,
    "wavelet": 182,
    "TQWT": 432,
}
"""The eight domains of the Parkinson speech columns, in their order, and how many columns each has."""


@cache
def table(name: str, rows: int) -> pl.DataFrame:
    """Return a table with numbered rows, at most a given number of them if not 0; ``label`` is the label."""
    frame = load(NAMES[name])
    if name == "kdd cup 99":
        # the table's label is attack or not; the kind of attack is in a separate file, row by row
        frame = frame.with_columns(label=load("kddcup99_10pct_attack_type")["label"])
    if rows and len(frame) > rows:
        frame = _sample(frame, rows)
    return frame.with_columns(pl.Series(ID, np.arange(len(frame))))


def _sample(frame: pl.DataFrame, rows: int) -> pl.DataFrame:
    """Sample rows, up to fifty of every class and the others at random, so that no class is lost."""
    order = np.random.default_rng(0).permutation(len(frame))
    seen: dict[object, int] = {}
    first, rest = [], []
    for place, label in zip(order.tolist(), frame["label"][order].to_list(), strict=True):
        seen[label] = seen.get(label, 0) + 1
        (first if seen[label] <= 50 else rest).append(place)
    return frame[sorted(first + rest[: rows - len(first)])]


def dealt(frame: pl.DataFrame, parties: int, seed: int) -> dict[str, pl.DataFrame]:
    """Distribute the columns at random, equally many to each party; the first party has the label."""
    names = [name for name in frame.columns if name not in (ID, "label")]
    order = np.random.default_rng(seed).permutation(len(names))
    tables = {}
    for k in range(parties):
        own = [names[i] for i in sorted(order[k::parties])]
        tables[f"party {k + 1}"] = frame.select(ID, *own, *(["label"] if k == 0 else []))
    return tables


def domains(frame: pl.DataFrame, parties: int) -> dict[str, pl.DataFrame]:
    """Assign each of the first domains of the Parkinson columns to a separate party."""
    names, start, tables = [n for n in frame.columns if n not in (ID, "label")], 0, {}
    for k, (domain, width) in enumerate(list(DOMAINS.items())[:parties]):
        own = names[start : start + width]
        tables[domain] = frame.select(ID, *own, *(["label"] if k == 0 else []))
        start += width
    return tables
