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
    results/           results of finished studies: the signed model, and the site's own figures
    predictions/       predictions of new rows, if the site holds the label of a study over columns
    kit/               FLARE's folder
"""

from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from cryptography import x509

from silvan.data.batches import read_size, survey
from silvan.data.holdout import Fold
from silvan.data.partitions.partition_files import Partitions
from silvan.data.partitions.partitioned_table import Partitioned
from silvan.data.sources.query import Query, is_url
from silvan.data.sources.table_file import Table
from silvan.deploy import flare_kit
from silvan.deploy.certificates import check_certificate, load_key, make_key, make_request, pem, read_certificate
from silvan.deploy.enrol import call, check_clock, check_versions, versions
from silvan.deploy.fingerprint import fingerprint
from silvan.deploy.hub import Invite, check_name, compare_rosters, roster_fingerprint
from silvan.deploy.joining.join_requests import Granted, JoinRequest, RenewRequest, Trusted
from silvan.errors import FederationError, FormatError, InputError, SchemaError
from silvan.federation.keys import Roster, read_public
from silvan.federation.store import FileStore
from silvan.privacy.gate.gate import Gate, Policy, Terms
from silvan.privacy.gate.ledger import LEDGER
from silvan.privacy.gate.site_folder import SiteFolder
from silvan.privacy.noise.budget import Budget
from silvan.privacy.seal import public_key
from silvan.study.remote_study import RemoteStudy, parse_remote_study
from silvan.study.study_sections import check_policy, check_reading
from silvan.study.toml_lines import Problems, key_lines, read_toml
from silvan.util.files import write_whole
from silvan.util.readable import count_of, printable

KEY_FILE = Path("kit", "startup", "client.key")
MEMBER, SETTINGS, ROSTER, STORE, BUDGET = "member.json", "site.toml", "roster.json", "store.sqlite", "budget.sqlite"

BETWEEN_MACHINES = {"score_groups": 5}
"""What a site's policy says of judging unless its owner says otherwise: in one process a coordinator sees all rows."""

_COMMENT = """# What the site brings, and what it lets out. Restart the site after a change.
# The policy's keys are explained in docs/study.md, the table's in docs/tables.md.
"""


_LONGEST_REASON = 150


class Membership(msgspec.Struct, frozen=True):
    """What ``member.json`` holds."""

    federation: str
    site: str
    host: str
    port: int
    root: str
    coordinator: str


