"""A site whose table a study makes: what its owner reads, approves, checks and freezes."""

import pytest

pytest.importorskip("sqlglot", reason="sqlglot is not installed: pip install 'silvan[omop]'")
pytest.importorskip("sqlonfhir", reason="sqlonfhir is not installed: pip install 'silvan[fhir]'")

from helpers.joining import make_hub, serving
from helpers.runs import said, silvan

from silvan.deploy.jobs.site_job import make_site
from silvan.deploy.membership.joined_site import SETTINGS, JoinedSite
from silvan.deploy.studies.explain import explain
from silvan.deploy.studies.study_table import check_study_table, freeze, study_source
from silvan.errors import FederationError, InputError
from silvan.study.demo_hospitals import STUDY, make_patients, write_fhir, write_omop
from silvan.study.parse import parse_remote_study

HEAD = 'name = "stroke"\nlabel = "stroke_in_two_years"\n'
PLAN = parse_remote_study(f'{HEAD}{STUDY}\n[learner]\nkind = "HistogramForest"\n')


@pytest.fixture(scope="module")
def made():
    return make_patients(200, seed=4)


@pytest.fixture(scope="module")
def joined(tmp_path_factory, made):
    folder = tmp_path_factory.mktemp("joined")
    write_omop(folder / "clinic.db", *made)
    write_fhir(folder / "export", *made)
    hub = make_hub(folder, ("north",))
    with serving(hub):
        member = JoinedSite.join(folder / "north", hub.invite("north"), f"omop:sqlite:///{folder}/clinic.db", None, {})
        member.pin_roster()
    member.note_study(PLAN)
    return member


@pytest.fixture(params=["omop:sqlite:///../clinic.db", "fhir:../export"])
def member(joined, request):
    """The site, with its data in a place that is said relative to its folder."""
    (joined.path / SETTINGS).write_text(f'table = "{request.param}"\n[policy]\napprove = false\n')
    return JoinedSite(joined.path)


def test_owners_read_query_and_covariates_in_words(joined):
    shown = explain(joined, PLAN)
    lines = "\n".join(shown.lines)
    assert all(line in lines for line in PLAN.cohort.query.strip().splitlines())
    assert (
        "the last value of measurements of creatinine (OMOP concept 3016723; FHIR code http://loinc.org|2160-0) "
        in lines
    )
    assert "from 3,650 to 1 days before the index date" in lines
    assert "OMOP concept 201820 with all descendants" in lines
    learned = " ".join(shown.consent.learned)
    assert "a query of the study selects in your database or export" in learned
    assert "creatinine" in learned
    printed = said(silvan("site", "approve", joined.path))
    assert "SELECT 1 FROM condition_occurrence c" in printed


def test_a_job_reads_the_rows_of_the_study(member):
    site = make_site(member, PLAN)
    check_study_table(member, PLAN, site)
    assert len(site.table) > 150
    assert "creatinine" in site.table.names


def test_rows_can_be_frozen_and_checked(member, made):
    printed = said(silvan("site", "check", member.path))
    assert "creatinine" in printed
    assert "For the study 'stroke'" in printed
    path = freeze(member, PLAN)
    assert study_source(member, PLAN) == str(path)
    path.unlink()


def test_doctor_counts_persons(member):
    assert "200 persons" in said(silvan("doctor", member.path, ok=False))


def test_a_study_without_cohort_has_no_rows_here_and_one_with_has_none_of_a_file(joined, tmp_path):
    plain = parse_remote_study('name = "plain"\n[learner]\nkind = "HistogramForest"\n')
    (joined.path / SETTINGS).write_text('table = "omop:sqlite:///../clinic.db"\n')
    with pytest.raises(InputError, match="need a study with a \\[cohort\\]"):
        len(make_site(JoinedSite(joined.path), plain).table)
    (tmp_path / "a.csv").write_text("age,label\n1,0\n")
    (joined.path / SETTINGS).write_text(f"table = '{tmp_path / 'a.csv'}'\n")
    with pytest.raises(InputError, match="the study has a \\[cohort\\]"):
        make_site(JoinedSite(joined.path), PLAN)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ('table = "omop:sqlite:///../clinic.db"\nquery = "select 1"', "leave query and"),
        ('table = "omop:mysql://a@b/c"', "PostgreSQL, SQLite and SQL Server"),
    ],
)
def test_wrong_settings_are_refused(joined, settings, why):
    (joined.path / SETTINGS).write_text(settings)
    with pytest.raises((InputError, FederationError), match=why):
        JoinedSite(joined.path).source()
