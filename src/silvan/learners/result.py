"""The result of a fitted learner, for storing, sending and reporting: the same types for every learner."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from silvan.forest.forest import Forest


class SiteTrees(msgspec.Struct, frozen=True):
    """A site's trees in a weighted forest: number, number used, their weights, and share of all votes."""

    site: str
    trees: int
    used: int
    least: float
    median: float
    most: float
    share: float


class SharedModel(NamedTuple):
    """A model whose shares the parties keep: its hash, size (0 without trees), and a function that saves it."""

    hash: str
    trees: int
    nodes: int
    save: Callable[[Path], None]


@dataclass(frozen=True)
class Result:
    """The trained model and the cost of training.

    ``forest`` is the global forest, if there is one and it is known here; ``forests`` has the forest that each site
    should use. Without ``shared`` these are the model.
    """

    rounds: int
    bytes: dict[str, dict[str, int]]
    forest: Forest | None
    forests: Mapping[str, Forest] = field(default_factory=dict)
    shared: SharedModel | None = None
    at_sites: list[str] = field(default_factory=list)  # sites whose model includes their own rows and stays there
    threshold: float | None = None
    weights: list[SiteTrees] = field(default_factory=list)
    choices: Mapping[str, str] = field(default_factory=dict)  # what each site uses and why, in a sentence
    shared_forest: str = ""  # what the shared forest consists of, in a sentence
    clusters: Mapping[str, list[str]] = field(default_factory=dict)  # of sites, by centroid
    distances: Mapping[str, list[float]] = field(default_factory=dict)  # of each site from all of them

    @property
    def to_keep(self) -> dict[str, Forest]:
        """The global forest under "", and the forests of sites that should use another one, by site."""
        shared = self.forest
        if shared is None:
            return dict(self.forests)
        other = {site: one for site, one in self.forests.items() if one is not shared and one.hash != shared.hash}
        return {"": shared, **other}

    @property
    def importances(self) -> dict[str, float] | None:
        """The share of each column in the decrease of impurity; None if unknown."""
        return None if self.forest is None or self.forest.gain is None else self.forest.importances()


class ColumnEffects(NamedTuple):
    """Importance of columns, and for some columns values with the mean predictions at each, (values, outputs)."""

    permutation: dict[str, float] | None
    dependence: dict[str, tuple[list[Any], np.ndarray]]