class SiteFiles:
    """What a site keeps for studies, whoever has set up its federation: settings, key, ledger, store, budget.

    Parameters
    ----------
    path
        The folder with all of it.
    settings_file
        What the owner edits: the table and the policy.
    name
        The site's name.
    """

    known_settings: tuple[str, ...] = (
        *("table", "query", "cluster", "id", "predict", "memory", "freeze", "notify"),
        *("reading", "policy"),
    )
    """Keys that the settings may have."""

    def __init__(self, path: Path, settings_file: Path, name: str) -> None:
        self.path, self.settings_file, self.name = path, settings_file, name

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What the owner's file says, checked: the table and the policy."""
        path = self.settings_file
        text, data = read_toml(path)
        problems = Problems(path, key_lines(text))
        unknown = [key for key in data if key not in self.known_settings]
        for key in unknown:
            problems.unknown((key,), list(self.known_settings))
        for key in ("table", "query", "cluster", "id", "predict", "memory", "notify"):
            if key in data and not isinstance(data[key], str):
                problems.add((key,), f"{key} must be text, got {data[key]!r}")
        if not isinstance(data.get("freeze", False), bool):
            problems.add(("freeze",), f"freeze must be true or false, got {data['freeze']!r}")
        if "table" not in data and not unknown:
            problems.add(("table",), "table is missing: a path, or the address of a database")
        if isinstance(data.get("memory"), str):
            try:
                read_size(data["memory"])
            except InputError as error:
                problems.add(("memory",), str(error))
        check_reading(path, data.get("reading", {}), ("reading",), problems)
        data["policy"] = check_policy(data.get("policy", {}), problems)
        if not problems.found:
            _check_source(data, problems)
        problems.stop()
        for key in ("table", "predict"):  # a relative path is one from the file's folder
            if key in data and not is_url(data[key]):
                data[key] = str(path.parent / data[key].replace("{site}", self.name))
        return data

    @property
    def policy(self) -> Policy:
        """The rules for what may leave the site."""
        return Policy(**{**BETWEEN_MACHINES, **self.settings["policy"]})

    @cached_property
    def folder(self) -> SiteFolder:
        """The site's key, ledger and approvals."""
        return SiteFolder(self.path)

    @cached_property
    def store(self) -> FileStore:
        """The store of what the site remembers."""
        return FileStore(self.path / STORE)

    def budget(self) -> Budget:
        """Return the privacy budget, with what all studies have spent."""
        return Budget(self.policy.epsilon, self.path / BUDGET, self.name)

    def gate(self, study: RemoteStudy, fold: Fold | None = None) -> Gate:
        """Return the gate that every answer in a study, or in one of its splits, passes on its way out."""
        sites, name = self.sites_of(study), study.id if fold is None else fold.study(study.id)
        terms = Terms(name, sites, study.losses(sites), study.study.models_judged, approved=study.id)
        return Gate(self.policy, self.budget(), self.folder.ledger, self.folder.approvals, terms, self.store)

    @property
    def fingerprint(self) -> str:
        """The words of the site's keys."""
        return fingerprint(self.folder.key.public + public_key(self.store))

    def roster(self) -> Roster | None:
        """Return everybody's keys, if they are the same in all studies and the site knows them."""
        return None

    # -- studies

    def note_study(self, study: RemoteStudy) -> None:
        """Keep the text of a study that came in, for the owner to read."""
        (self.path / "asked").mkdir(exist_ok=True)
        write_whole(self._asked(study, "toml"), study.text.encode())

    def decline(self, study: RemoteStudy, why: str) -> None:
        """Note that the owner does not take part in a study, and why, in a line; an approval of it is withdrawn."""
        why = printable(why).strip()
        if not why or len(why) > _LONGEST_REASON:
            raise InputError(f"the reason must be text of at most {_LONGEST_REASON} characters")
        if self.folder.approvals.find(study.id) is not None:
            self.folder.approvals.withdraw(study.id)
        write_whole(self._asked(study, "declined"), why.encode())

    def declined(self, study: RemoteStudy) -> str | None:
        """Return why the owner declined a study; None if that is not so."""
        path = self._asked(study, "declined")
        return path.read_bytes().decode() if path.exists() else None

    def undo_decline(self, study: RemoteStudy) -> None:
        """Forget that the owner declined a study."""
        self._asked(study, "declined").unlink(missing_ok=True)

    def results_folder(self, study: RemoteStudy) -> Path:
        """Return the folder that the results of a study are kept in."""
        return self.path / "results" / study.folder

    def coordinator_key(self, study: RemoteStudy) -> bytes:
        """Return the public key of the coordinator that a study is of."""
        roster = self.roster()
        if roster is None:
            raise InputError("there is no list of keys, so nobody can tell whose the results are")
        return roster.coordinator

    def _asked(self, study: RemoteStudy, ending: str) -> Path:
        return self.path / "asked" / f"{study.digest}.{ending}"

    def studies(self) -> list[RemoteStudy]:
        """Return the studies that came in, the oldest first."""
        files = sorted((self.path / "asked").glob("*.toml"), key=lambda path: path.stat().st_mtime)
        read = [parse_remote_study(path.read_bytes().decode()) for path in files]
        return list({study.id: study for study in read}.values())

    def sites_of(self, study: RemoteStudy) -> list[str]:
        """Return the sites that a study begins with: those that it names or came with, or all that the site knows."""
        if study.sites is not None:
            return study.sites
        if (noted := self._asked(study, "sites")).exists():
            return msgspec.json.decode(noted.read_bytes(), type=list[str])
        roster = self.roster()
        return [self.name] if roster is None else list(roster.sites)


