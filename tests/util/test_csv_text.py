"""CSV text: no cell is a formula, and all others are unchanged."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from silvan.util.csv_text import csv_text, plain_cell


@pytest.mark.parametrize(
    "cell",
    ["=1+1", "+cmd|'/c calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "-", "＝1", '=HYPERLINK("x")'],
)
def test_formulas_are_text(cell):
    assert plain_cell(cell) == f"'{cell}"
    assert csv_text([[cell, 1]]).startswith(("'", "\"'"))


@pytest.mark.parametrize("cell", ["-0.5", "+1e3", "-inf", -0.5, 0, None, True, "a=b", "", "1-2"])
def test_other_text_is_unchanged(cell):
    assert plain_cell(cell) == cell


@given(st.lists(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=2, max_size=2)))
def test_only_an_apostrophe_is_added(rows):
    again = list(csv.reader(io.StringIO(csv_text(rows), newline="")))
    assert [[cell.removeprefix("'") for cell in row] for row in again] == [
        [cell.removeprefix("'") for cell in row] for row in rows
    ]
    assert not any(cell.startswith(("=", "@")) for row in again for cell in row)


def test_repr_of_python_values_is_safe():
    rows = [["a", 1, 0.1, -1e-7, None, True], ["x,y", 'a "b"', "two\nlines", "", " ", 2**60]]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    assert csv_text(rows) == text.getvalue()
