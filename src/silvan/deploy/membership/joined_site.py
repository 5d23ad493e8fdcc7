"""A site's folder once it has joined a federation.

::

    site.toml          the table and the policy: the owner edits it
    member.json        the federation, its address, and the keys to trust
    site.key, site.pub the site's key
    store.sqlite       secrets, and what the site remembers of studies
    budget.sqlite      what was spent of the privacy budget
    ledger, approvals  what left the site, and which studies the owner approved
    roster.json        everybody's public keys, as first seen
    log.txt            what went wrong, for the owner; last_error.json has the last of it
    asked/             studies that came in, as they were sent
    frozen/            copies of the table that studies go on with
    results/           results of finished studies: the signed model, and the site's own metrics
    predictions/       predictions of new rows, if the site holds the label of a study over columns
    kit/               FLARE's folder
"""

from pathlib import Path
from typing import Any

import msgspec
from cryptography import x509

from silvan.deploy.membership import certificates, startup_kit
from silvan.deploy.membership.coordinator_folder import (
    Invite,
    Membership,
    check_name,
    check_place,
    compare_rosters,
    roster_fingerprint,
)
from silvan.deploy.membership.enrol import CoordinatorInfo, ask_coordinator, call, versions
from silvan.deploy.membership.join_requests import Granted, JoinRequest, RenewRequest
from silvan.deploy.membership.site_files import STORE, SiteFiles
from silvan.errors import FederationError, InputError
from silvan.federation.keys import Roster, read_public
from silvan.federation.store import FileStore
from silvan.privacy.identity.seal import public_key
from silvan.privacy.site_folder import SiteFolder
from silvan.study.study import Study
from silvan.util.files import read_json, write_json, write_whole

MEMBER, SETTINGS, ROSTER = startup_kit.MEMBER, "site.toml", "roster.json"

COPIES = (
    "Keep the folder that is the site's, delete the copy, and ask the coordinator to let the site in again (`silvan "
    "study readmit`)"
)
"""The remedy if a site's folder exists twice."""

_COMMENT = """# What the site brings, and what it lets out. Restart the site after a change.
# The policy's keys are explained in docs/study.md, the table's in docs/tables.md.
"""


