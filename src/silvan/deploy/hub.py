"""The coordinator's folder: which sites are invited, which have joined, and the keys of the federation.

::

    hub.json           name, address, and of each site whether it is invited or has joined
    coordinator.key    signs every message
    authority/         signs certificates; whoever has ``root.key`` can admit sites
    server/, admin/    FLARE's folders
    runs/              a run folder for each study
"""

import math
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from silvan.deploy import flare_kit
from silvan.deploy.certificates import Authority, make_key, make_request, pem
from silvan.deploy.fingerprint import N_WORDS_OF_ALL, fingerprint
from silvan.errors import FormatError, InputError
from silvan.federation.keys import Key, Roster, read_public
from silvan.federation.store import digest
from silvan.util.files import write_whole
from silvan.util.folder_lock import lock_folder

HUB = "hub.json"
PORT = 8102
INVITE_DAYS = 14
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")
_HOST = re.compile(r"[A-Za-z0-9:]([A-Za-z0-9._:-]{0,251}[A-Za-z0-9])?")


class SiteEntry(msgspec.Struct):
    """What the coordinator knows of a site; the keys are empty until it has joined."""

    invited: str = ""  # digest of the secret of the last invitation
    until: str = ""  # when that invitation ends
    key: str = ""
    seal: str = ""
    joined: str = ""

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the site's keys, in words."""
        return fingerprint(bytes.fromhex(self.key + self.seal))


class Content(msgspec.Struct):
    """What ``hub.json`` holds."""

    name: str
    host: str
    port: int
    hosts: list[str]
    sites: dict[str, SiteEntry]
    columns: list[str] = []


class Invite(msgspec.Struct, frozen=True):
    """An invitation, a file for one site: where to join, which keys to trust, and a secret that can be used once."""

    federation: str
    site: str
    host: str
    port: int  # where to join; studies run over the one before it
    root: str  # the federation's certificate
    coordinator: str  # the coordinator's public key
    secret: str
    until: str
    columns: list[str] = []

    def __post_init__(self) -> None:
        """Raise an error for names that are none: the site's folder is called as the invitation says."""
        check_name("federation", self.federation)
        check_name("site", self.site)
        check_host(self.host)
        if not 2 <= self.port <= 65535:
            raise InputError(f"port must be between 2 and 65535, got {self.port}")
        read_public(self.coordinator)

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
        """Create a federation: keys, certificates and FLARE's folders."""
        check_name("name", name)
        for site in sites:
            check_name("site", site)
        check_host(host)
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
        content = Content(name, host, port, hosts, {site: SiteEntry() for site in sites}, columns or [])
        write_whole(path / HUB, _json(content))
        return cls(path)

    def read(self) -> Content:
        """Read ``hub.json``."""
        try:
            return msgspec.json.decode((self.path / HUB).read_bytes(), type=Content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise FormatError(f"{self.path / HUB}: damaged; restore it from a backup") from None

    @contextmanager
    def changing(self) -> Iterator[Content]:
        """Read ``hub.json``, let the caller change its content, and write it; one process at a time."""
        with lock_folder(self.path, wait=math.inf):
            content = self.read()
            yield content
            write_whole(self.path / HUB, _json(content))

    @property
    def key(self) -> Key:
        """The coordinator's key."""
        return Key.load(self.path / "coordinator.key")

    @property
    def authority(self) -> Authority:
        """The authority that signs certificates."""
        return Authority.load(self.path / "authority")

    def invite(self, site: str, days: float = INVITE_DAYS) -> Invite:
        """Make an invitation; an earlier one for the same site is no longer valid."""
        secret = secrets.token_urlsafe(24)
        until = (datetime.now(UTC) + timedelta(days=days)).isoformat(timespec="seconds")
        with self.changing() as content:
            entry = _entry(content, site)
            entry.invited, entry.until = digest(secret.encode()), until
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
        """Admit an invited site: keep its public keys and sign its certificate; the invitation is used up.

        Nothing is signed, and nothing but the name and the secret is looked at, before the secret is known to be right.
        """
        with self.changing() as content:
            entry = content.sites.get(site)
            invited = "" if entry is None else entry.invited
            right = secrets.compare_digest(invited, digest(secret.encode()))
            if entry is None or not invited:
                raise InputError(f"no invitation for {site!r} is open: it was used, or taken back; ask for a new one")
            if not right:
                raise InputError(f"this invitation for {site!r} is not the last one; ask for a new one")
            if datetime.now(UTC) > datetime.fromisoformat(entry.until):
                raise InputError(f"this invitation for {site!r} ended on {entry.until[:10]}; ask for a new one")
            read_public(key), read_public(seal)
            others = {one.key for name, one in content.sites.items() if name != site} | {self.key.public.hex()}
            if key in others:
                raise InputError("another site has joined with this key; each needs its own: join in a new folder")
            certificate = self.authority.sign(request, site)
            entry.invited, entry.until = "", ""
            entry.key, entry.seal = key, seal
            entry.joined = datetime.now(UTC).isoformat(timespec="seconds")
        return certificate

    def add(self, site: str) -> None:
        """Add a site, which can then be invited."""
        check_name("site", site)
        with self.changing() as content:
            if site in content.sites:
                raise InputError(f"there is a site {site!r} already")
            content.sites[site] = SiteEntry()

    def revoke(self, site: str) -> None:
        """Remove a site: nothing that it signs is accepted any more, and it is asked nothing."""
        with self.changing() as content:
            _entry(content, site)
            del content.sites[site]

    def roster(self, needed: list[str] | None = None) -> Roster:
        """Return everybody's public keys; raise ``InputError`` unless all sites, or those needed, have joined."""
        content = self.read()
        for site in needed or content.sites:
            if not _entry(content, site).key:
                raise InputError(f"site {site!r} has not joined yet; send it the invitation (`silvan study invite`)")
        joined = {name: entry for name, entry in content.sites.items() if entry.key}
        return Roster(
            self.key.public,
            {name: bytes.fromhex(entry.key) for name, entry in joined.items()},
            {name: bytes.fromhex(entry.seal) for name, entry in joined.items()},
        )


def roster_fingerprint(roster: Roster) -> str:
    """Return the fingerprint of all keys of a roster, in words."""
    keys = [roster.coordinator]
    for name in sorted(roster.sites):
        keys += [name.encode(), roster.sites[name], roster.seals.get(name, b"")]
    return fingerprint(b"\0".join(keys), N_WORDS_OF_ALL)


def _entry(content: Content, site: str) -> SiteEntry:
    if site not in content.sites:
        raise InputError(f"there is no site {site!r}; the sites are {', '.join(content.sites)}")
    return content.sites[site]


def check_name(what: str, name: str) -> None:
    """Raise an error unless a name can be that of a folder, of a certificate and of a site in a study."""
    if not _NAME.fullmatch(name) or name in ("all", "server", "admin"):
        raise InputError(f"{what} must be of small letters, digits and hyphens, and not 'all', got {name!r}")


def check_host(host: str) -> None:
    """Raise an error unless this can be the name or the number of a machine."""
    if not _HOST.fullmatch(host):
        raise InputError(f"the address must be the name or the number of a machine, got {host!r}")


def _json(content: Content) -> bytes:
    return msgspec.json.format(msgspec.json.encode(content)) + b"\n"
