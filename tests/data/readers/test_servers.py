"""Tables in MariaDB, on a private test server; and what would be sent to SQL Server and Oracle."""

import ssl
import sys
from datetime import date, datetime
from decimal import Decimal
from types import ModuleType, SimpleNamespace

import polars as pl
import pytest

import silvan as sv
from silvan.data.readers import password
from silvan.data.readers.database import columns_statements, read_batches, rows_statement
from silvan.data.readers.dialects import DIALECTS, odbc_text
from silvan.data.readers.server_address import find_address
from silvan.data.table import read_table
from silvan.errors import InputError, SchemaError

SECRET = "correct horse"  # noqa: S105, of nobody
sqlalchemy = pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed; pip install 'silvan[mysql]'")


@pytest.fixture(scope="module")
def hospital(mariadb):
    mariadb.run(
        """CREATE TABLE visits (tiny tinyint(1), big bigint, huge bigint unsigned, single float, amount decimal(12,3),
             ok bit(1), flags bit(9), sex varchar(20), code char(3), how enum('sad','fine'), note text, born date,
             seen timestamp NULL, `odd ``name` int, label int)""",
        r"""INSERT INTO visits VALUES
             (1, 9007199254740993, 7, 0.5, 12.500, b'1', b'100000001', 'f,"x', 'ab', 'sad', 'é😀', '1970-01-02',
              '2020-01-01 00:00:00', 1, 1),
             (0, -1, 0, -0.25, 0.001, b'0', b'0', '', 'c', 'fine', 'line\nend', NULL, NULL, 2, 0),
             (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0)""",
        "CREATE TABLE words (word varchar(20))",
        f"INSERT INTO words VALUES ('b'), ('a'), ('B'), ('A'), ('a '), ('{SECRET}')",  # noqa: S608
        "CREATE TABLE odd (payload blob, at time, huge bigint unsigned, label int)",
        "INSERT INTO odd VALUES (x'00ff', '10:00', 18446744073709551615, 1)",
        """CREATE FUNCTION meddle() RETURNS int MODIFIES SQL DATA BEGIN DELETE FROM visits; RETURN 1; END""",
    )
    return mariadb


@pytest.fixture
def allowed(hospital, monkeypatch):
    monkeypatch.delenv(password.PASSWORD_FILE, raising=False)
    monkeypatch.setenv(password.PASSWORD, hospital.password)
    return hospital


def test_values_and_types(allowed):
    frame = read_table(allowed.url(table="visits")).to_native()
    whole, text, number = pl.Int64, pl.String, pl.Float64
    assert list(frame.schema.values()) == [
        whole, whole, whole, number, number, pl.Boolean, whole, text, text, text, text, pl.Date, pl.Datetime("us"),
        whole, whole,
    ]  # fmt: skip
    # in the order of the columns, missing values last
    assert frame.rows() == [
        (0, -1, 0, -0.25, 0.001, False, 0, "", "c", "fine", "line\nend", None, None, 2, 0),
        (1, 9007199254740993, 7, 0.5, float(Decimal("12.500")), True, 257, 'f,"x', "ab", "sad", "é😀",
         date(1970, 1, 2), datetime(2020, 1, 1), 1, 1),
        (*[None] * 14, 0),
    ]  # fmt: skip
    assert frame.columns[13] == "odd `name"


def test_small_batches_and_texts_by_their_bytes(allowed):
    batches = []
    read_batches(
        sv.Query(allowed.url(), "select word from words where word not like '%horse%'"), batches.append, room=1
    )
    assert [batch["word"].to_list() for batch in batches] == [["A"], ["B"], ["a"], ["a "], ["b"]]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("nobody", "cannot be run: .*nobody.* doesn't exist; correct"),
        ("select nothing from visits", "cannot be run: Unknown column 'nothing'"),
        ("select from where", "cannot be run: You have an error in your SQL syntax"),
        ("delete from visits", "must begin with SELECT or WITH"),
        ("select 1) x; delete from visits; --", "cannot be run"),
        ("select meddle() as x", "would write, but a site's database is only read"),
        ("select payload from odd", "column 'payload' is of type bytes"),
        ("select at from odd", "column 'at' is of type time"),
        ("select huge from odd", "column 'huge' holds whole numbers of more than 64 bits"),
        ("select label, label as Label, label from visits", "cannot be run: Duplicate column name"),
        ("select label from visits where label > 9", "has columns but no rows"),
        ("select * from mysql.global_priv", "cannot be run: .*denied"),
    ],
)
def test_errors_of_mariadb(allowed, query, said):
    with pytest.raises((InputError, SchemaError), match=said) as caught:
        read_table(sv.Query(allowed.url(), query))
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)
    assert allowed.password not in str(caught.value)
    assert len(read_table(allowed.url(table="visits"))) == 3


