"""The end of a study: each site signs its replies and its parts of the sums.

The coordinator first commits itself to all sums that it received, by one digest. Only then do sites reveal the points
of their fingerprints, and with them, for each sum, the fingerprint of their part under masks that cancel over exactly
the sites of that sum. So whoever has the sums can check each of them, and nobody learns the fingerprint of a part: not
the coordinator, not with all other sites but one. A site answers this once, and nothing of the study afterwards.

What a statement proves, and who checks it, is in docs/verification.md.
"""

import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, ClassVar

import msgspec

from silvan.errors import FormatError, RefusedError
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.journal import SUM
from silvan.federation.message import Ask, Derived, Reply, SignedReply
from silvan.federation.outgoing import LoggedQuestion
from silvan.federation.site import Site, answers
from silvan.federation.store import digest, fingerprint_key_name
from silvan.privacy.fingerprints import PRIME, ROOM, Points, fingerprint_of, points_of
from silvan.privacy.gate import first_sites
from silvan.privacy.identity.shared_key import key_of_pair, share_fingerprint_key
from silvan.privacy.study_notes import Answered, SumPart, answered_in, close, closing_answer, find_part
from silvan.util.readable import count_of

# -- messages


class ListedSum(msgspec.Struct, frozen=True, array_like=True):
    """A sum to verify: the coordinator's name for it, equal at all its sites, and the request to this site."""

    name: str
    asked: str


class SumsOver(msgspec.Struct, frozen=True):
    """Sums over one list of sites."""

    over: list[str]
    sums: list[ListedSum]


class HiddenPrint(msgspec.Struct, frozen=True, array_like=True):
    """The masked fingerprint of a site's part of a sum, and whether counters are small enough to verify it."""

    asked: str
    over: list[str]
    values: tuple[int, int]
    fits: bool


class Statement(SignedReply, frozen=True, kw_only=True):
    """Digests of the site's replies in the study, and masked fingerprints of its parts of sums; signed."""

    silvan: str
    study: str
    site: str
    sites: list[str] | None  # that the study began with, as this one knows them
    sums_digest: str  # what the coordinator committed itself to
    answered: list[Answered]
    prints: list[HiddenPrint]
    points: Points | None

    def work(self) -> bytes:
        """Return what is signed."""
        return wire.encode(msgspec.structs.replace(self, signature=b""))


class CloseStudy(Ask[Statement], frozen=True, kw_only=True):
    """Sign the replies of the study, so that it can be verified, and answer no further request in it."""

    of_rows: ClassVar[bool] = False

    sums_digest: Derived[str]
    sums: Derived[list[SumsOver]]

    def describe(self, reply: Any = None) -> str:
        """Describe it in the words of a ledger."""
        if not isinstance(reply, Statement):
            return "the end of the study: a signed statement of all that was answered, to verify it by"
        return (
            f"the end of the study: a signed statement of the {count_of(len(reply.answered), 'request')} that the site "
            f"answered, and fingerprints of {count_of(len(reply.prints), 'sum')}, hidden but for their sums; nothing "
            "more is answered in it"
        )


# -- at a site


@answers(CloseStudy)
def close_study_here(site: Site, request: CloseStudy) -> Statement:
    """Check that the sums listed are those that the site took part in, and sign the statement; the same if repeated."""
    if site.signer is None:
        raise RefusedError("the site signs nothing in this study")
    known = closing_answer(site.store, site.study, site.asked)
    if known is not None:
        return wire.decode(known, Statement)
    key = site.store.get(fingerprint_key_name(site.study))
    listed = [(one, group.over) for group in request.sums for one in group.sums]
    if any(len({name(one) for one, _ in listed}) < len(listed) for name in (_name, _asked)):
        raise FormatError("a sum is listed twice")
    statement = Statement(
        silvan=version("silvan"),
        study=site.study,
        site=site.name,
        sites=first_sites(site),
        sums_digest=request.sums_digest,
        answered=answered_in(site.store, site.study),
        prints=[_hidden_print(site, one, over) for one, over in listed],
        points=None if key is None else points_of(key, site.study),
    )
    close(site.store, site.study, site.asked, wire.encode(statement))
    return statement


def _name(one: ListedSum) -> str:
    return one.name


def _asked(one: ListedSum) -> str:
    return one.asked


def _hidden_print(site: Site, listed: ListedSum, over: list[str]) -> HiddenPrint:
    """Mask the fingerprint of the site's part of a sum, if that sum was over exactly these sites."""
    part = find_part(site.store, site.study, listed.asked)
    if part is None or part.over != sorted(over):
        raise RefusedError("the site was not asked for this sum over these sites: its fingerprint would tell more")
    first, second = part.fingerprint.values
    for other in over:
        if other != site.name:
            masks = _masks(site, other, listed.name, part)
            sign = 1 if site.name < other else -1
            first, second = (first + sign * masks[0]) % PRIME, (second + sign * masks[1]) % PRIME
    return HiddenPrint(listed.asked, part.over, (first, second), part.fingerprint.largest * len(over) < ROOM)


def _masks(site: Site, other: str, name: str, part: SumPart) -> tuple[int, int]:
    """Return the mask of a fingerprint, which only two sites can derive, from the key of their pair.

    It is for one sum: of one statistic, under one name, over some sites. Parts of two sums do not add up.
    """
    key = key_of_pair(site, other, site.study, "masks of fingerprints")
    about = msgspec.msgpack.encode([site.study, name, part.statistic, part.over])
    drawn = hmac.digest(key, about, "sha512")
    return int.from_bytes(drawn[:32], "big") % PRIME, int.from_bytes(drawn[32:], "big") % PRIME


