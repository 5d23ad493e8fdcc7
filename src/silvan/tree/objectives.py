"""Training objectives: the integer statistics of a row, the gain of a split, the value of a leaf.

An objective is one small object in a registry; the name of a criterion is its name there. Growing, messages and the
gate use this object and do not distinguish classes from
numbers. Sums of integers are exact in any order, so they can be split over
sites, masked and noised. Weights and numeric targets become fixed-point integers, with enough bits that every sum and
square is exact.

The gains of the objectives that come with the package are compiled: ``gain.py`` knows them by their ``code``. (A
kernel with a compiled function as an argument is recompiled in every process, so gains are not arguments.) Other
objectives provide a NumPy function that ``plain_split.py`` calls: slower, but just as exact.
"""

import math
from typing import NamedTuple

import msgspec
import numpy as np

from silvan.data.bins.time_bins import choose_times, codes_of
from silvan.data.schema import Task
from silvan.errors import InputError
from silvan.forest.curves import MOST_TIMES, hazards

GINI, ENTROPY, SQUARED_ERROR = 0, 1, 2
"""Codes of the gains that kernels know."""

_MASS_BITS = 31  # squares of class masses fit 62 bits
_SUM_BITS = 52  # sums of numeric targets are exact as floats too
_WEIGHTED_MASS_BITS = 28  # leaves 24 bits for the target itself
_SCORE_SCALE = 4096.0  # of log-rank scores: much finer than the random differences of their sums

MAX_CLASSES = 1 << 16


class Measure(msgspec.Struct, frozen=True):
    """An objective and what it takes from the labels of all rows: how every site turns labels into statistics.

    Statistics come in the layouts of ``gain.py``; ``lead`` says which. A number y is kept as (y - offset) * scale,
    rounded. ``mass`` is that of all training rows. A time has the score of its code, by bins that end at ``times``.
    """

    objective: str  # its name in the registry
    n_stats: int
    lead: int
    class_weight: tuple[int, ...]  # of each statistic after the lead
    mass: int
    offset: float = 0.0
    scale: float = 0.0
    times: tuple[float, ...] = ()
    scores: tuple[int, ...] = ()

    @property
    def counts_rows(self) -> bool:
        """Whether every statistic is a number of rows: then a row's target is the index of the one that counts it."""
        return self.lead == 0

    @property
    def count_type(self) -> type:
        """Element type of histograms: rows are counted in 32 bits, other sums need 64."""
        return np.int32 if self.counts_rows else np.int64

    @property
    def row_counts(self) -> slice:
        """The statistics that are numbers of rows."""
        return slice(None) if self.counts_rows else slice(1)

    def n_rows(self, stats: np.ndarray) -> np.ndarray:
        """Return the numbers of rows in some statistics."""
        return np.asarray(stats[:, self.row_counts].sum(axis=1))

    def rows(self, y: np.ndarray) -> np.ndarray:
        """Return the target of every row, if rows have no weights."""
        return OBJECTIVES[self.objective].rows(self, y)

    def codes(self, y: np.ndarray) -> np.ndarray:
        """Return the codes that leaves count for signed times: twice the bin, plus one if the event happened."""
        return np.minimum(codes_of(y, np.array(self.times)), self.n_codes - 1)

    def leaf_curves(self, counts: np.ndarray) -> np.ndarray:
        """Return cumulative hazards of leaves at ``times``, from their rows by code."""
        return hazards(counts)

    @property
    def n_codes(self) -> int:
        """The number of codes: after the last time there are no events."""
        return 2 * len(self.times) + 1

    def to_integers(self, y: np.ndarray) -> np.ndarray:
        """Return numbers in fixed point."""
        return np.rint((y - self.offset) * self.scale).astype(np.int64)

    def leaf_values(self, stats: np.ndarray) -> np.ndarray:
        """Return the values of leaves, (leaves, outputs), from their statistics."""
        return OBJECTIVES[self.objective].leaf_values(self, stats)

    def fits(self, n_classes: int, task: Task | None = None) -> bool:
        """Whether this untrusted measure is valid for a label with this many classes (0 for a number)."""
        objective = OBJECTIVES.get(self.objective)
        task = task or ("classification" if n_classes else "regression")
        if objective is None or objective.task != task or not self._fits_times(task == "survival"):
            return False
        fits = self.scale == 0.0 if n_classes else 0.0 < self.scale < math.inf
        fits = fits and len(self.class_weight) == self.n_stats - self.lead
        return fits and math.isfinite(self.offset) and (self.n_stats, self.lead) == objective.shape(n_classes)

    def _fits_times(self, needed: bool) -> bool:
        """Whether time bins and scores are possible: sums of scores are exact."""
        times, most = np.array(self.times), (1 << _SUM_BITS) // max(self.mass, 1)
        if not needed or not 2 <= len(times) <= MOST_TIMES or len(self.scores) != self.n_codes:
            return not needed and not len(times) and not self.scores
        rise = np.isfinite(times).all() and times[0] >= 0 and (np.diff(times) > 0).all()
        return bool(rise) and all(-most <= score <= most for score in self.scores)


