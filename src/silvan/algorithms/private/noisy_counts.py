"""Shared by all requests for noisy counts: a public schema, noise sampled once, and the accounting."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, TypeVar

import numpy as np

from silvan.algorithms.evaluation.candidates import count_models, model_of
from silvan.algorithms.private.public_cuts import check_public
from silvan.algorithms.requests import schema_of
from silvan.data.schema import Schema
from silvan.errors import FederationError, FormatError, InputError, RefusedError, reject
from silvan.federation.federation import Federation
from silvan.federation.message import Blob, Reply, SummedReply, Total
from silvan.federation.part import Part
from silvan.federation.site import Site
from silvan.forest.forest import Forest
from silvan.privacy.aggregation.masked_site import withstood
from silvan.privacy.noise.accounting import EpsilonSplit, NoisyQuery, Privacy
from silvan.privacy.noise.laplace import Noise, check_epsilon
from silvan.privacy.noise.noisy_request import Noisy, drawn_once
from silvan.util.readable import count_of, is_or_are

NARROWEST = 2.0**-40
"""Minimum distance of bounds as a share of their magnitude: closer ones are lost to rounding."""


def public_schema_of(site: Site, blob: Blob) -> Schema:
    """Read the schema of a noisy request, and check it against what the site knows, without its rows."""
    schema = schema_of(site, blob)
    try:
        check_public(schema)
    except InputError:
        raise FormatError("the schema of a noisy request lacks bounds, categories or classes") from None
    for bounds in [schema.label.bounds, *(feature.bounds for feature in schema.features)]:
        if bounds is not None and not _wide_enough(*bounds):
            raise RefusedError("the bounds of a noisy request are too close to each other, or too large")
    return schema


def _wide_enough(low: float, high: float) -> bool:
    """Whether bounds differ by more than rounding, and stay within the range of numbers."""
    return NARROWEST * max(abs(low), abs(high), 2.0**-960) <= high - low < 2.0**1000


MOST = 127  # a numeric target is stored as an integer between plus and minus this
_FOR_ROWS = Fraction(2, 5)  # of a request for rows and sums, the share of epsilon for the rows


class NoisyCounts(SummedReply, frozen=True, kw_only=True):
    """Counts with noise."""

    counts: np.ndarray


class NoisyTotal(Noisy, Total[NoisyCounts], frozen=True, kw_only=True):
    """A request for noisy counts; the coordinator sees only their sum."""


def histogram_noises(request: Noisy, times: int, schema: Schema) -> tuple[Noise, ...]:
    """Return the noise of histograms, ``times`` of which one row is in: counts by class, or rows and sums of a number.

    One more row adds 1 to a count, and at most ``MOST`` to a sum.
    """
    if schema.n_classes:
        return (request.noise(times),)
    return request.noise(times, _FOR_ROWS), request.noise(times * MOST, 1 - _FOR_ROWS)


def answer_with_noise(
    site: Site, request: Noisy, blob: Blob, plan: Callable[[Schema], Callable[[], np.ndarray]]
) -> NoisyCounts:
    """Return exact counts with noise; a request that comes again gets the same noise, and is charged once.

    ``plan`` checks the request, given its schema, without reading rows, and returns a function that counts them.
    That function is called after the request is charged: from then on every failure gives the same error.
    """
    schema = public_schema_of(site, blob)
    count = plan(schema)
    try:
        request.noises(schema)
    except InputError:
        raise FormatError("the noise of a request is out of range") from None
    return drawn_once(site, request, NoisyCounts, lambda: NoisyCounts(counts=request.add(count(), schema)))


MAX_DEPTH = 128
"""Maximum depth of trees in noisy requests; forests of millions of rows have some 60 levels."""

MAX_STEPS = 1 << 17
"""Maximum total number of levels of a model's trees: 1,000 trees of 100 levels have fewer."""


