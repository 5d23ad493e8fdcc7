"""Tables in databases: the same values as in a file, read only, and one line for each failure."""

import re
import socket
import sqlite3
import subprocess
import sys
import threading
from decimal import Decimal

import polars as pl
import pytest
from helpers import studies

import silvan as sv
from silvan.data.readers import password
from silvan.data.readers.csv_pieces import RowPieces, last_end
from silvan.data.readers.database import read_batches
from silvan.data.readers.server_address import find_address
from silvan.data.table import read_table
from silvan.errors import InputError, SchemaError, UnavailableError

SECRET = "correct horse"  # noqa: S105, of nobody


@pytest.fixture
def clinic(tmp_path):
    path = tmp_path / "clinic.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE visits (age INTEGER, dose, sex TEXT, label INTEGER, empty, raw BLOB)")
        rows = [(63, 1.5, "f", 1), (41, 2, "m", 0), (2**60, None, None, 1), (None, -0.25, 'é,"\n', 0)]
        database.executemany("INSERT INTO visits (age, dose, sex, label) VALUES (?, ?, ?, ?)", rows)
    database.close()
    return f"sqlite:///{path}"


def plain(source):
    return read_table(source).to_dict(as_series=False)


def test_sqlite_values_and_types(clinic):
    frame = read_table(sv.Query(clinic, "select age, dose, sex, label, empty from visits")).to_native()
    assert frame.schema == pl.Schema(
        {"age": pl.Int64, "dose": pl.Float64, "sex": pl.String, "label": pl.Int64, "empty": pl.Float64}
    )
    # in the order of the columns, missing values last
    assert frame.rows() == [
        (41, 2.0, "m", 0, None),
        (63, 1.5, "f", 1, None),
        (2**60, None, None, 1, None),
        (None, -0.25, 'é,"\n', 0, None),
    ]


def test_a_table_may_be_named_in_the_url(clinic):
    assert (
        plain(f"{clinic}?table=visits")
        == plain(sv.Query(clinic, "visits"))
        == plain(sv.Query(clinic, "SELECT * FROM visits;"))
    )


def test_small_batches_give_the_same_rows(clinic):
    batches = []
    read_batches(sv.Query(clinic, "visits"), batches.append, room=1)
    assert [len(batch) for batch in batches] == [1, 1, 1, 1]
    assert pl.concat(batches).equals(read_table(f"{clinic}?table=visits").to_native())


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("nobody", "no such table: nobody; correct"),
        ("select weight from visits", "no such column: weight"),
        ("select age frm visits", "cannot be run: "),
        ("delete from visits", "must begin with SELECT or WITH"),
        ("select 1) ; delete from visits; --", "cannot be run|cannot be read|only read"),
        ("with gone as (select 1) delete from visits", "cannot be run: near"),
        ("select load_extension('x')", "only read|cannot be run|cannot be read"),
        ("select age, age from visits", "more than one column called 'age'"),
        ("select age, x'00' as raw from visits", "column 'raw' holds bytes"),
        ("select coalesce(sex, age) as mixed from visits", "column 'mixed' mixes numbers and text"),
        ("select * from visits where age < 0", "has columns but no rows"),
    ],
)
def test_errors_of_sqlite(clinic, query, said):
    with pytest.raises(InputError, match=said) as caught:
        read_table(sv.Query(clinic, query))
    assert "\n" not in str(caught.value)
    assert len(read_table(f"{clinic}?table=visits")) == 4


def test_no_such_file_and_no_database(tmp_path):
    with pytest.raises(InputError, match=r"there is no database .*nowhere\.db"):
        read_table(f"sqlite:///{tmp_path}/nowhere.db?table=t")
    (tmp_path / "text.db").write_text("not a database, though it is long enough to be looked at" * 20)
    with pytest.raises(InputError, match="is not an SQLite database"):
        read_table(f"sqlite:///{tmp_path}/text.db?table=t")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"postgresql://reader:{SECRET}@host/db?table=t", "must not hold a password; put"),
        (f"postgresql://host/db?table=t&password={SECRET}", "must not hold a password"),
        (f"mongodb://reader:{SECRET}@host/db", "mongodb:// is not a supported database"),
        (f"mysql://reader:{SECRET}@host/db?table=t", "must not hold a password; put"),
        (f"postgresql://reader:{SECRET}@host:port/db?table=t", "its port must be a number"),
        (f"postgresql://host/db?table=t&pasword={SECRET}", "it may only set"),
        ("postgresql://host/db", r"add \?table=NAME to the URL"),
        ("postgresql://host/db?table=t#x", "write it as %23"),
    ],
)
def test_refused_urls_are_not_quoted(url, said):
    for make in (lambda: read_table(url), lambda: sv.federate_rows({"a": url})):
        with pytest.raises((InputError, sv.SiteError)) as caught:
            make()
        error = caught.value if isinstance(caught.value, InputError) else caught.value.__cause__
        assert re.search(said, str(error))
        assert SECRET not in repr(caught.value) + repr(error) + str(error.__context__)