class Target(NamedTuple):
    """The target of every row and its measure; for times, also what leaves count."""

    rows: np.ndarray  # uint16 (rows,) which statistic counts the row, or int64 (rows, statistics)
    measure: Measure
    codes: np.ndarray | None = None  # int64 (rows,)

    @classmethod
    def of(cls, measure: Measure, y: np.ndarray) -> "Target":
        """Return the target of rows with a known measure."""
        return cls(measure.rows(y), measure, measure.codes(y) if measure.times else None)


class Labels(NamedTuple):
    """What is known about the labels of all training rows before trees grow."""

    counts: np.ndarray  # rows of each class, or of times by cell (``data/bins/time_bins.py``); none for a number
    n_rows: int
    low: float = 0.0  # bounds of a number
    high: float = 0.0
    time_bins: int = 0  # maximum number of times

    @classmethod
    def of(cls, y: np.ndarray, n_classes: int) -> "Labels":
        """Return what is known about given labels."""
        if not n_classes:
            return cls(np.zeros(0, np.int64), len(y), float(y.min()), float(y.max()))
        if len(y) and not 0 <= y.min() <= y.max() < n_classes:
            raise InputError(f"class codes must be between 0 and {n_classes - 1}")
        return cls(np.bincount(y, minlength=n_classes), len(y))


class Objective:
    """A training objective. A new one is a subclass with a ``name`` and a ``gain``, passed to ``register``.

    By default a row's statistics are (1, number) and a leaf holds the mean. Other statistics may follow the 1, which
    counts rows.
    """

    name = ""
    code = -1  # of a compiled gain, or any other number, given by ``register``
    task: Task = "regression"
    needs_gain: bool = True
    """Whether a node's rows may be all alike and its sums do not show it: a split without gain must then lead to one
    that has some."""

    @property
    def compiled(self) -> bool:
        """Whether kernels support its gain: vertical forests, noise and ``monotonic_cst`` need that."""
        return self.code <= SQUARED_ERROR

    @property
    def for_classes(self) -> bool:
        """Whether it is for classification."""
        return self.task == "classification"

    def shape(self, n_classes: int) -> tuple[int, int]:
        """Return how many statistics a row without weight has, and the ``lead`` of their layout."""
        return 2, 1

    def measure(self, labels: Labels, class_weight: np.ndarray | None = None) -> Measure:
        """Return the measure of some rows' labels."""
        if class_weight is not None:
            raise InputError("class_weight is for classification")
        point = fixed_point(labels.low, labels.high, labels.n_rows)
        n_stats, lead = self.shape(0)
        return Measure(self.name, n_stats, lead, (1,) * (n_stats - lead), labels.n_rows, *point)

    def rows(self, measure: Measure, y: np.ndarray) -> np.ndarray:
        """Return the statistics of every row: int64 (rows, statistics)."""
        return np.stack([np.ones(len(y), np.int64), measure.to_integers(y)], axis=1)

    def target(
        self, y: np.ndarray, n_classes: int, weight: np.ndarray | None = None, class_weight: np.ndarray | None = None
    ) -> Target:
        """Return the target of given rows, which may have weights."""
        if weight is not None:
            raise InputError(f"criterion {self.name!r} takes no sample_weight")
        return Target.of(self.measure(Labels.of(y, n_classes), class_weight), y)

    def is_pure(self, stats: np.ndarray, lead: int) -> np.ndarray:
        """Return which nodes are pure, as far as their statistics show."""
        return np.zeros(len(stats), np.bool_)

    def gain(self, left: np.ndarray, total: np.ndarray) -> np.ndarray:
        """Return the gains of splits, of statistics (splits, statistics) on their left sides; 0 where nothing is won.

        Only for objectives that are not compiled.
        """
        raise NotImplementedError

    def category_order(self, stats: np.ndarray) -> np.ndarray | None:
        """Return numbers to sort categories by, so that a good set is among the first so many; None: one by one."""
        return np.asarray(stats[:, -1] / np.maximum(stats[:, -2], 1))

    def leaf_values(self, measure: Measure, stats: np.ndarray) -> np.ndarray:
        """Return the values of leaves, (leaves, outputs)."""
        return np.asarray(measure.offset + stats[:, -1:] / np.maximum(stats[:, -2:-1], 1) / measure.scale)


