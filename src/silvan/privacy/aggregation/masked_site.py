"""Masked sums, at a site (Bonawitz et al. 2017): masks that two sites share cancel when all parts are added.

Every site adds to its part, modulo 2^64, a mask of its own and one for each neighbour: the one of a pair adds that,
the other subtracts it. With its masked part it sends shares of the seeds of its masks for each site; two thirds of
the shares recover them. One less than two thirds of the shares follow from keys that two sites have in common; the
others, which these and the seeds determine, are sealed. Once the sites have confirmed to each other whose parts are
in the sum, they send their shares of the self-masks of these sites, and of the masks that these share with lost ones:
never of both kinds for one site. All seeds serve one sum, so a recovered seed opens no other.

docs/sums.md says who must collude to see a part. The coordinator's half is in ``masked_coordinator.py``.
"""

import hashlib
import hmac
import secrets
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from cryptography.hazmat.primitives.poly1305 import Poly1305

from silvan.errors import RefusedError
from silvan.federation import wire
from silvan.federation.message import Envelope, Reply
from silvan.federation.site import Own, Site
from silvan.federation.store import CacheKey, digest
from silvan.privacy.aggregation import shamir
from silvan.privacy.aggregation.counters import PartLayout, flatten, mask
from silvan.privacy.aggregation.neighbours import enough_neighbours, neighbours
from silvan.privacy.aggregation.sum_members import MIN_SITES, Ready, SumMember, place_of
from silvan.privacy.aggregation.words import BITS, Widths
from silvan.privacy.identity.seal import derive, public_key, seal, secret_key, shared_secret, unseal
from silvan.privacy.noise.noisy_request import settle_shares
from silvan.util.threads import thread_count

SEED = 16
"""Bytes of a mask's seed: as hard to guess as the X25519 keys behind most of them."""

KEY = 32
"""Bytes of a key, a confirmation and a fingerprint, and of the seed that a site keeps of a sum."""