def test_mariadb_cannot_be_reached(allowed, monkeypatch, caplog):
    def refused(url, said):
        with pytest.raises(InputError, match=said) as caught:
            read_table(url)
        assert allowed.password not in repr(caught.value) + str(caught.value.__context__)
        assert "wrong horse" not in repr(caught.value) + str(caught.value.__context__)

    refused(allowed.url("nowhere", table="t"), "does not allow 'reader' to read database 'nowhere'; check the names")
    refused("mysql://reader@127.0.0.1:1/db?table=t", "no MySQL server listens at '127.0.0.1', port 1")
    refused(allowed.url(table="t", sslmode="maybe"), "sslmode must be one of")
    refused("mysql://reader@127.0.0.1?table=t", "must name the database: mysql://user@127.0.0.1/DATABASE")
    monkeypatch.setenv(password.PASSWORD, "wrong horse")
    refused(
        allowed.url(table="t"),
        f"check the names in the URL and the password; put the password into {password.PASSWORD}",
    )
    assert "horse" not in caplog.text


def test_encryption(allowed):
    url, root = allowed.url, str(allowed.folder / "server.crt")
    for settings in (
        {},
        {"sslmode": "require"},
        {"sslmode": "disable"},
        {"sslmode": "verify-full", "sslrootcert": root},
    ):
        assert len(read_table(url(table="visits", **settings))) == 3
    with pytest.raises(InputError, match=r"certificate of '127.0.0.1' cannot be trusted; .* sslrootcert=FILE"):
        read_table(url(table="visits", sslmode="verify-full"))
    with pytest.raises(InputError, match=r"sslrootcert '/nowhere' cannot be read"):
        read_table(url(table="visits", sslmode="verify-full", sslrootcert="/nowhere"))


def test_rows_of_mariadb_give_the_forest_of_the_same_rows_in_memory(allowed):
    rows = [(i, i % 7 * 0.25, "f" if i % 3 else "m", i % 2) for i in range(200)]
    with allowed.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS rows_ (id int, dose double, sex varchar(2), label int)")
        cursor.executemany("INSERT INTO rows_ VALUES (%s, %s, %s, %s)", rows)
        connection.commit()
    frame = pl.DataFrame(rows, schema=["id", "dose", "sex", "label"], orient="row")
    tables = (allowed.url(table="rows_"), frame)
    feds = [sv.federate_rows({"a": table}, label="label", test=0.2, random_state=1) for table in tables]
    first, second = (sv.HistogramForest(3, max_depth=4, random_state=1).fit(fed).forest_.hash for fed in feds)
    assert first == second


# -- what would be sent to servers that tests cannot start


@pytest.mark.parametrize(
    ("url", "query", "sent"),
    [
        (
            "mssql://reader@db.example/records",
            "select age, sex from visits",
            (
                "SELECT * FROM (\nselect age, sex from visits\n) AS silvan_rows WHERE 1 = 0",
                "SELECT * FROM (\nselect age, sex from visits\n) AS silvan_rows ORDER BY "
                "CASE WHEN [age] IS NULL THEN 1 ELSE 0 END, [age], "
                "CASE WHEN [sex] IS NULL THEN 1 ELSE 0 END, [sex] COLLATE Latin1_General_100_BIN2",
            ),
        ),
        (
            "sqlserver://reader@db.example/records?table=dbo.vis]its",
            "",
            (
                "SELECT * FROM [dbo].[vis]]its] WHERE 1 = 0",
                "SELECT * FROM [dbo].[vis]]its] ORDER BY CASE WHEN [age] IS NULL THEN 1 ELSE 0 END, [age], "
                "CASE WHEN [sex] IS NULL THEN 1 ELSE 0 END, [sex] COLLATE Latin1_General_100_BIN2",
            ),
        ),
        (
            "oracle://reader@db.example/RECORDS",
            "select age, sex from visits",
            (
                "SET TRANSACTION READ ONLY",
                "SELECT * FROM (\nselect age, sex from visits\n) silvan_rows WHERE 1 = 0",
                'SELECT * FROM (\nselect age, sex from visits\n) silvan_rows ORDER BY "age", '
                "NLSSORT(\"sex\", 'NLS_SORT=BINARY')",
            ),
        ),
        (
            "oracle://reader@db.example/RECORDS?table=clinic.visits",
            "",
            (
                "SET TRANSACTION READ ONLY",
                "SELECT * FROM clinic.visits WHERE 1 = 0",
                'SELECT * FROM clinic.visits ORDER BY "age", NLSSORT("sex", \'NLS_SORT=BINARY\')',
            ),
        ),
    ],
)
def test_statements(url, query, sent):
    asked = sv.Query(url, query)
    assert (*columns_statements(asked), rows_statement(asked, {"age": int, "sex": str})) == sent


