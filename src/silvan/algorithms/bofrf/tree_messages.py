"""The messages of BOFRF: sites bring their trees, then score the trees of all."""

from typing import Any, ClassVar

import numpy as np

from silvan.algorithms.bofrf.tune import Search
from silvan.federation.message import Ask, Blob, Reply, SignedReply, Total
from silvan.tree.fit import Settings
from silvan.util.readable import count_of


class OwnTrees(SignedReply, frozen=True, kw_only=True):
    """A site's trees as the bytes of a ``.silvan`` file, without counts; its rows; the columns that it lacks."""

    forest: bytes
    rows: int
    absent: np.ndarray
    brought: bool
    settings: Settings

    def work(self) -> bytes:
        """Return the trees."""
        return self.forest


class BringTrees(Ask[OwnTrees], frozen=True, kw_only=True, omit_defaults=True):
    """Trees that the site grows on its own rows or brings: splits and leaf values, no counts."""

    once: ClassVar[bool] = True

    schema: Blob
    settings: Settings
    feature_key: np.ndarray
    validation: float  # share of the training rows that trees do not see
    oob: bool  # whether the site will choose on rows that its trees did not draw
    tune: Search | None
    max_trees: int | None = None  # the most that are taken from a site

    @property
    def min_leaf(self) -> int:
        """Fewest rows of a leaf, which the site's policy judges."""
        return self.settings.min_samples_leaf

    def describe(self, reply: Any = None) -> str:
        """Describe what is asked for, or answered."""
        size = "" if reply is None else f" ({count_of(len(reply.forest), 'byte')})"
        return (
            f"up to {count_of(self.settings.n_estimators, 'tree')} of the site's own{size}: splits and leaf values, no "
            "counts; "
            "how many rows there are, which columns it lacks"
        )


class TreeScores(Reply, frozen=True, kw_only=True):
    """How each tree does: rows scored, and rows by true and voted class.

    Where a number is predicted: squared error, label and squared label in fixed point.
    """

    rows: np.ndarray
    counts: np.ndarray


class ScoreTrees(Total[TreeScores], frozen=True, kw_only=True):
    """How every site's trees do on the site's training rows, each tree by itself."""

    some_sites: ClassVar[bool] = True  # a cluster's

    schema: Blob
    forests: list[Blob]
    validation: float
    # fixed point of numbers; of no use for classes
    offset: float
    scale: float

    def describe(self, reply: Any = None) -> str:
        """Describe what is asked for, or answered."""
        trees = "the trees" if reply is None else count_of(len(reply.rows), "tree")
        each = "" if reply is None else f": {' x '.join(f'{n:,}' for n in reply.counts.shape[1:])} numbers a tree"
        return f"how {trees} of {count_of(len(self.forests), 'site')} do on the site's training rows{each}"
