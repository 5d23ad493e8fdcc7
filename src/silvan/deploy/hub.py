"""The coordinator's folder: who is invited, who has joined, and the keys of the federation.

::

    hub.json           name, address, the sites and how far each is
    coordinator.key    signs every message
    authority/         signs certificates; who has ``root.key`` can let anybody in
    server/, admin/    FLARE's folders
    runs/              a folder a study
"""

import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from silvan.deploy import flare_kit
from silvan.deploy.certificates import Authority, make_key, make_request, pem
from silvan.deploy.fingerprint import in_words
from silvan.errors import FormatError, InputError
from silvan.federation.keys import Key, Roster, read_public
from silvan.federation.store import digest
from silvan.util.files import write_whole

HUB = "hub.json"
PORT = 8102
INVITE_DAYS = 14
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")


class Member(msgspec.Struct):
    """A site, from the coordinator's view; what it joined with is empty until it has."""

    invited: str = ""  # digest of the secret of the last invitation
    until: str = ""
    key: str = ""
    seal: str = ""
    joined: str = ""

    @property
    def words(self) -> str:
        """The fingerprint of the site's keys."""
        return in_words(bytes.fromhex(self.key + self.seal))


class Content(msgspec.Struct):
    """What ``hub.json`` holds."""

    name: str
    host: str
    port: int
    hosts: list[str]
    sites: dict[str, Member]
    columns: list[str] = []


