"""A schema in the study file: what columns mean, said before anybody looks at them."""

import pytest
from helpers.runs import silvan, write_study
from helpers.studies import parts, table

from silvan.errors import InputError
from silvan.study.run_folder import Run
from silvan.study.study_file import read_study

SCHEMA = """
[schema]
age = { bounds = [0, 120] }
dose = { bounds = [0, 10] }
sex = { categories = ["f", "m"] }
label = { classes = ["no", "yes"] }
"""


def test_a_private_forest_from_a_file(tmp_path):
    """With a schema that is said beforehand, an epsilon and a budget at every site."""
    pytest.importorskip("opendp", reason="opendp is not installed; to test noise: pip install 'silvan[dp]'")
    study = write_study(tmp_path, parts(table(n=240), 3))
    text = study.read_text().replace(
        "[learner]", f"{SCHEMA}\n[policy]\nepsilon = 5.0\n[learner]\nepsilon = 3.0\nn_rows = 240"
    )
    study.write_text("\n".join(line for line in text.splitlines() if not line.startswith(("test", "max_depth"))))
    silvan("fit", study, "--output", tmp_path / "run")
    run = Run(tmp_path / "run")
    assert run.read().status == "done"
    assert run.read().features == 3
    assert not any(kind.name == "Describe" for kind in run.read().kinds)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("age = 3", "a line a column"),
        ("age = { bounds = [3] }", "age: "),
        ("age = { bounds = [3, 1] }", "bounds must be finite and rising"),
        ("age = { bonds = [1, 3] }", "age: "),
        ("age = { bounds = [1, 3] }", "lacks the label"),
        ("label = { classes = [] }", "needs at least one class"),
    ],
)
def test_a_schema_that_is_none(tmp_path, schema, said):
    study = write_study(tmp_path)
    study.write_text(f"{study.read_text()}\n[schema]\n{schema}\n")
    with pytest.raises(InputError, match=said):
        read_study(study)
