"""Mistakes of owners in site.toml and silvan.toml: one clear line each, with its place in the file."""

import msgspec
import pytest
from typer.testing import CliRunner

from silvan.cli.main import app
from silvan.deploy.membership.coordinator_folder import Membership

TABLE = 'table = "t.csv"\n'
WRONG = [  # content of the file, the line of the error (0: none), the message
    ("table = 5", 1, "table must be text, got 5"),
    ('tabel = "t.csv"', 1, "unknown key 'tabel'; did you mean 'table'?"),
    ("", 1, "table is missing: a path, or the address of a database"),
    ('table = ""', 1, "table is empty: name a path"),
    ("table = t.csv", 1, "not valid TOML: invalid value"),
    (TABLE + TABLE, 0, "not valid TOML: cannot overwrite a value"),
    ('table = "C:\\data\\t.csv"', 1, "write a path with / or in 'single quotes'"),
    ('table = "postgresql://host/clinic"', 1, "a database needs a query, or the name of a table"),
    (TABLE + 'query = "SELECT 1"', 2, "query is for databases"),
    (TABLE + 'memroy = "2GB"', 2, "unknown key 'memroy'; did you mean 'memory'?"),
    (TABLE + "memory = -1", 2, "memory must be a number of bytes, or text such as '2GB', got -1"),
    (TABLE + 'memory = "lots"', 2, "memory must be a number of bytes, or text such as '2GB'"),
    (TABLE + 'freeze = "yes"', 2, "freeze must be true or false, got 'yes'"),
    (TABLE + "id = 5", 2, "id must be text, got 5"),
    (TABLE + 'notify = ["mail"]', 2, "notify must be text"),
    (TABLE + "policy = 3", 2, "policy must be a section: [policy]"),
    (TABLE + "[polcy]\nmin_leaf = 3", 2, "unknown key 'polcy'; did you mean 'policy'?"),
    (TABLE + "[policy]\nminleaf = 3", 3, "unknown key 'minleaf' in [policy]; did you mean 'min_leaf'?"),
    (TABLE + '[policy]\nmin_leaf = "3"', 3, "min_leaf must be a whole number, got '3'"),
    (TABLE + "[policy]\nmin_leaf = -3", 3, "min_leaf must be at least 1, got -3"),
    (TABLE + "[policy]\nmin_leaf = true", 3, "min_leaf must be a whole number, got true"),
    (TABLE + "[policy]\nmin_test = 2.5", 3, "min_test must be a whole number, got 2.5"),
    (TABLE + "[policy]\ntasks = 0", 3, "unknown key 'tasks' in [policy]"),
    (TABLE + '[policy]\napprove = "true"', 3, "approve must be true or false, got 'true'"),
    (TABLE + '[policy]\nepsilon = "1.0"', 3, "epsilon must be a number or 'none', got '1.0'"),
    (TABLE + "[policy]\nepsilon = -1", 3, "epsilon must be a number above 0 and at most 1000, got -1"),
    (TABLE + "[policy]\nepsilon = nan", 3, "epsilon must be a number or 'none', got nan"),
    (TABLE + "[policy]\nmin_test = -1", 3, "min_test must be at least 1, got -1"),
    (TABLE + '[policy]\nmessages = "Describe"', 3, "messages must be a list of texts or 'none', got 'Describe'"),
    (TABLE + '[policy]\nmessages = ["Describ"]', 3, "there is no message 'Describ'; did you mean 'Describe'?"),
    (TABLE + 'reading = "x"', 2, "reading must be a section: [reading]"),
    (TABLE + '[reading]\nseperator = ";"', 3, "unknown key 'seperator' in [reading]; did you mean 'separator'?"),
    (TABLE + "[reading]\nseparator = 5", 3, "separator must be one character"),
    (TABLE + '[reading]\ndecimal = "x"', 3, "decimal must be '.' or ',', got 'x'"),
    (TABLE + '[reading]\nencoding = "klingon"', 3, "encoding must be one that Python knows"),
    (TABLE + '[reading]\nmissing = "NA"', 3, "missing must be a list of texts"),
    (TABLE + '[reading]\nrename = "age"', 3, "rename must map names of columns to the study's names"),
    (TABLE + "[reading]\nrename = { age = 5 }", 3, "rename must map names of columns to the study's names"),
    (TABLE + '[reading.rename]\na = "age"\nb = "age"', 2, "several columns the name 'age'"),
    ('table = "sqlite:///x.db?table=t"\n[reading]\nrename = { a = "b" }', 1, "[reading] is for files; a query says"),
]
OF_FLARE = [
    (TABLE + 'simulator = "no"', 0, "simulator must be true or false, got 'no'"),
    (TABLE + "folder = 5", 0, "folder must be a path, got 5"),
    (TABLE + 'foldr = "x"', 2, "unknown key 'foldr'; did you mean 'folder'?"),
]


@pytest.fixture
def member(tmp_path):
    """A folder of a site that has joined."""
    made = Membership("heart", "north", "localhost", 8102, "", "")
    (tmp_path / "member.json").write_bytes(msgspec.json.encode(made))
    (tmp_path / "t.csv").write_text("age,label\n40,0\n50,1\n60,0\n70,1\n")
    return tmp_path


@pytest.fixture
def flare_site(tmp_path):
    """The folder of a site that FLARE provisioned."""
    (tmp_path / "local").mkdir()
    (tmp_path / "silvan").mkdir()
    place = {"site": "north", "workspace": str(tmp_path)}
    (tmp_path / "silvan" / "flare.json").write_bytes(msgspec.json.encode(place))
    return tmp_path


def said(folder, code=1):
    result = CliRunner().invoke(app, ["site", "check", str(folder)], env={"COLUMNS": "200"})
    text = (result.stdout + result.stderr).strip()
    assert result.exit_code == code, text
    return text


def check_line(text, file, line, expected):
    assert expected in text
    assert len(text.splitlines()) == 1
    assert f"{file}:{line}: " in text if line else str(file) in text


@pytest.mark.parametrize(("text", "line", "expected"), WRONG)
def test_site_toml(member, text, line, expected):
    (member / "site.toml").write_text(text)
    check_line(said(member), member / "site.toml", line, expected)


@pytest.mark.parametrize(("text", "line", "expected"), [*WRONG, *OF_FLARE])
def test_silvan_toml(flare_site, text, line, expected):
    (flare_site / "local" / "silvan.toml").write_text(text)
    check_line(said(flare_site / "silvan"), flare_site / "local" / "silvan.toml", line, expected)


def test_a_renamed_column(member):
    (member / "site.toml").write_text(TABLE + '[reading.rename]\nage = "years"\n')
    shown = said(member, 0)
    assert "years" in shown
    assert "The file of north is read with 'age' as 'years'." in shown
    (member / "site.toml").write_text(TABLE + '[reading]\nrename = { aeg = "years" }\n')
    assert "rename names the column 'aeg', which" in said(member)
    assert "did you mean 'age'?" in said(member)


def test_binary_and_missing_files(member):
    (member / "site.toml").write_bytes(b"\xff")
    check_line(said(member), member / "site.toml", 0, "not UTF-8 text; save it as such")
    (member / "site.toml").unlink()
    check_line(said(member), member / "site.toml", 0, "cannot be read: no such file")


def test_paths_are_relative_to_the_file(member, monkeypatch):
    """Wherever the command, or the site's process, was started."""
    monkeypatch.chdir("/")
    (member / "site.toml").write_text(TABLE)
    assert "age" in said(member, 0)
    (member / "site.toml").write_text('table = "gone.csv"\n')
    assert f"there is no file '{member / 'gone.csv'}'" in said(member)
