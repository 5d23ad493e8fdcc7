"""Forests grown across sites, and the two baselines: pooled rows, and each site alone."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from silvan.algorithms.baselines.in_one_place import alone, alone_at
from silvan.algorithms.baselines.pooled_forest import pooled_forest
from silvan.algorithms.horizontal import adaptive_forest, histogram_forest, merged_forest
from silvan.algorithms.private.forms import fit_private
from silvan.algorithms.shared.admission import warn_refused
from silvan.errors import InputError
from silvan.federation.federation import Federation
from silvan.learners.base import Learner
from silvan.privacy.noise.accounting import Privacy
from silvan.tree.fit import Settings

if TYPE_CHECKING:
    import polars as pl


@dataclass(repr=False, eq=False)
class HistogramForest(Learner):
    """A forest grown from summed histograms: exactly the one that all rows in one place would give.

    Parameters are those of ``ForestClassifier`` (``criterion`` None: gini or squared error, as the label is), with
    ``max_depth=10`` by default, since a level is a round.

    With ``epsilon`` the forest is differentially private, and ``privacy_`` accounts for it (docs/privacy.md).

    Parameters
    ----------
    epsilon
        How much all answers together may tell of a row; None for no such promise.
    private
        "tables": small tables of a few noisy counts, the most accurate; most parameters of forests mean nothing to it.
        "levels": noise on the histograms of every level, as published. "input": noise on the rows, as published.
    noise
        "total": once, on the sum over sites; "site": at every site. None: "total" where sums hide their parts.
    n_rows
        The number of rows to learn from, if it is public; None: counted with noise, for a part of epsilon.
    tolerate
        With noise on the total: how many sites may be lost, or collude, without spoiling the promise. None: one,
        since every site knows its own share of the noise.

    Examples
    --------
    >>> import silvan as sv
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> fed = sv.federate_rows({"north": (X[::2], y[::2]), "south": (X[1::2], y[1::2])})
    >>> model = sv.HistogramForest(n_estimators=20, max_depth=4).fit(fed)
    >>> model.rounds_ <= 4 + 3
    True
    >>> model.forest_ == sv.PooledForest(n_estimators=20, max_depth=4).fit(fed).forest_
    True
    """

    max_depth: int | None = 10
    bins: str = "shared"
    epsilon: float | None = None
    private: str = "tables"
    noise: str | None = None
    n_rows: int | None = None
    tolerate: int | None = None

    @property
    def expected_rounds(self) -> int | None:
        """The most rounds that training can take, where that is known before."""
        return None if self.max_depth is None else int(self.max_depth) + 2

    def grow(self, federation: Federation, settings: Settings, feature_key: np.ndarray) -> None:
        """Grow the forest."""
        self.privacy_: Privacy | None = None
        if self.epsilon is not None:
            self._train_private(federation, settings, feature_key, self.epsilon)
            return
        if self.bins not in ("shared", "adaptive"):
            raise InputError(f"bins must be 'shared' or 'adaptive', got {self.bins!r}")
        algorithm = histogram_forest if self.bins == "shared" else adaptive_forest
        self.forest_ = algorithm.fit(federation, self.schema_, settings, feature_key)
        self.forests_ = dict.fromkeys(federation.active, self.forest_)

    def _train_private(self, federation: Federation, settings: Settings, key: np.ndarray, epsilon: float) -> None:
        if self.bins != "shared":
            raise InputError("bins must be 'shared' with epsilon: adaptive bins show values of rows")
        self.forest_, self.privacy_ = fit_private(
            federation,
            settings,
            key,
            epsilon=epsilon,
            form=self.private,
            noise=self.noise,
            n_rows=self.n_rows,
            tolerate=self.tolerate,
        )
        self.forests_ = dict.fromkeys(federation.active, self.forest_)

    def evaluate(self, federation: Federation, table: Any = None) -> "pl.DataFrame":
        """Judge the model as every learner does; of a private one, a column says that figures are not covered."""
        figures = super().evaluate(federation, table)
        if self.epsilon is None:
            return figures
        import polars as pl

        return figures.with_columns(pl.lit("outside").alias("guarantee"))


@dataclass(repr=False, eq=False)
class PooledForest(HistogramForest):
    """The forest of all sites' rows in one place: a baseline, for federations in this process only."""

    def grow(self, federation: Federation, settings: Settings, feature_key: np.ndarray) -> None:
        """Grow the forest."""
        if not federation.local_sites:
            raise InputError("PooledForest needs all rows in one place: a federation in this process")
        if self.epsilon is not None:
            raise InputError("PooledForest is a baseline without noise; epsilon is for HistogramForest")
        self.forest_ = pooled_forest(federation, self.schema_, settings, feature_key)
        self.forests_ = dict.fromkeys(federation.active, self.forest_)


@dataclass(repr=False, eq=False)
class LocalForest(Learner):
    """Each site's own forest, on its own rows: what a site has without joining."""

    def grow(self, federation: Federation, settings: Settings, feature_key: np.ndarray) -> None:
        """Grow the forest."""
        if not federation.local_sites:
            raise InputError("LocalForest shows every site's forest: a federation in this process is needed")
        self.forest_ = None
        self.forests_ = {
            site: merged_forest.local_forest(
                *alone(federation, site, self.schema_), settings, feature_key, settings.n_estimators
            )
            for site in alone_at(federation)
        }


@dataclass(repr=False, eq=False)
class MergedForest(Learner):
    """Sites' own trees put together: one round, and only trees travel.

    ``weights``: None for as many trees from every site; "trees" for as many as its share of rows; "votes" for equally
    many, each with a say in proportion to its site's rows.

    ``equal``: every site's trees have the same say together, whatever a site claims. ``max_trees``: the most that are
    taken from a site. ``admission``: every site looks at the others' trees and refuses poor and odd ones, which takes a
    round more; ``refused_`` says how many, by site, whose they are, and why.
    """

    weights: merged_forest.Weights | None = None
    equal: bool = False
    max_trees: int | None = None
    admission: bool = False

    @property
    def expected_rounds(self) -> int | None:
        """The most rounds that training can take, where that is known before."""
        return 1

    def grow(self, federation: Federation, settings: Settings, feature_key: np.ndarray) -> None:
        """Grow the forest."""
        merged_forest.check_influence(settings, self.equal, self.max_trees, self.admission)
        influence = merged_forest.Influence(self.weights, self.equal, self.max_trees, self.admission)
        merged = merged_forest.fit(federation, self.schema_, settings, feature_key, influence)
        self.forest_ = merged.forest()
        self.forests_ = dict.fromkeys(federation.active, self.forest_)
        self.refused_: dict[str, dict[str, dict[str, int]]] = {}
        if merged.refusals is not None:
            self.refused_ = merged.refusals.counted()
            warn_refused(merged.refusals)
            self.forests_ |= {site: merged.forest(site) for site in self.refused_}

    def _federated(self) -> object:
        shared = super()._federated()
        alike = all(forest is self.forest_ for forest in self.forests_.values())
        return shared if alike else self.forests_
