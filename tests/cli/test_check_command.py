"""``silvan check``: columns by site, and questions about odd values."""

import json

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from silvan.cli.main import app


def silvan(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def study(tmp_path):
    rng = np.random.default_rng(0)
    for name, factor in (("north", 1.0), ("south", 18.0)):
        n = 60
        label = np.arange(n) % 2
        frame = pl.DataFrame(
            {
                "patient": [f"P{i:03}" for i in range(n)],
                "visit": range(n),
                "glucose": rng.normal(5.5, 0.5, n) * factor,
                "weight": np.where(np.arange(n) % 7 == 0, -999.0, rng.normal(70, 5, n)),
                "country": ["CH"] * n,
                "discharge": label * 10 + rng.random(n),
                "admitted": ["2020-01-31", "2020-03-01", "2020-02-01"] * (n // 3),
                "label": label,
            }
        )
        frame.write_csv(tmp_path / f"{name}.csv")
    (tmp_path / "s.toml").write_text('[sites]\nnorth = "north.csv"\nsouth = "south.csv"\n[learner]\nn_estimators = 2\n')
    return tmp_path / "s.toml"


def test_columns_and_questions(study):
    result = silvan("check", study, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    columns = {column["name"]: column for column in found["columns"]["north"]}
    assert columns["admitted"]["kind"] == "date"
    assert columns["country"]["distinct"] == 1
    lines = "\n".join(found["questions"])
    for said in (
        "patient at north, south: every value occurs once: an identifier?",
        "visit at north, south: every value occurs once",
        "weight at north, south: -999 in 18 rows, apart from all others: does it stand for missing? A code for missing "
        "goes below [reading]: missing = { weight = [-999] }",
        "country at north, south: has only one value",
        "discharge at north, south: tells the classes apart by itself (AUC 1.000)",
        "17.3 times as much, near 17.1 (bilirubin in µmol/l and mg/dl) or 18 (glucose in mg/dl and mmol/l); are the",
    ):
        assert said in lines
    assert "admitted at" not in lines
    shown = silvan("check", study).output
    assert "High" in shown
    assert "2020-01-31" in shown


def test_fit_asks_the_same_in_short(study):
    result = silvan("fit", study)
    assert result.exit_code == 0, result.output
    assert "check patient at north, south: every value occurs once" in result.output
    assert "silvan check" in result.output


def test_a_mixture_is_shown_instead_of_an_error(study):
    path = study.parent / "north.csv"
    path.write_text(path.read_text().replace("-999.0", ">90"))
    result = silvan("check", study)
    assert result.exit_code == 0
    assert "weight at north: column 'weight' mixes numbers and text: 9 of its 60 cells" in result.output
    stopped = silvan("fit", study)
    assert stopped.exit_code == 1
    assert "s.toml:2: site 'north': column 'weight' mixes numbers and text" in stopped.output
    path.write_text(path.read_text().replace(">90", "NA"))
    assert silvan("fit", study).exit_code == 0  # nothing was trained: no --fresh is needed


def test_evaluate_needs_fill_for_absent_columns(study):
    assert silvan("fit", study).exit_code == 0
    path = study.parent / "new.csv"
    pl.read_csv(study.parent / "north.csv").rename({"glucose": "Glucose"}).write_csv(path)
    result = silvan("evaluate", study.parent / "runs" / "s", path)
    assert result.exit_code == 1
    assert "lacks 'glucose'; did you mean 'Glucose'?" in result.output
    assert silvan("evaluate", study.parent / "runs" / "s", path, "--fill").exit_code == 0


def test_leading_zeros_and_similar_names(tmp_path):
    """Asks about codes that would be read as numbers, and about columns and categories that differ only in case."""
    for name, age, words in (("north", "Age", ("Yes", "no")), ("south", "age ", ("yes", "No "))):
        rows = [f"{i + 20},{i % 5:04},{words[i % 2]},{i % 2}" for i in range(40)]
        (tmp_path / f"{name}.csv").write_text("\n".join([f"{age},ward,smokes,label", *rows]) + "\n")
    file = tmp_path / "s.toml"
    file.write_text('[sites]\nnorth = "north.csv"\nsouth = "south.csv"\n[learner]\nn_estimators = 2\n')
    lines = "\n".join(json.loads(silvan("check", file, "--json").stdout)["questions"])
    assert "ward at north, south: leading zeros are lost in 40 rows, since 0012 is read as 12" in lines
    assert "'Age', 'age ' differ in case, blanks or signs alone" in lines
    assert "smokes: 'Yes' at north, 'yes' at south count as two; are they the same?" in lines
    file.write_text(file.read_text().replace("[learner]", '[kinds]\nward = "categorical"\n[learner]'))
    assert "leading zeros" not in silvan("check", file).output


def test_sites_with_different_conventions(tmp_path):
    """Classes with other names, columns of other kinds, codes with points, missing words, a repeated file."""
    made = {
        "north": ("J", "N", "1", "f", "NA"),
        "south": ("yes", "no", "1.0", "m", "m"),
        "west": ("1", "0", "1", "5", "6"),
        "east": ("1", "2", "", "", ""),
    }
    for name, (first, second, code, sex, other) in made.items():
        rows = [
            f"{i * 7 % 40}.5,{code},{(sex, other)[i % 2]},202{i % 4}0131,{(first, second)[i % 3 % 2]}"
            for i in range(40)
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,code,sex,day,label", *rows]) + "\n")
    file = tmp_path / "s.toml"
    sites = [f'{name} = "{name}.csv"' for name in made] + ['again = "west.csv"']
    file.write_text("\n".join(["\ufeff[kinds]", 'code = "categorical"', "[sites]", *sites]) + "\n")
    lines = json.loads(silvan("check", file, "--json").stdout)["questions"]
    for line in (
        "the tables of west and again are alike in every column: is it the same file twice?",
        "label: the two classes are 'J' and 'N' at north, 'no' and 'yes' at south, 0 and 1 at west, again, 1 and 2 at "
        "east: are they the same? then write them alike",
        "sex is categorical at north, south and numeric at west, again, where a study stops: write it alike, or set "
        "its kind (kinds)",
        "code: '1' at north, west, again, '1.0' at south count as two; are they the same? then write them alike",
        "day at north, south, west, east and 1 more site: looks like dates written as 20200131, which are read as "
        "numbers: write them as 2020-01-31",
        "sex at north: has 'NA' as categories: do they mean missing? then set missing = [\"NA\"]",
    ):
        assert line in lines, "\n".join(lines)
    path = tmp_path / "north.csv"
    path.write_text(path.read_text().replace(",N\n", ",\n", 1))
    lines = json.loads(silvan("check", file, "--json").stdout)["questions"]
    assert "label at north: missing in 1 row, where a study stops: fill in or drop them" in lines


@pytest.mark.parametrize(
    ("values", "code", "asked"),
    [
        ([200 + 23 * i for i in range(100)], -999, True),  # the only negative number, in a third of the cells
        ([i % 40 for i in range(100)], -1, True),
        ([1000 + 50 * i for i in range(100)], 9999, True),  # half of the span above all others
        ([20 + i % 60 for i in range(100)], 999, True),
        ([200 + 23 * i for i in range(100)], 99, True),  # the lowest, and by far the most frequent
        ([i - 60 for i in range(100)], -99, True),
        ([10 * i for i in range(100)], 999, True),
        ([20 + i % 60 for i in range(100)], 1900, True),  # not a usual code, but far away and repeated
        ([200 + i for i in range(100)], 0, True),
        ([i % 5 for i in range(100)], -8, True),
        ([i - 10 for i in range(100)], -1, False),  # in the middle of the others
        ([40 + i % 60 for i in range(100)], 100, False),  # the next of them
        ([1 + i % 5 for i in range(100)], 9, False),
        ([i % 100 for i in range(100)], 0, False),
        ([1] * 100, -1, False),  # two classes
        ([i % 3 for i in range(100)], 5, False),
    ],
)
def test_numeric_codes_for_missing_values(tmp_path, values, code, asked):
    for name in ("north", "south"):
        rows = [f"{code if i % 3 == 0 else value},{i % 2}" for i, value in enumerate(values)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["x,label", *rows]) + "\n")
    (tmp_path / "s.toml").write_text('[sites]\nnorth = "north.csv"\nsouth = "south.csv"\n')
    lines = json.loads(silvan("check", tmp_path / "s.toml", "--json").stdout)["questions"]
    assert any(f"missing = {{ x = [{code}] }}" in line for line in lines) is asked


def test_suggested_settings_for_codes_can_be_pasted(tmp_path):
    """Numbers that mean missing in one column may be values of another, and are written in several ways."""
    rng = np.random.default_rng(0)
    for name in ("north", "south"):
        n = 80
        code = np.arange(n) % 3 == 0
        frame = pl.DataFrame(
            {
                "body weight": np.where(code, -999.0, rng.normal(70, 5, n).round(1)),
                "change": rng.integers(-1100, 1100, n) * 1.0,
                "score": np.where(code, 99, np.where(np.arange(n) % 3 == 1, 98, rng.integers(0, 30, n))),
                "label": np.arange(n) % 2,
            }
        ).with_columns(change=pl.when(pl.int_range(n) < 2).then(-999.0).otherwise("change"))
        frame.write_csv(tmp_path / f"{name}.csv") if name == "north" else frame.write_parquet(
            tmp_path / f"{name}.parquet"
        )
    file = tmp_path / "s.toml"
    sites = '[sites]\nnorth = "north.csv"\nsouth = "south.parquet"\n'
    file.write_text(sites)
    lines = json.loads(silvan("check", file, "--json").stdout)["questions"]
    offers = [line.split("below [reading]: ")[1] for line in lines if "[reading]" in line]
    assert offers == ['missing = { "body weight" = [-999] }', "missing = { score = [98, 99] }"]
    together = "missing = { " + ", ".join(offer[len("missing = { ") : -2] for offer in offers) + " }"
    file.write_text(f"[reading]\n{together}\n{sites}")
    found = json.loads(silvan("check", file, "--json").stdout)
    assert not any("[reading]" in line for line in found["questions"])
    for site in ("north", "south"):
        missing = {column["name"]: column["missing"] for column in found["columns"][site]}
        assert missing == {"body weight": 27, "change": 0, "score": 54, "label": 0}


def test_one_table_of_all_sites(tmp_path):
    rows = [f"{'ab'[i % 2]};00{i % 9};{i / 4}".replace(".", ",") + f";{i % 3 % 2}" for i in range(60)]
    (tmp_path / "all.csv").write_text("\n".join(["site;ward;weight;label", *rows]) + "\n")
    (tmp_path / "s.toml").write_text('table = "all.csv"\nsite = "site"\n[learner]\nn_estimators = 2\n')
    shown = " ".join(silvan("check", tmp_path / "s.toml").output.split())
    assert "ward at all sites: leading zeros are lost in 60 rows" in shown
    assert "The file of all sites is separated by semicolons, with decimal commas." in shown


def test_too_many_categories_to_name(tmp_path):
    frame = pl.DataFrame({"code": [f"c{i % 300}" for i in range(900)], "label": [0, 1] * 450})
    frame.write_csv(tmp_path / "a.csv")
    frame.with_columns(pl.lit("c0").alias("code")).write_csv(tmp_path / "b.csv")
    (tmp_path / "s.toml").write_text('[sites]\na = "a.csv"\nb = "b.csv"\n')
    lines = json.loads(silvan("check", tmp_path / "s.toml", "--json").stdout)["questions"]
    assert any(line.startswith("code at a: has more than 254 categories") for line in lines)


def test_a_column_with_a_similar_name(tmp_path):
    for name in ("north", "south", "west"):
        head = "alter,dose,label" if name == "south" else "age,dose,label"
        (tmp_path / f"{name}.csv").write_text(head + "\n" + "".join(f"{20 + i},{i % 7},{i % 2}\n" for i in range(40)))
    path, hint = tmp_path / "study.toml", "then set rename for its file"
    for sites in (("north", "south", "west"), ("north", "south")):
        path.write_text("[sites]\n" + "".join(f'{name} = "{name}.csv"\n' for name in sites))
        lines = " ".join(silvan("check", path).output.split())
        assert lines.count(hint) == 1
        who, lacked, has = ("south", "age", "alter") if len(sites) == 3 else ("north", "alter", "age")
        assert f"{who} lacks '{lacked}', and it alone has '{has}': are they the same? {hint}" in lines
    path.write_text('[sites]\nnorth = "north.csv"\nsouth = { table = "south.csv", rename = { alter = "age" } }\n')
    assert hint not in " ".join(silvan("check", path).output.split())


def test_a_label_missing_everywhere(study):
    """The study stops there: ``check`` says so, and suggests what may be meant."""
    study.write_text(study.read_text().replace("[sites]", 'label = "labell"\n[sites]', 1))
    shown = " ".join(silvan("check", study).output.split())
    assert "labell at north, south: there is no such column to predict, and a study stops there" in shown
    assert "did you mean 'label'?" in shown


def test_merged_classes_raise_no_question(tmp_path):
    """Warnings do not count them twice: what the study says about the label applies everywhere."""
    rng = np.random.default_rng(0)
    for site, words in (("a", ("no", "yes")), ("b", ("No", "YES"))):
        frame = pl.DataFrame({"x": rng.normal(size=60), "out": [words[i] for i in rng.integers(0, 2, 60)]})
        frame.write_csv(tmp_path / f"{site}.csv")
    path = tmp_path / "s.toml"
    path.write_text('label = "out"\n[sites]\na = "a.csv"\nb = "b.csv"\n[kinds]\nout = "folded"\n')
    shown = silvan("check", path)
    assert "Nothing looks odd." in shown.output, shown.output
    shown = " ".join(silvan("fit", path, "--output", tmp_path / "run").output.split())
    assert "All tables have the same columns, kinds and classes." in shown
    assert "classes of 'out'" not in shown