def model_to_count_by(site: Site, schema: Schema, blob: Blob) -> Forest:
    """Read the model of a noisy request. It counts as an external model that the site evaluates.

    The running time of a row depends on the row, and noise does not cover it: with a model of thousands of levels,
    the response time revealed whether one person is in the table. So paths are short, and models are few.
    """
    forest = model_of(site, schema, blob)
    reject(too_deep(forest), "a model of too many levels to count by")
    count_models(site, {blob.hash})
    return forest


def too_deep(forest: Forest) -> bool:
    """Whether a row's path down the trees may be long enough for its duration to reveal something."""
    levels = np.maximum.reduceat(forest.depth, forest.offsets[:-1])
    return bool(levels.max() > MAX_DEPTH or levels.sum() > MAX_STEPS)


def labelled_rows(site: Site, schema: Schema, test: bool = False) -> Part:
    """Return the training rows, or the test rows, without those whose label is missing or unknown."""
    part = site.part(schema, test, strict=False)
    usable = part.y >= 0 if schema.n_classes else ~np.isnan(part.y)
    return part if usable.all() else part.some(usable)


def whole_target(y: np.ndarray, schema: Schema) -> np.ndarray:
    """Scale a number between its public bounds to whole numbers between plus and minus ``MOST``.

    They are clipped last, as integers, so no row counts for more, however floats were rounded.
    """
    low, high = schema.label.bounds or (-1.0, 1.0)
    middle, half = low / 2 + high / 2, high / 2 - low / 2
    with np.errstate(all="ignore"):
        scaled = np.rint((np.clip(y, low, high) - middle) / half * MOST)
    return np.clip(np.nan_to_num(scaled), -MOST, MOST).astype(np.int64)


# -- at the coordinator: where noise is added, whom that protects against, the accounting
NoiseAt = Literal["total", "site"]
AnyNoisy = TypeVar("AnyNoisy", bound=Noisy)

ROWS_SHARE = Fraction(1, 20)  # share of epsilon for the number of rows, if that is not public
LARGEST = 1 << 52  # no noisy count is larger: floats represent them exactly
_SEEN_BY = {
    "site": "everybody but the site itself, whoever adds included: each site's answer has all the noise",
    "total": "everybody but whoever adds, who is trusted and sees answers with a share of the noise",
    "hidden": "everybody, the coordinator included: nobody sees a site's part of a sum, and the sum has all the noise",
}

_ALONE = "; not against the other sites, each of which knows its own share of the noise: set tolerate to 1 or more"


@dataclass(frozen=True)
class Placing:
    """Where noise is added, over a number of sites; ``sharers`` shares of it suffice for the guarantee."""

    at: NoiseAt
    sums: str
    n_sites: int
    sharers: int

    @property
    def factor(self) -> float:
        """Variance of the noise on a sum, as a multiple of what the guarantee needs."""
        return self.n_sites / self.sharers

    @property
    def seen_by(self) -> str:
        """Against whom the guarantee holds, as a sentence."""
        if self.at == "site" or self.sharers == 1:
            return _SEEN_BY["site"]
        text = _SEEN_BY["total" if self.sums == "trusted" else "hidden"]
        spare = self.n_sites - self.sharers
        if not spare:
            return text + _ALONE
        # two neighbours in a ring see the part between them
        most = {"ring": 1, "masked": withstood(self.n_sites)}.get(self.sums, spare)
        held = f"; holds with up to {spare} of {self.n_sites} sites lost or colluding"
        return text + held + (f", at most {most} of them colluding" if most < spare else "")


def place(federation: Federation, noise: str | None, tolerate: int | None) -> Placing:
    """Decide where noise is added: by default on the total for masked and ring sums, otherwise at every site.

    A site knows its own share of a total's noise, so by default the shares of the others suffice, even without as
    many sites as the quorum allows to be lost.
    """
    sums, n = federation.sums.name, len(federation.active)
    at = ("site" if sums == "trusted" else "total") if noise is None else noise
    if tolerate is None:
        may_be_lost = 0 if federation.quorum is None else max(n - federation.quorum, 0)
        tolerate = min(1 + may_be_lost, n - 1)
    if not 0 <= tolerate < n:
        raise InputError.wrong("tolerate", f"a whole number of sites below the {n} that take part", tolerate)
    if at == "site":
        return Placing("site", sums, n, 1)
    return Placing("total", sums, n, n - int(tolerate))


