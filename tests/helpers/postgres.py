"""A private PostgreSQL server: cluster, password, certificate, and a free port on loopback.

Where the server's programs are not installed, tests that need one are skipped and say so.
"""

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NONE = "no PostgreSQL server here; to read from one: apt-get install postgresql"


def programs() -> Path | None:
    """Finds the newest installed server."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    there = shutil.which("initdb")
    return found[-1].parent if found else Path(there).parent if there else None


class Server:
    """A running server; ``reader`` may read the tables that ``owner`` makes, who may do anything."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.owner_password, self.password = secrets.token_hex(16), secrets.token_hex(16)

    def url(self, database: str = "postgres", user: str = "reader", **settings: str) -> str:
        """Returns a URL without the password."""
        after = "&".join(f"{key}={value}" for key, value in settings.items())
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}{'?' + after if after else ''}"

    def run(self, *statements: str) -> None:
        """Runs statements as the owner."""
        with self.connected() as connection:
            for statement in statements:
                connection.run(statement)

    def connected(self) -> Any:
        """Connects as the owner."""
        import pg8000.native

        return pg8000.native.Connection(
            "owner", host="127.0.0.1", port=self.port, database="postgres", password=self.owner_password
        )


@contextmanager
def start() -> Iterator[Server]:
    """Starts a server, and stops it at the end."""
    home = programs()
    if home is None:
        pytest.skip(NONE)
    pytest.importorskip("pg8000", reason="pg8000 is not installed; to read from PostgreSQL: pip install 'silvan[sql]'")
    with tempfile.TemporaryDirectory(prefix="silvan-pg-") as name, socket.socket() as probe:
        folder = Path(name)
        user = _other_user(folder)
        probe.bind(("127.0.0.1", 0))
        server = Server(folder, probe.getsockname()[1])
        probe.close()
        secret = folder / "password"
        secret.write_text(server.owner_password)
        if user is not None:
            shutil.chown(secret, user)

        def run(program: str, *arguments: str) -> None:
            with (folder / "log").open("ab") as log:
                done = subprocess.run(
                    [home / program, *arguments],
                    user=user,
                    cwd=folder,
                    env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            assert done.returncode == 0, (folder / "log").read_text()

        data = str(folder / "data")
        run("initdb", "-D", data, "-U", "owner", "-A", "scram-sha-256", f"--pwfile={secret}", "-N", "-E", "UTF8")
        certify(folder, user)
        options = (
            f"-p {server.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off "
            f"-c ssl=on -c ssl_cert_file={folder / 'server.crt'} -c ssl_key_file={folder / 'server.key'}"
        )
        run("pg_ctl", "-D", data, "-w", "-t", "60", "-l", str(folder / "server.log"), "-o", options, "start")
        try:
            server.run(
                f"CREATE ROLE reader LOGIN PASSWORD '{server.password}'",
                "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO reader",
            )
            yield server
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")


def certify(folder: Path, user: str | None) -> None:
    """Writes a self-signed certificate for loopback, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a server of tests")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "server.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret = folder / "server.key"
    secret.touch(0o600)
    plain = serialization.NoEncryption()
    secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    if user is not None:
        shutil.chown(folder / "server.crt", user)
        shutil.chown(secret, user)


def _other_user(folder: Path) -> str | None:
    """Gives the folder to another user if we are root: the server refuses to run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    user = "postgres" if "postgres" in names else "nobody"
    shutil.chown(folder, user)
    return user


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for all tests of a process; its password is in the environment of that process."""
    with start() as server:
        yield server
