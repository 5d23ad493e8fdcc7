"""Study files with a cohort: what is wrong with them is said with its line, and OMOP and FHIR give one forest."""

import re

import pytest

pytest.importorskip("sqlglot", reason="sqlglot is not installed: pip install 'silvan[omop]'")
pytest.importorskip("sqlonfhir", reason="sqlonfhir is not installed: pip install 'silvan[fhir]'")

from silvan.errors import InputError
from silvan.study.demo_hospitals import STUDY, write_hospitals
from silvan.study.parse import parse_remote_study
from silvan.study.study_file import make_federation, make_learner, read_study

NAMES = ("alder", "birch", "cedar")
HEAD = 'label = "stroke_in_two_years"\n'


def written(folder, sites, text=STUDY, head=HEAD):
    lines = "\n".join(f'{name} = "{place}"' for name, place in sites.items())
    path = folder / "study.toml"
    path.write_text(f"{head}[sites]\n{lines}\n{text}\n[learner]\nn_estimators = 8\nmax_depth = 5\n")
    return path


def forest_of(path):
    study = read_study(path)
    federation = make_federation(study)
    return make_learner(study, federation.schema).fit(federation).forest_


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """The addresses of the same three hospitals, by kind."""
    folder = tmp_path_factory.mktemp("hospitals")
    (folder / "sites").mkdir()
    return folder, {kind: write_hospitals(folder, NAMES, kind, n=200) for kind in ("omop", "fhir")}


def test_omop_and_fhir_give_the_same_forest_alone_and_together(hospitals):
    folder, places = hospitals
    mixed = {**places["omop"], "birch": places["fhir"]["birch"]}
    forests = [forest_of(written(folder, some)) for some in (places["omop"], places["fhir"], mixed)]
    assert len({forest.hash for forest in forests}) == 1
    (sex,) = [feature for feature in forests[0].schema.features if feature.name == "sex"]
    assert sex.categories == ("female", "male")
    assert {"systolic", "creatinine", "age"} <= set(forests[0].schema.columns)


def test_latest_persons_can_be_test_rows(hospitals):
    folder, places = hospitals
    head = f'{HEAD}split = {{ by = "index_date", test = "last 20%" }}\n'
    study = read_study(written(folder, places["omop"], head=head))
    federation = make_federation(study)
    assert "index_date" not in federation.schema.columns
    table = federation.local_sites["alder"]
    assert 0.15 < table.held_out.kept / len(table.table) < 0.25


def test_the_digest_is_of_query_and_covariates():
    texts = [STUDY, STUDY.replace("730", "365"), STUDY.replace("days = [3650, 1]", "days = [3650, 0]")]
    studies = [parse_remote_study(f'name = "s"\n{HEAD}{text}\n[learner]\nkind = "HistogramForest"\n') for text in texts]
    assert len({study.digest for study in studies}) == 3


WRONG = {
    "no query": ('query = """', 'text = """', "unknown key 'text'"),
    "no covariate": ('domain = "age"', 'domain = "ages"', "domain must be"),
    "no domain": ('age = { domain = "age" }', "age = { }", "age needs a domain"),
    "unknown name": ('concepts = "echo"', 'concepts = "eco"', "echo: [concepts] has no 'eco'; did you mean 'echo'?"),
    "unknown key": ("days = 180", "day = 180", "unknown key 'day' in [covariates.anticoagulant]"),
    "days the wrong way": ("days = [3650, 1]", "days = [1, 3650]", "two with the earlier day first"),
    "days below zero": ("days = 180", "days = -180", "days must be a number of days"),
    "three days": ("days = [3650, 1]", "days = [3650, 1, 0]", "two with the earlier day first"),
    "no unit": ('unit = "mg/dL"\n', "", "needs a unit"),
    "a unit of a count": ('take = "count", days = 365 }', 'take = "count", unit = "1" }', "are for take = 'last'"),
    "the last diagnosis": (
        'concepts = "diabetes" }',
        'concepts = "diabetes", take = "last" }',
        "is for measurements and observations",
    ),
    "days of an age": ('{ domain = "age" }', '{ domain = "age", days = 3 }', "days is for records, and age has none"),
    "a factor of nothing": ("0.0113", "0", "convert must be a factor other than 0"),
    "three factors": ("0.0113", "[1, 2, 3]", "convert must be a factor other than 0"),
    "no ids": (
        '{ omop = [9201], fhir = ["http://terminology.hl7.org/CodeSystem/v3-ActCode|IMP"] }',
        "{}",
        "needs omop",
    ),
    "an id below one": ("omop = [381316]", "omop = [0]", "omop must be a list of concept ids above 0"),
    "a code without system": ("http://snomed.info/sct|230690007", "230690007", "fhir must be a list of codes as"),
    "descendants of codes": ("omop = [201820]\n", "", "descendants are of OMOP concepts"),
    "a name of a table": ("stroke = {", "person = {", "person is the name of a table"),
    "the label as a covariate": ("echo = { domain", "stroke_in_two_years = { domain", "the cohort query returns it"),
    "a covariate twice": ("echo = { domain", "index_day = { domain", "[covariates] name too"),
    "no label": ("AS stroke_in_two_years", "AS stroke", "does not return 'stroke_in_two_years', to be predicted"),
    "a query that writes": ("SELECT f.person_id", "DELETE FROM person; SELECT f.person_id", "a single SELECT"),
}


@pytest.mark.parametrize(("before", "after", "why"), WRONG.values(), ids=WRONG)
def test_wrong_sections_are_said_with_their_line(hospitals, before, after, why):
    folder, places = hospitals
    text = (
        STUDY.replace("f.index_date,\n", "f.index_date, f.index_date AS index_day,\n")
        if "index_day" in after
        else STUDY
    )
    assert before in text
    with pytest.raises(InputError) as error:
        read_study(written(folder, places["omop"], text.replace(before, after)))
    said = str(error.value)
    assert why in said
    assert re.match(rf"{re.escape(str(folder))}/study\.toml:\d+: ", said)


def test_a_cohort_and_its_sources_belong_together(hospitals, tmp_path):
    folder, places = hospitals
    (folder / "a.csv").write_text("x,stroke_in_two_years\n1,no\n")
    with pytest.raises(InputError, match="site 'birch': the study has a \\[cohort\\]"):
        read_study(written(folder, {**places["omop"], "birch": "a.csv"}))
    with pytest.raises(InputError, match="need a study with a \\[cohort\\]"):
        read_study(written(folder, places["omop"], ""))
    with pytest.raises(InputError, match=r"\[covariates\] is for a study with a cohort"):
        read_study(written(folder, {"birch": "a.csv"}, '[covariates]\nage = { domain = "age" }'))


def test_what_a_database_says_names_the_site_and_the_line(hospitals):
    folder, places = hospitals
    path = written(folder, places["omop"], STUDY.replace("[381316]", "[381317]"))
    with pytest.raises(InputError, match=r"study\.toml:3: site 'alder': the vocabulary .* 381317 \(stroke\)"):
        make_federation(read_study(path))
