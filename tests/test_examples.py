"""The examples run to their end."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


CASES = [
    ("01_forest", "saved and read back"),
    ("03_columns", "identical to those of the joined table"),
    ("04_new_algorithm", "naive Bayes of 3 hospitals, 3 rounds: 9"),
]


@pytest.mark.parametrize(("name", "said"), CASES)
def test_an_example_runs(name, said, capsys):
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert said in capsys.readouterr().out


def test_the_hospitals_are_compared(capsys, tmp_path):
    """With one repeat instead of ten, which take a minute."""
    text = (EXAMPLES / "02_hospitals.py").read_text()
    assert text.count("repeats=10") == 1
    (tmp_path / "hospitals.py").write_text(text.replace("repeats=10", "repeats=1"))
    runpy.run_path(str(tmp_path / "hospitals.py"), run_name="__main__")
    shown = capsys.readouterr().out
    for word in ("Cleveland", "Switzerland", "BOFRF", "mean of all", "and no row"):
        assert word in shown
