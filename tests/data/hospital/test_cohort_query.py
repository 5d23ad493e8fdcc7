"""Cohort queries: what may stand in them, and what they become in each database."""

import re

import pytest

pytest.importorskip("sqlglot", reason="sqlglot is not installed: pip install 'silvan[omop]'")

import sqlglot
from helpers.hospitals import plan_of

from silvan.data.hospital.cohort_query import DIALECTS, CohortQuery
from silvan.data.hospital.covariate_query import Cdm, CovariateQuery
from silvan.errors import InputError

GOOD = """
WITH first AS (SELECT person_id, MIN(condition_start_date) AS d FROM condition_occurrence GROUP BY person_id)
SELECT f.person_id, f.d AS index_date,
       LEAST(COALESCE(x.death_date, f.d + 365), f.d + INTERVAL '365 days') - f.d AS time,
       CASE WHEN x.death_date <= f.d + 365 THEN 1 ELSE 0 END AS event, EXTRACT(YEAR FROM f.d - 30) AS year
FROM first f LEFT JOIN death x ON x.person_id = f.person_id
"""
ONLY_SELECT = "must be a single SELECT"
NOT_ALLOWED = "is not allowed"

REFUSED = {
    "nothing": ("", ONLY_SELECT),
    "two statements": ("SELECT 1; DROP TABLE person", ONLY_SELECT),
    "delete": ("DELETE FROM person", ONLY_SELECT),
    "delete in a part": ("WITH d AS (DELETE FROM person RETURNING *) SELECT * FROM d", NOT_ALLOWED),
    "copy": ("COPY person TO '/tmp/x'", ONLY_SELECT),
    "copy from a program": ("COPY person FROM PROGRAM 'id'", ONLY_SELECT),
    "set": ("SET statement_timeout TO 0", ONLY_SELECT),
    "explain": ("EXPLAIN ANALYZE SELECT 1", ONLY_SELECT),
    "call": ("CALL something()", ONLY_SELECT),
    "do": ("DO $$ BEGIN END $$", ONLY_SELECT),
    "attach": ("ATTACH 'x.db' AS x", "cannot be read as SQL"),
    "into a table": ("SELECT person_id INTO x FROM person", NOT_ALLOWED),
    "locks": ("SELECT person_id FROM person FOR UPDATE", NOT_ALLOWED),
    "reads a file": ("SELECT pg_read_file('/etc/passwd') AS index_date, person_id FROM person", NOT_ALLOWED),
    "lists files": ("SELECT * FROM pg_ls_dir('/')", NOT_ALLOWED),
    "writes a file": ("SELECT lo_export(1, '/tmp/x'), person_id FROM person", NOT_ALLOWED),
    "loads code": ("SELECT load_extension('x')", NOT_ALLOWED),
    "waits": ("SELECT pg_sleep(100)", NOT_ALLOWED),
    "waits, by schema": ("SELECT pg_catalog.pg_sleep(100) FROM person", NOT_ALLOWED),
    "other servers": ("SELECT * FROM dblink('host=x', 'select 1') AS t(a int)", NOT_ALLOWED),
    "settings": ("SELECT current_setting('data_directory')", NOT_ALLOWED),
    "sets settings": ("SELECT set_config('transaction_read_only', 'off', false)", NOT_ALLOWED),
    "who it is": ("SELECT current_user", NOT_ALLOWED),
    "today": ("SELECT person_id, CURRENT_DATE AS index_date FROM person", NOT_ALLOWED),
    "a name of an object": ("SELECT 'person'::regclass::text FROM person", NOT_ALLOWED),
    "runs a query in text": ("SELECT query_to_xml('select 1', true, true, '')", NOT_ALLOWED),
    "a sample": ("SELECT person_id FROM person TABLESAMPLE BERNOULLI (1)", NOT_ALLOWED),
    "some rows": ("SELECT person_id, birth_datetime AS index_date FROM person LIMIT 5", NOT_ALLOWED),
    "a parameter": ("SELECT $1", NOT_ALLOWED),
    "a catalogue": ("SELECT * FROM pg_shadow", "neither a table of the OMOP CDM"),
    "another table": ("SELECT * FROM salaries", "neither a table of the OMOP CDM"),
    "another schema": ("SELECT * FROM hr.person", "without schema"),
    "recursive": (
        "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT n FROM r",
        "WITH that is recursive",
    ),
    "a part inside": ("SELECT * FROM (WITH a AS (SELECT person_id FROM person) SELECT * FROM a) b", "at the beginning"),
    "a part called as a table": ("WITH person AS (SELECT 1 AS x) SELECT x FROM person", "choose another name"),
    "a part called as ours": ("WITH silvan_index AS (SELECT 1 AS x) SELECT x FROM silvan_index", "choose another name"),
    "order": ("SELECT person_id, death_date AS index_date FROM death ORDER BY 1", "ORDER BY"),
    "no person": ("SELECT death_date AS index_date FROM death", "does not return person_id"),
    "no date": ("SELECT person_id FROM death", "does not return index_date"),
    "a name twice": ("SELECT person_id, death_date AS index_date, 1 AS a, 2 AS a FROM death", "the same name"),
    "no such column": ("SELECT person_id, nope AS index_date FROM death", "'nope' could not be resolved"),
    "no SQL": ("SELECT FROM WHERE", "cannot be read as SQL"),
    "too deep": (f"SELECT {'(' * 5000}1{')' * 5000}", "cannot be read as SQL"),
    "truth": ("SELECT person_id, death_date AS index_date, death_date > death_date AS e FROM death", "true or false"),
    "months": ("SELECT person_id, death_date + INTERVAL '1 month' AS index_date FROM death", "write days"),
    "two dates added": (
        "SELECT person_id, death_date, death_date + death_date AS index_date FROM death",
        "adds two dates",
    ),
    "a part of a date": (
        "SELECT person_id, death_date AS index_date, EXTRACT(EPOCH FROM death_date) AS e FROM death",
        "YEAR, MONTH or DAY",
    ),
}


