"""What all questions for noisy counts have in common: the reply, the noise of histograms, and drawing it once."""

from collections.abc import Callable
from fractions import Fraction
from typing import ClassVar

import numpy as np

from silvan.algorithms.private.site_schema import public_schema_of
from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError
from silvan.federation.message import Blob, Reply, Verb
from silvan.federation.part import Part
from silvan.federation.site import Site
from silvan.privacy.noise.laplace import Noise
from silvan.privacy.noise.noisy_request import Noisy, drawn_once

MOST = 127
"""A number to predict is kept as a whole number between plus and minus this."""

_FOR_ROWS = Fraction(2, 5)
"""Of a question for rows and sums, the part of epsilon that goes to the rows."""


class NoisyCounts(Reply, frozen=True, kw_only=True):
    """Counts with noise."""

    counts: np.ndarray


class CountNoisily(Noisy, frozen=True, kw_only=True):
    """A question that is answered with noisy counts, of which only the sum is shown."""

    verb: ClassVar[Verb] = "total"
    reply: ClassVar[type[Reply]] = NoisyCounts


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
    """Return exact counts with noise; a question that comes again gets the same noise, and is charged once.

    ``plan`` checks the question, given its schema, without a look at the rows, and returns a function that counts
    them. That one is called when the question is charged: from then on all that goes wrong is one and the same error.
    """
    schema = public_schema_of(site, blob)
    count = plan(schema)
    try:
        request.noises(schema)
    except InputError:
        raise FormatError("the noise of a question is out of range") from None
    return drawn_once(site, request, NoisyCounts, lambda: NoisyCounts(counts=request.add(count(), schema)))


def labelled_rows(site: Site, schema: Schema, test: bool = False) -> Part:
    """Return the training rows, or those kept for judging, without those whose label is missing or no class."""
    part = site.part(schema, test, strict=False)
    usable = part.y >= 0 if schema.n_classes else ~np.isnan(part.y)
    return part if usable.all() else Part(part.X[usable], part.y[usable], part.row_keys[usable])


def whole_target(y: np.ndarray, schema: Schema) -> np.ndarray:
    """Scale a number between its public bounds to whole numbers between plus and minus ``MOST``.

    They are clipped last, as integers: whatever floats did before, no row counts for more.
    """
    low, high = schema.label.bounds or (-1.0, 1.0)
    middle, half = low / 2 + high / 2, high / 2 - low / 2
    with np.errstate(all="ignore"):
        scaled = np.rint((np.clip(y, low, high) - middle) / half * MOST)
    return np.clip(np.nan_to_num(scaled), -MOST, MOST).astype(np.int64)