class JoinedSite(SiteFiles):
    """A site's folder."""

    def __init__(self, path: str | Path) -> None:
        folder = Path(path).resolve()
        if not (folder / MEMBER).exists():
            raise InputError(f"{path}: no site here; `silvan site join INVITE` makes one")
        self.membership = read_json(folder / MEMBER, Membership, "damaged; restore it from a backup, or join again")
        self.startup = folder / "kit" / "startup"
        super().__init__(folder, folder / SETTINGS, self.membership.site)

    @classmethod
    def join(
        cls,
        path: Path,
        invite: Invite,
        table: str,
        query: str | None,
        policy: dict[str, Any],
        memory: str | None = None,
        cluster: str | None = None,
        reading: str = "",
    ) -> "JoinedSite":
        """Join a federation: make keys on this machine, have them signed, write the site's folder.

        ``reading`` is what stands below ``[reading]`` in the site's settings.
        """
        if (path / MEMBER).exists():
            raise InputError(f"{path}: a site is here already; name another folder")
        check_place(path)
        trusted = invite.trusted
        told = ask_coordinator(*invite.service)
        told.check(versions())
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)
        path = path.resolve()
        startup = path / "kit" / "startup"
        startup_kit.write_site(path / "kit", invite.site, invite.host, invite.port)
        (startup / "client.key").unlink(missing_ok=True)
        request = certificates.make_request(certificates.make_key(startup / "client.key"), invite.site).decode()
        folder, store = SiteFolder(path), FileStore(path / STORE)
        bare = JoinRequest(site=invite.site, secret=invite.secret, request=request, versions=versions())
        asked = JoinRequest.make(bare, trusted, folder.key, store, told.proof_key)
        store.close()
        _ask_for_certificate(invite, startup, "/join", asked)
        (startup / "rootCA.pem").write_text(invite.root)
        write_whole(path / SETTINGS, _settings_text(table, query, policy, memory, cluster, reading).encode())
        write_json(path / MEMBER, msgspec.convert(invite, Membership, from_attributes=True))
        return cls(path)

    @property
    def fingerprint(self) -> str:
        """The words that the owner compares with the coordinator: for the site's keys and the keys it trusts."""
        return self.membership.trusted.words(self.name, self.folder.key.public, public_key(self.store))

    # -- its certificate

    @property
    def certificate(self) -> x509.Certificate:
        """The site's certificate."""
        return certificates.read_certificate((self.startup / "client.crt").read_bytes())

    def renew(self) -> None:
        """Renew the certificate by the site's key, also after its end; for a process that starts."""
        request = certificates.make_request(certificates.load_key(self.startup / "client.key"), self.name).decode()
        asked = RenewRequest.make(self.membership.trusted, self.folder.key, self.name, request)
        _ask_for_certificate(self.membership, self.startup, "/renew", asked)

    # -- everybody's keys

    def roster(self) -> Roster | None:
        """Return everybody's keys as stored by this site; None until all had joined."""
        return Roster.load(self.path / ROSTER) if (self.path / ROSTER).exists() else None

    def latest_roster(self) -> Roster | None:
        """Return everybody's keys as sent by the coordinator; None until all have joined."""
        told = ask_coordinator(*self.membership.service)
        told.check(versions())
        if told.coordinator != self.membership.coordinator:
            raise FederationError("the coordinator's key is not the one in the invitation; speak to its owner")
        for name in told.sites:
            check_name("site", name)
        self.check_admitted(told)
        if not all(keys.key for keys in told.sites.values()):
            return None
        return Roster(
            read_public(told.coordinator),
            {name: read_public(keys.key) for name, keys in told.sites.items()},
            {name: read_public(keys.seal) for name, keys in told.sites.items()},
        )

    def check_admitted(self, told: CoordinatorInfo) -> None:
        """Raise ``FederationError`` if the coordinator has removed this site, or has stopped it."""
        own = told.sites.get(self.name)
        if own is None or (own.key and own.key != self.folder.public().hex()):
            raise FederationError("the coordinator has taken this site out, or another has joined in its name; ask why")
        if own.stopped:
            raise FederationError(f"the coordinator has stopped this site: {own.stopped}. {COPIES}")

    def pin_roster(self) -> Roster | None:
        """Store everybody's keys once all have joined, and return the stored ones.

        The owner must accept sites that joined or were removed since; until then the old list counts. A changed key
        of a known site is an error.
        """
        pinned, latest = self.roster(), self.latest_roster()
        if latest is None:
            return pinned
        self._check_own_key(latest)
        if pinned is None:
            latest.save(self.path / ROSTER)
            return latest
        changed = compare_rosters(pinned, latest).changed
        if changed:
            raise FederationError(
                f"the coordinator tells of other keys than before, of {', '.join(changed)}: ask why; `silvan site "
                "roster` shows the words to compare, and accepts them"
            )
        return pinned

    def accept_roster(self, words: str) -> Roster:
        """Store everybody's keys as the coordinator now sends them, if they match the words that the owner compared."""
        latest = self.latest_roster()
        if latest is None:
            raise InputError("not all sites have joined yet")
        self._check_own_key(latest)
        if words.lower().split() != roster_fingerprint(latest).split():
            raise InputError(
                "these are not the words of the coordinator's list; compare them again (`silvan site roster`)"
            )
        latest.save(self.path / ROSTER)
        return latest

    def _check_own_key(self, latest: Roster) -> None:
        if latest.sites.get(self.name) != self.folder.key.public:
            raise FederationError("the coordinator does not know this site's key; was the site taken out?")

    def note_sites(self, study: Study, sites: list[str]) -> None:
        """Store the sites of a study that names none; they stay the same even if others join the federation."""
        unknown = sorted(set(sites) - set(roster.sites)) if (roster := self.roster()) is not None else []
        if unknown:
            raise FederationError(
                f"it does not have the keys of {', '.join(unknown)}; its owner compares and accepts them (`silvan site "
                "roster`)"
            )
        path = self._asked(study, "sites")
        if study.site_names is None and not path.exists():
            write_whole(path, msgspec.json.encode(sites))
        if sorted(self.sites_of(study)) != sorted(sites):
            raise FederationError("the study came with other sites before")


def _ask_for_certificate(own: Membership, startup: Path, path: str, asked: JoinRequest | RenewRequest) -> None:
    """Request a site's certificate and write it; raise an error unless it is for the site's key, by the authority."""
    trusted = own.trusted
    certificate = call(*own.service, path, Granted, asked).check(trusted, asked.statement(trusted))
    certificates.check_certificate(certificate, certificates.read_certificate(trusted.root.encode()))
    if certificate.public_key() != certificates.load_key(startup / "client.key").public_key():
        raise FederationError("the coordinator answered with a certificate for another key")
    write_whole(startup / "client.crt", certificates.pem(certificate))


def _settings_text(
    table: str, query: str | None, policy: dict[str, Any], memory: str | None, cluster: str | None, reading: str
) -> str:
    lines = [_COMMENT, f"table = {_toml(table)}"]
    for key, value in {"query": query, "memory": memory, "cluster": cluster}.items():
        if value is not None:
            lines.append(f"{key} = {_toml(value)}")
    lines += ["", "[reading]", reading] if reading else []
    lines += ["", "[policy]"]
    lines += [f"{key} = {_toml(value)}" for key, value in policy.items()]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """Return a value as TOML; text, numbers, booleans and lists of text look the same in JSON."""
    return msgspec.json.encode(value).decode()
