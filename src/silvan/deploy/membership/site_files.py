"""The files of a site for studies, in any kind of federation, and the source of its table."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from silvan.data.batches import Batched, read_size
from silvan.data.holdout import Split
from silvan.data.hospital.cohort_rows import CohortRows, hospital_rows, is_hospital
from silvan.data.partition_files import Partitions
from silvan.data.partitioned_table import Partitioned
from silvan.data.readers.query import Query, is_url
from silvan.data.readers.table_file import Table
from silvan.deploy.membership.fingerprint import fingerprint
from silvan.errors import InputError, SchemaError
from silvan.federation.keys import Roster
from silvan.federation.store import FileStore
from silvan.privacy.gate import Gate
from silvan.privacy.identity.seal import public_key
from silvan.privacy.ledger import LEDGER
from silvan.privacy.noise.budget import Budget
from silvan.privacy.policy import Policy, PolicyBetweenMachines
from silvan.privacy.site_folder import EVERYTHING, KEY, Approval, SiteFolder
from silvan.privacy.terms import Terms
from silvan.study.parse import check_policy, check_reading, parse_remote_study
from silvan.study.study import Study
from silvan.study.study_text import text_of
from silvan.study.toml_lines import Problems, convert_entries, key_lines, read_toml
from silvan.util.acting_user import acting_user
from silvan.util.declared import about
from silvan.util.files import write_whole
from silvan.util.readable import count_of, printable

STORE, BUDGET = "store.sqlite", "budget.sqlite"
PREDICTIONS = "predictions"
"""The folder of predictions of new rows, if the site holds the label of a study over columns."""

_LONGEST_REASON = 150
_POLICY = "policy as noted"


class SiteFiles:
    """The files of a site for studies, in any kind of federation; its owner edits the settings."""

    known_settings: ClassVar[Mapping[str, Any]] = {
        **dict.fromkeys(("table", "query", "cluster", "id", "predict", "notify"), str),
        "memory": Annotated[str, about(expected="a number of bytes, or text such as '2GB'", check=read_size)],
        "device": Literal["auto", "cpu", "cuda"],
        "freeze": bool,
        "reading": Any,
        "policy": Any,
    }
    """The types of the settings' keys; two are sections, which are checked separately."""

    startup: Path
    """FLARE's startup folder, with the site's certificate and its key."""

    def __init__(self, path: Path, settings_file: Path, name: str) -> None:
        self.path, self.settings_file, self.name = path, settings_file, name

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The checked contents of the owner's file: the table and the policy."""
        path = self.settings_file
        text, data = read_toml(path)
        problems = Problems(path, key_lines(text))
        found = convert_entries(data, self.known_settings, (), problems)
        if "table" not in data and not problems.found:
            problems.add(("table",), "table is missing: a path, or the address of a database")
        check_reading(path, data.get("reading", {}), ("reading",), problems)
        found["policy"] = check_policy(data.get("policy", {}), problems)
        if not problems.found:
            _check_source(found, problems)
        problems.stop()
        for key in ("table", "predict"):  # a relative path starts at the file's folder
            if key in found and is_hospital(found[key]):
                found[key] = hospital_rows(found[key].replace("{site}", self.name)).beside(path.parent).source.text
            elif key in found and not is_url(found[key]):
                found[key] = str(path.parent / found[key].replace("{site}", self.name))
        return found

    def source(self) -> Any:
        """Return the source of the table."""
        return _source(self.settings)

    @property
    def policy(self) -> Policy:
        """The rules for what may leave the site."""
        return PolicyBetweenMachines(**self.settings["policy"])

    @cached_property
    def folder(self) -> SiteFolder:
        """The site's key, ledger and approvals."""
        return SiteFolder(self.path)

    @cached_property
    def store(self) -> FileStore:
        """The store of the site's state."""
        return FileStore(self.path / STORE)

    def budget(self) -> Budget:
        """Return the privacy budget, with what all studies have spent."""
        return Budget(self.policy.epsilon, self.path / BUDGET, self.name)

    def gate(self, study: Study, split: Split | None = None) -> Gate:
        """Return the gate that every reply in a study, or in a part of one of its splits, passes on its way out."""
        name, every = study.unique_name if split is None else split.study(study.unique_name), self.sites_of(study)
        sites = every if split is None else split.members(every)
        text, left_out = text_of(study, name), frozenset(every) - frozenset(sites)
        limits: dict[str, Any] = {"losses": study.losses(every), "tasks": study.max_tasks, "models": study.max_models}
        limits["epsilon"] = study.max_epsilon(every)
        terms = Terms(name, sites, **limits, approved=study.unique_name, left_out=left_out, text=text)
        return Gate(self.policy, self.budget(), self.folder.ledger, self.folder.approvals, terms, self.store)

    def private_files(self) -> list[Path]:
        """Return the files that only the site's owner may read."""
        return [*(self.path / name for name in (KEY, STORE, BUDGET, LEDGER)), self.startup / "client.key"]

    @property
    def fingerprint(self) -> str:
        """The words of the site's keys."""
        return fingerprint(self.folder.key.public + public_key(self.store))

    def roster(self) -> Roster | None:
        """Return everybody's keys, if they are the same in all studies and the site knows them."""
        return None

    # -- studies

    def note_study(self, study: Study) -> None:
        """Store the text of a study, for the owner to read."""
        (self.path / "asked").mkdir(exist_ok=True)
        write_whole(self._asked(study, "toml"), study.text.encode())

    def approve(self, approval: Approval) -> Approval:
        """Approve a study, and record in the ledger who did."""
        made = self.folder.approvals.approve(approval)
        kinds = "all kinds" if EVERYTHING in made.messages else count_of(len(made.messages), "kind")
        self.folder.note_decision(self.name, made.study, f"the study was approved: {kinds} of messages", made.by)
        return made

    def withdraw(self, study: str, by: str | None = None) -> None:
        """Withdraw the approval of a study, by its name, and record in the ledger who did."""
        self.folder.approvals.withdraw(study)
        self.folder.note_decision(self.name, study, "the approval of the study was withdrawn", by or acting_user())

    def note_policy(self, by: str | None = None) -> None:
        """Record in the ledger that the policy changed since the last record: by whom, or whose file it is."""
        rules = {name: value for name, value in sorted(self.settings["policy"].items()) if value is not None}
        now = msgspec.json.encode(rules)
        before = self.store.get(_POLICY)
        if now != before:
            self.folder.note_decision(self.name, "none", _policy_changes(before, rules), by or acting_user())
            self.store.put(_POLICY, now)

    def decline(self, study: Study, why: str, by: str | None = None) -> None:
        """Record that the owner declines a study, with a reason in one line; this withdraws an approval."""
        why = printable(why).strip()
        if not why or len(why) > _LONGEST_REASON:
            raise InputError(f"the reason must be text of at most {_LONGEST_REASON} characters")
        if self.folder.approvals.find(study.unique_name) is not None:
            self.folder.approvals.withdraw(study.unique_name)
        write_whole(self._asked(study, "declined"), why.encode())
        self.folder.note_decision(self.name, study.unique_name, f"the study was declined: {why}", by or acting_user())

    def declined(self, study: Study) -> str | None:
        """Return why the owner declined a study; None if the owner did not."""
        path = self._asked(study, "declined")
        return path.read_bytes().decode() if path.exists() else None

    def undo_decline(self, study: Study) -> None:
        """Forget that the owner declined a study."""
        self._asked(study, "declined").unlink(missing_ok=True)

    def results_folder(self, study: Study) -> Path:
        """Return the folder for the results of a study."""
        return self.path / "results" / study.folder

    def coordinator_key(self, study: Study) -> bytes:
        """Return the public key of the coordinator that a study is of."""
        roster = self.roster()
        if roster is None:
            raise InputError("there is no list of keys, so nobody can tell whose the results are")
        return roster.coordinator

    def _asked(self, study: Study, ending: str) -> Path:
        return self.path / "asked" / f"{study.digest}.{ending}"

    def studies(self) -> list[Study]:
        """Return the studies that arrived, the oldest first."""
        files = sorted((self.path / "asked").glob("*.toml"), key=lambda path: path.stat().st_mtime)
        read = [parse_remote_study(path.read_bytes().decode()) for path in files]
        return list({study.unique_name: study for study in read}.values())

    def sites_of(self, study: Study) -> list[str]:
        """Return the sites at the start of a study: those that it names or came with, or all that the site knows."""
        if study.site_names is not None:
            return study.site_names
        if (noted := self._asked(study, "sites")).exists():
            return msgspec.json.decode(noted.read_bytes(), type=list[str])
        roster = self.roster()
        return [self.name] if roster is None else list(roster.sites)