def test_columns_that_were_agreed(clinic):
    assert len(read_table(sv.Query(clinic, "select label, age from visits", columns=("age", "label")))) == 4
    said = r"lacks 'bmi' and has 'dose', 'sex' besides; change the query"
    with pytest.raises(SchemaError, match=said):
        read_table(sv.Query(clinic, "select age, dose, sex from visits", columns=("age", "bmi")))


def test_query_and_table_together_are_refused(clinic):
    with pytest.raises(InputError, match="not both"):
        sv.Query(f"{clinic}?table=visits", "select 1")


# -- passwords


def test_sources_of_passwords(tmp_path, monkeypatch):
    for name in ("PGPASSWORD", "PGPASSFILE", password.PASSWORD, password.PASSWORD_FILE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    here = ("host", 5432, "db", "me")
    assert password.find_password(*here) is None
    lines = (
        "# a comment\nother:*:*:*:wrong\nhost:5432:db:you:wrong\n*:5432:db:me:with\\:colon\\\\and:more\n*:*:*:*:late\n"
    )
    pgpass = tmp_path / ".pgpass"
    pgpass.write_text(lines)
    pgpass.chmod(0o600)
    assert password.find_password(*here) == "with:colon\\and:more"
    assert password.find_password("host", 1, "db", "me") == "late"
    monkeypatch.setenv("PGPASSWORD", "second")
    assert password.find_password(*here) == "second"
    own = tmp_path / "own"
    own.write_text("first\n")
    monkeypatch.setenv(password.PASSWORD_FILE, str(own))
    own.chmod(0o644)
    with pytest.raises(InputError, match="others may read it; run: chmod 600"):
        password.find_password(*here)
    own.chmod(0o600)
    assert password.find_password(*here) == "first"
    monkeypatch.setenv(password.PASSWORD_FILE, str(tmp_path / "gone"))
    with pytest.raises(InputError, match=f"{password.PASSWORD_FILE} names a file .* cannot be read"):
        password.find_password(*here)


# -- CSV in pieces


def test_rows_are_never_cut():
    text = b'1,"a\nb"\n2,"say ""\n"""\n3,c\n4,"open\n'
    assert last_end(text) == text.index(b"4,")
    assert last_end(b'1,"never\nending\n') == 0
    for step in range(1, len(text)):
        pieces = []
        rows = RowPieces(step, pieces.append)
        for start in range(0, len(text), 3):
            rows.write(text[start : start + 3])
        rows.close()
        assert b"".join(pieces) == text
        assert all(piece.count(b'"') % 2 == 0 and piece.endswith(b"\n") for piece in pieces[:-1])


def test_empty_results():
    pieces = []
    RowPieces(10, pieces.append).close()
    assert pieces == [b""]


# -- PostgreSQL


@pytest.fixture(scope="module")
def hospital(postgres):
    postgres.run(
        "CREATE TYPE mood AS ENUM ('sad', 'fine')",
        "CREATE DOMAIN percent AS numeric CHECK (value >= 0)",
        """CREATE TABLE visits (small smallint, large bigint, single real, double double precision, share percent,
             ok boolean, sex text, code char(3), how mood, id uuid, born date, seen timestamptz, label int)""",
        """INSERT INTO visits VALUES
             (1, 9007199254740993, 0.1, 0.1, 12.50, true, 'f,"x', 'ab', 'sad',
              '00000000-0000-0000-0000-000000000001', '1970-01-02', '2020-01-01 00:00+01', 1),
             (2, -1, 'NaN', 'Infinity', 1e-3, false, '', 'c', 'fine', NULL, NULL, NULL, 0),
             (NULL, NULL, NULL, 1e300, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0),
             (3, 0, -0.0, 123456789.123456789, 7, true, E'line\\nend', 'd', 'sad', NULL, NULL, NULL, 1)""",
        "CREATE TABLE odd (payload jsonb, label int)",
        "CREATE FUNCTION meddle() RETURNS int LANGUAGE plpgsql AS $$ BEGIN DELETE FROM visits; RETURN 1; END $$",
        "CREATE TABLE secrets (word text)",
        f"INSERT INTO secrets VALUES ('{SECRET}')",  # noqa: S608
    )
    return postgres


@pytest.fixture
def allowed(hospital, monkeypatch):
    for name in (
        "PGPASSFILE",
        "PGUSER",
        "PGHOST",
        "PGPORT",
        "PGSSLMODE",
        password.PASSWORD,
        password.PASSWORD_FILE,
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PGPASSWORD", hospital.password)
    return hospital


def test_postgres_values_and_types(allowed):
    frame = read_table(allowed.url(table="visits")).to_native()
    whole, text = pl.Int64, pl.String
    assert list(frame.schema.values()) == [
        whole, whole, pl.Float64, pl.Float64, pl.Float64, pl.Boolean, text, text, text, text,
        pl.Date, pl.Datetime("us"), whole,
    ]  # fmt: skip
    first = dict(zip(frame.columns, frame.row(0), strict=True))
    assert first["large"] == 9007199254740993
    assert (first["double"], first["share"]) == (0.1, float(Decimal("12.50")))
    assert (first["sex"], first["how"], str(first["born"]), str(first["seen"])) == (
        'f,"x', "sad", "1970-01-02", "2019-12-31 23:00:00",
    )  # fmt: skip
    assert frame["sex"].to_list() == ['f,"x', "", "line\nend", None]
    assert frame["ok"].to_list() == [True, False, True, None]
    assert frame["double"].to_list() == [0.1, float("inf"), 123456789.123456789, 1e300]


def test_postgres_in_a_fresh_process(allowed):
    """Tests have already loaded all of the driver; a site's process has not."""
    code = f"from silvan.data.table import read_table; print(len(read_table({allowed.url(table='visits')!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("4", "")


def test_postgres_in_small_batches_and_by_socket(allowed):
    whole = read_table(allowed.url(table="visits")).to_native()
    batches = []
    by_socket = f"postgresql://reader@:{allowed.port}/postgres?host={allowed.folder}"
    read_batches(sv.Query(by_socket, "select * from public.visits"), batches.append, room=4)
    assert len(batches) == 4
    assert pl.concat(batches).equals(whole, null_equal=True)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("nobody", 'relation "nobody" does not exist; correct'),
        ("select nothing from visits", 'column "nothing" does not exist'),
        ("select from where", "cannot be run: syntax error"),
        ("select meddle()", "would write, but a site's database is only read"),
        ("with gone as (delete from visits returning 1) select * from gone", "would write"),
        ("select 1) x; commit; delete from visits; --", "cannot be run: cannot insert multiple commands|syntax"),
        ("select * from odd", "column 'payload' is of type jsonb"),
        ("select word::int from secrets", r"fails on some row.* \(error 22P02\)"),
        ("select * from pg_authid", "permission denied"),
        ("select label, label from visits", "more than one column called 'label'"),
        ("select * from visits where large > 9e18", "has columns but no rows"),
    ],
)
def test_errors_of_postgres(allowed, query, said):
    with pytest.raises(InputError, match=said) as caught:
        read_table(sv.Query(allowed.url(), query))
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)
    assert len(read_table(allowed.url(table="visits"))) == 4


