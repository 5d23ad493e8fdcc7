"""Stumps: trees of one split whose two sides each vote for one of two classes.

They are the weak classifiers of AdaBoost. A stump is found like a forest's split, from histograms of weighted rows, so
missing values and categories are handled as everywhere. Only a few numbers per stump travel.
"""

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from silvan.algorithms.requests import MAX_TREES
from silvan.data.bins.bins import Bins, find_bins
from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError, reject
from silvan.federation.describe import FLOOR
from silvan.federation.part import Part
from silvan.federation.site import Site
from silvan.federation.store import CacheKey
from silvan.forest.category_set import SET_WORDS, is_category_split, set_bits
from silvan.forest.forest import Forest
from silvan.tree.fit import Settings
from silvan.tree.gain import Rule
from silvan.tree.histogram import fill
from silvan.tree.level import choose_level
from silvan.tree.objectives import OBJECTIVES
from silvan.tree.sampling import Ties
from silvan.tree.stump import find_cut
from silvan.util.threads import thread_count

_TYPES: dict[str, tuple[type, tuple[int, ...]]] = {
    "feature": (np.int32, ()),
    "threshold": (np.float32, ()),
    "missing_left": (np.bool_, ()),
    "words": (np.uint64, (SET_WORDS,)),
    "vote": (np.uint8, (2,)),
    "weight": (np.float64, ()),
}
"""The columns of stumps: element types, and the shape of one stump's entry."""


class Stumps(msgspec.Struct, frozen=True, kw_only=True):
    """Stumps one after the other, as they travel.

    One that does not split has feature -1, and both its votes are the same.
    """

    feature: np.ndarray
    threshold: np.ndarray  # numeric split: left if x <= threshold
    missing_left: np.ndarray
    words: np.ndarray  # (stumps, 4) the left set of a categorical split
    vote: np.ndarray  # (stumps, 2) the class that the left side votes for, and the right
    weight: np.ndarray

    def __len__(self) -> int:
        return len(self.feature)

    def take(self, which: Any) -> "Stumps":
        """Return some of the stumps."""
        return Stumps(**{name: getattr(self, name)[which] for name in _TYPES})

    def weighted(self, weight: np.ndarray) -> "Stumps":
        """Return the same stumps with other weights."""
        return msgspec.structs.replace(self, weight=weight)

    def forest(self, schema: Schema, **combined: Any) -> Forest:
        """Return a forest of the stumps, which checks them; if all weights are 0, use equal weights."""
        splits = self.feature >= 0
        sizes = np.where(splits, 3, 1)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        roots, n = offsets[:-1], int(offsets[-1])
        feature, threshold = np.full(n, -1, np.int32), np.zeros(n, np.float32)
        missing_left, vote = np.zeros(n, np.bool_), np.zeros(n, np.int64)
        feature[roots], threshold[roots], missing_left[roots] = self.feature, self.threshold, self.missing_left
        vote[roots] = self.vote[:, 0]
        for side in (0, 1):
            vote[roots[splits] + 1 + side] = self.vote[splits, side]
        return Forest(
            schema=schema,
            offsets=offsets,
            feature=feature,
            threshold=threshold,
            missing_left=missing_left,
            sets=self.words[is_category_split(schema, self.feature)],
            value=np.eye(2)[vote[feature < 0]],
            weights=self.weight if self.weight.any() else np.ones(len(self)),
            **combined,
        )


def join_stumps(parts: list[Stumps]) -> Stumps:
    """Concatenate stumps."""
    empty: dict[str, np.ndarray] = {name: np.zeros((0, *shape), dtype) for name, (dtype, shape) in _TYPES.items()}
    return Stumps(**{name: np.concatenate([none, *(getattr(p, name) for p in parts)]) for name, none in empty.items()})


def check_stumps(stumps: Stumps, schema: Schema, most: int) -> None:
    """Raise ``FormatError`` if these are not stumps of the schema, or more than this many."""
    n = len(stumps)
    for name, (dtype, shape) in _TYPES.items():
        column = getattr(stumps, name)
        if column.dtype != dtype or column.shape != (n, *shape):
            raise FormatError(f"{name} of the stumps is of another shape or type")
    reject(n > most, "there are more stumps than requested")
    feature, vote, weight = stumps.feature, stumps.vote, stumps.weight
    if (feature < -1).any() or (feature >= len(schema.features)).any():
        raise FormatError("a stump splits by a feature outside the schema")
    reject((vote > 1).any() or (vote[feature < 0, 0] != vote[feature < 0, 1]).any(), "a stump's votes are not possible")
    reject(not (np.isfinite(weight) & (weight >= 0)).all(), "a stump's weight is negative or not finite")
    reject(stumps.words[~is_category_split(schema, feature)].any(), "a set of categories without a split by category")
    if n:
        stumps.weighted(np.ones(n)).forest(schema)


# -- finding them
ERROR = "error"
_PURITIES = ("gini", "entropy", "log_loss")


