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
from typing import NamedTuple

import msgspec

from silvan.deploy.membership import certificates, startup_kit
from silvan.deploy.membership.fingerprint import N_WORDS_OF_ALL, fingerprint
from silvan.deploy.membership.join_requests import Granted, JoinRequest, RenewRequest, Trusted
from silvan.errors import InputError
from silvan.federation.keys import Key, Roster, read_public
from silvan.federation.store import digest
from silvan.util.files import read_json, write_json, write_whole
from silvan.util.folder_lock import lock_folder

HUB = "hub.json"
PORT = 8102
INVITE_DAYS = 14
CERTIFICATES = "server/startup/server.crt", "admin/startup/client.crt"
"""The certificates of the coordinator's own processes; each key is beside its certificate."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")
_HOST = re.compile(r"[A-Za-z0-9:]([A-Za-z0-9._:-]{0,251}[A-Za-z0-9])?")


class SiteEntry(msgspec.Struct):
    """What the coordinator knows about a site; the keys are empty until it has joined."""

    invited: str = ""  # digest of the secret of the last invitation
    until: str = ""  # when that invitation ends
    key: str = ""
    seal: str = ""
    joined: str = ""
    certificate: str = ""  # the digest of the key in its certificate
    stopped: str = ""  # why it may not connect at present, although it has joined


class Content(msgspec.Struct):
    """The contents of ``hub.json``."""

    name: str
    host: str
    port: int
    hosts: list[str]
    sites: dict[str, SiteEntry]
    columns: list[str] = []


class Membership(msgspec.Struct, frozen=True):
    """A site's place in a federation: the content of an invitation, which the site keeps in ``member.json``."""

    federation: str
    site: str
    host: str
    port: int
    root: str  # the federation's certificate
    coordinator: str  # the coordinator's public key

    @property
    def service(self) -> tuple[str, int, str]:
        """The address of the joining service, and its certificate."""
        return self.host, self.port, self.root

    @property
    def trusted(self) -> Trusted:
        """What an invited site trusts: the coordinator's key, and the root certificate."""
        return Trusted(read_public(self.coordinator), self.root)


class Invite(Membership, frozen=True):
    """An invitation, a file for one site: where to join, which keys to trust, and a secret that can be used once."""

    secret: str
    until: str
    columns: list[str] = []

    def __post_init__(self) -> None:
        """Raise an error for invalid names: the invitation's name becomes the name of the site's folder."""
        check_name("federation", self.federation)
        check_name("site", self.site)
        _check_host(self.host)
        _check_port(self.port)
        read_public(self.coordinator)
        certificates.read_certificate(self.root.encode())

    @classmethod
    def read(cls, path: Path) -> "Invite":
        """Read an invitation."""
        if not path.exists():
            raise InputError(f"{path}: there is no such invitation")
        return read_json(
            path, cls, "not an invitation, or changed on its way; ask for it again, as a file, not as text"
        )


