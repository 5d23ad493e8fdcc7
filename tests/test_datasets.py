"""The tables in the package."""

from pathlib import Path

import polars as pl

from silvan import datasets


def test_income_is_packaged():
    frame = datasets.income()
    assert frame.shape == (2400, 11)
    assert (frame.columns[0], frame.columns[-1]) == ("employer", "above_50k")
    by_employer = frame.group_by("employer", maintain_order=True).agg(pl.len(), pl.col("above_50k").sum())
    assert by_employer.rows() == [
        ("Private", 400, 83),
        ("Self-employed", 400, 105),
        ("Incorporated", 400, 219),
        ("Local-gov", 400, 122),
        ("State-gov", 400, 98),
        ("Federal-gov", 400, 159),
    ]
    assert not {"race", "native-country"} & set(frame.columns)
    note = (Path(datasets.__file__).parent / "data" / "tables" / "income.txt").read_text()
    for word in ("CC BY 4.0", "10.24432/C5XW20", "Becker", "Kohavi", "Changes"):
        assert word in note


def test_heart_disease_is_packaged():
    frame = datasets.heart_disease()
    assert frame.shape == (920, 15)
    assert frame.columns[0] == "hospital"
    assert frame.columns[-1] == "disease"
    by_hospital = frame.group_by("hospital", maintain_order=True).agg(pl.len(), pl.col("disease").sum())
    assert by_hospital.rows() == [
        ("Cleveland", 303, 139),
        ("Hungarian", 294, 106),
        ("Switzerland", 123, 115),
        ("VA", 200, 149),
    ]
    assert sum(frame.null_count().row(0)) == 1759
    assert all(frame[name].dtype.is_numeric() for name in frame.columns[1:])
    note = (Path(datasets.__file__).parent / "data" / "tables" / "heart_disease.txt").read_text()
    for word in ("CC BY 4.0", "10.24432/C52P4X", "Janosi", "Steinbrunn", "Pfisterer", "Detrano", "Changes"):
        assert word in note
