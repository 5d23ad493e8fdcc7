"""Fit a forest to a table in one place, and assemble grown trees into a forest."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from silvan.data.bins.bins import find_bins
from silvan.data.bins.cut_points import check_max_bins
from silvan.data.bins.grid import Grid
from silvan.data.bins.time_bins import N_CODES, time_cells
from silvan.data.schema import Schema, Task
from silvan.errors import InputError
from silvan.forest.arrays import DEPTH_CAP, Combine
from silvan.forest.category_set import is_category_split
from silvan.forest.curves import MOST_TIMES
from silvan.forest.forest import Forest
from silvan.forest.importance import gain_shares, mean_shares
from silvan.tree.gain import Rule
from silvan.tree.grow import Frontier, Grown, Plan, grow
from silvan.tree.leaf_curves import with_curves
from silvan.tree.node_rows import Binned
from silvan.tree.objectives import OBJECTIVES, Labels, Measure, Objective, Target
from silvan.tree.rows import Rows, TreeRows
from silvan.tree.sampling import RowSampling, SamplingKeys, one_of_each, rows_of_trees
from silvan.tree.split import Splits
from silvan.util.device import on_device_or_not
from silvan.util.threads import thread_count, thread_map

if TYPE_CHECKING:
    from silvan.tree.device_rows import DeviceTable

_ROWS_AT_ONCE = 1 << 21  # rows of the trees in a batch: enough work per call, little memory

_NOT_THERE = {
    "absolute_error": "trees grow from sums, which do not determine medians",
    "friedman_mse": "it is designed for boosting",
    "poisson": "numbers are evaluated only by their squared error",
}
"""Unsupported criteria of scikit-learn, and the reasons."""

TIME_BINS = 64

NO_VOTES = "vote='hard' is for classification: trees that predict a number have no class to vote for"
"""An error message."""


@dataclass(frozen=True)
class Settings:
    """The parameters of a forest, checked. Names and meanings are scikit-learn's."""

    n_estimators: int = 100
    criterion: str = "gini"
    max_depth: int | None = None
    min_samples_split: int = 2
    min_samples_leaf: int = 2
    max_features: str | int | float | None = "sqrt"
    max_bins: int = 64
    bootstrap: bool = True
    feature_sampling: str = "node"
    min_weight_fraction_leaf: float = 0.0
    class_weight: str | list[float] | None = None  # "balanced", or a weight per class
    vote: str = "soft"  # or "hard": trees vote
    max_samples: float | None = None  # a share of the rows; None: all of them
    monotonic_cst: list[int] | None = None  # 1, -1 or 0 per feature, see ``monotonic_signs``; None: no constraint
    time_bins: int = TIME_BINS  # maximum number of times in survival curves

    def __post_init__(self) -> None:
        """Raise ``InputError`` for a parameter that is out of range."""
        _at_least("n_estimators", self.n_estimators, 1)
        _at_least("min_samples_leaf", self.min_samples_leaf, 1)
        _at_least("min_samples_split", self.min_samples_split, 2)
        _at_least("time_bins", self.time_bins, 2)
        if self.time_bins > MOST_TIMES:
            raise InputError.wrong("time_bins", f"at most {MOST_TIMES}", self.time_bins)
        if self.max_depth is not None:
            _at_least("max_depth", self.max_depth, 1)
            if self.max_depth > DEPTH_CAP:
                raise InputError.wrong("max_depth", f"at most {DEPTH_CAP} or None", self.max_depth)
        if self.criterion not in list(OBJECTIVES):
            if why := _NOT_THERE.get(str(self.criterion)):
                raise InputError.about(
                    "criterion", f"{self.criterion!r} is not supported, since {why}; use 'squared_error'"
                )
            raise InputError.wrong("criterion", f"one of {', '.join(OBJECTIVES)}", self.criterion)
        if not isinstance(self.bootstrap, bool | np.bool):
            raise InputError.wrong("bootstrap", "True or False", self.bootstrap)
        if self.feature_sampling not in ("node", "tree"):
            raise InputError.wrong("feature_sampling", "'node' or 'tree'", self.feature_sampling)
        share: Any = self.min_weight_fraction_leaf
        if not (isinstance(share, int | float | np.number) and 0.0 <= share <= 0.5):
            raise InputError.wrong("min_weight_fraction_leaf", "between 0 and 0.5", share)
        check_class_weight(self.class_weight)
        if self.vote not in ("soft", "hard"):
            raise InputError.wrong("vote", "'soft' or 'hard'", self.vote)
        self._check_max_samples()
        if not set(self.signs) <= {-1, 0, 1}:
            raise InputError.wrong("monotonic_cst", "1, -1 or 0 for a feature", self.monotonic_cst)
        if not any(self.signs):
            object.__setattr__(self, "monotonic_cst", None)
        _at_least("max_bins", self.max_bins, 2)
        check_max_bins(self.max_bins)

    def _check_max_samples(self) -> None:
        share: Any = self.max_samples
        if share is not None:
            if not isinstance(share, float | np.floating) or not 0.0 < share <= 1.0:
                raise InputError.wrong("max_samples", "a share of the rows, above 0 and at most 1", share)
            if not self.bootstrap:
                raise InputError.about("max_samples", "needs bootstrap=True: without it every tree sees every row")
        object.__setattr__(self, "max_samples", None if share in (None, 1.0) else float(share))

    @property
    def objective(self) -> Objective:
        """The training objective of the trees."""
        return OBJECTIVES[self.criterion]

    @property
    def row_sampling(self) -> RowSampling:
        """How trees sample rows."""
        return bool(self.bootstrap) if self.max_samples is None else self.max_samples

    @property
    def signs(self) -> list[int]:
        """The allowed directions of predictions for each feature; empty without constraints."""
        return self.monotonic_cst or []

    @property
    def combine(self) -> Combine:
        """How the trees are combined."""
        return "vote" if self.vote == "hard" else "mean"

    def n_sampled(self, n_features: int) -> int:
        """Return how many of a number of features are sampled."""
        wish = self.max_features
        if wish is None:
            return n_features
        if isinstance(wish, str):
            if wish not in ("sqrt", "log2"):
                raise InputError.wrong("max_features", "'sqrt', 'log2', a number or None", wish)
            return max(1, math.isqrt(n_features) if wish == "sqrt" else n_features.bit_length() - 1)
        if isinstance(wish, bool) or not isinstance(wish, int | float | np.number):
            raise InputError.wrong("max_features", "'sqrt', 'log2', a number or None", wish)
        if isinstance(wish, float | np.floating):
            if not 0.0 < wish <= 1.0:
                raise InputError.about("max_features", f"as a share must be above 0 and at most 1, got {wish}")
            return max(1, int(wish * n_features))
        if wish < 1:
            raise InputError.wrong("max_features", "at least 1", wish)
        return min(int(wish), n_features)

    def measure(self, schema: Schema, counts: np.ndarray) -> Measure:
        """Return the measure of the label, given its rows by class, or by coarse cell of a number or a time."""
        n_rows, objective = int(counts.sum()), self.objective_for(schema.label.task)
        if schema.n_classes:
            return objective.measure(Labels(counts, n_rows), self.class_weights(counts))
        if self.class_weight is not None:
            raise InputError.about("class_weight", "is for classification")
        if schema.label.event is not None:
            return objective.measure(Labels(counts, n_rows, time_bins=self.time_bins))
        cells = np.flatnonzero(counts)
        if len(cells) == 0:
            raise InputError("there are no training rows")
        low, high = Grid.for_columns(1).bounds(int(cells[0]), int(cells[-1]))
        return objective.measure(Labels(counts[:0], n_rows, low, high))

    def target(self, schema: Schema, y: np.ndarray) -> Target:
        """Return the target of rows in one place."""
        if schema.label.event is not None:
            return Target.of(self.measure(schema, np.bincount(time_cells(y), minlength=N_CODES)), y)
        counts = np.bincount(y, minlength=schema.n_classes) if schema.n_classes else None
        weights = None if counts is None else self.class_weights(counts)
        return self.objective_for(schema.label.task).target(y, schema.n_classes, None, weights)

    def objective_for(self, task: Task) -> Objective:
        """Return the objective; raise ``InputError`` if it does not fit a task."""
        if self.objective.task != task:
            raise InputError(f"criterion {self.criterion!r} does not fit {task}")
        return self.objective

    def class_weights(self, counts: np.ndarray) -> np.ndarray | None:
        """Return a weight for each class, given its rows; None for equal weights."""
        if self.class_weight is None:
            return None
        if isinstance(self.class_weight, str):
            return np.where(counts > 0, counts.sum() / (len(counts) * np.maximum(counts, 1)), 1.0)
        weights = np.array(self.class_weight, np.float64)
        if weights.shape != counts.shape:
            raise InputError.about(
                "class_weight", f"must have a weight for each of {len(counts)} classes, got {weights.size}"
            )
        return weights

    def rule(self, measure: Measure) -> Rule:
        """Return the rule that values splits."""
        objective = self.objective
        if objective.task != OBJECTIVES[measure.objective].task:
            task = OBJECTIVES[measure.objective].task
            raise InputError.about("criterion", f"{self.criterion!r} does not fit {task}")
        if self.vote == "hard" and not objective.for_classes:
            raise InputError(NO_VOTES)
        if self.signs or self.class_weight is not None:
            self.check_compiled("with monotonic_cst or class_weight")
        return Rule(
            objective.code,
            measure.lead,
            int(self.min_samples_split),
            int(self.min_samples_leaf),
            int(np.ceil(self.min_weight_fraction_leaf * measure.mass)),
            np.array(measure.class_weight, np.int64),
        )

    def check_compiled(self, where: str) -> None:
        """Raise ``InputError`` for a custom objective where kernels are required."""
        if not self.objective.compiled:
            known = ", ".join(name for name, objective in OBJECTIVES.items() if objective.compiled)
            raise InputError(f"criterion {self.criterion!r} cannot be used {where}: use one of {known}")

    def plan(self, n_features: int) -> Plan:
        """Return how trees grow if sampling features again costs no message."""
        plan = Plan(
            n_features, self.n_sampled(n_features), self.max_depth or DEPTH_CAP, self.feature_sampling == "tree"
        )
        signs = tuple(self.signs)
        if len(signs) not in (0, n_features):
            raise InputError.about(
                "monotonic_cst", f"must have an entry for each of {n_features} features, got {len(signs)}"
            )
        return replace(plan, tries=plan.n_draws, monotonic=signs)

    def federated_plan(self, n_features: int) -> Plan:
        """Return how trees grow if each round is a message: nodes wait for the next round to sample features again."""
        return replace(self.plan(n_features), tries=1, max_rounds=self.max_depth)


