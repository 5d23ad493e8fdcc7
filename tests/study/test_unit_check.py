"""Asks about columns in other units at some sites, but not about columns of other populations."""

import numpy as np
import polars as pl
import pytest
from experiments import tables_by_name
from sklearn.datasets import load_breast_cancer

import silvan as sv
from silvan.data.column_profile import profile_columns
from silvan.federation.site_table import SiteSettings, SiteTable
from silvan.study.demo_studies import split_unevenly
from silvan.study.table_check import questions


def asked(tables, label="label"):
    settings = SiteSettings(label=label)
    profiles = {name: profile_columns(SiteTable(name, t, settings).table, label) for name, t in tables.items()}
    return questions(profiles, label, "classification")


def by(frame, site):
    return {str(name): part.drop(site) for (name,), part in frame.group_by(site, maintain_order=True)}


def about_units(tables, label="label"):
    return [line for line in asked(tables, label) if "are the units the same?" in line]


def in_other_units(tables, site, column, convert):
    changed = tables[site].with_columns(convert(pl.col(column).cast(pl.Float64)).alias(column))
    return {**tables, site: changed}


# -- no false alarm


@pytest.mark.parametrize(
    ("frame", "site", "label"),
    [(sv.datasets.heart_disease, "hospital", "disease"), (sv.datasets.income, "employer", "above_50k")],
)
def test_other_populations_raise_no_question_about_units(frame, site, label):
    tables = by(frame(), site)
    assert about_units(tables, label) == []
    found = [line for line in asked(tables, label) if "only one value" not in line]
    limit = "capital_gain at Private, Self-employed, Incorporated, State-gov and 1 more site: 99999 in 23 rows, apart"
    assert [line.startswith(limit) for line in found] == [True] * (label == "above_50k")


def test_uneven_class_shares_raise_no_question():
    """Malignant tumours are up to 2.5 times larger, and some measurement separates a small clinic's rows by chance."""
    data = load_breast_cancer(as_frame=True)
    frame = pl.DataFrame(data.data).with_columns(label=pl.Series(1 - data.target.to_numpy()))
    for n in (2, 5, 8):
        for seed in range(3):
            hands = split_unevenly(frame["label"].to_numpy(), n, seed)
            assert asked({str(i): frame[rows] for i, rows in enumerate(hands)}) == [], (n, seed)


@pytest.mark.needs("data")
@pytest.mark.parametrize(("name", "site"), [("fed_tcga_brca_survival", "site"), ("adult", "workclass")])
def test_real_tables_by_site(name, site):
    frame = tables_by_name.load(name).frame.to_native()
    found = asked(by(frame.drop_nulls(site), site))
    assert [line for line in found if "units" in line or "identifier" in line or "by itself" in line] == []


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng, k, n: rng.normal(0, 1 + k, n),  # around zero
        lambda rng, k, n: np.where(rng.random(n) < 0.9 - 0.3 * k, 0.0, rng.gamma(1.0, 1.0, n)),  # many zeros
        lambda rng, k, n: rng.lognormal(0.9 * k, 1.0, n),  # a wide range, medians 2.5 times apart
        lambda rng, k, n: rng.integers(0, 12 + 8 * k, n).astype(float),  # a small range
        lambda rng, k, n: rng.normal(70 - 35 * k, 15, n).clip(3),  # children and adults
    ],
)
def test_wide_and_odd_columns(draw):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        tables = {str(k): pl.DataFrame({"x": draw(rng, k % 2, 150), "label": [0, 1] * 75}) for k in range(4)}
        assert about_units(tables) == []


# -- real mistakes

FACTORS = {
    2.54: " 2.54 (centimetres and inches)",
    1 / 2.54: " 2.54 (centimetres and inches)",
    0.4536: " 2.2046 (pounds and kilograms)",
    10.0: " 10 (",
    18.0: " 18 (glucose",
    1 / 18.0: " 18 (glucose",
    38.67: " 38.67 (cholesterol",
    88.4: " 88.4 (creatinine",
    0.001: " 1000 (",
}


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("sites", [2, 3, 8])
def test_factors_between_units_are_detected(factor, sites):
    rng = np.random.default_rng(sites)
    tables = {
        f"s{k}": pl.DataFrame({"x": rng.lognormal(4.2 + 0.05 * (k % 3), 0.18, 80), "label": [0, 1] * 40})
        for k in range(sites)
    }
    [line] = about_units(in_other_units(tables, "s1", "x", lambda x: x * factor))
    assert FACTORS[factor] in line
    low, _, high = line.partition(" and around ")
    assert " at s1" in (low if factor < 1 else high)


