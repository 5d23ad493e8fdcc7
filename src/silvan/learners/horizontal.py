"""Learners over rows: trees grown on the rows of all sites (histogram, pooled) or of each site (merged, local)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from silvan.algorithms.class_counts import asks_for_classes, balance_classes
from silvan.algorithms.evaluation.candidates import Named
from silvan.algorithms.evaluation.evaluate import NO_TEST_ROWS
from silvan.algorithms.evaluation.evaluation import Evaluation
from silvan.algorithms.evaluation.out_of_bag import asks_for_threshold
from silvan.algorithms.horizontal import adaptive_forest, histogram_forest, merged_forest
from silvan.algorithms.horizontal.adaptive_forest import AdaptiveLeaves, AdaptiveLevel
from silvan.algorithms.keyed_rows import RowSamples
from silvan.algorithms.private import noisy_levels, noisy_rows, table_counts, tables
from silvan.algorithms.private.noisy_counts import Placing, Rounds, check_agreement, place
from silvan.algorithms.private.noisy_evaluation import CountByScoreWithNoise, evaluate_with_noise
from silvan.algorithms.refit_leaves import CountLeafLabels, CountLeafRows
from silvan.algorithms.shared_bins import CountFine, CountGrid
from silvan.data.schema import Schema
from silvan.errors import InputError
from silvan.federation.federation import Federation
from silvan.federation.message import Request
from silvan.forest.forest import Forest
from silvan.learners.base import Learner
from silvan.learners.federated_estimator import NO_EPSILON
from silvan.learners.in_one_place import local_models, pooled_forest
from silvan.learners.registry import (
    HistogramForestParameters,
    LocalForestParameters,
    MergedForestParameters,
    PooledForestParameters,
)
from silvan.privacy.announce import RequestPlan, announce
from silvan.privacy.noise.accounting import Privacy
from silvan.privacy.noise.laplace import check_epsilon
from silvan.tree.fit import Settings
from silvan.util.user_warnings import warn_user

_WITH_NOISE = (
    "to evaluate it within the privacy budget, pass evaluate(..., epsilon=...), or set epsilon in [evaluation] of the "
    "study"
)


class HistogramForest(HistogramForestParameters, Learner):
    """A forest grown from summed histograms, identical to the forest of the pooled rows.

    A level of all trees takes one round of messages, so ``max_depth`` is limited by default. With ``epsilon`` the
    forest is differentially private, and ``privacy_`` accounts for it (docs/privacy.md).

    Attributes
    ----------
    privacy_
        The account of the privacy budget; None without ``epsilon``.

    Examples
    --------
    >>> import silvan as sv
    >>> fed = sv.federate_rows(sv.datasets.heart_disease(), site="hospital", label="disease")
    >>> model = sv.HistogramForest(n_estimators=20, max_depth=4).fit(fed)
    >>> model.rounds_ <= 4 + 3
    True
    >>> model.forest_ == sv.PooledForest(n_estimators=20, max_depth=4).fit(fed).forest_
    True
    """

    chooses_threshold: ClassVar[bool] = True

    privacy_: Privacy | None = None

    @property
    def expected_rounds(self) -> int | None:
        """The maximum number of training rounds, if known in advance."""
        return None if self.max_depth is None else int(self.max_depth) + 2 + self.rounds_to_trust

    def check(self) -> None:
        """Raise ``InputError`` for invalid parameters, before any request."""
        super().check()
        if self.epsilon is not None and self.vote == "hard":
            raise InputError.about("vote", "must be 'soft' with epsilon: noisy leaves are averaged, not counted")
        if self.monotonic_cst is not None and (self.epsilon is not None or self.bins != "shared"):
            raise InputError.about(
                "monotonic_cst", "is for bins='shared' without epsilon: order cannot be kept with inexact sums"
            )

    def draws(self, federation: Federation, candidates: Sequence[Named]) -> dict[str, RowSamples]:
        """Return which rows the trees of models sampled; unknown for a private forest."""
        found = super().draws(federation, candidates)
        if self.epsilon is None and self.forest_ is not None:
            found[self.forest_.hash] = RowSamples((len(self.forest_),), bootstrap=self.row_sampling())
        return found

    def grow(self, federation: Federation, settings: Settings, feature_key: np.ndarray) -> None:
        """Grow the forest."""
        if self.epsilon is not None:
            self.forest_, self.privacy_ = self._grow_private(federation, settings, feature_key, self.epsilon)
        else:
            algorithm = histogram_forest if self.bins == "shared" else adaptive_forest
            self.forest_, self.privacy_ = algorithm.fit(federation, self.schema_, settings, feature_key), None
        self.forests_ = dict.fromkeys(federation.active, self.forest_)

    def asks(self, schema: Schema) -> tuple[type[Request], ...]:
        """Return the requests that fitting may make."""
        if self.epsilon is not None:
            return self._private_kinds(schema)
        if self.bins == "shared":
            return CountGrid, CountFine, *histogram_forest.asks(schema), *asks_for_threshold(self.threshold)
        return AdaptiveLevel, AdaptiveLeaves, *asks_for_threshold(self.threshold)

    def _private_kinds(self, schema: Schema) -> tuple[type[Request], ...]:
        """Return the requests of a private forest; some are made only if there are enough rows."""
        if self.private != "tables":
            return (noisy_levels.NoisyLevel if self.private == "levels" else noisy_rows.DisguisedLevel,)
        people = () if self.n_rows is not None else (table_counts.CountPeople,)
        last = (table_counts.CountScores,) if schema.n_classes else (table_counts.SumTargets, table_counts.SumSlopes)
        return (*people, table_counts.CountColumns, table_counts.CountTables, *last)

    def request_plan(self, federation: Federation) -> RequestPlan:
        """Return the requests of fitting; raise ``InputError`` if no private forest can be fitted."""
        request_plan = super().request_plan(federation)
        if self.epsilon is None:
            return request_plan
        if federation.schema.label.event is not None:
            raise InputError.about("epsilon", "is not for survival: times at leaves have no noise yet; leave it out")
        check_epsilon(self.epsilon)
        check_agreement(federation)
        sharers = 1 if self.private == "input" else self._placing(federation).sharers
        return replace(request_plan, epsilon=float(self.epsilon), sharers=sharers, min_leaf=None)

    def _placing(self, federation: Federation) -> Placing:
        return place(federation, self.noise, self.tolerate)

    def evaluation_plan(
        self, federation: Federation, by: Sequence[str] = (), epsilon: float | None = None
    ) -> RequestPlan:
        """Return the requests of ``evaluate``, with noise if ``epsilon`` is given."""
        request_plan = super().evaluation_plan(federation, by)
        if epsilon is None:
            return request_plan if self.epsilon is None else replace(request_plan, hint=_WITH_NOISE)
        check_epsilon(epsilon)
        if self.epsilon is None:
            raise InputError.about("epsilon", NO_EPSILON)
        sharers = self._placing(federation).sharers
        models = 2  # the model that training scored rows by, and the forest
        kinds = (CountByScoreWithNoise,)
        return replace(request_plan, kinds=kinds, epsilon=float(epsilon), sharers=sharers, models=models)

    def _grow_private(
        self, federation: Federation, settings: Settings, key: np.ndarray, epsilon: float
    ) -> tuple[Forest, Privacy]:
        if self.bins != "shared":
            raise InputError.about("bins", "must be 'shared' with epsilon: adaptive bins reveal values of rows")
        if not all(site.samples_singly for site in federation.local_sites.values()):
            warn_user(
                "test rows were sampled by class, so that one more row moves others, which epsilon does not cover; "
                "with a given schema and test_by='row' it covers everything"
            )
        rounds = Rounds(federation, federation.schema, epsilon, self._placing(federation))
        if self.private == "tables":
            return tables.fit(rounds, key, self.n_rows), rounds.account()
        if self.private == "levels":
            return noisy_levels.fit(rounds, settings, key, self.n_rows), rounds.account()
        if self.noise is not None:
            raise InputError.about("noise", "is for sums; private='input' always adds noise to rows at their site")
        return noisy_rows.fit(rounds, settings, key)

    @property
    def is_private(self) -> bool:
        """Whether the model is differentially private."""
        return self.epsilon is not None

    def evaluation_with_noise(
        self, federation: Federation, table: Any, epsilon: float, by: Sequence[str]
    ) -> Evaluation:
        """Evaluate a private forest on test rows, at a cost to the sites' privacy budgets."""
        if by:
            raise InputError.about("by", "is for exact metrics; leave it or epsilon out")
        if table is not None:
            raise InputError.about("epsilon", "is for the sites' test rows; leave it out to evaluate on a table")
        forest = self._forest_for(None)
        if federation.local_sites and not any(site.test for site in federation.local_sites.values()):
            raise InputError(NO_TEST_ROWS)
        with self.held_to_text(federation, epsilon=epsilon):
            announce(federation, self.evaluation_plan(federation, epsilon=epsilon))
            with federation.working_on(f"evaluating {type(self).__name__}"):
                found = evaluate_with_noise(federation, self.schema_, forest, epsilon, self._placing(federation))
        self.evaluation_privacy_ = found.privacy
        return found