@dataclass(frozen=True)
class Boosting:
    """The parameters of AdaBoost with stumps, checked."""

    n_estimators: int = 50
    criterion: str = "gini"
    min_samples_leaf: int = 2
    max_bins: int = 64

    def __post_init__(self) -> None:
        """Check the parameters."""
        Settings(n_estimators=self.n_estimators, min_samples_leaf=self.min_samples_leaf, max_bins=self.max_bins)
        if self.criterion not in (ERROR, *_PURITIES):
            raise InputError.wrong("criterion", f"one of {', '.join((ERROR, *_PURITIES))}", self.criterion)
        if self.n_estimators > MAX_TREES:
            raise InputError.wrong("n_estimators", f"at most {MAX_TREES}", self.n_estimators)


@dataclass(frozen=True)
class StumpTable:
    """Rows for finding stumps: their bins, and the class of each."""

    codes: np.ndarray
    bins: Bins
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def one_class(self) -> bool:
        """Whether all rows have one class."""
        return len(np.unique(self.y)) < 2


def check_two_classes(schema: Schema) -> None:
    """Raise ``InputError`` unless the label has two classes."""
    if schema.n_classes != 2:
        what = {0: "is a number", 1: "has one class only"}.get(schema.n_classes, f"has {schema.n_classes} classes")
        raise InputError(
            f"boosting with stumps is for two classes, as it was published; the label {schema.label.name!r} {what}: "
            "use a forest instead, HistogramForest or BOFRF"
        )


def stump_table(site: Site, schema: Schema, settings: Boosting) -> StumpTable:
    """Bin a site's training rows, using local counts on the public grid."""

    def bin_rows() -> StumpTable:
        check_two_classes(schema)
        part: Part = site.part(schema)
        bins, codes = find_bins(part.X, schema, settings.max_bins, thread_count(site.n_jobs), FLOOR)
        return StumpTable(codes, bins, part.y.astype(np.int64))

    return site.cache.once(CacheKey[StumpTable]("stump table", schema.hash, settings.max_bins), bin_rows)


def find_stump(table: StumpTable, weight: np.ndarray, settings: Boosting) -> tuple[Stumps, np.ndarray]:
    """Find the best stump for weighted rows; return it, and for each row 1 if it is right, -1 if not.

    A split whose sides vote for the same class counts as no split. Equal masses vote for the first class.
    """
    bins, width = table.bins, len(table.bins.n_bins)
    features = np.arange(width, dtype=np.int32)
    bases = np.cumsum(bins.n_bins, dtype=np.int64) - bins.n_bins
    target = OBJECTIVES["gini"].target(table.y, 2, weight).rows
    hist = np.zeros((int(bins.n_bins.sum()), target.shape[1]), np.int64)
    rows = np.arange(len(table), dtype=np.uint32)
    fill(table.codes, target, rows, features.astype(np.int64), bases, width, bins.shift, hist)
    total = target[:, 1:].sum(axis=0)
    feature, last, missing_left, words, vote = (
        _least_error(hist, bases, bins, settings, total)
        if settings.criterion == ERROR
        else _purest(hist, features, bins, settings, total)
    )
    if feature < 0 or vote[0] == vote[1]:
        feature, missing_left, words, vote = -1, False, np.zeros(SET_WORDS, np.uint64), [int(total[1] > total[0])] * 2
    numeric = feature >= 0 and not bins.categorical[feature]
    threshold = bins.cut(np.array([feature]), np.array([last])) if numeric else np.zeros(1, np.float32)
    stump = Stumps(
        feature=np.array([feature], np.int32),
        threshold=threshold,
        missing_left=np.array([missing_left]),
        words=words[None],
        vote=np.array([vote], np.uint8),
        weight=np.ones(1),
    )
    is_left = np.arange(256) <= last if numeric else set_bits(words[None])[0]
    is_left[0] = missing_left
    votes = np.where(is_left[table.codes[:, feature]], *vote)
    return stump, np.where(votes == table.y, 1, -1).astype(np.int8)


_Split = tuple[int, int, bool, np.ndarray, list[int]]
"""Feature or -1, last bin on the left, whether missing values go left, the left set, the votes of both sides."""


def _purest(hist: np.ndarray, features: np.ndarray, bins: Bins, settings: Boosting, total: np.ndarray) -> _Split:
    """Return the split that a forest would choose; each side votes for its larger class."""
    rule = Rule(OBJECTIVES[settings.criterion].code, 1, 2, int(settings.min_samples_leaf), 0, np.ones(2, np.int64))
    ties = Ties(np.zeros(2, np.uint64), np.zeros(1, np.uint64))
    splits = choose_level(hist, features[None], bins, rule, ties, 1)
    left = splits.left[0, 1:]
    vote = [int(side[1] > side[0]) for side in (left, total - left)]
    return int(splits.feature[0]), int(splits.bin[0]), bool(splits.missing_left[0]), splits.words[0], vote


def _least_error(hist: np.ndarray, bases: np.ndarray, bins: Bins, settings: Boosting, total: np.ndarray) -> _Split:
    """Return the split whose sides, voting for different classes, make the least error."""
    cut = find_cut(hist, bases, bins.n_bins, bins.categorical, int(settings.min_samples_leaf))
    first = int(2 * (cut.left[0] - cut.left[1]) < total[0] - total[1])
    return cut.feature, cut.bin, cut.missing_left, cut.words, [first, 1 - first]
