"""What all questions for noisy counts have in common: the reply, the noise of histograms, and drawing it once."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from silvan.data.schema import Schema
from silvan.federation.message import Reply
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


def histogram_noises(request: Noisy, times: int, schema: Schema) -> tuple[Noise, ...]:
    """Return the noise of histograms, ``times`` of which one row is in: counts by class, or rows and sums of a number.

    One more row adds 1 to a count, and at most ``MOST`` to a sum.
    """
    if schema.n_classes:
        return (request.noise(times),)
    return request.noise(times, _FOR_ROWS), request.noise(times * MOST, 1 - _FOR_ROWS)


def answer_with_noise(site: Site, request: Noisy, schema: Schema, count: Callable[[], np.ndarray]) -> NoisyCounts:
    """Return exact counts with noise; a question that comes again gets the same noise, and is charged once."""
    return drawn_once(site, request, NoisyCounts, count, lambda counts: NoisyCounts(counts=request.add(counts, schema)))
