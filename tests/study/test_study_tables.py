"""Tables in databases and a limit of memory, in study files."""

import sqlite3

import pytest
from helpers.studies import table

from silvan.data.readers.query import Query
from silvan.errors import InputError
from silvan.study.study_file import fingerprint_of, make_federation, read_study


@pytest.fixture
def folder(tmp_path):
    frame = table(n=80)
    frame.write_csv(tmp_path / "b.csv")
    with sqlite3.connect(tmp_path / "a.db") as database:
        database.execute(f"CREATE TABLE visits ({', '.join(frame.columns)})")
        database.executemany("INSERT INTO visits VALUES (?, ?, ?, ?, ?, ?)", frame.rows())
    database.close()
    return tmp_path


def write(folder, text):
    path = folder / "study.toml"
    path.write_text(text)
    return path


def test_sites_in_databases(folder):
    study = read_study(
        write(
            folder,
            """
memory = "1MB"
[sites]
a = { table = "sqlite:///a.db", query = "select * from visits where age is not null" }
b = "b.csv"
c = "sqlite:///a.db?table=visits"
d = "postgresql://reader@db.example/records?table=visits"
""",
        )
    )
    assert isinstance(study.tables["d"], Query)
    del study.tables["d"]
    fed = make_federation(study)
    assert fed.rows["b"] == fed.rows["c"] == 80 > fed.rows["a"]
    assert fed.limited
    before = fingerprint_of(study, "1")
    other = read_study(write(folder, 'memory = "2MB"\n[sites]\nb = "b.csv"\nc = "sqlite:///a.db?table=visits"\n'))
    assert len({before, fingerprint_of(other, "1"), fingerprint_of(other, "2")}) == 3


def test_one_table_of_all_sites(folder):
    text = 'table = "sqlite:///a.db"\nquery = "select *, sex as hospital from visits"\nsite = "hospital"\n'
    fed = make_federation(read_study(write(folder, text)))
    assert sorted(fed.sites) == ["f", "m"]


def test_all_mistakes_are_reported_at_once(folder):
    text = """memory = "lots"
query = "select 1"
[sites]
a = { table = "sqlite:///a.db", qery = "select 1" }
b = "postgresql://me:hush@host/db?table=t"
c = "sqlite:///a.db"
d = { table = "sqlite:///a.db", query = "drop table visits" }
"""
    with pytest.raises(InputError) as caught:
        read_study(write(folder, text))
    said = str(caught.value)
    for line, words in (
        (1, "memory must be a number of bytes"),
        (2, "query is for one table of all sites"),
        (4, "unknown key 'qery'"),
        (5, "site 'b': the URL of a database must not hold a password"),
        (6, "site 'c': a database needs a query"),
        (7, "site 'd': the query must begin with SELECT or WITH"),
    ):
        assert any(f":{line}: " in part and words in part for part in said.split("\n")), (words, said)
    assert "hush" not in said
