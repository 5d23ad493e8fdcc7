"""The end of a study: each site signs its replies, and reveals the key that proves sums.

The coordinator first commits itself to all received sums, by one digest. Only then do sites reveal the key
(``federation/proven_sums.py``), which allows anyone with the sums to check each of them, and to forge others. A site
does this once, and sends no further reply in the study.

What a statement proves, and who checks it, is in docs/verification.md.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import version
from typing import Any, ClassVar

import msgspec

from silvan.errors import FormatError, RefusedError
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.handlers import HANDLERS
from silvan.federation.journal import LOST, SUM
from silvan.federation.message import Ask, Derived, SignedReply
from silvan.federation.outgoing import LoggedQuestion
from silvan.federation.proven_sums import SumName, is_proven
from silvan.federation.site import Site, answers
from silvan.federation.store import digest
from silvan.privacy.gate import Gate, first_sites
from silvan.privacy.identity.shared_key import share_key
from silvan.privacy.request_sequence import close, closing_answer
from silvan.util.readable import count_of

# -- messages


class Answered(msgspec.Struct, frozen=True, array_like=True):
    """One request with a reply: its digest, kind and round, and digests of the replies if they were disclosed."""

    asked: str
    kind: str
    round: int
    answers: list[str]


class Statement(SignedReply, frozen=True, kw_only=True):
    """Digests of the site's replies in the study, and the key by which the sites proved their parts of sums; signed."""

    silvan: str
    study: str
    site: str
    sites: list[str] | None  # at the start of the study, as this site knows them
    sums_digest: str  # the coordinator's commitment
    answered: list[Answered]
    key: bytes | None

    def work(self) -> bytes:
        """Return what is signed."""
        return wire.encode(msgspec.structs.replace(self, signature=b""))


class CloseStudy(Ask[Statement], frozen=True, kw_only=True):
    """Sign the replies of the study, so that it can be verified, and answer no further request in it."""

    of_rows: ClassVar[bool] = False

    sums_digest: Derived[str]

    def describe(self, reply: Any = None) -> str:
        """Describe it in the words of a ledger."""
        of = f"the {count_of(len(reply.answered), 'request')}" if isinstance(reply, Statement) else "all"
        return (
            f"the end of the study: a signed statement of {of} that the site answered, to verify it by; nothing more "
            "is answered in it"
        )


# -- at a site


@answers(CloseStudy)
def close_study_here(site: Site, request: CloseStudy) -> Statement:
    """Sign the site's replies and close the study; the same statement if repeated."""
    if site.signer is None:
        raise RefusedError("the site signs nothing in this study")
    known = closing_answer(site.store, site.study, site.asked)
    if known is not None:
        return wire.decode(known, Statement)
    statement = Statement(
        silvan=_silvan_version(),
        study=site.study,
        site=site.name,
        sites=first_sites(site),
        sums_digest=request.sums_digest,
        answered=_answered(site),
        key=site.proof_key,
    )
    close(site.store, site.study, site.asked, wire.encode(statement))
    return statement


@cache
def _silvan_version() -> str:
    """Return the version of silvan here; reading it takes longer than the rest of closing a study."""
    return version("silvan")


def _answered(site: Site) -> list[Answered]:
    """Return the study's requests and replies, from the site's ledger: each once, in order of first replies."""
    found: dict[str, Answered] = {}
    for line in site.outbox.ledger.lines(site.study) if isinstance(site.outbox, Gate) else ():
        if line.outcome != "answered" or not line.answer or not HANDLERS[line.kind][0].verified:
            continue
        one = found.setdefault(line.asked, Answered(line.asked, line.kind, line.round, []))
        if HANDLERS[line.kind][0].verb == "ask" and line.answer not in one.answers:
            one.answers.append(line.answer)
    return list(found.values())


# -- at the coordinator


def make_verifiable(federation: Federation) -> Federation:
    """Make sites share a key before the first sum, if messages are signed; return the federation."""
    if federation.signer is not None:
        federation.before_sums = share_key
    return federation


def close_study(federation: Federation) -> dict[str, Statement]:
    """End a study: ask each site for its statement, and return them; none where nobody signs."""
    if not federation.verifiable:
        return {}

    def check(site: str, statement: Statement) -> None:
        if statement.site != site:
            raise FormatError("its statement is another's")

    with federation.aside():
        statements: dict[str, Statement] = federation.ask(
            CloseStudy(sums_digest=sums_digest(federation.questions)), check=check
        )
    return statements


def sums_digest(questions: Iterable[LoggedQuestion]) -> str:
    """Commit to all received sums, in order."""
    return digest(msgspec.json.encode([[q.name, q.sum] for q in questions if q.sum]))


# -- for the verifier


class CheckedSums(msgspec.Struct):
    """The result of checking sums: the number of valid ones, descriptions of errors, and unverifiable sums."""

    right: int = 0
    wrong: list[str] = []
    unknown: list[str] = []


def check_sums(federation: Federation, statements: Mapping[str, Statement]) -> CheckedSums:
    """Check all sums in a federation's journal with the key that its sites revealed."""
    found, keys = CheckedSums(), {statement.key for statement in statements.values() if statement.key is not None}
    if len(keys) > 1:
        found.wrong.append("the sites were given different keys for their proofs, so their parts do not add up")
        return found
    for question in federation.questions:
        if not question.sum:
            continue
        what, kept = describe_question(question), federation.journal.find(question.name)
        lost = [site for site, one in kept.items() if one.kind == LOST and site not in statements]
        name = SumName(federation.study, question.task, list(question.asked))
        if lost or not keys or SUM not in kept:
            why = f"site {lost[0]!r} was lost" if lost else "the journal lacks it" if keys else "no site signed its end"
            found.unknown.append(f"{what} is not verified ({why})")
            continue
        proven = is_proven(min(keys), name, question.asked, wire.decode(kept[SUM].body, question.kind.reply))
        if proven is None:
            found.unknown.append(f"{what} is not verified (its numbers are too large)")
        elif proven:
            found.right += 1
        else:
            found.wrong.append(f"{what} is not the sum of what the sites answered")
    return found


def describe_question(question: LoggedQuestion) -> str:
    """Describe a request by its kind and round."""
    where = f" of round {question.round}" if question.round else ""
    return f"{question.kind.__name__}{where}"