class CoordinatorFiles:
    """The coordinator's folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()
        if not (self.path / HUB).is_file():
            raise InputError(f"{path}: no federation here; `silvan study init` makes one")

    @classmethod
    def create(
        cls, path: Path, name: str, sites: list[str], host: str, port: int, columns: list[str] | None = None
    ) -> "CoordinatorFiles":
        """Create a federation: keys, certificates and FLARE's folders."""
        check_name("name", name)
        for site in sites:
            check_name("site", site)
        _check_host(host)
        if len(sites) < 1 or len(set(sites)) < len(sites):
            raise InputError.about("site", "must name each site once, and at least one")
        _check_port(port)
        if (path / HUB).exists():
            raise InputError(f"{path}: there is a federation already")
        check_place(path)
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)
        path = path.resolve()
        authority = certificates.Authority.create(path / "authority", name)
        Key.generate().save(path / "coordinator.key")
        hosts = list(dict.fromkeys([host, "localhost", "127.0.0.1"]))
        startup_kit.write_server(path / "server", host, port)
        startup_kit.write_admin(path / "admin", host, port)
        for name_ in CERTIFICATES:
            certificates.make_key((path / name_).with_suffix(".key"))
            (path / name_).with_name("rootCA.pem").write_bytes(certificates.pem(authority.certificate))
        content = Content(name, host, port, hosts, {site: SiteEntry() for site in sites}, columns or [])
        write_json(path / HUB, content)
        hub = cls(path)
        hub.renew(*CERTIFICATES)
        return hub

    def read(self) -> Content:
        """Read ``hub.json``."""
        return read_json(self.path / HUB, Content, "damaged; restore it from a backup")

    @contextmanager
    def changing(self) -> Iterator[Content]:
        """Read ``hub.json``, let the caller change its content, and write it; one process at a time."""
        with lock_folder(self.path, wait=math.inf):
            content = self.read()
            yield content
            write_json(self.path / HUB, content)

    def private_files(self) -> list[Path]:
        """Return the files that only the coordinator's owner may read."""
        of_processes = [(self.path / name).with_suffix(".key") for name in CERTIFICATES]
        return [self.path / "coordinator.key", self.path / "authority" / "root.key", *of_processes]

    @property
    def key(self) -> Key:
        """The coordinator's key."""
        return Key.load(self.path / "coordinator.key")

    @property
    def authority(self) -> certificates.Authority:
        """The authority that signs certificates."""
        return certificates.Authority.load(self.path / "authority")

    @property
    def trusted(self) -> Trusted:
        """What sites trust: the coordinator's key, and the root certificate."""
        return Trusted(self.key.public, certificates.pem(self.authority.certificate).decode())

    # -- certificates of its own processes

    def ending(self) -> list[str]:
        """Return the certificates of the coordinator's processes that have expired or will soon."""
        read = {name: certificates.read_certificate((self.path / name).read_bytes()) for name in CERTIFICATES}
        return [name for name, certificate in read.items() if certificates.ends_soon(certificate)]

    def renew(self, *names: str) -> None:
        """Renew the certificates of the coordinator's processes for their existing keys, when they start."""
        content, authority = self.read(), self.authority
        for name in names:
            key, server = certificates.load_key((self.path / name).with_suffix(".key")), name.endswith("server.crt")
            who, hosts = (content.host, content.hosts) if server else (startup_kit.ADMIN, [])
            request = certificates.make_request(key, who)
            write_whole(self.path / name, authority.sign(request, who, tuple(hosts), "" if server else "lead"))

    # -- sites

    def invite(self, site: str, days: float = INVITE_DAYS) -> Invite:
        """Make an invitation; an earlier one for the same site is no longer valid."""
        secret = secrets.token_urlsafe(24)
        until = (datetime.now(UTC) + timedelta(days=days)).isoformat(timespec="seconds")
        with self.changing() as content:
            entry = _entry(content, site)
            entry.invited, entry.until = digest(secret.encode()), until
            root, key = certificates.pem(self.authority.certificate).decode(), self.key.public.hex()
            place = (content.name, site, content.host, content.port, root, key)
            return Invite(*place, secret=secret, until=until, columns=content.columns)

    def admit(self, asked: JoinRequest) -> Granted:
        """Admit an invited site: keep its public keys and sign its certificate; the invitation is used up.

        Nothing is signed, and only the name and the secret are read, before the secret has been verified.
        """
        site, own, trusted = asked.site, self.key, self.trusted
        with self.changing() as content:
            entry = content.sites.get(site)
            invited = "" if entry is None else entry.invited
            right = secrets.compare_digest(invited, digest(asked.secret.encode()))
            if entry is None or not invited:
                raise InputError(f"no invitation for {site!r} is open: it was used, or taken back; ask for a new one")
            if not right:
                raise InputError(f"this invitation for {site!r} is not the last one; ask for a new one")
            if datetime.now(UTC) > datetime.fromisoformat(entry.until):
                raise InputError(f"this invitation for {site!r} ended on {entry.until[:10]}; ask for a new one")
            asked.check(trusted, own)
            others = {own.public.hex()} | {
                key for name, one in content.sites.items() if name != site for key in (one.key, one.seal)
            }
            if asked.key in others or asked.seal in others:
                raise InputError("another site has joined with this key; each needs its own: join in a new folder")
            certificate = self.authority.sign(asked.request.encode(), site)
            entry.invited, entry.until = "", ""
            entry.key, entry.seal = asked.key, asked.seal
            entry.certificate, entry.stopped = certificates.key_digest(asked.request.encode()), ""
            entry.joined = datetime.now(UTC).isoformat(timespec="seconds")
        return Granted.make(own, asked.statement(trusted), certificate)

    def renew_site(self, asked: RenewRequest) -> Granted:
        """Sign a new certificate for a site that has joined, by the key that it joined with."""
        entry, trusted = self.read().sites.get(asked.site), self.trusted
        if entry is None or not entry.key:
            raise InputError(f"no site {asked.site!r} has joined; ask for an invitation")
        asked.check(trusted, read_public(entry.key))
        certificate = self.authority.sign(asked.request.encode(), asked.site)
        with self.changing() as content:
            _entry(content, asked.site).certificate = certificates.key_digest(asked.request.encode())
        return Granted.make(self.key, asked.statement(trusted), certificate)

    def fingerprints(self) -> dict[str, str]:
        """Return the words of each joined site, which its owner compares with the coordinator."""
        trusted, joined = self.trusted, {name: entry for name, entry in self.read().sites.items() if entry.key}
        return {n: trusted.words(n, read_public(entry.key), read_public(entry.seal)) for n, entry in joined.items()}

    def add(self, site: str) -> None:
        """Add a site, which can then be invited."""
        check_name("site", site)
        with self.changing() as content:
            if site in content.sites:
                raise InputError(f"there is a site {site!r} already")
            content.sites[site] = SiteEntry()

    def revoke(self, site: str) -> None:
        """Remove a site: its signatures are no longer accepted, and it gets no more requests."""
        with self.changing() as content:
            _entry(content, site)
            del content.sites[site]

    def stop_site(self, site: str, why: str) -> None:
        """Keep a site from connecting until the coordinator's owner readmits it."""
        with self.changing() as content:
            _entry(content, site).stopped = f"{why}, on {datetime.now(UTC):%Y-%m-%d at %H:%M} UTC"

    def readmit(self, site: str) -> str:
        """Readmit a stopped site; return why it was stopped, empty if it was not."""
        with self.changing() as content:
            entry = _entry(content, site)
            why, entry.stopped = entry.stopped, ""
            return why

    def stopped(self) -> dict[str, str]:
        """Return the sites that may not connect at present, and why."""
        return {name: entry.stopped for name, entry in self.read().sites.items() if entry.stopped}

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