class PooledForest(PooledForestParameters, HistogramForest):
    """The forest of all sites' rows in one place: a baseline, for federations in this process only.

    It takes the parameters of a ``HistogramForest``, so that the two can be compared.

    Examples
    --------
    >>> import silvan as sv
    >>> fed = sv.federate_rows(sv.datasets.heart_disease(), site="hospital", label="disease")
    >>> model = sv.PooledForest(n_estimators=10).fit(fed)
    >>> model.rounds_, len(model.forest_)
    (0, 10)
    >>> model.predict(sv.datasets.heart_disease()[:2])
    array([0, 1])
    """

    chooses_threshold: ClassVar[bool] = False

    def asks(self, schema: Schema) -> tuple[type[Request], ...]:
        """Return nothing: there are no requests."""
        return ()

    def grow(self, federation: Federation, settings: Settings, feature_key: np.ndarray) -> None:
        """Grow the forest."""
        if not federation.local_sites:
            raise InputError("PooledForest needs all rows in one place: a federation in this process")
        self.forest_ = pooled_forest(federation, self.schema_, settings, feature_key)
        self.forests_ = dict.fromkeys(federation.active, self.forest_)


# -- local trees
class LocalForest(LocalForestParameters, Learner):
    """A local forest at each site: what a site has without joining.

    A baseline, for federations in this process only. There is no global forest, so predictions need ``site=``.

    Attributes
    ----------
    forest_
        None: there is no global forest.
    forests_
        Each site's local forest, by site.

    Examples
    --------
    >>> import silvan as sv
    >>> fed = sv.federate_rows(sv.datasets.heart_disease(), site="hospital", label="disease")
    >>> model = sv.LocalForest(n_estimators=10).fit(fed)
    >>> sorted(model.forests_), model.rounds_
    (['Cleveland', 'Hungarian', 'Switzerland', 'VA'], 0)
    >>> model.predict(sv.datasets.heart_disease()[:2], site="VA")
    array([1, 1])
    """

    def grow(self, federation: Federation, settings: Settings, feature_key: np.ndarray) -> None:
        """Grow the forest."""
        if not federation.local_sites:
            raise InputError("LocalForest needs a federation in this process, because it shows every site's forest")
        self.forest_ = None
        self.forests_ = local_models(federation, self.schema_, settings, feature_key)