@pytest.mark.parametrize(
    ("site", "column", "factor"),
    [
        ("VA", "chol", 1 / 38.67),
        ("Cleveland", "chol", 1 / 38.67),
        ("Hungarian", "trestbps", 1 / 7.5),
        ("Switzerland", "trestbps", 1 / 7.5),
        ("Cleveland", "trestbps", 2.54),
        ("Switzerland", "oldpeak", 100.0),
        ("VA", "age", 12.0),
        ("Hungarian", "age", 365.25),
        ("Cleveland", "thalach", 1 / 60.0),
    ],
)
def test_mistakes_at_one_of_four_hospitals_are_detected(site, column, factor):
    tables = by(sv.datasets.heart_disease(), "hospital")
    lines = about_units(in_other_units(tables, site, column, lambda x: x * factor), "disease")
    assert [line.split(":")[0] for line in lines] == [column]
    assert f" at {site}" in lines[0]


def test_amounts_in_thousands_are_detected_among_zeros():
    tables = in_other_units(by(sv.datasets.income(), "employer"), "Private", "capital_gain", lambda x: x / 1000)
    [line] = about_units(tables, "above_50k")
    assert line.startswith("capital_gain: values are around ")
    assert "at Private and around" in line


@pytest.mark.parametrize(("name", "mean", "spread"), [("fever", 37.2, 0.8), ("outside_temp", 12.0, 6.0)])
def test_degrees(name, mean, spread):
    rng = np.random.default_rng(0)
    tables = {s: pl.DataFrame({name: rng.normal(mean, spread, 90), "label": [0, 1] * 45}) for s in "abc"}
    assert about_units(tables) == []
    [line] = about_units(in_other_units(tables, "b", name, lambda x: x * 1.8 + 32))
    assert "at b, as degrees Celsius and Fahrenheit are; are the units the same?" in line


def test_three_units_and_two_groups():
    rng = np.random.default_rng(0)
    tables = {f"s{k}": pl.DataFrame({"height": rng.normal(1.7, 0.1, 60), "label": [0, 1] * 30}) for k in range(6)}
    for sites, factor in ((("s1", "s2"), 100.0), (("s4",), 1000.0)):
        for site in sites:
            tables = in_other_units(tables, site, "height", lambda x, f=factor: x * f)
    lines = about_units(tables)
    assert len(lines) == 2
    assert "at s1, s2" in lines[0]
    assert "near 100 (such as centimetres and metres)" in lines[0]
    assert "at s4" in lines[1]


# -- identifiers and leakage


def test_chance_uniqueness_is_not_an_identifier():
    rng = np.random.default_rng(0)
    tables = {
        f"s{n}": pl.DataFrame({"days": rng.integers(0, 4000, n), "patient": range(n), "label": [0, 1] * (n // 2)})
        for n in (24, 300, 400, 500)
    }
    tables["s24"] = tables["s24"].with_columns(days=pl.Series(range(24)))
    assert [line.split(" at ")[0] for line in asked(tables) if "identifier" in line] == ["patient"]


@pytest.mark.parametrize(("others", "suspected"), [(0.0, True), (1.0, True), (2.2, False), (9.0, True)])
def test_a_column_that_reveals_the_label_at_one_site(others, suspected):
    """If it is a good measurement elsewhere, it may do very well here by chance."""
    rng = np.random.default_rng(0)
    truth = np.arange(200) % 2
    tables = {s: pl.DataFrame({"x": rng.normal(0, 1, 200) + others * truth, "label": truth}) for s in "bcd"}
    tables["a"] = pl.DataFrame({"x": rng.normal(0, 1, 200) + 9 * truth, "label": truth})
    assert any("x at " in line and "by itself" in line for line in asked(tables)) == suspected
