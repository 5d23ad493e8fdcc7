"""Learners of trees that each site grows on its own rows: local forests, and merged ones."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from silvan.algorithms.class_counts import asks_for_classes, balance_classes
from silvan.algorithms.evaluation.candidates import Named
from silvan.algorithms.evaluation.out_of_bag import asks_for_threshold
from silvan.algorithms.horizontal import merged_forest
from silvan.algorithms.keyed_rows import RowSamples
from silvan.algorithms.recount import CountLeafLabels, CountLeafRows
from silvan.algorithms.vertical.in_one_place import local_models
from silvan.data.schema import Schema
from silvan.errors import InputError
from silvan.federation.federation import Federation
from silvan.federation.message import Request
from silvan.learners.base import Learner
from silvan.learners.registry import LocalForestParameters, MergedForestParameters
from silvan.tree.fit import Settings


class LocalForest(LocalForestParameters, Learner):
    """Each site's own forest, on its own rows: what a site has without joining.

    A baseline, for federations in this process only. There is no global forest, so predictions name their site.

    Attributes
    ----------
    forest_
        None: there is no global forest.
    forests_
        Each site's own forest, by site.

    Examples
    --------
    >>> import silvan as sv
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> fed = sv.federate_rows({"north": (X[::2], y[::2]), "south": (X[1::2], y[1::2])})
    >>> model = sv.LocalForest(n_estimators=10).fit(fed)
    >>> sorted(model.forests_), model.rounds_
    (['north', 'south'], 0)
    >>> model.predict(X[:2], site="north")
    array([0, 0])
    """

    def grow(self, federation: Federation, settings: Settings, feature_key: np.ndarray) -> None:
        """Grow the forest."""
        if not federation.local_sites:
            raise InputError("LocalForest shows every site's forest: a federation in this process is needed")
        self.forest_ = None
        self.forests_ = local_models(federation, self.schema_, settings, feature_key)


class MergedForest(MergedForestParameters, Learner):
    """Sites' own trees put together: one round, and only trees travel.

    Attributes
    ----------
    forest_
        The merged forest, a ``Forest``.

    Examples
    --------
    >>> import silvan as sv
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> fed = sv.federate_rows({"north": (X[::3], y[::3]), "south": (X[1::3], y[1::3]), "west": (X[2::3], y[2::3])})
    >>> model = sv.MergedForest(n_estimators=12).fit(fed)
    >>> model.rounds_, len(model.forest_)
    (1, 12)
    >>> bool((model.predict(X) == y).mean() > 0.9)
    True
    """

    sends_trees: ClassVar[bool] = True
    chooses_threshold: ClassVar[bool] = True

    @property
    def expected_rounds(self) -> int | None:
        """The most rounds that training can take, where that is known before."""
        more = (self.class_weight == "balanced") + isinstance(self.threshold, str)
        return 1 + 2 * bool(self.recount) + more

    def asks(self, schema: Schema) -> tuple[type[Request], ...]:
        """Return the kinds of messages that fitting may ask of sites."""
        counted = (CountLeafRows, CountLeafLabels) if self.recount else ()
        chosen = asks_for_threshold(self.threshold)
        return (*asks_for_classes(self.class_weight), merged_forest.GrowTrees, *counted, *chosen)

    def draws(self, federation: Federation, candidates: Sequence[Named]) -> dict[str, RowSamples]:
        """Return which rows the trees of models drew; not known where a site was lost on the way."""
        found = super().draws(federation, candidates)
        influence = merged_forest.Influence(self.weights, self.equal, self.max_trees)
        n_trees = influence.trees_by_site(self.n_estimators, federation.active, federation.rows)
        n_trees = {site: n for site, n in n_trees.items() if n}
        if self.forest_ is not None and sum(n_trees.values()) == len(self.forest_):
            recounted = bool(self.recount) and len(federation.active) > 1
            found[self.forest_.hash] = RowSamples(
                tuple(n_trees.values()), tuple(n_trees), self.row_sampling(), recounted
            )
        return found

    def grow(self, federation: Federation, settings: Settings, feature_key: np.ndarray) -> None:
        """Grow the forest."""
        merged_forest.check_influence(settings, self.equal, self.max_trees, self.recount)
        influence = merged_forest.Influence(self.weights, self.equal, self.max_trees, self.recount)
        settings = balance_classes(federation, self.schema_, settings)
        merged = merged_forest.fit(federation, self.schema_, settings, feature_key, influence)
        self.forest_ = replace(merged.forest, combine=settings.combine)
        self.forests_ = dict.fromkeys(federation.active, self.forest_)
