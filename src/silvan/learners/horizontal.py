"""Learners that grow each tree on the rows of all sites: histogram forests, and pooled ones to compare with."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from silvan.algorithms.evaluation.candidates import Named
from silvan.algorithms.evaluation.evaluate import NO_TEST_ROWS
from silvan.algorithms.evaluation.evaluation import Evaluation
from silvan.algorithms.evaluation.out_of_bag import asks_for_threshold
from silvan.algorithms.horizontal import adaptive_forest, histogram_forest
from silvan.algorithms.horizontal.adaptive_forest import AdaptiveLeaves, AdaptiveLevel
from silvan.algorithms.horizontal.pooled_forest import pooled_forest
from silvan.algorithms.keyed_rows import RowSamples
from silvan.algorithms.private.forms import check_private, fit_private, private_kinds
from silvan.algorithms.private.noisy_counts import Placing, place
from silvan.algorithms.private.noisy_evaluation import CountByScoreWithNoise, evaluate_with_noise
from silvan.algorithms.shared_bins import CountFine, CountGrid
from silvan.data.schema import Schema
from silvan.errors import InputError
from silvan.federation.federation import Federation
from silvan.federation.message import Request
from silvan.learners.base import Learner
from silvan.learners.federated_estimator import NO_EPSILON
from silvan.learners.parameters import HistogramForestParameters, PooledForestParameters
from silvan.privacy.announce import RequestPlan, announce
from silvan.privacy.noise.accounting import Privacy
from silvan.privacy.noise.laplace import check_epsilon
from silvan.tree.fit import Settings
from silvan.util.user_warnings import warn_user

_WITH_NOISE = (
    "to be judged at an accounted cost, pass evaluate(..., epsilon=...), or set epsilon in [evaluation] of a study"
)


class HistogramForest(HistogramForestParameters, Learner):
    """A forest grown from summed histograms: exactly the one that all rows in one place would give.

    A level of all trees takes one round of messages, so ``max_depth`` is limited by default. With ``epsilon`` the
    forest is differentially private, and ``privacy_`` accounts for it (docs/privacy.md).

    Parameters
    ----------
    %(parameters)s

    Attributes
    ----------
    forest_
        The forest, a ``Forest``.
    forests_
        The forest that each site should use, by site: the same for all.
    privacy_
        The account of the privacy budget; None without ``epsilon``.
    %(fit_attributes)s

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

    chooses_threshold: ClassVar[bool] = True

    @property
    def expected_rounds(self) -> int | None:
        """The most rounds that training can take, where that is known before."""
        return None if self.max_depth is None else int(self.max_depth) + 2 + isinstance(self.threshold, str)

    def check(self) -> None:
        """Raise ``InputError`` for parameters that make no sense, before any site is asked."""
        super().check()
        if self.epsilon is not None and self.vote == "hard":
            raise InputError.about("vote", "must be 'soft' with epsilon: noisy leaves are averaged, not counted")
        if self.monotonic_cst is not None and (self.epsilon is not None or self.bins != "shared"):
            raise InputError.about(
                "monotonic_cst", "is for bins='shared' and no epsilon: sums that are not exact tell no order"
            )

    def draws(self, federation: Federation, candidates: Sequence[Named]) -> dict[str, RowSamples]:
        """Return which rows the trees of models drew; those of a private forest are not known."""
        found = super().draws(federation, candidates)
        if self.epsilon is None and self.forest_ is not None:
            found[self.forest_.hash] = RowSamples((len(self.forest_),), bootstrap=self.row_sampling())
        return found

    def grow(self, federation: Federation, settings: Settings, feature_key: np.ndarray) -> None:
        """Grow the forest."""
        self.privacy_: Privacy | None = None
        if self.epsilon is not None:
            self._train_private(federation, settings, feature_key, self.epsilon)
            return
        algorithm = histogram_forest if self.bins == "shared" else adaptive_forest
        self.forest_ = algorithm.fit(federation, self.schema_, settings, feature_key)
        self.forests_ = dict.fromkeys(federation.active, self.forest_)

    def asks(self, schema: Schema) -> tuple[type[Request], ...]:
        """Return the kinds of messages that fitting may ask of sites."""
        if self.epsilon is not None:
            return private_kinds(schema, self.private, self.n_rows)
        if self.bins == "shared":
            return CountGrid, CountFine, histogram_forest.GrowLevel, *asks_for_threshold(self.threshold)
        return AdaptiveLevel, AdaptiveLeaves, *asks_for_threshold(self.threshold)

    def request_plan(self, federation: Federation) -> RequestPlan:
        """Return what fitting asks of sites; raise ``InputError`` where no private forest can be fitted."""
        request_plan = super().request_plan(federation)
        if self.epsilon is None:
            return request_plan
        check_epsilon(self.epsilon)
        check_private(federation, self.private, self.n_rows)
        sharers = 1 if self.private == "input" else self._placing(federation).sharers
        return replace(request_plan, epsilon=float(self.epsilon), sharers=sharers, min_leaf=None)

    def _placing(self, federation: Federation) -> Placing:
        return place(federation, self.noise, self.tolerate)

    def evaluation_plan(
        self, federation: Federation, by: Sequence[str] = (), epsilon: float | None = None
    ) -> RequestPlan:
        """Return what ``evaluate`` asks of sites, with noise for ``epsilon`` or, if None, without."""
        request_plan = super().evaluation_plan(federation, by)
        if epsilon is None:
            return request_plan if self.epsilon is None else replace(request_plan, hint=_WITH_NOISE)
        check_epsilon(epsilon)
        if self.epsilon is None:
            raise InputError.about("epsilon", NO_EPSILON)
        sharers = self._placing(federation).sharers
        models = 2  # what training asked for scores by, and the forest
        kinds = (CountByScoreWithNoise,)
        return replace(request_plan, kinds=kinds, epsilon=float(epsilon), sharers=sharers, models=models)

    def _train_private(self, federation: Federation, settings: Settings, key: np.ndarray, epsilon: float) -> None:
        if self.bins != "shared":
            raise InputError.about("bins", "must be 'shared' with epsilon: adaptive bins show values of rows")
        if not all(site.samples_singly for site in federation.local_sites.values()):
            warn_user(
                "the rows kept for judging were drawn by class, so one row more moves others, and epsilon does not "
                "cover that; it covers all with a given schema and test_by='row'"
            )
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

    @property
    def is_private(self) -> bool:
        """Whether the model is differentially private."""
        return self.epsilon is not None

    def evaluation(
        self,
        federation: Federation,
        table: Any = None,
        *,
        candidates: Sequence[Named] | None = None,
        epsilon: float | None = None,
        by: Sequence[str] = (),
    ) -> Evaluation:
        """Evaluate the model as every learner does; a private one may be evaluated with noise."""
        if epsilon is None:
            if self.is_private and table is None and candidates is None:
                announce(federation, self.evaluation_plan(federation))
            found = super().evaluation(federation, table, candidates=candidates, by=by)
            return replace(found, guarantee="outside") if self.is_private else found
        if by:
            raise InputError.about("by", "is for exact figures; leave it or epsilon out")
        if table is not None:
            raise InputError.about(
                "epsilon", "is for the sites' test rows; leave it out to judge on a table of your own"
            )
        forest = self._forest_for(None)
        if federation.local_sites and not any(site.test for site in federation.local_sites.values()):
            raise InputError(NO_TEST_ROWS)
        with self.held_to_text(federation, epsilon=epsilon):
            announce(federation, self.evaluation_plan(federation, epsilon=epsilon))
            with federation.working_on(f"judging {type(self).__name__}"):
                found = evaluate_with_noise(federation, self.schema_, forest, epsilon, self._placing(federation))
        self.judging_privacy_ = found.privacy
        return found