class Rounds:
    """Sends noisy requests to all sites, and keeps the accounting."""

    def __init__(self, federation: Federation, schema: Schema, epsilon: float, placing: Placing) -> None:
        check_epsilon(epsilon)
        self.federation, self.schema, self.epsilon, self.placing = federation, schema, float(epsilon), placing
        self.split_epsilon = EpsilonSplit(epsilon)
        self.queries: list[NoisyQuery] = []
        self.public: list[str] = []
        self.schema_blob: Blob = federation.blob(schema.to_json().encode())

    def make(self, kind: Callable[..., AnyNoisy], epsilon: float, **fields: Any) -> AnyNoisy:
        """Return a request about the schema's columns."""
        return kind(epsilon=epsilon, sharers=self.placing.sharers, schema=self.schema_blob, **fields)

    def variance(self, request: Noisy) -> float:
        """Return the variance of the noise on a sum over all sites."""
        return request.noises(self.schema)[0].variance * self.placing.factor

    def total(self, request: Noisy, what: str, times: int, shape: tuple[int, ...]) -> np.ndarray:
        """Return the sum of all sites' noisy counts, and add its cost to the account."""

        def check(site: str, reply: Reply) -> None:
            counts: np.ndarray = reply.counts  # type: ignore[attr-defined]
            if counts.shape != shape or counts.dtype != np.int64 or np.abs(counts).max(initial=0) > LARGEST:
                raise FormatError("its noisy counts are not the ones requested")

        noises = request.noises(self.schema)
        parts = [what] if len(noises) == 1 else [f"{what}: rows", f"{what}: sums of the target"]
        self.queries += [NoisyQuery.of(part, noise, times) for part, noise in zip(parts, noises, strict=True)]
        reply = self.federation.total(request, check=check)
        if self.placing.at == "total" and len(self.federation.active) < request.sharers:
            raise FederationError(
                f"{count_of(n := len(self.federation.active), 'site')} {is_or_are(n)} left, and the noise was shared "
                f"by {request.sharers}: what came in has too little of it and is not used; set tolerate to how many "
                "sites may be lost"
            )
        return np.asarray(reply.counts, np.int64)

    def account(self) -> Privacy:
        """Return the account of all requests."""
        not_covered = [
            "evaluate without epsilon, whose figures are exact",
            "how long a site takes to answer, and that it can read its table at all",
        ]
        if self.federation.rows:
            not_covered.append("each site's number of rows, which it told when the federation was made")
        declared = "the schema: names, bounds or edges, categories, classes; parameters and random_state"
        return Privacy(
            self.epsilon, tuple(self.queries), self.placing.seen_by, (declared, *self.public), tuple(not_covered)
        )


def check_agreement(federation: Federation) -> None:
    """Raise ``InputError`` for a schema that is not public, such as one agreed from the data."""
    if federation.agreement.by_asking:
        raise InputError.about(
            "epsilon",
            "needs a public schema, and this one was found by asking the sites: pass federate_rows(schema=...) "
            "with bounds of numbers, categories and classes, as they are known without looking at the tables",
        )
    check_public(federation.schema)


def warn_if_small(n: int, epsilon: float, least: float) -> None:
    """Warn if noise is likely to be larger than the counts."""
    if n * epsilon < least:
        warnings.warn(
            f"rows times epsilon is {n * epsilon:.3g}, below {least:g}: expect little better than guessing; "
            "more rows, a larger epsilon or noise once on the total ('ring' sums) would help",
            stacklevel=2,
        )
