"""Masked sums, at the coordinator: add the masked parts of sites, and subtract the masks that do not cancel.

A sum takes three waves of messages: the sites mask their parts; they confirm whose parts are in the sum; they send
the shares that open it. The first sum of a study takes one more, for the keys. Up to a third of the sites may be lost
at any wave: parts that have arrived are in the sum.

Sites confirm a list of parts once per sum, so the journal has the masked parts before the sites confirm: a stopped
coordinator resumes from there, whichever sites are lost meanwhile.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from silvan.errors import FederationError, FormatError, InputError, RefusedError
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.journal import SUM, Entry
from silvan.federation.message import Reply, SumStep
from silvan.federation.outgoing import Asked, Bounds, Check
from silvan.federation.store import digest
from silvan.privacy.aggregation import shamir
from silvan.privacy.aggregation.counters import PartLayout, mask, unflatten
from silvan.privacy.aggregation.masked_site import (
    KEY,
    SEED,
    Confirmed,
    Hidden,
    Opened,
    Turn,
    adds_mask,
    mask_key,
    rows_to_open,
    sealed_for,
    threshold,
)
from silvan.privacy.aggregation.neighbours import enough_neighbours
from silvan.privacy.aggregation.sum_members import MIN_SITES, Ready, SumMember, check_ready, check_sum, losses, traffic
from silvan.privacy.aggregation.words import BITS, WORD, Widths
from silvan.util.readable import count_of, is_or_are
from silvan.util.threads import thread_count

_CODES = frozenset({"|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8"})  # of element types that can be added

R = TypeVar("R", bound=Reply)


class MaskedSums:
    """The way of summing in which sites mask their parts, and the coordinator adds and unmasks them.

    ``neighbours`` is how many others each site shares masks with: an even number, or None for
    ``enough_neighbours``, which for few sites is all of them.
    """

    name = "masked"
    least = MIN_SITES

    def __init__(self, neighbours: int | None = None) -> None:
        if neighbours is not None and (neighbours < 2 or neighbours % 2):
            raise InputError.wrong("neighbours", "an even number of at least 2, or None", neighbours)
        self.neighbours = neighbours
        self._keys: WeakKeyDictionary[Federation, dict[str, bytes]] = WeakKeyDictionary()

    def must_stay(self, n: int) -> int:
        """Return two thirds of the sites, at least three."""
        return threshold(n)

    def total(self, federation: Federation, question: Asked) -> tuple[Reply, dict[str, Entry]]:
        """Ask the sites for their masked parts, and return the unmasked sum."""
        total = self._resume(federation, question) or self._begin(federation, question)
        check_sum(total, question, "masked sum")
        return total, traffic(total, question, [site for site in question.requests if site not in federation.lost])

    def _resume(self, federation: Federation, question: Asked) -> Reply | None:
        """Resume a sum whose parts had arrived when the coordinator was stopped."""
        known = federation.journal.find(_journal_key(question)).get(SUM)
        if known is None:
            return None
        added = wire.decode(known.body, Added)
        try:
            return _MaskedSum(federation, question, added.turn, added).run()
        except RefusedError:  # sites in the coordinator's process have forgotten the sum, and may start again
            return None

    def _begin(self, federation: Federation, question: Asked) -> Reply:
        sites = list(question.requests)
        if MIN_SITES <= len(sites) <= shamir.MOST:
            self._learn_keys(federation, question)
            sites = [site for site in sites if site not in federation.lost]
        if not MIN_SITES <= len(sites) <= shamir.MOST:
            raise FederationError(
                f"{question.kind.__name__} cannot be summed over {count_of(len(sites), 'site')}: masked sums take "
                f"{MIN_SITES} to "
                f"{shamir.MOST}{losses(federation)}"
            )
        keys, n = self._keys[federation], len(sites)
        turn = Turn(
            what="hide",
            sum=question.name,
            members=[SumMember(site, keys[site]) for site in sites],
            neighbours=min(self.neighbours or enough_neighbours(n), n - 1),
            width=_width(question.most),
            widths=Widths.holding(*question.most) if isinstance(question.most, Bounds) else None,
        )
        return _MaskedSum(federation, question, turn).run()

    def _learn_keys(self, federation: Federation, question: Asked) -> None:
        """Request the keys that are still unknown; in most sums all are known."""
        known = self._keys.setdefault(federation, {})
        lacking = {site: request for site, request in question.requests.items() if site not in known}
        wave = replace(
            question,
            requests=lacking,
            over=list(question.requests),
            step=_step(Turn(what="key")),
            answer=Ready,
            check=check_ready,
        )
        known |= {site: reply.key for site, reply, _ in federation.exchange(wave) if isinstance(reply, Ready)}


class Added(msgspec.Struct, frozen=True):
    """The sum of the masked parts, and the data to open it, for the journal."""

    turn: Turn
    words: bytes
    hidden: dict[str, Hidden]


def _journal_key(question: Asked) -> str:
    """Return the name under which the journal has the added parts of a sum."""
    return digest(f"masked {question.name}".encode())


def _step(turn: Turn) -> SumStep:
    return SumStep(MaskedSums.name, wire.encode(turn))


def _width(most: int | Bounds | None) -> int:
    """Return the bits per counter, so that as many counters as possible share a word."""
    return BITS if not isinstance(most, int) else BITS // (BITS // min(max(1, most.bit_length()), BITS))


@dataclass
class _MaskedSum:
    """One masked sum in progress."""

    federation: Federation
    question: Asked
    turn: Turn
    added: Added | None = None

    def __post_init__(self) -> None:
        self.names = [member.site for member in self.turn.members]
        self.places = {name: i for i, name in enumerate(self.names)}
        self.near = self.turn.neighbour_places(self.federation.study)
        self.words: np.ndarray | None = None
        self.hidden: dict[str, Hidden] = {}
        self.size = 0  # bytes of a part
        if self.added is not None:
            self.words, self.hidden = np.frombuffer(self.added.words, WORD).copy(), dict(self.added.hidden)

    def run(self) -> Reply:
        """Run the three steps: mask, confirm, open."""
        if self.added is None:
            self._add_up()
        survivors = [name for name in self.names if name in self.hidden]
        confirm = msgspec.structs.replace(self.turn, what="confirm", survivors=survivors)
        wave = self._wave(_step(confirm), survivors, survivors, Confirmed, self._check_confirmed)
        codes = {site: reply.codes for site, reply in wave}
        steps = {}
        for site in codes:
            turn = msgspec.structs.replace(
                confirm,
                what="open",
                codes={name: codes[name][site] for name in survivors if name in codes and name != site},
                boxes={name: self.hidden[name].boxes[site] for name in survivors if site in self.hidden[name].boxes},
            )
            steps[site] = _step(turn)
        opened = self._wave(steps, steps, survivors, Opened, self._check_opened)
        return self._unmask(survivors, {site: reply.shares for site, reply in opened})

    def _add_up(self) -> None:
        """Request masked parts from all sites, and add them as they arrive."""
        for site, reply in self._wave(_step(self.turn), self.names, self.names, Hidden, self._check_hidden):
            words = np.frombuffer(reply.words, WORD)
            if self.words is None:
                self.words = words.copy()
            else:
                self.words += words
            self.hidden[site] = msgspec.structs.replace(reply, words=memoryview(b""))
        assert self.words is not None  # noqa: S101
        if self.federation.journal.path is not None:
            added = Added(self.turn, self.words.tobytes(), self.hidden)
            entry = Entry(Added.__name__, wire.encode(added), 0, 0)
            self.federation.journal.keep(_journal_key(self.question), {SUM: entry})

    def _unmask(self, survivors: list[str], opened: dict[str, dict[str, bytes]]) -> Reply:
        """Recover seeds from shares, and subtract the self-masks and the masks shared with lost sites."""
        openers = [name for name in self.names if name in opened][: threshold(len(self.names))]
        rows = [b"".join(opened[name][site] for site in survivors) for name in openers]
        shares = np.frombuffer(b"".join(rows), np.uint8).reshape(len(openers), -1)
        joined = shamir.join([self.places[name] for name in openers], shares).tobytes()
        plus: list[bytes] = []
        minus: list[bytes] = []
        at, about = 0, self.turn.about(self.federation.study)
        for site in survivors:
            prints, near = self.hidden[site].prints, self.near[self.places[site]]
            for row in self.opened[site]:
                seed, at = joined[at : at + SEED], at + SEED
                key, known = mask_key(about, seed)
                if known != prints[KEY * row : KEY * (row + 1)]:
                    raise FederationError(
                        f"{self.question.kind.__name__} cannot be summed: a site gave a wrong share of what hides the "
                        f"part of site {site!r}, or that site gave out wrong ones"
                    )
                added = row == 0 or adds_mask(site, self.names[near[row - 1]])
                (plus if added else minus).append(key)
        assert self.words is not None  # noqa: S101
        mask(self.words, minus, plus, thread_count(None))
        layout, kind, most = self.hidden[survivors[0]].layout, self.question.kind, self.question.most
        bounds = most.most if isinstance(most, Bounds) else None if most is None else np.array([[most]])
        try:
            return unflatten(layout, self.words, kind.reply, self.turn.widths or self.turn.width, bounds)
        except RefusedError as error:
            raise FederationError(f"the sites' sum for {kind.__name__} is unusable: {error}") from None

    def _wave(
        self, step: SumStep | dict[str, SumStep], sites: Iterable[str], over: list[str], answer: type[R], check: Check
    ) -> Iterator[tuple[str, R]]:
        """Send a step to some sites; two thirds of all must reply."""
        requests, n, enough = self.question.requests, 0, threshold(len(self.names))
        asked = {site: requests[site] for site in sites if site in requests}
        wave = replace(self.question, requests=asked, over=over, step=step, answer=answer, check=check)
        for site, reply, _ in self.federation.exchange(wave):
            if isinstance(reply, answer):
                n += 1
                yield site, reply
        if n < enough:
            raise FederationError(
                f"{self.question.kind.__name__} cannot be summed: {n} of {count_of(len(self.names), 'site')} "
                f"{is_or_are(n)} left, and a "
                f"masked sum needs {enough}{losses(self.federation)}"
            )

    def _check_hidden(self, site: str, reply: Hidden) -> None:
        if not self.hidden:
            self.size = self._size(reply.layout)
        elif reply.layout != next(iter(self.hidden.values())).layout:
            raise FormatError("its part is of another shape than the others")
        if len(reply.words) != self.size:
            raise FormatError("its part does not match its shape")
        place = self.places[site]
        sealed = {self.names[i] for i in sealed_for(place, len(self.names))}
        if len(reply.prints) != KEY * (1 + len(self.near[place])) or set(reply.boxes) != sealed:
            raise FormatError("it did not mask its part as agreed")

    def _size(self, layout: PartLayout) -> int:
        """Return the number of bytes of a part, for a layout that fits the request."""
        kind = self.question.kind.reply
        if layout.kind != kind.__name__ or [name for name, _, _ in layout.fields] != list(kind.__struct_fields__):
            raise FormatError("its part is of another kind")
        for _, code, shape in layout.fields:
            if code not in _CODES or len(shape) > 4 or any(size < 0 for size in shape):
                raise FormatError("its part has a shape that no part can have")
        try:
            return WORD.itemsize * layout.words(self.turn.widths or self.turn.width)
        except RefusedError:
            raise FormatError("its part is of another shape than was asked for") from None

    def _check_confirmed(self, site: str, reply: Confirmed) -> None:
        if set(reply.codes) != set(self.hidden) - {site}:
            raise FormatError("its confirmations are not for the sites in the sum")

    def _check_opened(self, site: str, reply: Opened) -> None:
        sizes = {name: len(share) for name, share in reply.shares.items()}
        if sizes != {name: SEED * len(rows) for name, rows in self.opened.items()}:
            raise FormatError("its shares are not the ones requested")

    @cached_property
    def opened(self) -> dict[str, list[int]]:
        """The seeds of each site that are opened, once the list of parts is confirmed."""
        lost = {i for name, i in self.places.items() if name not in self.hidden}
        return {name: rows_to_open(self.near[self.places[name]], lost) for name in self.hidden}