class MergedForest(MergedForestParameters, Learner):
    """A forest of all sites' local trees: one round, and only trees travel.

    Attributes
    ----------
    forest_
        The merged forest, a ``Forest``.

    Examples
    --------
    >>> import silvan as sv
    >>> fed = sv.federate_rows(sv.datasets.heart_disease(), site="hospital", label="disease")
    >>> model = sv.MergedForest(n_estimators=12).fit(fed)
    >>> model.rounds_, len(model.forest_)
    (1, 12)
    >>> model.predict(sv.datasets.heart_disease()[:2])
    array([1, 1])
    """

    sends_trees: ClassVar[bool] = True
    chooses_threshold: ClassVar[bool] = True

    @property
    def expected_rounds(self) -> int | None:
        """The maximum number of training rounds, if known in advance."""
        more = (self.class_weight == "balanced") + self.rounds_to_trust
        return 1 + 2 * bool(self.refit_leaves) + more

    def asks(self, schema: Schema) -> tuple[type[Request], ...]:
        """Return the requests that fitting may make."""
        counted = (CountLeafRows, CountLeafLabels) if self.refit_leaves else ()
        chosen = asks_for_threshold(self.threshold)
        return (*asks_for_classes(self.class_weight), merged_forest.GrowTrees, *counted, *chosen)

    def draws(self, federation: Federation, candidates: Sequence[Named]) -> dict[str, RowSamples]:
        """Return which rows the trees of models sampled; unknown if a site was lost on the way."""
        found = super().draws(federation, candidates)
        influence = merged_forest.Influence(self.weights, self.equal, self.max_trees)
        n_trees = influence.trees_by_site(self.n_estimators, federation.active, federation.rows)
        n_trees = {site: n for site, n in n_trees.items() if n}
        if self.forest_ is not None and sum(n_trees.values()) == len(self.forest_):
            refitted = bool(self.refit_leaves) and len(federation.active) > 1
            found[self.forest_.hash] = RowSamples(
                tuple(n_trees.values()), tuple(n_trees), self.row_sampling(), refitted
            )
        return found

    def grow(self, federation: Federation, settings: Settings, feature_key: np.ndarray) -> None:
        """Grow the forest."""
        merged_forest.limit_trees(settings, self.max_trees, self.refit_leaves)
        influence = merged_forest.Influence(self.weights, self.equal, self.max_trees, self.refit_leaves)
        settings = balance_classes(federation, self.schema_, settings)
        merged = merged_forest.fit(federation, self.schema_, settings, feature_key, influence)
        self.forest_ = replace(merged.forest, combine=settings.combine)
        self.forests_ = dict.fromkeys(federation.active, self.forest_)