class Member(SiteFiles):
    """A site's folder."""

    def __init__(self, path: str | Path) -> None:
        folder = Path(path).resolve()
        try:
            self.membership = msgspec.json.decode((folder / MEMBER).read_bytes(), type=Membership)
        except FileNotFoundError:
            raise InputError(f"{path}: no site here; `silvan site join INVITE` makes one") from None
        except msgspec.DecodeError:
            raise FormatError(f"{folder / MEMBER}: damaged; restore it from a backup, or join again") from None
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
    ) -> "Member":
        """Join a federation: make keys on this machine, have them signed, write the site's folder.

        ``reading`` is what stands below ``[reading]`` in the site's settings.
        """
        if (path / MEMBER).exists():
            raise InputError(f"{path}: a site is here already; name another folder")
        where = (invite.host, invite.port, invite.root)
        trusted = Trusted(read_public(invite.coordinator), invite.root)
        status = call(*where, "/roster")
        check_clock(float(status["time"]), "the coordinator")
        check_versions(versions(), status["versions"], "the coordinator")
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)
        path = path.resolve()
        startup = path / "kit" / "startup"
        flare_kit.write_site(path / "kit", invite.site, invite.host, invite.port - 1)
        (startup / "client.key").unlink(missing_ok=True)
        request = make_request(make_key(startup / "client.key"), invite.site).decode()
        folder, store = SiteFolder(path), FileStore(path / STORE)
        bare = JoinRequest(site=invite.site, secret=invite.secret, request=request, versions=versions())
        asked = JoinRequest.make(bare, trusted, folder.key, store, str(status["proof_key"]))
        store.close()
        granted = _granted(call(*where, "/join", msgspec.to_builtins(asked)))
        _keep_certificate(startup, granted.check(trusted, asked.statement(trusted)), trusted)
        (startup / "rootCA.pem").write_text(invite.root)
        write_whole(path / SETTINGS, _settings_text(table, query, policy, memory, cluster, reading).encode())
        membership = Membership(
            invite.federation, invite.site, invite.host, invite.port - 1, invite.root, invite.coordinator
        )
        write_whole(path / MEMBER, msgspec.json.format(msgspec.json.encode(membership)) + b"\n")
        return cls(path)

    def private_files(self) -> list[Path]:
        """Return the files that only the site's owner may read."""
        return [*(self.path / name for name in ("site.key", STORE, BUDGET, LEDGER)), self.path / KEY_FILE]

    @property
    def fingerprint(self) -> str:
        """The words that the owner compares with the coordinator: of the site's keys and of what it trusts."""
        return self.trusted.words(self.name, self.folder.key.public, public_key(self.store))

    @property
    def trusted(self) -> Trusted:
        """What the site trusts since it was invited: the coordinator's key, and the root certificate."""
        return Trusted(read_public(self.membership.coordinator), self.membership.root)

    # -- its certificate

    @property
    def certificate(self) -> x509.Certificate:
        """The site's certificate."""
        return read_certificate((self.path / "kit" / "startup" / "client.crt").read_bytes())

    def renew(self) -> None:
        """Renew the certificate by the site's key, also after its end; for a process that starts."""
        own, startup, trusted = self.membership, self.path / "kit" / "startup", self.trusted
        request = make_request(load_key(startup / "client.key"), self.name).decode()
        asked = RenewRequest.make(trusted, self.folder.key, self.name, request)
        granted = _granted(call(own.host, own.port + 1, own.root, "/renew", msgspec.to_builtins(asked)))
        _keep_certificate(startup, granted.check(trusted, asked.statement(trusted)), trusted)

    # -- everybody's keys

    def roster(self) -> Roster | None:
        """Return everybody's keys as this site keeps them; None until all had joined."""
        return Roster.load(self.path / ROSTER) if (self.path / ROSTER).exists() else None

    def latest_roster(self) -> Roster | None:
        """Return everybody's keys as the coordinator tells them; None until all have joined."""
        own = self.membership
        status = call(own.host, own.port + 1, own.root, "/roster")
        check_clock(float(status["time"]), "the coordinator")
        check_versions(versions(), status["versions"], "the coordinator")
        roster = status["roster"]
        if roster["coordinator"] != own.coordinator:
            raise FederationError("the coordinator's key is not the one in the invitation; speak to its owner")
        sites: dict[str, dict[str, str]] = roster["sites"]
        for name in sites:
            check_name("site", name)
        if not all(keys["key"] for keys in sites.values()):
            return None
        return Roster(
            read_public(roster["coordinator"]),
            {name: read_public(keys["key"]) for name, keys in sites.items()},
            {name: read_public(keys["seal"]) for name, keys in sites.items()},
        )

    def pin_roster(self) -> Roster | None:
        """Keep everybody's keys once all have joined, and return those kept.

        Sites that joined or were taken out since are for the owner to accept; until then the old list counts. Another
        key of a site that is kept is an error.
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
        """Keep everybody's keys as the coordinator tells them now, if they have the words that the owner compared."""
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

    def note_sites(self, study: RemoteStudy, sites: list[str]) -> None:
        """Keep which sites a study has that names none; they stay the same though others join the federation."""
        unknown = sorted(set(sites) - set(roster.sites)) if (roster := self.roster()) is not None else []
        if unknown:
            raise FederationError(
                f"it does not have the keys of {', '.join(unknown)}; its owner compares and accepts them (`silvan site "
                "roster`)"
            )
        path = self._asked(study, "sites")
        if study.sites is None and not path.exists():
            write_whole(path, msgspec.json.encode(sites))
        if sorted(self.sites_of(study)) != sorted(sites):
            raise FederationError("the study came with other sites before")


