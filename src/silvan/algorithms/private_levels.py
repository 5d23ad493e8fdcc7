"""The published private forest: noise on the histograms of every level (geometric mechanism, Eq. 6).

The trees grow as in ``histogram.py``, from sums in which every count has noise. A row is in one bin of each feature
asked about, once a tree and level, so the epsilon of the forest is shared by all levels, and that of a level by its
trees and features. Bins come from the schema; a node's size is only ever known with noise. Every tree sees all rows:
which rows a tree draws depends on their places, so one row more could change what others count for. Eq. 6's
epsilon is alpha = exp(-epsilon).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from silvan.algorithms.histogram import GrowLevel, _History, grow_level
from silvan.algorithms.level_counts import settle_counts
from silvan.algorithms.private_counts import MOST, NoisyCounts
from silvan.algorithms.private_grid import public_cuts
from silvan.algorithms.private_round import Rounds, warn_if_small
from silvan.algorithms.shared_bins import CutPoints, schema_of
from silvan.algorithms.stand_in import stand_in
from silvan.data.bins import Bins, make_bins
from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError
from silvan.federation import wire
from silvan.federation.message import Reply, Verb
from silvan.federation.site import Part, Site, answers
from silvan.privacy.noise import Noise
from silvan.privacy.noisy import Noisy, drawn_once
from silvan.tree.fit import Settings, assemble
from silvan.tree.forest import Forest
from silvan.tree.grow import Frontier, grow
from silvan.tree.level import choose_level, draw_level
from silvan.tree.split import Splits
from silvan.tree.target import Measure, class_measure

_ROWS_OF_BOTH = Fraction(2, 5)
_MOST_COUNTERS = 1 << 24

# -- messages


class NoisyLevel(Noisy, frozen=True, kw_only=True):
    """Histograms of every open node, with noise."""

    verb: ClassVar[Verb] = "total"
    reply: ClassVar[type[Reply]] = NoisyCounts

    level: GrowLevel

    def noises(self, schema: Schema) -> tuple[Noise, ...]:
        """Allow for one more in an open node of every tree, there in one bin of every feature."""
        times = histograms(self.level)
        if schema.n_classes:
            return (self.noise(times),)
        return self.noise(times, _ROWS_OF_BOTH), self.noise(times * MOST, 1 - _ROWS_OF_BOTH)

    def said(self, reply: Any = None) -> str:
        """Say what is asked for."""
        return f"{self.level.said()}, with noise for epsilon {self.epsilon:.4g}"


def histograms(level: GrowLevel) -> int:
    """Count the histograms of a level that one row may be in."""
    return level.n_trees * level.features.shape[1]


# -- at a site


@answers(NoisyLevel)
def noisy_level(site: Site, request: NoisyLevel) -> NoisyCounts:
    """Add up the histograms, and noise to them."""
    schema = schema_of(site, request.level.schema)
    return drawn_once(
        site,
        request,
        NoisyCounts,
        lambda: exact_level(site, request, schema),
        lambda counts: NoisyCounts(counts=request.add(counts, schema)),
    )


def exact_level(site: Site, request: NoisyLevel, schema: Schema) -> np.ndarray:
    """Add up the histograms, without noise: this never leaves."""
    if request.level.bootstrap:
        raise FormatError("trees of noisy histograms see all rows: draws go by the places of rows, which move")
    if not schema.n_classes:
        if schema.label.bounds is None or request.level.measure != public_measure(schema):
            raise FormatError("the statistics are not those of a number within its bounds")
        part = site.part(schema)
        clipped = Part(part.X, np.clip(part.y, *schema.label.bounds), part.row_keys)
        site = stand_in(site, f"clipped {schema.hash}", clipped)
    told: Any = grow_level(site, request.level)
    return np.asarray(told.sums, np.int64)


def public_measure(schema: Schema) -> Measure:
    """Measure a number by its public bounds: whole numbers between plus and minus ``MOST``."""
    low, high = schema.label.bounds or (-1.0, 1.0)
    return Measure(2, 1, (1,), 1, low / 2 + high / 2, MOST / (high / 2 - low / 2))


# -- at the coordinator


def fit(rounds: Rounds, settings: Settings, key: np.ndarray, n_rows: int | None) -> Forest:
    """Grow a forest from noisy histograms."""
    settings = replace(settings, bootstrap=False)
    schema, depth = rounds.schema, settings.max_depth
    if depth is None:
        raise InputError("max_depth must be given with epsilon: every level costs its share")
    plan = PublicPlan.of(rounds, settings)
    measure = plan.measure if schema.n_classes else public_measure(schema)
    times = settings.n_estimators * plan.handful
    if n_rows is not None:
        rounds.public.append(f"{n_rows} rows to learn from, as n_rows says")
        warn_if_small(n_rows, rounds.epsilon / depth / times / np.sqrt(rounds.placing.factor), 50.0)

    def ask(level: GrowLevel, size: int) -> np.ndarray:
        request = NoisyLevel(epsilon=rounds.purse.take(Fraction(1, depth)), sharers=rounds.placing.sharers, level=level)
        if size * measure.n_stats > _MOST_COUNTERS:
            raise InputError("the histograms of a level are too large; ask for fewer trees or bins")
        number = len(level.round_sizes) + 1
        counts = rounds.total(request, f"level {number}", times, (size, measure.n_stats))
        settle_counts(counts, level.features, plan.bins.n_bins, measure.lead, MOST)
        return counts

    return plan.grow(settings, measure, key, ask)


@dataclass(frozen=True)
class PublicPlan:
    """What growing needs that is known without any look at the rows: bins from the schema, and how to measure."""

    rounds: Rounds
    bins: Bins
    measure: Measure
    handful: int

    @classmethod
    def of(cls, rounds: Rounds, settings: Settings) -> "PublicPlan":
        """Make bins from bounds, edges and categories."""
        schema = rounds.schema
        if isinstance(settings.class_weight, str):
            raise InputError("class_weight must be None or a dict with epsilon: 'balanced' would count the classes")
        if settings.min_weight_fraction_leaf:
            raise InputError("min_weight_fraction_leaf cannot be used with epsilon")
        cuts = [
            np.zeros(0, np.float32) if f.categorical else public_cuts(f, settings.max_bins) for f in schema.features
        ]
        n = max(schema.n_classes, 1)
        measure = class_measure(np.ones(n, np.int64), settings.class_weights(np.ones(n, np.int64)))
        return cls(rounds, make_bins(schema, cuts), measure, settings.handful(len(schema.features)))

    def grow(
        self, settings: Settings, measure: Measure, key: np.ndarray, ask: Callable[[GrowLevel, int], np.ndarray]
    ) -> Forest:
        """Grow a forest; ``ask`` gives the summed histograms of a level, of so many bins."""
        schema, bins, history = self.rounds.schema, self.bins, _History(settings.n_estimators, 0)
        points = CutPoints(np.array([len(c) for c in bins.cuts], np.int64), np.concatenate(bins.cuts))
        named: dict[str, Any] = {
            "schema": self.rounds.named,
            "bins": self.rounds.federation.blob(wire.encode(points)),
            "measure": measure,
            "n_trees": settings.n_estimators,
            "bootstrap": settings.bootstrap,
        }
        rule, plan = settings.rule(measure), settings.federated_plan(len(schema.features))

        def find(frontier: Frontier) -> Splits:
            features = draw_level(frontier, plan)
            asked: dict[str, Any] = {**named, **history.columns()}
            level = GrowLevel(nodes=frontier.node.astype(np.int32), features=features, **asked)
            size = int(bins.n_bins[features[features >= 0]].sum())
            return choose_level(ask(level, size), features, bins, rule)

        trees = np.arange(settings.n_estimators)
        grown = grow(trees, key, plan, rule, find, history.add)
        return assemble([(grown, bins.cut(grown.feature, grown.bin))], schema, measure).bare()