def threshold(n: int) -> int:
    """Return how many of n sites must stay: two thirds, and at least three."""
    return max(MIN_SITES, n - n // 3)


def withstood(n: int) -> int:
    """Return how many of n sites may collude: fewer than those that two lists of parts of one sum must share."""
    return 2 * threshold(n) - n - 1


# -- messages


class Turn(msgspec.Struct, frozen=True):
    """One step: tell the key; hide the part; confirm whose parts are in the sum; give the shares that open it.

    ``neighbours`` is how many sites each shares masks with, ``width`` how many bits a counter takes unless ``widths``
    says it for each block of them.
    """

    what: Literal["key", "hide", "confirm", "open"]
    sum: str = ""
    members: list[SumMember] = []
    neighbours: int = 0
    width: int = BITS
    survivors: list[str] = []
    codes: dict[str, bytes] = {}  # the confirmations from other sites
    boxes: dict[str, bytes] = {}  # the shares that others sealed for it
    widths: Widths | None = None

    def name(self, study: str, statistic: str) -> str:
        """Identify the sum by its whole context: no mask, box or confirmation is valid in another."""
        members = [(member.site, member.key.hex()) for member in self.members]
        about = [study, self.sum, members, self.neighbours, self.width, statistic]
        if self.widths is not None:
            about.append([digest(array.tobytes()) for array in (self.widths.lengths, self.widths.bits)])
        return digest(msgspec.json.encode(["masked sum", *about]))

    def about(self, study: str) -> bytes:
        """Name the sum in digests of its seeds, so that a guess is worth nothing in another sum."""
        return msgspec.json.encode([study, self.sum])

    def neighbour_places(self, study: str) -> list[list[int]]:
        """List, for each member, the positions of those it shares masks with: the same in all sums of a study."""
        return neighbours(study, tuple(member.key for member in self.members), self.neighbours)


class Hidden(Reply, frozen=True, kw_only=True):
    """A site's masked part, fingerprints of its seeds, and shares of these for sites that cannot derive them."""

    layout: PartLayout
    words: memoryview
    prints: bytes
    boxes: dict[str, bytes]


class Confirmed(Reply, frozen=True, kw_only=True):
    """A site's confirmation, for each other site, of the parts in the sum."""

    codes: dict[str, bytes]


class Opened(Reply, frozen=True, kw_only=True):
    """A site's shares of the seeds to remove, by the site that the seeds belong to."""

    shares: dict[str, bytes]


class KeptSeed(msgspec.Struct, frozen=True):
    """What a site keeps of a sum: the seed of all that it drew for it, and a tag of the part it was drawn for."""

    seed: bytes
    tag: bytes


# -- at a site


class MaskedPart:
    """The cover of a site whose parts of sums leave it only masked.

    ``roster`` has the public keys that the site's owner knows to be the others'. Without one the site takes the keys
    that the coordinator hands out, the same for a whole study; a coordinator that hands out its own could see parts.
    ``neighbours`` is how many sites it must share masks with at least; None for
    ``enough_neighbours``.
    """

    name = "masked"

    def __init__(self, roster: Mapping[str, bytes] | None = None, neighbours: int | None = None) -> None:
        self.roster, self.neighbours = roster, neighbours

    def withstands(self, n: int) -> int:
        """Return how many sites may collude: fewer than it takes to confirm two lists of parts of one sum."""
        return withstood(n)

    def answer(self, site: Site, envelope: Envelope, own: Own) -> Reply:
        """Perform one step of a masked sum."""
        turn = wire.decode(b"" if envelope.step is None else envelope.step.body, Turn)
        if turn.what == "key":
            return Ready(key=public_key(site.store))
        n, names = len(turn.members), [member.site for member in turn.members]
        place = place_of(site, turn.members, n, self.roster, "masked sum")
        if envelope.over != (names if turn.what == "hide" else turn.survivors):
            raise RefusedError("the sum is over other sites than it says")
        if n > shamir.MOST or not 1 <= turn.width <= BITS:
            raise RefusedError(f"a masked sum takes up to {shamir.MOST} sites, and counters of up to {BITS} bits")
        near, enough = turn.neighbours, min(n - 1, self.neighbours or enough_neighbours(n))
        if not enough <= near < n or (near % 2 and near < n - 1):
            raise RefusedError("the site would share masks with too few others")
        _pin(site, envelope.study, turn.members)
        here = SumAtSite(site, turn, envelope.study, own.statistic, place)
        if turn.what == "hide":
            return here.hide(own)
        here.settle(own, digest(msgspec.json.encode([envelope.study, own.hash])))
        return here.confirm() if turn.what == "confirm" else here.open()


def _pin(site: Site, study: str, members: Sequence[SumMember]) -> None:
    """Check that sites have the keys under which they first took part in a study."""
    kept = f"keys {digest(study.encode())}"
    data = site.store.get(kept)
    known: dict[str, bytes] = {} if data is None else msgspec.msgpack.decode(data, type=dict[str, bytes])
    now = known | {member.site: member.key for member in members}
    if any(now[name] != key for name, key in known.items()) or len(set(now.values())) < len(now):
        raise RefusedError("a site has another key than before in this study, or the key that another had")
    if now != known:
        site.store.put(kept, msgspec.msgpack.encode(now))


class _Pair(NamedTuple):
    """What two sites derive for one sum: a mask, and keys for their messages to each other."""

    mask: bytes
    give: bytes  # of the site's share for the other: for sealing it, or for deriving it
    take: bytes
    code: bytes
    their_code: bytes


class SumAtSite:
    """One masked sum, as one of its sites takes part in it; ``place`` is the site's index among the members."""

    def __init__(self, site: Site, turn: Turn, study: str, statistic: str, place: int) -> None:
        self.site, self.turn, self.place = site, turn, place
        self.sum, self.near = turn.name(study, statistic), turn.neighbour_places(study)
        self.names, self.about = [member.site for member in turn.members], turn.about(study)

    def hide(self, own: Own) -> Hidden:
        """Mask the part, and seal the shares of its seeds for the others."""
        layout, words = flatten(own.release(), len(self.names), self.turn.widths or self.turn.width)
        seed = self._seed(own, layout, words)
        hidden_by, near = self._secrets(seed), self.near[self.place]
        keys, prints = zip(*(mask_key(self.about, one) for one in hidden_by), strict=True)
        adds = [True, *(self._adds(i) for i in near)]
        plus = [key for key, added in zip(keys, adds, strict=True) if added]
        minus = [key for key, added in zip(keys, adds, strict=True) if not added]
        mask(words, plus, minus, thread_count(self.site.n_jobs))
        return Hidden(
            layout=layout,
            words=words.view(np.uint8).data,
            prints=b"".join(prints),
            boxes=self._boxes(seed, hidden_by),
        )

    def _boxes(self, seed: bytes, hidden_by: list[bytes]) -> dict[str, bytes]:
        """Seal the shares that do not follow from a key; the key-derived shares and the secret determine them."""
        size, sealed = SEED * len(hidden_by), sealed_for(self.place, len(self.names))
        drawn = {i: drawn_share(pair.give, size) for i, pair in self.pairs.items() if i not in sealed}
        drawn[self.place] = drawn_share(seed, size)
        at = [shamir.SECRET, *(i + 1 for i in drawn)]
        rows = np.frombuffer(b"".join([*hidden_by, *drawn.values()]), np.uint8).reshape(len(at), size)
        shares = shamir.interpolate(at, rows, [i + 1 for i in sealed])
        return {self.names[i]: seal(self.pairs[i].give, one.tobytes()) for i, one in zip(sealed, shares, strict=True)}

    def settle(self, own: Own, question: str) -> None:
        """Record the coordinator's list of parts in the sum, permanently.

        Every other sum of the same request must have the same parts: two that differ by a site reveal that site's part.
        """
        if self.site.store.get(f"masked {self.sum}") is None:
            raise RefusedError("the site has hidden no part in this sum")
        survivors, listed_once = self.turn.survivors, set(self.turn.survivors)
        mine = self.names[self.place]
        if survivors != [name for name in self.names if name in listed_once] or mine not in listed_once:
            raise RefusedError("the list of parts in the sum does not have sites of the sum, once, and this one")
        if len(survivors) < threshold(len(self.names)):
            raise RefusedError(f"a masked sum needs the parts of two thirds of its sites, and of {MIN_SITES}")
        listed = msgspec.json.encode(survivors)
        settled = [f"masked {self.sum} settled"]
        if self.site.outbox is not None:  # without an outbox a site enforces no other rule, either
            settled.append(f"masked {question} settled")
        if any(self.site.store.get(key) not in (None, listed) for key in settled):
            raise RefusedError("the site has settled whose parts are in this sum, and it was other sites'")
        settle_shares(self.site, own.request, self.names, survivors)
        if self.turn.what == "confirm":
            self.site.store.put_all(dict.fromkeys(settled, listed))
        elif self.site.store.get(settled[0]) is None:
            raise RefusedError("the site has not confirmed whose parts are in this sum")

    def confirm(self) -> Confirmed:
        """Authenticate the list for each other site, so that the coordinator cannot send different lists."""
        others = [i for i in self.pairs if i not in self._lost]
        return Confirmed(codes={self.names[i]: self._code(self.pairs[i].code) for i in others})

    def open(self) -> Opened:
        """Return the shares for the list, if enough others have confirmed the same list."""
        turn, places = self.turn, {name: i for i, name in enumerate(self.names)}
        others = [name for name in turn.survivors if places[name] != self.place]
        sealing = {self.names[i] for i in sealed_by(self.place, len(places))} & set(others)
        if not set(turn.codes) <= set(others) or set(turn.boxes) != sealing:
            raise RefusedError("the confirmations and shares are not those of the sites in the sum")
        for name, code in turn.codes.items():
            if not hmac.compare_digest(code, self._code(self.pairs[places[name]].their_code)):
                raise RefusedError("another site has not confirmed this list of parts in the sum")
        if len(turn.codes) + 1 < threshold(len(self.names)):
            raise RefusedError("too few sites have confirmed whose parts are in the sum")
        at = {name: places[name] for name in turn.survivors}
        rows = {name: rows_to_open(self.near[place], self._lost) for name, place in at.items()}
        return Opened(shares={name: self.share_of(i, turn.boxes.get(name), rows[name]) for name, i in at.items()})

    def share_of(self, place: int, box: bytes | None, rows: list[int]) -> bytes:
        """Return the site's share of some seeds of a site: from a box, or from the key that the two share."""
        if box is None:
            kept = self.site.store.get(f"masked {self.sum}") if place == self.place else None
            key = self.pairs[place].take if kept is None else wire.decode(kept, KeptSeed).seed
            share = drawn_share(key, SEED * (1 + rows[-1]))
        else:
            share = unseal(self.pairs[place].take, box)
            if len(share) != SEED * (1 + len(self.near[place])):
                raise RefusedError("another site sealed something else than its shares")
        return b"".join(share[SEED * row : SEED * (row + 1)] for row in rows)

    def _seed(self, own: Own, layout: PartLayout, words: np.ndarray) -> bytes:
        """Return the random seed of a sum: created once, used for one part, the same for a repeated request."""
        kept = f"masked {self.sum}"
        known = self.site.store.get(kept)
        seed = secrets.token_bytes(KEY) if known is None else wire.decode(known, KeptSeed).seed
        tagger = Poly1305(derive(seed, b"part", KEY))
        tagger.update(msgspec.json.encode([own.hash, layout]))
        tagger.update(words.view(np.uint8).data)
        now = wire.encode(KeptSeed(seed, tagger.finalize()))
        if known is None:
            self.site.store.put(kept, now)
        elif known != now:
            raise RefusedError("the site's part, or the question, is another than when it was hidden for this sum")
        return seed

    def _secrets(self, seed: bytes) -> list[bytes]:
        """Return the seeds that mask the part: that of the self-mask, and those shared with neighbours."""
        return [derive(seed, b"own mask", SEED), *(self.pairs[i].mask for i in self.near[self.place])]

    def _adds(self, other: int) -> bool:
        return adds_mask(self.names[self.place], self.names[other])

    def _code(self, key: bytes) -> bytes:
        return hashlib.blake2b(self._listed, key=key, digest_size=KEY).digest()

    @cached_property
    def _listed(self) -> bytes:
        """What sites confirm to each other: whose parts are in which sum."""
        return bytes.fromhex(digest(msgspec.json.encode([self.sum, self.turn.survivors])))

    @cached_property
    def _lost(self) -> set[int]:
        """The positions of the sites whose parts are not in the sum."""
        survivors = set(self.turn.survivors)
        return {i for i, name in enumerate(self.names) if name not in survivors}

    @cached_property
    def pairs(self) -> dict[int, _Pair]:
        """The secrets that the site shares with each other, by position; derived when first needed."""
        return self.site.cache.once(
            CacheKey[dict[int, _Pair]]("pairs", self.sum),
            lambda: {i: self._pair(i, key) for i, key in enumerate(self._shared_secrets()) if i != self.place},
        )

    def _shared_secrets(self) -> list[bytes]:
        """Return the secrets shared with all members: computed once for a study, until the site restarts."""
        keys = [member.key for member in self.turn.members]

        def agree() -> list[bytes]:
            own = secret_key(self.site.store)
            return [shared_secret(own, key) for key in keys]

        return self.site.cache.once(CacheKey[list[bytes]]("agreed", *keys), agree)

    def _pair(self, other: int, shared: bytes) -> _Pair:
        names = sorted([self.names[self.place], self.names[other]])
        about = msgspec.json.encode([self.sum, *names])
        derived = hashlib.shake_256(b"silvan masks\0" + shared + about).digest(SEED + 6 * KEY)
        seed, keys = derived[:SEED], derived[SEED:]
        boxes, codes = [keys[:64], keys[64:128]], [keys[128:160], keys[160:]]
        if not self._adds(other):
            boxes, codes = boxes[::-1], codes[::-1]
        return _Pair(seed, *boxes, *codes)


def adds_mask(site: str, other: str) -> bool:
    """Whether a site adds the mask that it shares with another, which then subtracts it."""
    return site < other


def sealed_for(place: int, n: int) -> list[int]:
    """List the positions for which a site seals shares; one less than two thirds of all derive theirs from keys.

    Those are the site itself and the next on the cyclic list of members.
    """
    return [(place + step) % n for step in range(threshold(n) - 1, n)]


def sealed_by(place: int, n: int) -> list[int]:
    """List the positions that seal shares for a site."""
    return [(place - step) % n for step in range(threshold(n) - 1, n)]


def drawn_share(key: bytes, size: int) -> bytes:
    """Return the first bytes of a share that follows from a key: a share not determined by others is random."""
    return hashlib.shake_256(b"silvan share\0" + key).digest(size)


def mask_key(about: bytes, seed: bytes) -> tuple[bytes, bytes]:
    """Return the key of a mask from its seed, and a fingerprint that checks a reconstructed seed."""
    key = hashlib.shake_256(b"silvan mask\0" + about + seed).digest(2 * KEY)
    return key[:KEY], key[KEY:]


def rows_to_open(near: Sequence[int], lost: Collection[int]) -> list[int]:
    """List the opened seeds of a site in the sum: its self-mask's, and those it shares with lost sites."""
    return [0, *(1 + j for j, i in enumerate(near) if i in lost)] if lost else [0]
