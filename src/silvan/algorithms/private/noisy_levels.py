"""The published private forest: noise on the histograms of every level (geometric mechanism, Eq. 6).

The trees grow as in ``histogram_forest.py``, from sums in which every count has noise. A row is in one bin of
each requested feature, once per tree and level, so the levels share the epsilon of the forest, and the trees and
features of a level share that of the level. Bins come from the schema; a node's size is only known with noise. Every
tree uses all rows: a sample depends on the positions of rows, so one more row could change the sample of others. What
Eq. 6 calls epsilon is alpha = exp(-epsilon).

The search for splits expects consistent counts: none below zero, and the same rows in every feature of a node.
``settle_counts`` makes noisy histograms consistent, from noisy integers alone, which costs no privacy.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np

from silvan.algorithms.horizontal.histogram_forest import GrowLevel, level_histograms, read_level
from silvan.algorithms.level_checks import SplitHistory
from silvan.algorithms.private.noisy_counts import (
    MOST,
    NoisyCounts,
    NoisyTotal,
    Rounds,
    answer_with_noise,
    histogram_noises,
    labelled_rows,
    warn_if_small,
    whole_target,
)
from silvan.algorithms.private.public_cuts import public_cuts
from silvan.algorithms.shared_bins import CutPoints
from silvan.data.bins.bins import Bins, make_bins
from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError
from silvan.federation import wire
from silvan.federation.message import Fixed
from silvan.federation.part import Part
from silvan.federation.site import Site, answers
from silvan.forest.forest import Forest
from silvan.privacy.noise.laplace import Noise
from silvan.tree.fit import Settings, assemble
from silvan.tree.grow import Frontier, grow
from silvan.tree.level import choose_level, sample_level
from silvan.tree.objectives import Measure
from silvan.tree.sampling import Ties
from silvan.tree.split import Splits
from silvan.util.kernels import njit

_MOST_COUNTERS = 1 << 24  # maximum number of statistics in a level's histograms
_LARGEST_TOTAL, _LARGEST_PRODUCT = 1 << 52, (1 << 63) - 1
"""Limits on consistent noisy counts: more rows than any table has, and the range of 64 bits."""


# -- messages
class NoisyLevel(NoisyTotal, frozen=True, kw_only=True):
    """Histograms of every open node, with noise."""

    level: Fixed[GrowLevel]

    def noises(self, schema: Schema) -> tuple[Noise, ...]:
        """Return the noise: one more row is in one open node of every tree, there in one bin of every feature."""
        return histogram_noises(self, self.level.n_trees * self.level.features.shape[1], schema)


# -- at a site
@answers(NoisyLevel)
def noisy_level(site: Site, request: NoisyLevel) -> NoisyCounts:
    """Add up the histograms and add noise."""
    return answer_with_noise(site, request, request.level.schema, lambda schema: plan_level(site, request, schema))


def plan_level(site: Site, request: NoisyLevel, schema: Schema) -> Callable[[], np.ndarray]:
    """Check a request without reading rows; return a function that counts them exactly, for the site alone.

    Raises ``FormatError`` for an inconsistent request.
    """
    read_level(site, request.level, noisy=True)
    if request.level.bootstrap:
        raise FormatError("trees of noisy histograms see all rows: samples would depend on row positions, which move")
    if schema.n_classes and request.level.measure.counts_rows:
        return lambda: _count(site, request.level, labelled_rows(site, schema))
    if schema.label.bounds is None or request.level.measure != public_measure(schema):
        raise FormatError("the statistics are not those of a number within its bounds")
    # the sums are over integers already, none larger than the noise covers
    level = msgspec.structs.replace(request.level, measure=_measure(0.0, 1.0))

    def count() -> np.ndarray:
        part = labelled_rows(site, schema)
        return _count(site, level, Part(part.X, whole_target(part.y, schema).astype(np.float64), part.row_keys))

    return count


def _count(site: Site, level: GrowLevel, part: Part) -> np.ndarray:
    return level_histograms(site, level, part, "labelled").astype(np.int64)


def public_measure(schema: Schema) -> Measure:
    """Return the measure of a number by its public bounds: whole numbers between plus and minus ``MOST``."""
    low, high = schema.label.bounds or (-1.0, 1.0)
    return _measure(low / 2 + high / 2, MOST / (high / 2 - low / 2))


def _measure(offset: float, scale: float) -> Measure:
    """Return how rows and their numbers are summed, which determines the noise for every objective."""
    return Measure("squared_error", 2, 1, (1,), 1, offset, scale)


# -- at the coordinator
def fit(rounds: Rounds, settings: Settings, key: np.ndarray, n_rows: int | None) -> Forest:
    """Grow a forest from noisy histograms."""
    settings = replace(settings, bootstrap=False, max_samples=None)
    depth = settings.max_depth
    if depth is None:
        raise InputError.about("max_depth", "must be given with epsilon: every level costs its share")
    settings.check_compiled("with epsilon")
    plan = PublicPlan.of(rounds, settings, public_measure)
    measure = plan.measure
    times = settings.n_estimators * plan.n_sampled
    if n_rows is not None:
        rounds.public.append(f"{n_rows} training rows, as n_rows says")
        warn_if_small(n_rows, rounds.epsilon / depth / times / np.sqrt(rounds.placing.factor), 50.0)

    def ask(level: GrowLevel, size: int) -> np.ndarray:
        request = NoisyLevel(
            epsilon=rounds.split_epsilon.take(Fraction(1, depth)), sharers=rounds.placing.sharers, level=level
        )
        if size * measure.n_stats > _MOST_COUNTERS:
            raise InputError("the histograms of a level are too large; ask for fewer trees or bins")
        counts = rounds.total(request, f"level {len(level.round_sizes) + 1}", times, (size, measure.n_stats))
        settle_counts(counts, level.features, plan.bins.n_bins, measure.lead, MOST)
        return counts

    return plan.grow(settings, key, ask)


@dataclass(frozen=True)
class PublicPlan:
    """What growing needs without any look at the rows: bins from the schema, and the measure."""

    rounds: Rounds
    bins: Bins
    measure: Measure
    n_sampled: int

    @classmethod
    def of(cls, rounds: Rounds, settings: Settings, of_number: Callable[[Schema], Measure]) -> "PublicPlan":
        """Make bins from bounds, edges and categories; ``of_number`` returns the measure of a numeric target."""
        schema = rounds.schema
        if isinstance(settings.class_weight, str):
            raise InputError.about(
                "class_weight", "must be None or a dict with epsilon: 'balanced' would count the classes"
            )
        if settings.min_weight_fraction_leaf:
            raise InputError.about("min_weight_fraction_leaf", "cannot be used with epsilon")
        cuts = [
            np.zeros(0, np.float32) if f.categorical else public_cuts(f, settings.max_bins) for f in schema.features
        ]
        # the number of rows of each class is secret
        measure = (
            settings.measure(schema, np.ones(schema.n_classes, np.int64)) if schema.n_classes else of_number(schema)
        )
        return cls(rounds, make_bins(schema, cuts), measure, settings.n_sampled(len(schema.features)))

    def grow(self, settings: Settings, key: np.ndarray, ask: Callable[[GrowLevel, int], np.ndarray]) -> Forest:
        """Grow a forest; ``ask`` returns the summed histograms of a level, given their total number of bins."""
        schema, bins, measure, history = self.rounds.schema, self.bins, self.measure, SplitHistory(GrowLevel)
        sizes = np.array([len(c) for c in bins.cuts], np.int64)
        points = CutPoints(sizes, np.concatenate(bins.cuts), max_bins=settings.max_bins)
        same: dict[str, Any] = {
            "schema": self.rounds.schema_blob,
            "bins": self.rounds.federation.blob(wire.encode(points)),
            "measure": measure,
            "n_trees": settings.n_estimators,
            "bootstrap": settings.row_sampling,
            "max_bins": settings.max_bins,
        }
        rule, plan = settings.rule(measure), settings.federated_plan(len(schema.features))

        def find(frontier: Frontier) -> Splits:
            features = sample_level(frontier, plan)
            asked: dict[str, Any] = {**same, **history.columns()}
            level = GrowLevel(nodes=frontier.node.astype(np.int32), features=features, **asked)
            size = int(bins.n_bins[features[features >= 0]].sum())
            return choose_level(ask(level, size), features, bins, rule, Ties(key, frontier.seed))

        grown = grow(np.arange(settings.n_estimators), key, plan, rule, find, history.add)
        return assemble([(grown, bins.cut(grown.feature, grown.bin))], schema, measure).bare()


# -- noisy histograms made consistent
@njit(nogil=True, cache=True)
def _scale(column: np.ndarray, total: int) -> None:
    """Scale counts to a total, in place: the rounding remainder goes to the largest remainders, in a tie to the first.

    Counts whose products with the total would overflow lose their lowest bits first; honest counts are never so large.
    """
    size, mass, largest, shift = column.shape[0], 0, 0, 0
    for b in range(size):
        column[b] = max(column[b], 0)
        largest = max(largest, column[b])
    while largest >> shift > _LARGEST_PRODUCT // max(total, size):
        shift += 1
    for b in range(size):
        column[b] >>= shift
        mass += column[b]
    if mass == 0:
        column[:] = 1
        mass = size
    left = total
    rest = np.empty(size, np.int64)
    for b in range(size):
        product = column[b] * total
        column[b] = product // mass
        rest[b] = product % mass
        left -= column[b]
    for _ in range(left):
        most = 0
        for b in range(1, size):
            if rest[b] > rest[most]:
                most = b
        column[most] += 1
        rest[most] = -1


@njit(nogil=True, cache=True)
def settle_counts(hist: np.ndarray, features: np.ndarray, n_bins: np.ndarray, lead: int, most: int) -> None:
    """Make the histograms of a level consistent, in place: (bins of all, statistics), int64.

    All features of a node are brought to the same totals, the mean of theirs. Without ``lead`` the statistics are
    counts by class, with it rows and a sum of numbers of at most ``most`` each.
    """
    size = hist.shape[1]
    n_counts = lead if lead else size
    totals = np.zeros(size, np.int64)
    begin = 0
    for node in range(features.shape[0]):
        n, at = 0, begin
        sums = np.zeros(size)
        while n < features.shape[1] and features[node, n] >= 0:
            for _ in range(n_bins[features[node, n]]):
                for s in range(size):
                    sums[s] += hist[at, s]
                at += 1
            n += 1
        for s in range(size):
            totals[s] = np.int64(min(max(np.rint(sums[s] / max(n, 1)), -_LARGEST_TOTAL), _LARGEST_TOTAL))
        rows = 0
        for s in range(n_counts):
            totals[s] = max(totals[s], 0)
            rows += totals[s]
        if rows == 0:  # noise left no rows, but the node is there
            totals[:n_counts] = 1
        if lead:
            totals[1] = min(max(totals[1], -most * totals[0]), most * totals[0])
        at = begin
        for j in range(n):
            width = n_bins[features[node, j]]
            for s in range(n_counts):
                _scale(hist[at : at + width, s], totals[s])
            if lead:
                _share_sums(hist[at : at + width], totals[1], most)
            at += width
        begin = at


@njit(nogil=True, cache=True)
def _share_sums(part: np.ndarray, total: int, most: int) -> None:
    """Change the sums of a feature's bins so that they match a total, within what their rows allow."""
    left = total
    for b in range(part.shape[0]):
        reach = most * part[b, 0]
        part[b, 1] = min(max(part[b, 1], -reach), reach)
        left -= part[b, 1]
    # the difference is distributed where there is room, in proportion, and the rest from the first bin on
    room = 0
    for b in range(part.shape[0]):
        room += most * part[b, 0] - part[b, 1] if left > 0 else most * part[b, 0] + part[b, 1]
    if room > 0:
        share = left / room
        for b in range(part.shape[0]):
            space = most * part[b, 0] - part[b, 1] if left > 0 else most * part[b, 0] + part[b, 1]
            part[b, 1] += np.int64(share * space)
    missing = total
    for b in range(part.shape[0]):
        missing -= part[b, 1]
    for b in range(part.shape[0]):
        reach = most * part[b, 0]
        step = min(max(missing, -reach - part[b, 1]), reach - part[b, 1])
        part[b, 1] += step
        missing -= step