def _policy_changes(before: bytes | None, rules: dict[str, Any]) -> str:
    """Describe the differences from the last recorded policy."""
    shown = {name: msgspec.json.encode(value).decode() for name, value in rules.items()}
    if before is None:
        return f"the policy is: {', '.join(f'{name} = {text}' for name, text in shown.items()) or 'as by default'}"
    known = {name: msgspec.json.encode(value).decode() for name, value in msgspec.json.decode(before).items()}
    named = [name for name in sorted({*shown, *known}) if shown.get(name) != known.get(name)]
    changes = (f"{name} = {shown.get(name, 'default')}, before {known.get(name, 'default')}" for name in named)
    return f"the policy was changed: {'; '.join(changes)}"


# -- the table


def absolute_path(table: str) -> str:
    """Return the absolute path of a table's file, or its unchanged URL; raise ``InputError`` if it does not exist."""
    if is_hospital(table):
        return hospital_rows(table).beside(Path.cwd()).source.text
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
        _source(settings)
        if is_url(settings["table"]) and settings.get("reading") and "predict" not in settings:
            raise InputError(FILES_ALONE)
    except InputError as error:
        problems.add(("query",) if "query" in settings else ("table",), str(error))


def _source(settings: dict[str, Any]) -> Any:
    return source_of(settings["table"], settings.get("query"), settings.get("reading"), settings.get("cluster"))


