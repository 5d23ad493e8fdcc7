"""Noisy requests: the noise is charged and sampled once, and the reply is stored.

Whether, when and how a site replies to such a request must not depend on the rows. So all mistakes in the request
itself are found first, without reading rows; then it is charged; and any failure while rows are counted gives the
same error, which reveals nothing and stays charged.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import msgspec
import numpy as np

from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError, RefusedError, SilvanError
from silvan.federation import wire
from silvan.federation.message import Derived, Fixed, Request
from silvan.federation.site import Site
from silvan.federation.store import CacheKey, digest
from silvan.privacy.noise.budget import WITHOUT_SHARE, Budget, StudyShare
from silvan.privacy.noise.laplace import Noise, check_epsilon, load_opendp

T = TypeVar("T", bound=msgspec.Struct)

WHOLE = Fraction(1)


class UncountedError(SilvanError):
    """Rows could not be counted; the site's own log says why, and nobody else learns it."""


class Noisy(Request, frozen=True, kw_only=True):
    """A request with a noisy reply.

    The site computes how much one row can change the reply, and adds enough noise for ``epsilon``. With ``sharers``
    above 1 it adds one of that many shares, and only the sum has all of the noise: so a sample of shares serves one sum
    over one set of sites. For another sum the site samples, and charges, again.
    """

    epsilon: Fixed[float]
    sharers: Derived[int] = 1

    def noise(self, sensitivity: int, share: Fraction = WHOLE) -> Noise:
        """Return the noise for integers that one row changes by ``sensitivity``, for a share of epsilon."""
        return Noise(sensitivity, read_epsilon(self.epsilon) * share, self.sharers)

    def noises(self, schema: Schema) -> tuple[Noise, ...]:
        """Return the noise of the reply: one for all integers, or one for each entry of the last axis."""
        raise NotImplementedError

    def describe(self, reply: Any = None) -> str:
        """Describe the request, with its epsilon."""
        return f"{super().describe(reply)}, for epsilon {self.epsilon:.4g}"

    def add(self, counts: np.ndarray, schema: Schema) -> np.ndarray:
        """Add the noise to exact counts."""
        noises = self.noises(schema)
        if len(noises) == 1:
            return noises[0].add(counts)
        return np.stack([noise.add(counts[..., i]) for i, noise in enumerate(noises)], axis=-1)

    def draws(self) -> Any:
        """Return the identity of a noise sample: equal for requests answered from the same sample."""
        return [self.kind(), digest(wire.encode(self))]


def read_epsilon(epsilon: float) -> Fraction:
    """Return the epsilon of a request; raise ``FormatError`` if it is out of range."""
    try:
        check_epsilon(epsilon)
    except InputError:
        raise FormatError("the epsilon of a question is out of range") from None
    return Fraction(epsilon)


def check_noisy(request: Noisy, among: int) -> None:
    """Check that epsilon is in range, and that no more sites share the noise than are in the sum."""
    read_epsilon(request.epsilon)
    if not 1 <= request.sharers <= max(among, 1):
        raise RefusedError("the noise would be shared by more sites than take part")


def draw_name(site: Site, request: Noisy, over: Sequence[str] | None = None) -> str:
    """Return the name of a noise sample: a digest of the noisy quantity and, for a share, of the sum's sites.

    ``over`` are these sites; None: those of the current request.
    """
    rows = [site.name, _fingerprint(site), site.label, site.exclude, site.test, site.split_seed]
    if site.date_split is not None:
        rows.append(repr(site.date_split))
    if site.test > 0.0 and site.test_key is not None:
        rows.append(digest(site.test_key))
    among = getattr(site.outbox, "over", ()) if over is None else over
    shared = sorted(among) if request.sharers > 1 else []
    return digest(msgspec.json.encode([request.draws(), rows, site.sampling_key.tobytes().hex(), shared]))


def drawn_once(site: Site, request: Noisy, kind: type[T], draw: Callable[[], T]) -> T:
    """Return the stored reply to a request; if there is none, charge for it, then sample and store it.

    ``draw`` counts rows and adds noise. The request must have been checked before: any failure in ``draw`` gives the
    same error, and stays charged.
    """
    if request.sharers == 1:
        load_opendp()
    budget, name = _budget(site), draw_name(site, request)
    known = budget.kept(name)
    if known is None:
        budget.charge(name, request.epsilon, request.describe(), _study_share(site))
        try:
            answer = wire.encode(draw())
        except Exception as error:
            raise UncountedError("rows could not be counted; the charge for it stays") from error
        known = budget.keep(name, answer)
    return wire.decode(known, kind)


def _fingerprint(site: Site) -> str:
    """Return the name of the site's table; an unreadable one has a name too, and is charged like any other."""
    try:
        return site.cache.once(CacheKey[str]("fingerprint"), site.fingerprint)
    except Exception:  # the error recurs when rows are counted
        return "unreadable"


def settle_shares(site: Site, request: Request, members: Sequence[str], survivors: Sequence[str]) -> None:
    """Record that shares sampled for a sum over some sites go into one sum: that of the remaining sites.

    Two sums of the same shares, over sites that differ by one, would reveal that site's part with its share alone.
    """
    if isinstance(request, Noisy) and request.sharers > 1:
        _budget(site).settle(draw_name(site, request, members), survivors)


def _study_share(site: Site) -> StudyShare:
    """Return the maximum cost of the current study in the site's budget."""
    share: Callable[[str], StudyShare] | None = getattr(site.outbox, "study_share", None)
    return WITHOUT_SHARE if share is None else share(site.study)


def _budget(site: Site) -> Budget:
    budget: Budget | None = getattr(site.outbox, "budget", None)
    if budget is None:
        raise RefusedError("the site keeps no privacy budget, so it sends no noisy replies")
    return budget
