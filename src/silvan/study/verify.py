"""Verifies a finished study, using the coordinator's journal and the sites' signed statements.

All requests follow from the study and the replies. So the study is run again with the journal in place of the sites,
and compared with the sites' statements: the requests that follow were made, and no others; each reply in the journal is
the one that the site signed; each sum is the sum of the sites' replies. docs/verification.md says what this proves, and
what it does not.
"""

import math
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from silvan.data.holdout import Split
from silvan.errors import FormatError, InputError, SilvanError
from silvan.federate.options import make_sums
from silvan.federation import wire
from silvan.federation.agree import ask_rows
from silvan.federation.federation import Federation
from silvan.federation.handlers import HANDLERS
from silvan.federation.journal import Entry, Journal
from silvan.federation.keys import Roster
from silvan.federation.message import Owner, Verb
from silvan.federation.outgoing import LoggedQuestion
from silvan.federation.signed import is_owned
from silvan.federation.store import digest
from silvan.federation.transport import Transport
from silvan.privacy.close_study import Answered, CloseStudy, Statement, check_sums, describe_question, sums_digest
from silvan.privacy.identity.shared_key import share_key
from silvan.study.listener import Listener
from silvan.study.parse import parse_remote_study
from silvan.study.run_folder import EVALUATION, JOURNAL, ROSTER, RUN, Record, Run, split_journal
from silvan.study.run_study import run_study
from silvan.study.steps import agree, start_record
from silvan.study.study import Study
from silvan.util.readable import count_of, format_names

_CLOSE = 1e-9
"""Relative tolerance for numbers computed on another machine."""

OF_THE_RUN = frozenset(
    ("made", "seconds", "versions", "fingerprint", "bytes", "traffic", "received", "verification", "copy_for", "among")
)
"""Fields of ``run.json`` about the run and its machine, which do not follow from the replies."""


@dataclass
class Verification:
    """The findings: what was compared, what deviates, and what could not be verified, each in a sentence.

    ``other_versions`` says which versions of silvan differ; then nothing was compared.
    """

    auditor: str | None = None
    questions: int = 0
    sums: int = 0
    deviations: list[str] = field(default_factory=list)
    unverified: list[str] = field(default_factory=list)
    other_versions: str = ""

    @property
    def passed(self) -> bool:
        """Whether no deviation was found."""
        return not self.deviations and not self.other_versions

    @property
    def sentence(self) -> str:
        """The result as shown in the report."""
        if self.other_versions:
            return f"not verified: {self.other_versions}"
        if self.deviations:
            return f"not verified: {self.deviations[0]}"
        by = "" if self.auditor is None else f" by {self.auditor}"
        but = f", but for {count_of(len(self.unverified), 'sum')}: {self.unverified[0]}" if self.unverified else ""
        return f"sums and decisions verified{by}{but}"


def verify_study(folder: str | Path, roster: Roster | None = None) -> Verification:
    """Verify a study from a copy of the coordinator's run folder.

    Parameters
    ----------
    folder
        The run folder, with its journal.
    roster
        The sites' public keys, to use instead of those in the folder, which its author wrote.
    """
    run = Run(folder)
    record, study = run.read(), _read_study(run)
    if study.predict is not None:
        raise InputError(
            f"{run.folder}: predictions of new rows are not verified; verify the study that made the model"
        )
    if not run.file(JOURNAL).is_file():
        raise InputError(
            f"{run.file(JOURNAL)} is not there, and without it nothing can be verified: a coordinator keeps it for "
            'studies that name an auditor (auditor = "...")'
        )
    if roster is None:
        roster = Roster.load(run.file(ROSTER))
    found = Verification(study.auditor)
    found.other_versions = _compare_versions(run, record)
    if not found.other_versions:
        _verify(run, record, study, roster, found)
    return found


def note_verification(folder: str | Path, found: Verification) -> None:
    """Write the result of a verification into the record of a run folder."""
    run = Run(folder)
    record = run.read()
    record.verification = found.sentence
    run.write(record)


def _read_study(run: Run) -> Study:
    path = run.file("study.toml")
    if not path.is_file():
        raise InputError(f"{path} is not there: name the run folder of a study between machines")
    return parse_remote_study(path.read_bytes().decode(), path)


class _VersionOf(msgspec.Struct):
    """The part of a statement that is read first."""

    silvan: str = "of an unknown version"


def _compare_versions(run: Run, record: Record) -> str:
    """Return which versions of silvan differ, in a sentence; empty if none."""
    here = version("silvan")
    used = {"the coordinator": record.versions.get("silvan", here)}
    journal = _ReplayJournal(run.file(JOURNAL))
    for site, bodies in journal.of_kind(Statement.__name__).items():
        used |= {f"site {site!r}": wire.decode(body, _VersionOf).silvan for body in bodies}
    journal.close()
    other = {who: theirs for who, theirs in used.items() if theirs != here}
    if not other:
        return ""
    who, theirs = next(iter(other.items()))
    return f"{who} ran silvan {theirs}, and this is silvan {here}; nothing was compared: verify with silvan {theirs}"


