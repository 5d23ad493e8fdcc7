"""Tuning at a site: its forest's parameters, chosen by cross-validation on its own training rows.

The six parameters are those of the thesis, and so is the search over all combinations (``kind="grid"``). Trees are
keyed by their number, so a forest of 50 trees begins one of 150: numbers of trees cost nothing to compare. Successive
halving (``kind="halving"``) gives all combinations a few trees and the better ones more, and grows none twice. It adds
trees, not rows: with fewer rows ``min_samples_leaf`` and ``max_depth`` mean something else.

All folds share one binned table, and their trees grow side by side. A fold is a set of rows that its trees do not see.
Cut points do not depend on labels, so all folds may share them.
"""

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Literal

import msgspec
import numpy as np

from silvan import metrics
from silvan.algorithms.keyed_rows import folds_of
from silvan.algorithms.requests import MAX_TREES
from silvan.data.bins.bins import find_bins
from silvan.data.schema import Schema
from silvan.errors import InputError
from silvan.federation.describe import FLOOR
from silvan.federation.part import Part
from silvan.federation.site import Site
from silvan.federation.store import CacheKey
from silvan.forest.arrays import DEPTH_CAP
from silvan.forest.predict import tally
from silvan.tree.fit import Settings, assemble
from silvan.tree.grow import Frontier, grow
from silvan.tree.node_rows import Binned
from silvan.tree.objectives import Measure
from silvan.tree.rows import TreeRows
from silvan.tree.sampling import rows_of_trees
from silvan.tree.split import Splits
from silvan.util.threads import thread_count, thread_map

ROWS_AT_ONCE = 1 << 21  # approximate number of rows of a batch of trees that grow side by side