class RosterChange(NamedTuple):
    """How a list of keys differs from another: the names of sites."""

    added: list[str]
    removed: list[str]
    changed: list[str]

    def describe(self) -> str:
        """Return the changes as text; empty if there are none."""
        parts = {"joined": self.added, "taken out": self.removed, "with other keys": self.changed}
        return "; ".join(f"{what}: {', '.join(names)}" for what, names in parts.items() if names)


def compare_rosters(before: Roster, after: Roster) -> RosterChange:
    """Return which sites one list of keys has that another does not, and whose keys differ."""
    both = [name for name in after.sites if name in before.sites]
    keys = [{name: (roster.sites[name], roster.seals.get(name)) for name in both} for roster in (before, after)]
    return RosterChange(
        [name for name in after.sites if name not in before.sites],
        [name for name in before.sites if name not in after.sites],
        [name for name in both if keys[0][name] != keys[1][name]],
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
    """Raise an error unless a name is valid for a folder, a certificate and a site in a study."""
    if not _NAME.fullmatch(name) or name in ("all", "server", "admin"):
        raise InputError.wrong(
            what, "of small letters, digits and hyphens, at most 41 of them, and not 'all', 'server' or 'admin'", name
        )


def check_place(path: Path) -> None:
    """Raise ``InputError`` for a folder from which FLARE cannot start a job, because it splits commands at spaces."""
    if any(c.isspace() for c in str(path.resolve())):
        raise InputError(f"{path}: FLARE starts no job in a folder with a space in its path; name another folder")


def _check_host(host: str) -> None:
    """Raise an error unless this is a valid name or address of a machine."""
    if not _HOST.fullmatch(host):
        raise InputError(f"the address must be the name or the number of a machine, got {host!r}")


def _check_port(port: int) -> None:
    if not 1 <= port <= 65535:
        raise InputError.wrong("port", "between 1 and 65535", port)
