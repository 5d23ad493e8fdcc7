"""The result of a fitted learner, for storing, sending and reporting: the same types for every learner."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from silvan.forest.forest import Forest


class SiteTrees(msgspec.Struct, frozen=True):
    """The trees of a site in a forest of weighted trees: how many, how many are used, weights, share of all votes."""

    site: str
    trees: int
    used: int
    least: float
    median: float
    most: float
    share: float


class SharedModel(NamedTuple):
    """A model whose shares the parties keep: its hash, its size (0 if it has no trees), and how to write it."""

    hash: str
    trees: int
    nodes: int
    save: Callable[[Path], None]


@dataclass(frozen=True)
class Result:
    """What a learner has learned, and what that took.

    ``forest`` is the one for all sites, where there is one and all of it is known; ``forests`` has the one that each
    site should use. Without ``shared`` these are the model.
    """

    rounds: int
    bytes: dict[str, dict[str, int]]
    forest: Forest | None
    forests: Mapping[str, Forest] = field(default_factory=dict)
    shared: SharedModel | None = None
    at_sites: list[str] = field(default_factory=list)  # sites whose model is made of their own rows and stays there
    threshold: float | None = None
    weights: list[SiteTrees] = field(default_factory=list)
    choices: Mapping[str, str] = field(default_factory=dict)  # what each site uses and why, in a sentence
    shared_forest: str = ""  # what the forest that they leave or keep is made of, in a sentence
    clusters: Mapping[str, list[str]] = field(default_factory=dict)  # of sites, by the one in their middle
    distances: Mapping[str, list[float]] = field(default_factory=dict)  # of each site from all of them

    @property
    def to_keep(self) -> dict[str, Forest]:
        """The forest for all sites under "", and by name those of sites that should use another."""
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
    """How much columns matter, and by column some values with the mean predictions at each, (values, outputs)."""

    permutation: dict[str, float] | None
    dependence: dict[str, tuple[list[Any], np.ndarray]]