class Invite(msgspec.Struct, frozen=True):
    """A file for one site: where to join, whom to trust, and a secret that is good once."""

    federation: str
    site: str
    host: str
    port: int  # where to join; studies run over the one before it
    root: str  # the federation's certificate
    coordinator: str  # the coordinator's public key
    secret: str
    until: str
    columns: list[str] = []

    @classmethod
    def read(cls, path: Path) -> "Invite":
        """Read an invitation."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError:
            raise InputError(f"{path}: there is no such invitation") from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise FormatError(f"{path}: not an invitation; was it changed on its way?") from None


class Hub:
    """The coordinator's folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()
        if not (self.path / HUB).is_file():
            raise InputError(f"{path}: no federation here; `silvan study init` makes one")

    @classmethod
    def create(
        cls, path: Path, name: str, sites: list[str], host: str, port: int, columns: list[str] | None = None
    ) -> "Hub":
        """Make a federation: keys, certificates and FLARE's folders."""
        _check_name("name", name)
        for site in sites:
            _check_name("site", site)
        if len(sites) < 1 or len(set(sites)) < len(sites):
            raise InputError("site must name each site once, and at least one")
        if not 1 <= port <= 65534:
            raise InputError(f"port must be between 1 and 65534, got {port}; the one after it is used too")
        if (path / HUB).exists():
            raise InputError(f"{path}: there is a federation already")
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)
        path = path.resolve()
        authority = Authority.create(path / "authority", name)
        Key.generate().save(path / "coordinator.key")
        hosts = list(dict.fromkeys([host, "localhost", "127.0.0.1"]))
        flare_kit.write_server(path / "server", host, port)
        flare_kit.write_admin(path / "admin", host, port)
        for folder, file, who, named, role in (
            ("server", "server", host, tuple(hosts), ""),
            ("admin", "client", flare_kit.ADMIN, (), "lead"),
        ):
            startup = path / folder / "startup"
            request = make_request(make_key(startup / f"{file}.key"), who)
            (startup / f"{file}.crt").write_bytes(authority.sign(request, who, named, role))
            (startup / "rootCA.pem").write_bytes(pem(authority.certificate))
        content = Content(name, host, port, hosts, {site: Member() for site in sites}, columns or [])
        write_whole(path / HUB, _json(content))
        return cls(path)

    def read(self) -> Content:
        """Read how it stands."""
        try:
            return msgspec.json.decode((self.path / HUB).read_bytes(), type=Content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise FormatError(f"{self.path / HUB}: damaged; restore it from a backup") from None

    @contextmanager
    def changing(self) -> Iterator[Content]:
        """Change how it stands; one at a time."""
        handle = os.open(self.path / ".lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            content = self.read()
            yield content
            write_whole(self.path / HUB, _json(content))
        finally:
            os.close(handle)

    @property
    def key(self) -> Key:
        """The coordinator's key."""
        return Key.load(self.path / "coordinator.key")

    @property
    def authority(self) -> Authority:
        """What signs certificates."""
        return Authority.load(self.path / "authority")

    def invite(self, site: str, days: float = INVITE_DAYS) -> Invite:
        """Make an invitation; an earlier one for the same site is no longer good."""
        secret = secrets.token_urlsafe(24)
        until = (datetime.now(UTC) + timedelta(days=days)).isoformat(timespec="seconds")
        with self.changing() as content:
            member = _member(content, site)
            member.invited, member.until = digest(secret.encode()), until
            root = pem(self.authority.certificate).decode()
            return Invite(
                federation=content.name,
                site=site,
                host=content.host,
                port=content.port + 1,
                root=root,
                coordinator=self.key.public.hex(),
                secret=secret,
                until=until,
                columns=content.columns,
            )

    def admit(self, site: str, secret: str, key: str, seal: str, request: bytes) -> bytes:
        """Let an invited site join: note its keys, and sign its certificate. An invitation is good once."""
        certificate = self.authority.sign(request, site)
        read_public(key), read_public(seal)
        with self.changing() as content:
            member = content.sites.get(site)
            if member is None or not member.invited:
                raise InputError(f"no invitation for {site!r} is open: it was used, or taken back; ask for a new one")
            if not secrets.compare_digest(member.invited, digest(secret.encode())):
                raise InputError(f"this invitation for {site!r} is not the last one; ask for a new one")
            if datetime.now(UTC) > datetime.fromisoformat(member.until):
                raise InputError(f"this invitation for {site!r} ended on {member.until[:10]}; ask for a new one")
            others = {m.key for name, m in content.sites.items() if name != site} | {self.key.public.hex()}
            if key in others:
                raise InputError("another site has joined with this key; each needs its own: join in a new folder")
            member.invited, member.until = "", ""
            member.key, member.seal = key, seal
            member.joined = datetime.now(UTC).isoformat(timespec="seconds")
        return certificate

    def add(self, site: str) -> None:
        """Name a further site."""
        _check_name("site", site)
        with self.changing() as content:
            if site in content.sites:
                raise InputError(f"there is a site {site!r} already")
            content.sites[site] = Member()

    def revoke(self, site: str) -> None:
        """Take a site out: nothing that it signs is taken any more, and it is asked nothing."""
        with self.changing() as content:
            _member(content, site)
            del content.sites[site]

    def roster(self, needed: list[str] | None = None) -> Roster:
        """Give everybody's public keys; all sites (or those needed) must have joined."""
        content = self.read()
        for site in needed or content.sites:
            if not _member(content, site).key:
                raise InputError(f"site {site!r} has not joined yet; send it the invitation (`silvan study invite`)")
        joined = {name: member for name, member in content.sites.items() if member.key}
        return Roster(
            self.key.public,
            {name: bytes.fromhex(member.key) for name, member in joined.items()},
            {name: bytes.fromhex(member.seal) for name, member in joined.items()},
        )


def roster_words(roster: Roster) -> str:
    """Give the fingerprint of all keys of a roster."""
    keys = [roster.coordinator]
    for name in sorted(roster.sites):
        keys += [name.encode(), roster.sites[name], roster.seals.get(name, b"")]
    return in_words(b"\0".join(keys))


def _member(content: Content, site: str) -> Member:
    if site not in content.sites:
        raise InputError(f"there is no site {site!r}; the sites are {', '.join(content.sites)}")
    return content.sites[site]


def _check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name) or name in ("all", "server", "admin"):
        raise InputError(f"{what} must be of small letters, digits and hyphens, and not 'all', got {name!r}")


def _json(content: Content) -> bytes:
    return msgspec.json.format(msgspec.json.encode(content)) + b"\n"