# -- at the coordinator


def make_verifiable(federation: Federation) -> Federation:
    """Make sites share a key for fingerprints before the first sum, if messages are signed; return the federation."""
    if federation.signer is not None:
        federation.before_sums = share_fingerprint_key
    return federation


def close_study(federation: Federation) -> dict[str, Statement]:
    """End a study: ask each site for its statement, and return them; none where nobody signs."""
    if not federation.verifiable:
        return {}
    sums, requests = sums_to_verify(federation), {}
    for site in federation.active:
        groups: dict[tuple[str, ...], list[ListedSum]] = {}
        for question in sums:
            if site in question.asked:
                listed = ListedSum(question.name, question.asked[site])
                groups.setdefault(tuple(sorted(question.asked)), []).append(listed)
        listed_groups = [SumsOver(list(over), group) for over, group in groups.items()]
        requests[site] = CloseStudy(sums_digest=sums_digest(federation.questions), sums=listed_groups)
    with federation.aside():
        statements: dict[str, Statement] = federation.ask(requests, check=_check_statement)
    return statements


def _check_statement(site: str, statement: Statement) -> None:
    if statement.site != site or any(not 0 <= x < PRIME for one in statement.prints for x in one.values):
        raise FormatError("its statement is another's, or holds no fingerprints")


def sums_to_verify(federation: Federation) -> list[LoggedQuestion]:
    """Return the sums of a study whose sites are all still there, each once however often it was asked for."""
    there, found = set(federation.active), dict[str, LoggedQuestion]()
    for question in federation.questions:
        if question.sum and there.issuperset(question.asked):
            found.setdefault(sum_name(question), question)
    return list(found.values())


def sum_name(question: LoggedQuestion) -> str:
    """Name a sum by the requests to its sites, so that a repeated request has the same name."""
    return digest(msgspec.json.encode(sorted(question.asked.items())))


def sums_digest(questions: Iterable[LoggedQuestion]) -> str:
    """Commit to all sums that were received, in their order."""
    return digest(msgspec.json.encode([[q.name, q.sum] for q in questions if q.sum]))


# -- for whoever verifies


SumOf = Callable[[LoggedQuestion], Reply | None]
"""The sum that a question was answered with; None if it is not at hand."""


class CheckedSums(msgspec.Struct):
    """The result of checking sums: the number of valid ones, descriptions of errors, and unverifiable sums."""

    right: int = 0
    wrong: list[str] = []
    unknown: list[str] = []


def check_sums(
    questions: Sequence[LoggedQuestion], statements: Mapping[str, Statement], sum_of: SumOf, lost: Mapping[str, str]
) -> CheckedSums:
    """Compare each sum with the sum of the sites' masked fingerprints."""
    found, prints = CheckedSums(), {site: {one.asked: one for one in s.prints} for site, s in statements.items()}
    points = {statement.points for statement in statements.values() if statement.points is not None}
    if len(points) > 1:
        found.wrong.append("the sites were given different keys for their fingerprints, so their parts do not add up")
        return found
    seen: dict[str, str] = {}
    for question in questions:
        if not question.sum:
            continue
        name, what = sum_name(question), describe_question(question)
        gone = [site for site in question.asked if site not in statements]
        if gone:
            why = "was lost" if gone[0] in lost else "has signed no statement"
            found.unknown.append(f"{what} is not verified (site {gone[0]!r} {why})")
        elif seen.setdefault(name, question.sum) != question.sum:
            found.wrong.append(f"{what} was asked for twice, and the sums differ")
        else:
            _check_sum(found, question, what, {site: prints[site] for site in question.asked}, points, sum_of)
    return found


def _check_sum(
    found: CheckedSums,
    question: LoggedQuestion,
    what: str,
    prints: dict[str, dict[str, HiddenPrint]],
    points: set[Points],
    sum_of: SumOf,
) -> None:
    hidden = [prints[site].get(asked) for site, asked in question.asked.items()]
    if any(one is None or one.over != sorted(question.asked) for one in hidden) or not points:
        found.wrong.append(f"{what}: the coordinator did not have it verified over its sites")
        return
    total = sum_of(question)
    print_ = None if total is None else fingerprint_of(total, next(iter(points)))
    if print_ is None:
        found.unknown.append(f"{what} is not verified (it is not in the journal)")
    elif not all(one.fits for one in hidden if one is not None):
        found.unknown.append(f"{what} is not verified (its numbers are too large)")
    elif print_.largest >= ROOM or print_.values != _added([one.values for one in hidden if one is not None]):
        found.wrong.append(f"{what} is not the sum of what the sites answered")
    else:
        found.right += 1


def _added(values: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(first for first, _ in values) % PRIME, sum(second for _, second in values) % PRIME


def describe_question(question: LoggedQuestion) -> str:
    """Name a question in words: its kind and its round."""
    where = f" of round {question.round}" if question.round else ""
    return f"{question.kind.__name__}{where}"


def check_own_sums(federation: Federation, statements: Mapping[str, Statement]) -> CheckedSums:
    """Check the sums in a federation's journal."""

    def sum_of(question: LoggedQuestion) -> Reply | None:
        kept = federation.journal.find(question.name).get(SUM)
        return None if kept is None else wire.decode(kept.body, question.kind.reply)

    return check_sums(federation.questions, statements, sum_of, federation.lost)