def test_a_lost_database_connection_is_retried(allowed, monkeypatch, caplog):
    """A time limit or a lost connection: the rows are read again, and a message tells the owner what happened."""
    whole, pauses = read_table(allowed.url(table="visits")).to_native(), []
    slow = sv.Query(allowed.url(), "select visits.* from visits, (select pg_sleep(0.3)) as slow")

    def relax(seconds):
        pauses.append(seconds)
        allowed.run("ALTER ROLE reader RESET statement_timeout")

    monkeypatch.setattr("silvan.data.stored_table.time.sleep", relax)
    allowed.run("ALTER ROLE reader SET statement_timeout = '50ms'")
    assert read_table(slow).to_native().equals(whole, null_equal=True)
    cut = threading.Thread(target=cut_a_reader, args=(allowed,))
    cut.start()
    assert read_table(slow).to_native().equals(whole, null_equal=True)
    cut.join()
    assert pauses == [1.0, 1.0]
    said = [record.getMessage() for record in caplog.records]
    assert "because it took too long" in said[0]
    assert re.search("(broke the connection|is being stopped or started); repeating the query in 1 s", said[1])
    assert not any("57" in line.replace(str(allowed.port), "") for line in said)


def cut_a_reader(server):
    """Closes a connection of the reader as soon as there is one."""
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'reader' AND state = 'active'"
    with server.connected() as connection:
        while not connection.run(end):
            pass


def test_an_unreachable_database_is_given_up(allowed, monkeypatch):
    pauses = []
    monkeypatch.setattr("silvan.data.stored_table.time.sleep", pauses.append)
    allowed.run("ALTER ROLE reader SET statement_timeout = '20ms'")
    try:
        with pytest.raises(UnavailableError, match="ended the query because it took too long"):
            read_table(sv.Query(allowed.url(), "select visits.* from visits, (select pg_sleep(0.3)) as slow"))
    finally:
        allowed.run("ALTER ROLE reader RESET statement_timeout")
    assert pauses == [1.0, 2.0, 4.0, 8.0]


