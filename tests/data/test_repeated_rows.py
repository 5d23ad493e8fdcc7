"""Duplicate rows are reported, and people who merely look alike are not."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from silvan.data import repeated_rows
from silvan.data.batches import Batched, Whole


def random():
    return np.random.default_rng(0)


def measured(n=300):
    rng = random()
    sex = rng.choice(["f", "m"], n)
    return pl.DataFrame(
        {"age": rng.normal(60, 9, n), "bmi": rng.normal(25, 4, n), "sex": sex, "label": rng.integers(0, 2, n)}
    )


def grades(n=1000):
    """Ten questions with five answers each: 19 million rows are possible."""
    rng = random()
    return pl.DataFrame({**{f"q{i}": rng.integers(1, 6, n) for i in range(10)}, "label": rng.integers(0, 2, n)})


def rare(n=1000):
    """Booleans, most of them rarely true: 32 rows are possible."""
    rng = random()
    columns = {f"b{i}": (rng.random(n) < p).astype(int) for i, p in enumerate((0.01, 0.05, 0.5, 0.9))}
    return pl.DataFrame({**columns, "label": rng.integers(0, 2, n)})


def sparse(n=2000):
    """Twelve counts that are nearly always 0."""
    rng = random()
    columns = {f"c{i}": (rng.random(n) < 0.02) * rng.integers(1, 9, n) for i in range(12)}
    return pl.DataFrame({**columns, "label": rng.integers(0, 2, n)})


def codes(n=1000, *, known=False):
    """A code, and columns that follow from it; the label may follow too."""
    rng = random()
    code = rng.integers(0, 60, n)
    label = code % 3 if known else rng.integers(0, 2, n)
    return pl.DataFrame({"code": code, "name": [f"n{c}" for c in code], "group": code // 7, "label": label})


def incomes(n=5000):
    rng = random()
    return pl.DataFrame(
        {
            "income": np.round(rng.lognormal(10, 1, n), -3),
            "age": rng.integers(18, 90, n),
            "label": rng.integers(0, 2, n),
        }
    )


def ages(n=1000, *, known):
    rng = random()
    age = rng.integers(0, 200, n)
    return pl.DataFrame({"age": age, "label": age % 2 if known else rng.integers(0, 2, n)})


ALIKE = {
    "measurements": measured(),
    "one measurement": measured().select("age", "label"),
    "grades": grades(),
    "rare truths": rare(),
    "sparse counts": sparse(),
    "codes": codes(),
    "codes that the label follows from": codes(known=True),
    "round incomes": incomes(),
    "whole ages": ages(known=False),
    "whole ages that the label follows from": ages(known=True),
    "one column": pl.DataFrame({"label": [0, 1] * 40}),
    "two rows": pl.DataFrame({"x": [1.5, 1.5], "label": [0, 0]}),
}


def told(*frames, batched=False):
    made = [Batched(f, "label", 1 << 12) if batched else Whole(f) for f in frames]
    return repeated_rows.repeated_rows({f"site {i}": table for i, table in enumerate(made)})


@pytest.mark.parametrize("name", ALIKE)
def test_rows_alike_by_chance_are_not_reported(name):
    frame = ALIKE[name]
    half = len(frame) // 2
    assert told(frame) == []
    assert told(frame[:half], frame[half:]) == []


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("name", [name for name in ALIKE if ALIKE[name].n_unique() >= 10])
def test_a_table_repeated_three_times(name, batched):
    [line] = told(pl.concat([ALIKE[name]] * 3).sample(fraction=1.0, shuffle=True, seed=1), batched=batched)
    assert line.startswith("the table of site 0: each row occurs 3 times, equal in all columns")


@pytest.mark.parametrize("name", ["measurements", "one measurement", "grades"])
@pytest.mark.parametrize("change", [lambda f: f, lambda f: f.with_row_index("row"), lambda f: f.to_pandas()])
def test_some_rows_that_repeat_others_are_counted(name, change):
    frame = ALIKE[name]
    [line] = told(change(pl.concat([frame, frame[:40]])))
    assert line.startswith("the table of site 0: 40 rows repeat others")


def test_rows_of_two_sites_are_counted_whatever_their_types():
    frame = measured().with_columns(visits=random().integers(0, 9, 300))
    other = pl.concat([frame[40:80], frame[200:]]).with_columns(pl.col("visits").cast(pl.Float32))
    [line] = told(frame[:200], other, frame[190:195])
    assert "site 0 and site 1 (40 rows), site 0 and site 2 (5 rows): are the same people at both sites?" in line


def test_a_few_copies_are_not_reported():
    frame = measured()
    assert told(pl.concat([frame, frame[:2]])) == []
    assert told(frame[:200], frame[198:]) == []


def test_the_comparison_is_limited_and_says_so(monkeypatch):
    monkeypatch.setattr(repeated_rows, "MOST_ROWS", 200)
    frame = measured(190)
    [line] = told(pl.concat([frame, frame]))
    assert "10 rows of the first 200 repeat others" in line


def test_missing_and_mixed_cells_are_compared():
    frame = pd.DataFrame({"x": [None, 1, "a"] * 4, "y": [0.5, np.nan, 2.5] * 4, "z": np.arange(12) / 7})
    assert told(frame.assign(label=[0, 1] * 6)) == []