@pytest.mark.parametrize(("text", "why"), REFUSED.values(), ids=REFUSED)
def test_anything_but_a_select_of_allowed_pieces_is_refused(text, why):
    with pytest.raises(InputError, match=why) as error:
        CohortQuery(text, [])
    assert "\n" not in str(error.value)


def test_columns_are_those_besides_person_and_date():
    query = CohortQuery(GOOD, ["inpatient"])
    assert query.columns == ["time", "event", "year"]
    assert query.used == set()


@pytest.mark.parametrize("scheme", DIALECTS)
def test_no_arithmetic_with_dates_is_left_to_a_database_that_reads_it_otherwise(scheme):
    written = " ".join(
        text for _, text in CohortQuery(GOOD, []).written(DIALECTS[scheme], lambda table: f"cdm.{table}")
    )
    assert "INTERVAL" not in written
    assert "cdm.condition_occurrence" in written
    if scheme == "sqlite":
        assert "EXTRACT" not in written
        assert re.search(r"d [+-] ", written) is None


def test_comments_do_not_reach_the_database():
    text = "SELECT person_id, death_date AS index_date /* hidden */ FROM death -- hidden"
    ((_, written),) = CohortQuery(text, []).written(DIALECTS["postgresql"], lambda table: table)
    assert "hidden" not in written


@pytest.mark.parametrize("scheme", DIALECTS)
def test_the_whole_query_is_sql_of_each_database(scheme):
    """SQL Server, which is not run here, takes no WITH but at the beginning."""
    plan = plan_of()
    cdm = Cdm(f"{scheme}://reader@host/db" if scheme != "sqlite" else "sqlite:///a.db", schema="cdm")
    asked = CovariateQuery(plan, CohortQuery(plan.query, list(plan.concepts)), cdm)
    accepted = {number: [(8840, 1.0, 0.0)] for number in asked.with_units}
    for query in (asked.persons(), asked.units(), asked.table(accepted)):
        name = DIALECTS[scheme].name
        (tree,) = sqlglot.parse(f"{query.before}SELECT * FROM {query.select()}", read=name)
        assert isinstance(tree, sqlglot.exp.Select)
        assert [found.parent for found in tree.find_all(sqlglot.exp.With)] == [tree]
    named = {cte.alias for cte in tree.find_all(sqlglot.exp.CTE)}
    assert {"first", "silvan_cohort", "silvan_index", "diabetes"} <= named