def test_postgres_cannot_be_reached(allowed, monkeypatch):
    def refused(url, said):
        with pytest.raises(InputError, match=said) as caught:
            read_table(url)
        assert allowed.password not in repr(caught.value) + str(caught.value.__context__)

    refused(allowed.url("nowhere", table="t"), "has no database 'nowhere'")
    refused("postgresql://reader@127.0.0.1:1/db?table=t", "no PostgreSQL server listens at '127.0.0.1', port 1")
    refused(allowed.url(table="t", sslmode="maybe"), "sslmode must be one of")
    monkeypatch.setenv("PGPASSWORD", "wrong")
    refused(allowed.url(table="t"), "refuses the password of user 'reader'; put the password into PGPASSWORD")
    monkeypatch.delenv("PGPASSWORD")
    monkeypatch.setenv("HOME", "/nonexistent")
    refused(allowed.url(table="t"), "asks 'reader' for a password, but none is set")

    def nowhere(*_):
        raise socket.gaierror

    monkeypatch.setattr("silvan.data.readers.server_address.socket.create_connection", nowhere)
    refused("postgresql://reader@host.invalid/db?table=t", "there is no host 'host.invalid'")


def test_encryption(allowed):
    """By default a remote server must be trusted; here the test demands the same of a local one."""
    url, root = allowed.url, str(allowed.folder / "server.crt")
    for settings in ({"sslmode": "require"}, {"sslmode": "disable"}, {"sslmode": "verify-full", "sslrootcert": root}):
        assert len(read_table(url(table="visits", **settings))) == 4
    with pytest.raises(InputError, match=r"certificate of '127.0.0.1' cannot be trusted; .* sslrootcert=FILE"):
        read_table(url(table="visits", sslmode="verify-full"))
    with pytest.raises(InputError, match=r"sslrootcert '/nowhere' cannot be read"):
        read_table(url(table="visits", sslmode="verify-full", sslrootcert="/nowhere"))
    elsewhere = find_address(sv.Query("postgresql://db.example/records?table=visits"), 5432)
    assert (elsewhere.ssl, elsewhere.port, elsewhere.database) == ("verify-full", 5432, "records")


def test_a_server_without_encryption():
    pytest.importorskip("pg8000")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer():
            with listening.accept()[0] as caller:
                caller.recv(8)
                caller.sendall(b"N")

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"postgresql://me@127.0.0.1:{listening.getsockname()[1]}/db?table=t&sslmode=require"
        with pytest.raises(InputError, match=r"'127.0.0.1' offers no TLS; set it up, or set sslmode=disable"):
            read_table(url)
        thread.join()


def test_a_federation_of_databases(allowed, tmp_path, caplog, monkeypatch):
    """PostgreSQL, SQLite and a file as three sites; the same forest as from data frames, in memory and in batches."""
    tables = studies.parts(studies.table(n=150), 3)
    # all databases put missing values last
    frames = {site: frame.sort(frame.columns, nulls_last=True) for site, frame in tables.items()}
    (first, one), (second, two), (third, three) = frames.items()
    allowed.run("CREATE TABLE patients (age float8, dose int, sex text, ward text, noise float8, label text)")
    values = ", ".join(
        "(" + ", ".join("NULL" if v is None else f"'{v}'" if isinstance(v, str) else repr(v) for v in row) + ")"
        for row in one.sample(fraction=1.0, shuffle=True, seed=1).rows()
    )
    allowed.run(f"INSERT INTO patients VALUES {values}")  # noqa: S608
    path = tmp_path / "lite.db"
    with sqlite3.connect(path) as database:
        database.execute(f"CREATE TABLE patients ({', '.join(two.columns)})")
        shuffled = two.sample(fraction=1.0, shuffle=True, seed=1).rows()
        database.executemany("INSERT INTO patients VALUES (?, ?, ?, ?, ?, ?)", shuffled)
    database.close()
    sources = {
        first: sv.Query(allowed.url(), "select * from patients where label is not null -- all of them"),
        second: f"sqlite:///{path}?table=patients",
        third: three,
    }
    made = []
    for memory, given in ((None, frames), (None, sources), (10_000, sources)):
        fed = sv.federate_rows(given, test=0.2, n_jobs=1, memory=memory)
        made.append(sv.HistogramForest(3, max_depth=3).fit(fed).forest_.hash)
    assert len(set(made)) == 1
    monkeypatch.setenv("PGPASSWORD", wrong := "wr0ng-and-secret")
    with pytest.raises(sv.SiteError) as caught:
        sv.federate_rows(sources)
    assert "refuses the password" in str(caught.value.__cause__)
    assert "refuses the password" in str(caught.value)  # in one process there is nobody else
    assert "refuses the password" in caplog.text
    assert wrong not in caplog.text + repr(caught.value) + repr(sources)