@pytest.mark.parametrize(
    ("settings", "ends"),
    [
        ("", "Encrypt=yes;ApplicationIntent=ReadOnly;APP=silvan"),
        ("&sslmode=require", "Encrypt=yes;ApplicationIntent=ReadOnly;APP=silvan;TrustServerCertificate=yes"),
        ("&sslmode=disable", "Encrypt=no;ApplicationIntent=ReadOnly;APP=silvan"),
    ],
)
def test_arguments_for_sql_server(settings, ends):
    address = find_address(sv.Query(f"mssql://reader@db.example/records?table=t{settings}"), 1433)
    text = odbc_text(address, "a;b}c")
    parts = "DRIVER={ODBC Driver 18 for SQL Server};Server=db.example,1433;Database=records;UID=reader;PWD={a;b}}c};"
    assert text == parts + ends  # a password cannot end early and set another option
    driver = SimpleNamespace(connect=lambda text, timeout: (text, timeout))
    assert DIALECTS["mssql"].connect(driver, address, "a;b}c") == (text, 15)


def test_arguments_for_oracle():
    def called(settings):
        address = find_address(sv.Query(f"oracle://reader@db.example:1522/RECORDS?table=t{settings}"), 1521)
        return DIALECTS["oracle"].connect(SimpleNamespace(connect=lambda **named: named), address, SECRET)

    plain = called("&sslmode=disable")
    assert plain == {
        "user": "reader", "password": SECRET, "host": "db.example", "port": 1522, "service_name": "RECORDS",
        "protocol": "tcp", "tcp_connect_timeout": 15.0,
    }  # fmt: skip
    checked = called("")
    assert (checked["protocol"], checked["ssl_server_dn_match"]) == ("tcps", True)
    assert checked["ssl_context"].verify_mode == ssl.CERT_REQUIRED
    assert called("&sslmode=require")["ssl_context"].verify_mode == ssl.CERT_NONE


def test_types_of_sql_server_and_oracle():
    from uuid import UUID

    types = [int, Decimal, bool, str, UUID, date, datetime, bytearray]
    found = [DIALECTS["mssql"].kind(("x", kind, None, 0, 0, 0, True)) for kind in types]
    assert found == [int, float, bool, str, str, date, datetime, "bytearray"]

    def oracle(name, precision=0, scale=0):
        return DIALECTS["oracle"].kind(("X", SimpleNamespace(name=f"DB_TYPE_{name}"), 0, 0, precision, scale, True))

    assert [oracle("NUMBER", 9, 0), oracle("NUMBER", 10, 2), oracle("NUMBER", 0, -127)] == [int, float, float]
    assert [oracle("VARCHAR"), oracle("DATE"), oracle("BOOLEAN"), oracle("CLOB")] == [str, datetime, bool, "clob"]


@pytest.mark.parametrize("query", ["with x as (select 1 as a) select * from x", "select 1; drop table x"])
def test_sql_server_accepts_only_a_single_query(query):
    with pytest.raises(InputError, match="SQL Server takes no ';' and no WITH inside of a query; make it a view"):
        sv.Query("mssql://reader@db.example/records", query)


def test_a_missing_driver(monkeypatch):
    monkeypatch.setitem(sys.modules, "oracledb", None)
    with pytest.raises(InputError, match=r"reading Oracle needs a driver; run: pip install 'silvan\[oracle\]'"):
        read_table("oracle://reader@db.example/RECORDS?table=t")


def test_rows_of_an_oracle_like_driver(monkeypatch):
    """A stand-in for the driver: records what it receives and returns given values."""
    sent = []

    class Cursor:
        def __init__(self):
            self.left = [(Decimal(3), "x", datetime(2020, 1, 1)), (None, None, None)]
            kinds = [("NUMBER", 9), ("VARCHAR", 0), ("DATE", 0)]
            self.description = [
                (name, SimpleNamespace(name=f"DB_TYPE_{kind}"), 0, 0, precision, 0, True)
                for name, (kind, precision) in zip("ABC", kinds, strict=True)
            ]

        def execute(self, statement):
            sent.append(statement)

        def fetchall(self):
            return []

        def fetchmany(self, size):
            rows, self.left = self.left[:size], self.left[size:]
            return rows

        def close(self):
            sent.append("closed")

    driver = ModuleType("oracledb")
    driver.Error = type("Error", (Exception,), {})
    driver.connect = lambda **named: SimpleNamespace(cursor=Cursor, close=lambda: sent.append(named["host"]))
    driver.version = driver.__version__ = "3.0.0"
    entry = sqlalchemy.make_url("oracle+oracledb://").get_dialect()
    monkeypatch.setattr(entry, "import_dbapi", classmethod(lambda cls: driver))
    frame = read_table("oracle://reader@db.example/RECORDS?table=visits").to_native()
    assert frame.rows() == [(3, "x", datetime(2020, 1, 1)), (None, None, None)]
    assert sent[0] == "SET TRANSACTION READ ONLY"
    assert sent[2].endswith('ORDER BY "A", NLSSORT("B", \'NLS_SORT=BINARY\'), "C"')
    assert sent[3:] == ["closed", "db.example"]