# -- running the study again


class _NotInJournalError(Exception):
    """The study makes a request without a reply in the journal."""


class _NoSites(Transport):
    """Delivers nothing: all replies are in the journal."""

    def deliver(
        self, messages: dict[str, bytes], verb: Verb, timeout: float | None
    ) -> Iterator[tuple[str, bytes | Exception]]:
        """Raise an error: there is nobody to send to."""
        raise _NotInJournalError


class _ReplayJournal(Journal):
    """A read-only journal; what a coordinator derived from replies is derived again."""

    def keep(self, question: str, entries: dict[str, Entry]) -> None:
        """Store nothing."""

    def remember(self, site: str, values: dict[str, bytes]) -> None:
        """Store nothing."""

    def remembered(self, site: str) -> dict[str, bytes]:
        """Return nothing."""
        return {}

    def remove(self) -> None:
        """Leave the file unchanged."""


@dataclass
class _Replay:
    """A study run again: its federations, one more for each split, and where it stopped, if it did.

    ``run`` is the run folder under verification, ``again`` the folder of the second run.
    """

    study: Study
    run: Run
    again: Run
    roster: Roster
    sites: list[str]
    federations: list[Federation] = field(default_factory=list)
    stopped: str = ""

    def go(self) -> Record:
        """Run the study with its journal."""
        federation = self._federation(self.study.unique_name, self.sites, JOURNAL)
        federation.agree_later = lambda: agree(federation, self.study)
        federation.split_later = lambda split: self._split(federation, split)
        record = start_record(self.study, "")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                run_study(self.study, federation, self.again, record, Listener(), secret_sampling=self.study.secret)
        except _NotInJournalError:
            self.stopped = "the journal has no reply to it"
        except SilvanError as error:
            self.stopped = f"the replies in the journal do not lead to the end of the study: {error}"
        except (ArithmeticError, LookupError, TypeError, ValueError):  # no honest site sends such replies
            self.stopped = "the replies in the journal do not lead to the end of the study"
        return record

    def _federation(self, name: str, sites: list[str], journal: str) -> Federation:
        sums, _ = make_sums(self.study.sums)
        path = self.run.file(journal)
        kept, quorum = _ReplayJournal(path if path.is_file() else None), self.study.quorum
        quorum = quorum and min(quorum, len(sites))
        made = Federation(_NoSites(), sites, sums, study=name, journal=kept, quorum=quorum, roster=self.roster)
        made.before_sums = share_key
        self.federations.append(made)
        return made

    def _split(self, federation: Federation, split: Split) -> Federation:
        journal = split_journal(self.study.parts_of_splits(federation.sites).index(split))
        made = self._federation(split.study(federation.study), split.members(federation.active), journal)
        made.agreement = replace(
            federation.agreement,
            rows=ask_rows(made, grouped=federation.agreement.grouped) if federation.rows and split.test < 1.0 else {},
        )
        return made

    def name_of(self, federation: Federation) -> str:
        """Return the beginning of sentences about a split; empty for the study itself."""
        number = self.federations.index(federation)
        return f"split {number}: " if number else ""

    def is_last(self, federation: Federation) -> bool:
        """Whether the replay stopped in a federation."""
        return bool(self.stopped) and federation is self.federations[-1]


# -- comparison with the sites' statements


def _verify(run: Run, record: Record, study: Study, roster: Roster, found: Verification) -> None:
    with tempfile.TemporaryDirectory() as folder:
        replay = _Replay(study, run, Run(folder), roster, [site.name for site in record.sites])
        again = replay.go()
        for federation in replay.federations:
            _verify_federation(replay, federation, found)
            federation.close()
        if not replay.stopped:
            found.deviations += _compare_results(record, again)
            found.deviations += _compare_files(record, run, replay.again)
        elif not found.deviations:
            last = replay.federations[-1].questions
            what = f"{describe_question(last[-1])}: " if last else ""
            found.deviations.append(f"{replay.name_of(replay.federations[-1])}{what}{replay.stopped}")


def _compare_results(record: Record, again: Record) -> Iterator[str]:
    """Yield the parts of a record that do not follow from the replies."""
    one, other = (msgspec.to_builtins(of) for of in (record, again))
    one["kinds"] = [kind for kind in one["kinds"] if _follows(kind["name"])]
    for name in one:
        if name not in OF_THE_RUN and not _alike(one[name], other[name]):
            yield f"{name} in run.json does not follow from the replies"


def _follows(kind: str) -> bool:
    """Whether requests of a kind follow from the study; those about ledgers do not."""
    return kind not in HANDLERS or HANDLERS[kind][0].verified