OBJECTIVES: dict[str, Objective] = {}
"""All objectives by name. Requests carry the name, so every site must have registered it."""


def register(objective: Objective) -> None:
    """Add an objective. Every process that grows trees with it, or handles requests about it, must do so."""
    if objective.name in OBJECTIVES:
        raise InputError(f"there is an objective {objective.name!r} already")
    if objective.code < 0:
        objective.code = len(OBJECTIVES)
    OBJECTIVES[objective.name] = objective


def objective_of(code: int) -> Objective:
    """Return the objective with a kernel code."""
    for objective in OBJECTIVES.values():  # few, and needed at every level: a generator would take longer
        if objective.code == code:
            return objective
    raise LookupError(f"no objective has the code {code}")


class Classes(Objective):
    """Classification: rows of each class, or their masses where rows have weights; a leaf holds class probabilities."""

    task: Task = "classification"
    needs_gain = False

    def __init__(self, name: str, code: int = -1) -> None:
        self.name, self.code = name, code

    def shape(self, n_classes: int) -> tuple[int, int]:
        """Return that rows of each class are counted."""
        return n_classes, 0

    def measure(self, labels: Labels, class_weight: np.ndarray | None = None) -> Measure:
        """Return the measure of classes; a weight is that of all rows of a class."""
        n = len(labels.counts)
        if n > MAX_CLASSES:
            raise InputError(f"the label has {n} classes; at most {MAX_CLASSES} are possible")
        weights = np.ones(n, np.int64)
        if class_weight is not None:
            if not ((class_weight > 0) & np.isfinite(class_weight)).all():
                raise InputError.about("class_weight", "must be above 0 and finite for every class")
            weights = whole_masses(class_weight, labels.counts, _MASS_BITS)
        return Measure(self.name, n, 0, tuple(weights.tolist()), int((weights * labels.counts).sum()))

    def rows(self, measure: Measure, y: np.ndarray) -> np.ndarray:
        """Return class codes: a histogram counts them."""
        return y.astype(np.uint16)

    def target(
        self, y: np.ndarray, n_classes: int, weight: np.ndarray | None = None, class_weight: np.ndarray | None = None
    ) -> Target:
        """Return the target of class codes."""
        if weight is None:
            return super().target(y, n_classes, None, class_weight)
        self.measure(Labels.of(y, n_classes), class_weight)  # checks both
        masses = whole_masses(
            weight if class_weight is None else weight * class_weight[y], np.ones(len(y), np.int64), _MASS_BITS
        )
        rows = np.zeros((len(y), 1 + n_classes), np.int64)
        rows[:, 0] = 1
        rows[np.arange(len(y)), 1 + y.astype(np.int64)] = masses
        return Target(rows, Measure(self.name, 1 + n_classes, 1, (1,) * n_classes, int(masses.sum())))

    def is_pure(self, stats: np.ndarray, lead: int) -> np.ndarray:
        """Return which nodes have rows of one class."""
        return np.asarray((stats[:, lead:] > 0).sum(axis=1) < 2)

    def category_order(self, stats: np.ndarray) -> np.ndarray | None:
        """Return the shares of the second of two classes."""
        return np.asarray(stats[:, 1] / stats.sum(axis=1)) if stats.shape[1] == 2 else None

    def leaf_values(self, measure: Measure, stats: np.ndarray) -> np.ndarray:
        """Return class probabilities, equal ones if there are no rows."""
        masses = stats[:, measure.lead :] * np.array(measure.class_weight, np.int64)
        total = masses.sum(axis=1, keepdims=True)
        return np.where(total > 0, masses / np.maximum(total, 1), 1.0 / masses.shape[1])


