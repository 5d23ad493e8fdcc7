"""A private MariaDB server: folder, passwords, certificate, and a free port on loopback.

Where the server's programs are not installed, tests that need one are skipped and say so.
"""

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.postgres import certify

NONE = "no MariaDB server here; to read from one: apt-get install mariadb-server"
_USER = "mysql"


class Server:
    """A running server; ``reader`` may read the database ``clinic``, in which ``owner`` may do anything."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.owner_password, self.password = secrets.token_hex(16), secrets.token_hex(16)

    def url(self, database: str = "clinic", user: str = "reader", **settings: str) -> str:
        """Returns a URL without the password."""
        after = "&".join(f"{key}={value}" for key, value in settings.items())
        return f"mysql://{user}@127.0.0.1:{self.port}/{database}{'?' + after if after else ''}"

    def connect(self, database: str = "clinic") -> Any:
        """Connects as the owner."""
        import pymysql

        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="owner", password=self.owner_password, database=database
        )

    def run(self, *statements: str) -> None:
        """Runs statements as the owner."""
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            connection.commit()


@contextmanager
def start() -> Iterator[Server]:
    """Starts a server, and stops it at the end."""
    program = shutil.which("mariadbd", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None or shutil.which("mariadb-install-db") is None:
        pytest.skip(NONE)
    pytest.importorskip("pymysql", reason="pymysql is not installed; to read from MariaDB: pip install 'silvan[mysql]'")
    with tempfile.TemporaryDirectory(prefix="silvan-mariadb-") as name, socket.socket() as probe:
        folder, user = Path(name), _USER if os.geteuid() == 0 else None
        if user is not None:
            shutil.chown(folder, user)
        probe.bind(("127.0.0.1", 0))
        server = Server(folder, probe.getsockname()[1])
        probe.close()
        certify(folder, user)
        (folder / "first.sql").write_text(_first(server))
        if user is not None:
            shutil.chown(folder / "first.sql", user)
        (folder / "first.sql").chmod(0o600)
        own = {"user": user, "cwd": folder, "stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
        made = ["mariadb-install-db", "--no-defaults", f"--datadir={folder}/data", "--skip-test-db"]
        made.append("--auth-root-authentication-method=socket")
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL, **own)
        options = {
            "datadir": folder / "data",
            "socket": folder / "socket",
            "pid-file": folder / "pid",
            "port": server.port,
            "bind-address": "127.0.0.1",
            "init-file": folder / "first.sql",
            "innodb-flush-log-at-trx-commit": 0,
            "ssl-cert": folder / "server.crt",
            "ssl-key": folder / "server.key",
        }
        arguments = [program, "--no-defaults", *(f"--{key}={value}" for key, value in options.items())]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(arguments, stdout=log, **own)
        try:
            _wait(server, process)
            yield server
        finally:
            process.kill()
            process.wait()


def _first(server: Server) -> str:
    """Returns what the server runs when it starts."""
    lines = ["CREATE DATABASE clinic CHARACTER SET utf8mb4"]
    for user, password, rights in (
        ("owner", server.owner_password, "ALL"),
        ("reader", server.password, "SELECT, EXECUTE"),
    ):
        lines += [
            f"CREATE USER {user}@'127.0.0.1' IDENTIFIED BY '{password}'",
            f"GRANT {rights} ON clinic.* TO {user}@'127.0.0.1'",
        ]
    return "".join(f"{line};\n" for line in lines)


def _wait(server: Server, process: subprocess.Popen[bytes]) -> None:
    import pymysql

    end = time.monotonic() + 60
    while True:
        try:
            server.connect().close()
            return
        except pymysql.err.OperationalError:
            assert process.poll() is None, (server.folder / "log").read_text()
            assert time.monotonic() < end, (server.folder / "log").read_text()
            time.sleep(0.1)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Server]:
    """A server for all tests of a process; its password is in the environment of that process."""
    with start() as server:
        yield server