def _at_least(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError.wrong(name, f"a whole number of at least {least}", value)


def monotonic_signs(given: Any, schema: Schema) -> list[int] | None:
    """Return the monotonic constraint of each feature: 1 rising, -1 falling, 0 none; None without constraints.

    ``given`` has a number for each feature, or is a dict by name. Raises ``InputError`` if it does not fit.
    """
    if given is None:
        return None
    if schema.n_classes > 2:
        raise InputError.about("monotonic_cst", "is for a number or two classes: more classes have no order")
    if schema.label.event is not None:
        raise InputError.about("monotonic_cst", "is not for survival: curves of leaves need not keep an order")
    names = list(schema.names)
    if isinstance(given, dict):
        unknown = [name for name in given if name not in names]
        if unknown:
            raise InputError.about("monotonic_cst", f"names {unknown[0]!r}, which is not a column")
        given = [given.get(name, 0) for name in names]
    try:
        signs = np.asarray(given)
    except ValueError:
        signs = np.zeros((), object)
    if signs.shape != (len(names),) or signs.dtype.kind not in "iuf" or not np.isin(signs, (-1, 0, 1)).all():
        raise InputError.about(
            "monotonic_cst", f"must be 1, -1 or 0 for each of {len(names)} columns, or a dict by name"
        )
    for feature, sign in zip(schema.features, signs, strict=True):
        if sign and feature.categorical:
            raise InputError.about("monotonic_cst", f"is for numbers, and column {feature.name!r} has categories")
    return [int(sign) for sign in signs]


def check_class_weight(weight: Any) -> None:
    """Raise ``InputError`` for a text that is not a valid class weight."""
    if isinstance(weight, str) and weight != "balanced":
        trees = ": all trees of a forest use the same weights" if weight == "balanced_subsample" else ""
        raise InputError.about("class_weight", f"must be None, 'balanced' or a dict, got {weight!r}{trees}")


class Assembled(NamedTuple):
    """A forest to extend, and the share of each feature in the gains of each tree: (trees, features)."""

    forest: Forest
    shares: np.ndarray


def fit_forest(
    X: np.ndarray,
    target: Target,
    schema: Schema,
    settings: Settings,
    keys: SamplingKeys,
    *,
    before: Assembled | None = None,
    row_keys: np.ndarray | None = None,
    floor: int = 1,
    n_jobs: int | None = None,
    device: str = "cpu",
) -> Assembled:
    """Bin an encoded table and grow a forest on it, or the trees missing from a forest ``before``.

    ``row_keys`` identify rows for sampling; by default their positions. If persons have several rows, cut points come
    from one row of each. Cells of the grid with fewer than ``floor`` rows are not divided further.
    """
    threads = thread_count(n_jobs)
    numbers = np.arange(len(X), dtype=np.uint64) if row_keys is None else row_keys
    several = numbers.dtype.names is not None
    counted = X[one_of_each(numbers)] if several else X
    bins, codes = find_bins(counted, schema, settings.max_bins, threads, floor, staggered=True)
    if several:
        codes = bins.apply(X, threads)
    table = Binned(codes, target.rows, numbers, bins, target.measure.n_stats)
    trees = range(0 if before is None else len(before.forest), settings.n_estimators)
    grown = _grow_trees(table, target.measure, settings, settings.plan(X.shape[1]), keys, trees, threads, device)
    pieces = [_ordered(part, thresholds, schema, target.measure) for part, thresholds in grown]
    found = _join_pieces(([] if before is None else [_piece(before)]) + pieces, schema, settings.combine)
    if target.codes is None:
        return found
    drawn = rows_of_trees(keys.rows, numbers, 0, len(found.forest), settings.row_sampling)
    return found._replace(forest=with_curves(found.forest, target.measure, X, target.codes, drawn, threads))


def grow_forest(
    table: Binned,
    measure: Measure,
    schema: Schema,
    settings: Settings,
    plan: Plan,
    keys: SamplingKeys,
    threads: int,
    device: str = "cpu",
) -> Forest:
    """Grow all trees from rows in one place."""
    trees = range(settings.n_estimators)
    grown = _grow_trees(table, measure, settings, plan, keys, trees, threads, device)
    return assemble(grown, schema, measure, settings.combine)


def _grow_trees(
    table: Binned,
    measure: Measure,
    settings: Settings,
    plan: Plan,
    keys: SamplingKeys,
    wanted: range,
    threads: int,
    device: str,
) -> list[tuple[Grown, np.ndarray]]:
    """Grow some trees in batches; return them with the thresholds of their splits."""
    rule, draw = settings.rule(measure), settings.row_sampling
    ties = keys.features if keys.ties is None else keys.ties

    def some(trees: range, rows: Rows) -> Grown:
        def find(frontier: Frontier) -> Splits:
            return rows.find(frontier, plan, rule, ties)

        return grow(np.arange(trees.start, trees.stop), keys.features, plan, rule, find, rows.apply)

    def work(on_device: bool) -> list[Grown]:
        if on_device:
            there = send_to_device(table)
            return [some(trees, there.sample(keys.rows, trees, draw, threads)) for trees in there.batches(wanted, draw)]
        batches = [wanted[batch.start : batch.stop] for batch in tree_batches(len(wanted), len(table), threads)]
        return thread_map(lambda trees: some(trees, TreeRows.of_trees(table, keys.rows, trees, draw)), batches, threads)

    return [(part, table.bins.cut(part.feature, part.bin)) for part in on_device_or_not(device, len(table), work)]


def send_to_device(table: Binned) -> "DeviceTable":
    """Send a table to the graphics card; raise ``DeviceError`` if it cannot go there."""
    from silvan.tree.device_rows import DeviceTable

    return DeviceTable.of(table)


def tree_batches(n_trees: int, n_rows: int, threads: int) -> list[range]:
    """Return the trees that grow side by side, batch by batch."""
    # a few batches per thread, so that none waits long for the last; four trees share their row hashes
    size = max(1, min(max(4, _ROWS_AT_ONCE // n_rows), -(-n_trees // (4 * threads))))
    size = size // 4 * 4 or size
    return [range(t, min(t + size, n_trees)) for t in range(0, n_trees, size)]


def assemble(
    parts: Sequence[tuple[Grown, np.ndarray]], schema: Schema, measure: Measure, combine: Combine = "mean"
) -> Forest:
    """Assemble grown trees into a forest, given the thresholds of their splits."""
    pieces = [_ordered(part, thresholds, schema, measure) for part, thresholds in parts]
    return _join_pieces(pieces, schema, combine).forest


def _piece(of: Assembled) -> dict[str, np.ndarray]:
    """Return a forest's arrays in the form of ``_ordered``."""
    forest = of.forest
    arrays = ("feature", "threshold", "missing_left", "sets", "value", "weights")
    found = {"sizes": np.diff(forest.offsets), **{name: getattr(forest, name) for name in arrays}, "gain": of.shares}
    return found if forest.times is None else {**found, "value": found["value"][:, -1:]}  # leaves are counted again


def _join_pieces(pieces: Sequence[dict[str, np.ndarray]], schema: Schema, combine: Combine) -> Assembled:
    joined: dict[str, Any] = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    sizes, weights = joined.pop("sizes"), joined.pop("weights")
    shares = joined.pop("gain")
    if not weights.any():
        raise InputError(
            "no tree sampled any row: the table is too small (n_samples=1?); "
            "set bootstrap=False, or a larger max_samples"
        )
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    gain = mean_shares(shares)
    forest = Forest(schema=schema, offsets=offsets, weights=weights, combine=combine, gain=gain, **joined)
    return Assembled(forest, shares)


def level_order(grown: Grown) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes by tree and level, with siblings adjacent, and the index of each node's split, or -1.

    Splits that were taken back are left out, with everything below them.
    """
    made = np.arange(len(grown.node)) if grown.kept is None else np.flatnonzero(grown.kept)
    left = np.full(len(grown.tree), -1, np.int64)
    left[grown.node[made]] = grown.n_trees + 2 * made
    level, levels = np.arange(grown.n_trees), []
    while len(level):
        levels.append(level)
        below = left[level[left[level] >= 0]]
        level = np.stack([below, below + 1], axis=1).reshape(-1)
    nodes = np.concatenate(levels)
    nodes = nodes[np.argsort(grown.tree[nodes], kind="stable")]

    split_of = np.full(len(grown.tree), -1, np.int64)
    split_of[grown.node[made]] = made
    return nodes, split_of[nodes]


def _ordered(grown: Grown, thresholds: np.ndarray, schema: Schema, measure: Measure) -> dict[str, np.ndarray]:
    """Return the arrays of a forest made of these trees, by name."""
    nodes, split_of = level_order(grown)
    inner = split_of >= 0
    feature = np.full(len(nodes), -1, np.int32)
    feature[inner] = grown.feature[split_of[inner]]
    by_category = is_category_split(schema, feature)
    numeric = inner & ~by_category
    threshold = np.zeros(len(nodes), np.float32)
    threshold[numeric] = thresholds[split_of[numeric]]
    missing_left = np.zeros(len(nodes), np.bool_)
    missing_left[inner] = grown.missing_left[split_of[inner]]

    return {
        "sizes": np.bincount(grown.tree[nodes], minlength=grown.n_trees),
        "feature": feature,
        "threshold": threshold,
        "missing_left": missing_left,
        "sets": grown.words[split_of[by_category]],
        "value": measure.leaf_values(grown.stats[nodes[~inner]]),
        # a tree without rows, which can happen with few rows, has no weight
        "weights": (measure.n_rows(grown.stats[: grown.n_trees]) > 0).astype(np.float64),
        "gain": gain_shares(grown.tree[grown.node], grown.feature, grown.gain, grown.n_trees, len(schema.features)),
    }