class SquaredError(Objective):
    """Regression: rows and sum of a number, with a mass between them where rows have weights; a leaf is a mean."""

    name, code = "squared_error", SQUARED_ERROR

    def target(
        self, y: np.ndarray, n_classes: int, weight: np.ndarray | None = None, class_weight: np.ndarray | None = None
    ) -> Target:
        """Return the target of numbers."""
        if weight is None:
            return super().target(y, n_classes)
        masses = whole_masses(weight, np.ones(len(y), np.int64), _WEIGHTED_MASS_BITS)
        mass = int(masses.sum())
        measure = Measure(self.name, 3, 2, (1,), mass, *fixed_point(float(y.min()), float(y.max()), mass))
        rows = np.stack([np.ones(len(y), np.int64), masses, masses * measure.to_integers(y)], axis=1)
        return Target(rows, measure)


class LogRank(Objective):
    """Survival: rows and sum of their log-rank scores at the root, the event minus the cumulative hazard at their time.

    Scores add up to 0 over all rows. Trees on them are trees on a number: a split's gain is the squared error of the
    scores, which for two sides is the squared log-rank statistic but for its variance. Leaves count times afterwards
    (``leaf_curves.py``); until then a leaf's value is its mean score.
    """

    name, code = "log_rank", SQUARED_ERROR
    task: Task = "survival"

    def measure(self, labels: Labels, class_weight: np.ndarray | None = None) -> Measure:
        """Return the measure of times: their bins, and the score of each code."""
        if class_weight is not None:
            raise InputError("class_weight is for classification")
        times, rows = choose_times(labels.counts, labels.time_bins)
        reached = rows.sum(axis=1)[::-1].cumsum()[::-1]
        hazard = (rows[:, 1] / np.maximum(reached, 1)).cumsum()
        scores = np.rint(((0.0, 1.0) - hazard[:, None]) * _SCORE_SCALE).astype(np.int64).ravel()[:-1]
        by_code = {"times": tuple(times.tolist()), "scores": tuple(scores.tolist())}
        return Measure(self.name, 2, 1, (1,), labels.n_rows, 0.0, _SCORE_SCALE, **by_code)

    def rows(self, measure: Measure, y: np.ndarray) -> np.ndarray:
        """Return the statistics of every row."""
        return np.stack([np.ones(len(y), np.int64), np.array(measure.scores, np.int64)[measure.codes(y)]], axis=1)


DEFAULTS: dict[Task, str] = {"classification": "gini", "regression": "squared_error", "survival": "log_rank"}
"""The objective of each task where no other is named."""

for _objective in (
    *(Classes("gini", GINI), Classes("entropy", ENTROPY), Classes("log_loss", ENTROPY)),
    *(SquaredError(), LogRank()),
):
    register(_objective)


def fixed_point(low: float, high: float, total_mass: int) -> tuple[float, float]:
    """Return offset and scale for numbers between two bounds: a power of two, so that scaling is exact."""
    middle = low / 2 + high / 2
    if abs(middle) < 3e38:  # few bits, so that differences to it are exact more often
        middle = float(np.float32(middle))
    reach = max(high - middle, middle - low)
    if reach == 0.0:
        return low, 1.0
    bits = _SUM_BITS - max(total_mass, 1).bit_length() - math.frexp(reach)[1]
    return middle, 2.0 ** max(min(bits, 1000), -1000)


def whole_masses(weight: np.ndarray, times: np.ndarray, bits: int) -> np.ndarray:
    """Return positive weights as integers of at least 1 whose total, each counted ``times``, fits the bits.

    Whole numbers that fit are kept as they are.
    """
    share = weight / weight.max()  # the sum of the weights themselves may be infinite
    total = float((share * times).sum())
    if (weight == np.rint(weight)).all() and total * float(weight.max()) < 2.0**bits:
        return weight.astype(np.int64)
    # half of the room for rounding up to 1
    scale = 2.0 ** (bits - 1) / total
    return np.maximum(np.rint(share * scale), 1).astype(np.int64)