def _compare_files(record: Record, run: Run, again: Run) -> Iterator[str]:
    """Yield the files of the model and its metrics that differ from the study's."""
    if again.file(EVALUATION).is_file():  # the record's metrics are compared; the file must have the same
        again.write_evaluation(record.evaluation)
    for made in sorted(again.folder.rglob("*")):
        name = str(made.relative_to(again.folder))
        path = run.file(name)
        if made.is_file() and name != RUN and (not path.is_file() or path.read_bytes() != made.read_bytes()):
            yield f"{name} does not follow from the replies"


def _alike(one: Any, other: Any) -> bool:
    """Whether two values of plain data are the same, except for rounding on another machine."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_CLOSE, abs_tol=_CLOSE)
    return type(one) is type(other) and bool(one == other)


def _verify_federation(replay: _Replay, federation: Federation, found: Verification) -> None:
    """Compare the requests of a study, or one of its splits, with what its sites signed."""
    of = replay.name_of(federation)
    statements, faults = _read_statements(federation, replay.roster)
    questions = [question for question in federation.questions if question.kind is not CloseStudy]
    said: dict[str, list[str]] = {}
    for site, statement in statements.items():
        for text in _compare(questions, site, statement, federation, stopped=replay.is_last(federation)):
            said.setdefault(text, []).append(site)
    found.deviations += [f"{of}{text} (at {format_names(sites)})" for text, sites in said.items()]
    found.questions += len(questions)
    if not replay.is_last(federation):
        commitment = sums_digest(questions)
        if any(statement.sums_digest != commitment for statement in statements.values()):
            faults.append("the sums in the journal are not those that the coordinator committed to")

    if federation.lost and len(federation.active) < (federation.quorum or len(federation.sites)):
        faults.append(f"left out, which the study does not allow: {format_names(list(federation.lost))}")
    checked = check_sums(federation, statements)
    found.sums += checked.right
    found.deviations += [of + text for text in [*faults, *checked.wrong]]
    found.unverified += [of + text for text in checked.unknown]


def _read_statements(federation: Federation, roster: Roster) -> tuple[dict[str, Statement], list[str]]:
    """Return the statements that sites signed for a study, by site, and problems with others."""
    statements: dict[str, Statement] = {}
    faults: list[str] = []
    for site, bodies in federation.journal.of_kind(Statement.__name__).items():
        try:
            statement = wire.decode(bodies[0], Statement)
        except FormatError:
            faults.append(f"the statement of site {site!r} cannot be read")
            continue
        owner = Owner(site, "", statement.signature)
        named = (statement.site, statement.study) == (site, federation.study)
        if len(bodies) > 1 or not named or not is_owned(roster, owner, federation.study, digest(statement.work())):
            faults.append(f"the statement of site {site!r} is not signed by it, or was changed")
        elif statement.sites not in (None, sorted(federation.sites)):
            faults.append(
                f"site {site!r} took part in a study of {format_names(statement.sites or [])}, and the run folder has "
                f"one of {format_names(federation.sites)}"
            )
        else:
            statements[site] = statement
    missing = [site for site in federation.sites if site not in statements and site not in federation.lost]
    if missing and not faults:
        faults.append(f"there is no statement of {format_names(missing)}: the study was not closed there")
    return statements, faults


def _compare(
    questions: Sequence[LoggedQuestion], site: str, statement: Statement, federation: Federation, *, stopped: bool
) -> Iterator[str]:
    """Yield deviations of a site's requests and replies from what follows from the study."""
    expected = list({q.asked[site]: q for q in questions if site in q.asked}.values())
    wanted = {question.asked[site] for question in expected}
    got = {one.asked for one in statement.answered}
    for place, (want, given) in enumerate(zip_longest(expected, statement.answered)):
        if want is not None and given is not None and want.asked[site] == given.asked:
            continue
        if want is None and stopped:
            break
        yield _deviation(want, given, wanted, got, site)
        expected = expected[:place]
        break
    answers = {one.asked: one.answers for one in statement.answered}
    for question in expected:
        if question.kind.verb == "ask":
            kept = federation.journal.find(question.name).get(site)
            if kept is not None and digest(kept.body) not in answers.get(question.asked[site], []):
                yield f"the reply to {describe_question(question)} in the journal is not the one that was sent"


def _deviation(want: LoggedQuestion | None, given: Answered | None, wanted: set[str], got: set[str], site: str) -> str:
    """Describe how a request that a site handled differs from the one that follows from the study."""
    asked = "" if given is None else f"{given.kind} of round {given.round}" if given.round else given.kind
    if want is None:
        return f"{asked} was asked, and does not follow from the study"
    what = describe_question(want)
    if given is None:
        return f"{what} follows from the study, and was not asked"
    if given.kind == want.kind.__name__ and want.asked[site] not in got and given.asked not in wanted:
        return f"{asked} was asked with other contents than follow from the study and its sums"
    if given.asked not in wanted:
        return f"{asked} was asked before {what}, and does not follow from the study"
    if want.asked[site] not in got:
        return f"{what} follows from the study, and was not asked"
    return f"{asked} was asked where {what} follows from the study"
