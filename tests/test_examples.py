"""The examples that need no files run to their end."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


CASES = [
    ("01_forest", "saved and read back"),
    ("03_columns", "node for node those of the joined table"),
    ("04_new_algorithm", "naive Bayes of 3 hospitals, 3 rounds: 9"),
]


@pytest.mark.parametrize(("name", "said"), CASES)
def test_an_example_runs(name, said, capsys):
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert said in capsys.readouterr().out