@dataclass(frozen=True)
class Folds:
    """A table binned once, with every row in a fold."""

    part: Part
    table: Binned
    measure: Measure
    schema: Schema
    of_row: np.ndarray
    n: int
    keys: tuple[np.ndarray, np.ndarray]  # of rows, of features

    @classmethod
    def of(
        cls, part: Part, schema: Schema, settings: Settings, n: int, keys: tuple[np.ndarray, np.ndarray], threads: int
    ) -> "Folds":
        """Bin the rows and divide them into folds, by class."""
        target = settings.target(schema, part.y)
        bins, codes = find_bins(part.X, schema, settings.max_bins, threads, FLOOR, staggered=True)
        table = Binned(codes, target.rows, part.row_keys, bins, target.measure.n_stats)
        groups = part.y if schema.n_classes else np.zeros(len(part), np.int64)
        return cls(part, table, target.measure, schema, folds_of(keys[0], part.row_keys, groups, n), n, keys)

    def add_trees(self, settings: Settings, first: int, last: int, total: np.ndarray, weight: np.ndarray) -> None:
        """Grow these trees on all folds but one, for each fold, and add up their scores of its rows.

        ``total`` is (rows, outputs), ``weight`` (rows,).
        """
        at_once = max(4, ROWS_AT_ONCE // len(self.table))
        n_folds, n_trees = max(1, at_once // (last - first)), min(last - first, at_once)
        for k in range(0, self.n, n_folds):
            for t in range(first, last, n_trees):
                self._add_some(
                    settings, range(k, min(k + n_folds, self.n)), range(t, min(t + n_trees, last)), total, weight
                )

    def _add_some(self, settings: Settings, folds: range, trees: range, total: np.ndarray, weight: np.ndarray) -> None:
        row_key, feature_key = self.keys
        drawn = rows_of_trees(row_key, self.table.row_keys, trees.start, len(trees), settings.row_sampling)
        numbers = np.tile(np.arange(trees.start, trees.stop), len(folds))
        rows = TreeRows(self.table, np.concatenate([drawn & (self.of_row != k) for k in folds]), numbers)
        rule, plan = settings.rule(self.measure), settings.plan(len(self.schema.features))

        def find(frontier: Frontier) -> Splits:
            return rows.find(frontier, plan, rule, feature_key)

        grown = grow(numbers, feature_key, plan, rule, find, rows.apply)
        forest = assemble([(grown, self.table.bins.cut(grown.feature, grown.bin))], self.schema, self.measure)
        for i, k in enumerate(folds):
            held = np.flatnonzero(self.of_row == k)
            weights = np.zeros(len(forest))
            own = slice(i * len(trees), (i + 1) * len(trees))
            weights[own] = forest.weights[own]
            votes = tally(forest, self.part.X[held], weights, 1, votes=False)
            total[held] += votes.values
            weight[held] += votes.weight

    def scores(self, answer: np.ndarray) -> np.ndarray:
        """Return the metric of each fold: the AUC, averaged over the classes for which it is defined, or the RMSE."""
        if self.schema.n_classes:
            answer = answer.round(12)  # equal scores stay equal in whatever order trees were added
        values = np.full(self.n, np.nan)
        for k in range(self.n):
            held = self.of_row == k
            y, scores = self.part.y[held], answer[held]
            if not self.schema.n_classes:
                values[k] = metrics.regression(scores[:, 0], y)["rmse"]
                continue
            each = np.array([metrics.roc_auc(*t) for t in metrics.count_scores(scores, y, exact=True)])
            if not np.isnan(each).all():
                values[k] = np.nanmean(each)
        return values


log = logging.getLogger("silvan.site")

Value = int | float | str | None
Progress = Callable[[int, int], None]  # called with the number of trees grown so far, and the total
NAMES = ("criterion", "max_depth", "min_samples_split", "min_samples_leaf", "max_features", "n_estimators")
"""The parameters that can be tuned."""

_MOST = 10_000  # maximum number of combinations in a grid; more are probably a mistake
_FEWEST_TREES = 10  # minimum number of trees to compare combinations by: fewer say little about larger forests
_FEWEST_ROWS = 20  # minimum number of rows for tuning; with fewer, the best combination is chance


def default_grid() -> dict[str, list[Value]]:
    """Return values around those that the thesis found best (Table A.1): at most 72 different forests of 150 trees."""
    return {
        "criterion": ["gini", "entropy"],
        "max_depth": [5, 10, None],
        "min_samples_split": [2, 8],
        "min_samples_leaf": [2, 5, 14],
        "max_features": ["sqrt", 0.5, None],
        "n_estimators": [50, 100, 150],
    }


class Search(msgspec.Struct, frozen=True):
    """How parameters are searched for.

    Parameters
    ----------
    kind
        "halving": all combinations with few trees, then the best ``1 / factor`` of them with ``factor`` times as
        many, and so on; "grid": all combinations with all trees.
    grid
        Values by parameter; other parameters keep the learner's values. Leaves are never smaller than the learner's
        ``min_samples_leaf``, nor than 2. In regression, ``criterion`` stays unchanged.
    folds
        The number of folds; fewer if a class has fewer rows.
    factor
        The speed of halving.
    """

    kind: Literal["grid", "halving"] = "halving"
    grid: dict[str, list[Value]] = msgspec.field(default_factory=default_grid)
    folds: int = 10
    factor: int = 3

    def __post_init__(self) -> None:
        """Check the parameters."""
        _check_search(self.kind, self.grid, {"folds": self.folds, "factor": self.factor})


def _check_search(kind: Any, grid: Any, numbers: dict[str, Any]) -> None:
    if kind not in ("grid", "halving"):
        raise InputError(f"kind of search must be 'grid' or 'halving', got {kind!r}")
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 2 <= value <= 100:
            raise InputError.wrong(name, "a whole number between 2 and 100", value)
    if not isinstance(grid, dict) or not grid:
        raise InputError.about("grid", "must be a dict of lists of values by parameter")
    for name, values in grid.items():
        if name not in NAMES:
            raise InputError.about("grid", f"names {name!r}, which is not tuned; parameters are {', '.join(NAMES)}")
        if not isinstance(values, list) or not values:
            raise InputError(f"grid: {name} must be a list of at least one value, got {values!r}")
        for value in values:
            _check_value(name, value)
    if math.prod(map(len, grid.values())) > _MOST:
        raise InputError.about("grid", f"has over {_MOST:,} combinations; leave some values out")


def _check_value(name: str, value: Any) -> None:
    if type(value) not in (int, float, str, type(None)):
        raise InputError(f"grid: {name} must hold plain numbers, texts or None, got {value!r}")
    if name == "min_samples_leaf" and value == 1:
        raise InputError("grid: min_samples_leaf must be at least 2: a leaf of one row shows that row")
    if name == "criterion" and value not in ("gini", "entropy"):
        raise InputError(f"grid: criterion must be 'gini' or 'entropy', got {value!r}")
    try:
        checked = Settings(**{name: value})
        checked.n_sampled(1)
    except InputError as error:
        raise InputError(f"grid: {error}") from None
    if checked.n_estimators > MAX_TREES:
        raise InputError(f"grid: n_estimators must be at most {MAX_TREES}, got {value}")


def as_search(tune: Any) -> Search | None:
    """Read a learner's parameter ``tune``: None, True, a kind, a grid or a ``Search``."""
    if tune is None or tune is False:
        return None
    if isinstance(tune, Search):
        return tune
    if tune is True:
        return Search()
    if tune in ("grid", "halving"):
        return Search(kind=tune)
    if isinstance(tune, dict):
        try:
            return Search(grid={name: _values(given) for name, given in tune.items()})
        except InputError as error:
            raise InputError(f"tune: {error}", parameter="tune") from None
    raise InputError.wrong("tune", "None, True, 'grid', 'halving', a dict of values or a Search", tune)


def _values(given: Any) -> Any:
    """Return a list if values are given as one; a study file has "none" in place of None."""
    return [None if v == "none" else v for v in given] if isinstance(given, list | tuple) else given


class TuningTrial(msgspec.Struct, frozen=True):
    """The outcome of cross-validating one forest: mean and spread over folds, of AUC (macro), or RMSE for a number.

    ``rung`` is the number of cuts that it survived.
    """

    settings: Settings
    score: float
    spread: float
    rung: int = 0


def tune_settings(
    site: Site, schema: Schema, settings: Settings, search: Search, feature_key: np.ndarray, part: Part | None = None
) -> tuple[Settings, list[TuningTrial]]:
    """Choose a site's settings by cross-validation on its training rows; return them and all trials, the best first.

    ``part`` are the training rows to tune on, if others are held out. With too few rows the settings stay the same.
    """
    part = site.part(schema) if part is None else part
    inputs = (schema.hash, msgspec.json.encode([settings, search]), feature_key.tobytes(), part.row_keys.tobytes())

    def tune() -> tuple[Settings, list[TuningTrial]]:
        keys, report = (site.sampling_key, feature_key), _ProgressReport(site)
        chosen, trials = search_settings(part, schema, settings, search, keys, site.n_jobs, report)
        if not trials:
            log.warning("%s: too few rows, or one class only: parameters stay as they are", site.name)
        return chosen, trials

    return site.cache.once(CacheKey[tuple[Settings, list[TuningTrial]]]("tuned", *inputs), tune)


class _ProgressReport:
    """Reports progress to the site's listener, and to the site's log at every tenth of the trees."""

    def __init__(self, site: Site) -> None:
        self.site, self.tenth = site, 0

    def __call__(self, done: int, total: int) -> None:
        if self.site.watcher is not None:
            self.site.watcher("tuning", done, total)
        if done * 10 // total > self.tenth:
            self.tenth = done * 10 // total
            log.info("%s: tuning, %d of %d trees", self.site.name, done, total)


# -- the search
def search_settings(
    part: Part,
    schema: Schema,
    settings: Settings,
    search: Search,
    keys: tuple[np.ndarray, np.ndarray],
    n_jobs: int | None,
    progress: Progress,
) -> tuple[Settings, list[TuningTrial]]:
    """Choose settings by cross-validation on the given rows; ``keys`` are those of rows and of features."""
    n_folds = _n_folds(part.y, schema, search.folds)
    if n_folds < 2:
        return settings, []
    threads = thread_count(n_jobs)
    folds = Folds.of(part, schema, settings, n_folds, keys, threads)
    sizes = sorted({settings.n_estimators if n is None else int(n) for n in search.grid.get("n_estimators", [None])})
    left = entrants = [_Entrant(candidate) for candidate in list_candidates(settings, search, schema)]
    rungs = list_rungs(search, len(entrants), sizes[-1])
    stops = sorted({*sizes, *(trees for trees, _ in rungs)})
    total = sum(n * (trees - before) for before, (trees, n) in zip([0, *(t for t, _ in rungs)], rungs, strict=False))
    done, lock = 0, threading.Lock()

    def grow_on(entrant: _Entrant, upto: int) -> None:
        nonlocal done
        for last in stops:
            if entrant.trees < last <= upto:
                grown = entrant.grow(folds, last)
                with lock:
                    done += grown
                    progress(done * n_folds, total * n_folds)

    for rung, (trees, n) in enumerate(rungs):
        left = sorted(left, key=lambda entrant: entrant.rank(schema))[:n]
        thread_map(partial(grow_on, upto=trees), left, threads)
        for entrant in entrants:
            if entrant in left:
                entrant.rung = rung
            else:
                entrant.forget()
    return _conclude(entrants, sizes, schema)


def _n_folds(y: np.ndarray, schema: Schema, wanted: int) -> int:
    """Return the number of folds, at most the rows of the rarest class; 0 if the rows are too few to tune on."""
    if len(y) < _FEWEST_ROWS:
        return 0
    if not schema.n_classes:
        return min(wanted, len(y) // 2) if np.ptp(y) > 0 else 0
    counts = np.bincount(y, minlength=schema.n_classes)
    often = counts[counts >= 2]
    return min(wanted, int(often.min())) if len(often) >= 2 else 0


def list_candidates(settings: Settings, search: Search, schema: Schema) -> list[Settings]:
    """List the combinations, without those that grow the same trees as an earlier one."""
    tuned = [n for n in NAMES if n in search.grid and n != "n_estimators" and (schema.n_classes or n != "criterion")]
    found: dict[tuple[Any, ...], Settings] = {}
    for values in product(*(search.grid[name] for name in tuned)):
        given: dict[str, Any] = dict(zip(tuned, values, strict=True))
        leaf = max(given.get("min_samples_leaf", 0), settings.min_samples_leaf, 2)
        candidate = replace(settings, **{**given, "min_samples_leaf": leaf})
        found.setdefault(_grown_as(candidate, len(schema.features)), candidate)
    return list(found.values())


def _grown_as(settings: Settings, n_features: int) -> tuple[Any, ...]:
    """Return what determines the trees: a node with fewer rows than two leaves is not split in any case."""
    split = max(settings.min_samples_split, 2 * settings.min_samples_leaf)
    depth = settings.max_depth or DEPTH_CAP
    return settings.criterion, depth, split, settings.min_samples_leaf, settings.n_sampled(n_features)


def list_rungs(search: Search, n: int, trees: int) -> list[tuple[int, int]]:
    """Return, for each cut, the trees per combination and the number of combinations left."""
    if search.kind == "grid":
        return [(trees, n)]
    fewest = min(_FEWEST_TREES, trees)
    last = 0
    while n > search.factor ** (last + 1) and trees >= fewest * search.factor ** (last + 1):
        last += 1
    return [(trees // search.factor ** (last - i), -(-n // search.factor**i)) for i in range(last + 1)]


def _conclude(entrants: list["_Entrant"], sizes: list[int], schema: Schema) -> tuple[Settings, list[TuningTrial]]:
    """Return the best settings and all trials, ordered by cuts survived, then by score, then by simplicity."""
    last = max(entrant.rung for entrant in entrants)
    ranked = []
    for entrant in entrants:
        for trees in sizes if entrant.rung == last else [entrant.trees]:
            known = entrant.scores[trees]
            settings = replace(entrant.settings, n_estimators=trees)
            trial = TuningTrial(settings, float(np.nanmean(known)), float(np.nanstd(known)), entrant.rung)
            order = (-entrant.rung, entrant.loss(trees, schema), *_simplicity(settings, len(schema.features)))
            ranked.append((order, trial))
    ranked.sort(key=lambda pair: pair[0])
    trials = [trial for _, trial in ranked]
    return trials[0].settings, trials


def _simplicity(settings: Settings, n_features: int) -> tuple[Any, ...]:
    """Order settings by the size of the forest: fewer trees, shallower ones, larger leaves."""
    criterion, depth, split, leaf, n_sampled = _grown_as(settings, n_features)
    return settings.n_estimators, depth, -leaf, -split, n_sampled, criterion != "gini", criterion


class _Entrant:
    """One combination: its trees so far, their scores of every row, and its metric at every stop."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.trees, self.rung = settings, 0, 0
        self.total = self.weight = np.zeros(0)
        self.scores: dict[int, np.ndarray] = {}

    def grow(self, folds: Folds, last: int) -> int:
        """Grow up to this number of trees and evaluate them; return the number of new trees."""
        if not self.trees:
            n = len(folds.part)
            self.total, self.weight = np.zeros((n, folds.schema.n_classes or 1)), np.zeros(n)
        before, self.trees = self.trees, last
        folds.add_trees(self.settings, before, last, self.total, self.weight)
        self.scores[last] = folds.scores(self.total / self.weight[:, None])
        return last - before

    def forget(self) -> None:
        """Free the memory for rows, because the combination stops growing."""
        self.total = self.weight = np.zeros(0)

    def loss(self, trees: int, schema: Schema) -> float:
        """Return the mean score, with its sign so that smaller is better, rounded so that equal ones compare equal."""
        mean = float(np.nanmean(self.scores[trees]))
        return round(-mean if schema.n_classes else mean, 12)

    def rank(self, schema: Schema) -> tuple[Any, ...]:
        """Return the sort key: the best so far first, in a tie the simplest."""
        simple = _simplicity(self.settings, len(schema.features))
        return (self.loss(self.trees, schema) if self.trees else 0.0, *simple)