class PooledForest(PooledForestParameters, HistogramForest):
    """The forest of all sites' rows in one place: a baseline, for federations in this process only.

    It takes the parameters of a ``HistogramForest``, so that one can be compared with the other.

    Parameters
    ----------
    %(parameters)s

    Attributes
    ----------
    forest_
        The forest, a ``Forest``.
    forests_
        The forest of each site, by site: the same for all.
    %(fit_attributes)s

    Examples
    --------
    >>> import silvan as sv
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> fed = sv.federate_rows({"north": (X[::2], y[::2]), "south": (X[1::2], y[1::2])})
    >>> model = sv.PooledForest(n_estimators=10).fit(fed)
    >>> model.rounds_, len(model.forest_)
    (0, 10)
    >>> model.predict(X[:2])
    array([0, 0])
    """

    chooses_threshold: ClassVar[bool] = False

    def asks(self, schema: Schema) -> tuple[type[Request], ...]:
        """Return no kinds of messages: nothing is asked."""
        return ()

    def grow(self, federation: Federation, settings: Settings, feature_key: np.ndarray) -> None:
        """Grow the forest."""
        if not federation.local_sites:
            raise InputError("PooledForest needs all rows in one place: a federation in this process")
        self.forest_ = pooled_forest(federation, self.schema_, settings, feature_key)
        self.forests_ = dict.fromkeys(federation.active, self.forest_)