def _granted(answer: dict[str, Any]) -> Granted:
    try:
        return msgspec.convert(answer, Granted)
    except msgspec.ValidationError:
        raise FederationError("the coordinator answered with something else than a certificate") from None


def _keep_certificate(startup: Path, certificate: x509.Certificate, trusted: Trusted) -> None:
    """Write a site's certificate; raise an error unless it is for the site's key and by the federation's authority."""
    check_certificate(certificate, read_certificate(trusted.root.encode()))
    if certificate.public_key() != load_key(startup / "client.key").public_key():
        raise FederationError("the coordinator answered with a certificate for another key")
    write_whole(startup / "client.crt", pem(certificate))


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
    """Return a value as TOML; text, numbers, truth values and lists of text look the same in JSON."""
    return msgspec.json.encode(value).decode()


# -- the table


def absolute_path(table: str) -> str:
    """Return the absolute path of a table's file, or its URL as it is; raise ``InputError`` if it does not exist."""
    if is_url(table):
        return table
    path = Path(table).resolve()
    if not path.exists():
        raise InputError(f"{table}: there is no such table; check the path")
    return str(path)


def _check_source(settings: dict[str, Any], problems: Problems) -> None:
    """Check that a table in a database has a query, and a file none; and that it is named."""
    if not settings["table"].strip():
        problems.add(("table",), "table is empty: name a path, or the address of a database")
        return
    try:
        source_of(settings["table"], settings.get("query"), settings.get("reading"), settings.get("cluster"))
        if is_url(settings["table"]) and settings.get("reading") and "predict" not in settings:
            raise InputError(FILES_ALONE)
    except InputError as error:
        problems.add(("query",) if "query" in settings else ("table",), str(error))


FILES_ALONE = "[reading] is for files; a query says what columns are called: select alter as age"


def source_of(table: str, query: str | None, reading: dict[str, Any] | None = None, cluster: str | None = None) -> Any:
    """Return what to read a table from: a query of a database, a file, which may be written in some way, or a cluster.

    With a ``cluster`` the table is a pattern of files, or a folder of them.
    """
    if cluster is not None:
        if query is not None or reading or is_url(table):
            raise InputError("cluster is for a table in Parquet files; leave query and [reading] out")
        return Partitions(table, cluster)
    if is_url(table):
        return Query(table, query or "")
    if query is not None:
        raise InputError("query is for databases; a file is read as it is")
    return Table(table, **reading) if reading else table


def check_table(
    table: str,
    query: str | None,
    wanted: list[str],
    memory: str | None = None,
    reading: dict[str, Any] | None = None,
    cluster: str | None = None,
) -> tuple[list[str], str]:
    """Read the table once, check that it has the columns wanted, and return its columns and the number of its rows.

    No more of it is in memory at a time than ``memory`` allows, or a quarter of a gigabyte.
    """
    room = _ROOM if memory is None else min(read_size(memory) // 2, _ROOM)
    source = source_of(table, query, reading, cluster)
    if cluster is None:
        columns, rows = survey(source, room)
    else:
        in_partitions = Partitioned(source, "label", room)
        columns, rows = list(in_partitions.names), len(in_partitions)
    lacking = [column for column in wanted if column not in columns]
    if lacking:
        raise SchemaError(
            f"the table lacks {', '.join(map(repr, lacking))}, which the federation agreed on; it has "
            f"{', '.join(map(repr, columns))}; if one is called otherwise, set rename (docs/tables.md)"
        )
    return columns, count_of(rows, "row")


_ROOM = 1 << 28
