"""The published input perturbation: every row is perturbed at its site, once, and the forest grows on noisy rows.

Numbers get discrete Laplace noise on a public grid between their bounds, categories and classes are replaced at random
(the exponential mechanism, where all values but the true one are equally bad). Every column of a row, the label
included, gets an equal part of epsilon. The noisy rows are stored; all further requests about them are free.

The guarantee is for one row replaced by another: the number of rows is not hidden. Sampling noisy rows costs nothing.
"""

from fractions import Fraction
from typing import Any

import msgspec
import numpy as np

from silvan.algorithms.horizontal.histogram_forest import GrowLevel, Histograms, level_histograms, read_level
from silvan.algorithms.level_checks import check_histograms
from silvan.algorithms.private.noisy_counts import Rounds, public_schema_of
from silvan.algorithms.private.noisy_levels import PublicPlan
from silvan.data.schema import Schema
from silvan.errors import FederationError, InputError, reject
from silvan.federation.message import Fixed, Total
from silvan.federation.part import Part, row_keys
from silvan.federation.site import Site, answers
from silvan.federation.store import digest
from silvan.forest.forest import Forest
from silvan.privacy.noise.accounting import NoisyQuery, Privacy, rounded_down
from silvan.privacy.noise.laplace import Noise
from silvan.privacy.noise.noisy_request import Noisy, drawn_once, read_epsilon
from silvan.privacy.noise.sampler import random_responses
from silvan.tree.fit import Settings
from silvan.tree.objectives import Labels

STEPS = 1000  # noise on numbers is added on a grid with this number of steps between their bounds
_MANY_ROWS = 1 << 24  # fixed-point sums of the target have room for this many rows


# -- messages
class DisguisedLevel(Noisy, Total[Histograms], frozen=True, kw_only=True):
    """Histograms of every open node, of rows randomised once for all requests."""

    level: Fixed[GrowLevel]

    def draws(self) -> Any:
        """Return the sample: one set of noisy rows for all levels, trees and forests of a schema and epsilon."""
        return ["disguised rows", self.level.schema.hash, self.epsilon]


class Disguise(msgspec.Struct, frozen=True):
    """A site's training rows in their public, noisy form."""

    X: np.ndarray
    y: np.ndarray


# -- at a site
@answers(DisguisedLevel)
def disguised_level(site: Site, request: DisguisedLevel) -> Histograms:
    """Add up the histograms of the noisy rows."""
    reject(request.sharers != 1, "disguises have all the noise")
    schema = public_schema_of(site, request.level.schema)
    check_bounds(schema)
    read_level(site, request.level, noisy=True)
    _noise(schema, request.epsilon)
    noisy = drawn_once(
        site, request, Disguise, lambda: disguise(site.part(schema, strict=False), schema, request.epsilon)
    )
    name = digest(msgspec.json.encode(request.draws()))
    rows = Part(noisy.X, noisy.y, row_keys(site.name, len(noisy.X)))
    return Histograms(sums=level_histograms(site, request.level, rows, name))


def _noise(schema: Schema, epsilon: float) -> Noise:
    """Return the noise of one number of a row; every column, the label included, has an equal part of epsilon."""
    return Noise(STEPS, read_epsilon(epsilon) / (len(schema.features) + 1))


def disguise(part: Part, schema: Schema, epsilon: float) -> Disguise:
    """Return the rows with noise in every column, the label included.

    No row is left out, because their number is public: an unknown label counts as the first class.
    """
    each = Fraction(epsilon) / (len(schema.features) + 1)
    X = np.empty_like(part.X)
    for f, feature in enumerate(schema.features):
        column = part.X[:, f]
        if feature.categorical:
            n = feature.n_codes
            known = (column >= 0) & (column < n)
            codes = np.where(known, np.nan_to_num(column), n - 1 if feature.other else 0).astype(np.int64)
            X[:, f] = random_responses(codes, n, each)
        else:
            X[:, f] = _noisy_numbers(column, feature.bounds, each)
    if schema.n_classes:
        codes = np.maximum(part.y.astype(np.int64), 0)
        return Disguise(X, random_responses(codes, schema.n_classes, each).astype(np.int32))
    return Disguise(X, _noisy_numbers(part.y, schema.label.bounds, each))


def _noisy_numbers(values: np.ndarray, bounds: tuple[float, float] | None, epsilon: Fraction) -> np.ndarray:
    """Round numbers to the grid of their bounds, missing ones to its middle, add noise, and clip to the bounds."""
    low, high = bounds or (0.0, 1.0)
    places = (np.clip(values.astype(np.float64), low, high) - low) / (high - low) * STEPS
    # clipped last: whatever floats did before, values differ by at most what the noise covers
    steps = np.clip(np.rint(np.where(np.isnan(places), STEPS / 2, places)), 0, STEPS).astype(np.int64)
    return low + (high - low) * np.clip(Noise(STEPS, epsilon).add(steps), 0, STEPS) / STEPS


def check_bounds(schema: Schema) -> None:
    """Raise ``InputError`` for numbers without bounds: edges do not limit values."""
    lacking = [f.name for f in schema.features if not f.categorical and f.bounds is None]
    if lacking:
        raise InputError(
            f"private='input' needs bounds, and {lacking[0]!r} has none in the schema; edges are not enough"
        )


# -- at the coordinator
def fit(rounds: Rounds, settings: Settings, key: np.ndarray) -> tuple[Forest, Privacy]:
    """Grow a forest on noisy rows."""
    schema = rounds.schema
    check_bounds(schema)
    plan = PublicPlan.of(rounds, settings, lambda schema: settings.objective.measure(_labels(schema)))

    def ask(level: GrowLevel, size: int) -> np.ndarray:
        def check(site: str, reply: Histograms) -> None:
            check_histograms(reply.sums, level.features, plan.bins, plan.measure)

        request = DisguisedLevel(epsilon=rounds.epsilon, level=level)
        reply: Histograms = rounds.federation.total(request, check=check)
        return reply.sums

    return plan.grow(settings, key, ask), _account(rounds, schema)


def _labels(schema: Schema) -> Labels:
    if schema.label.bounds is None:
        raise FederationError("the number to predict has no bounds")
    return Labels(np.zeros(0, np.int64), _MANY_ROWS, *schema.label.bounds)


def _account(rounds: Rounds, schema: Schema) -> Privacy:
    """Return the account: noise on every column of a row, one after the other."""
    noise = _noise(schema, rounds.epsilon)
    each = Fraction(noise.epsilon)
    numbers = sum(not f.categorical for f in schema.features) + (not schema.n_classes)
    categories = len(schema.features) + 1 - numbers
    queries = []
    if numbers:
        what = f"noise on {numbers} numbers of a row"
        queries.append(NoisyQuery(what, rounded_down(each * numbers), numbers, STEPS, float(noise.scale), noise.alpha))
    if categories:
        what = f"random answers for {categories} categories of a row"
        alpha = float(np.exp(-float(each)))
        queries.append(NoisyQuery(what, rounded_down(each * categories), categories, 1, float(1 / each), alpha))
    account = rounds.account()
    return Privacy(
        rounds.epsilon,
        tuple(queries),
        "everybody but the site itself: rows are disguised before anything is counted",
        (*account.public, "the number of rows of every site"),
        account.outside[:2],
        "one row of those trained on, replaced by another",
        "sequential over the columns of a row, the label included; parallel over rows",
        "",
    )