FILES_ALONE = "[reading] is for files; a query says what columns are called: select alter as age"


def source_of(table: str, query: str | None, reading: dict[str, Any] | None = None, cluster: str | None = None) -> Any:
    """Return the source of a table: a database query, a file (with reading options), or a cluster.

    With a ``cluster`` the table is a pattern of files, or a folder of them.
    """
    if cluster is not None:
        if query is not None or reading or is_url(table):
            raise InputError.about("cluster", "is for a table in Parquet files; leave query and [reading] out")
        return Partitions(table, cluster)
    if is_hospital(table):
        if query is not None or reading:
            raise InputError.about("table", "is made by a study's cohort; leave query and [reading] out")
        return hospital_rows(table)
    if is_url(table):
        return Query(table, query or "")
    if query is not None:
        raise InputError.about("query", "is for databases; a file is read as it is")
    return Table(table, **reading) if reading else table


def check_table(source: Any, wanted: Sequence[str] = (), memory: str | None = None) -> tuple[list[str], str]:
    """Read the table once, check that it has the columns wanted, and return its columns and the number of its rows.

    No more of it is in memory at a time than ``memory`` allows, or a quarter of a gigabyte.
    """
    if isinstance(source, CohortRows):  # columns are a study's
        return [], count_of(source.source.check(), "person")
    room = _ROOM if memory is None else min(read_size(memory) // 2, _ROOM)
    read = (Partitioned if isinstance(source, Partitions) else Batched)(source, "label", room)
    columns = list(read.names)
    lacking = [column for column in wanted if column not in columns]
    if lacking:
        raise SchemaError(
            f"the table lacks {', '.join(map(repr, lacking))}, which the federation agreed on; it has "
            f"{', '.join(map(repr, columns))}; if one is called otherwise, set rename (docs/tables.md)"
        )
    return columns, count_of(len(read), "row")


_ROOM = 1 << 28
