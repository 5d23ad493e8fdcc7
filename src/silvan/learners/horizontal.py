"""Learners that grow each tree on the rows of all sites: histogram forests, and pooled ones to compare with."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from silvan.algorithms.baselines.in_one_place import (
    pooled_rows,
)
from silvan.algorithms.baselines.pooled_forest import pooled_forest
from silvan.algorithms.evaluation.chosen_threshold import asks_for_threshold
from silvan.algorithms.evaluation.evaluate import NO_TEST_ROWS
from silvan.algorithms.evaluation.figures import Row
from silvan.algorithms.evaluation.noisy_tally import NoisyTally, evaluate_with_noise
from silvan.algorithms.evaluation.site_thresholds import Draws
from silvan.algorithms.horizontal import adaptive_forest, histogram_forest
from silvan.algorithms.horizontal.adaptive_messages import AdaptiveLeaves, AdaptiveLevel
from silvan.algorithms.private.forms import check_private, fit_private, private_kinds
from silvan.algorithms.private.noisy_rounds import Placing, place
from silvan.algorithms.shared.shared_bins import CountFine, CountGrid
from silvan.data.schema import Schema
from silvan.errors import InputError
from silvan.federation.federation import Federation
from silvan.federation.message import Request
from silvan.learners.base import Learner
from silvan.learners.evaluation import figures_frame
from silvan.learners.parameter_docs import write_shared_entries
from silvan.privacy.gate.announce import Questions, announce
from silvan.privacy.noise.accounting import Privacy
from silvan.privacy.noise.laplace import check_epsilon
from silvan.tree.draw import rows_of_trees
from silvan.tree.fit import Settings
from silvan.util.user_warnings import warn_user

if TYPE_CHECKING:
    import polars as pl

_WITH_NOISE = (
    "to be judged at an accounted cost, pass evaluate(..., epsilon=...), or set epsilon in [evaluation] of a study"
)


@write_shared_entries
@dataclass(repr=False, eq=False)
class HistogramForest(Learner):
    """A forest grown from summed histograms: exactly the one that all rows in one place would give.

    A level of all trees takes one round of messages, so ``max_depth`` is limited by default. With ``epsilon`` the
    forest is differentially private, and ``privacy_`` accounts for it (docs/privacy.md).

    Parameters
    ----------
    n_estimators
        Number of trees.
    %(forest_parameters)s
    %(vote_parameter)s
    bins
        "shared": all sites count rows in the same bins, and only sums of counts are used. "adaptive": each site sends
        bins of its own with their means, as published; a site's policy must allow its message "AdaptiveLevel".
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
        With noise on the total: how many sites may be lost or collude, together, without spoiling the promise. None:
        one, since every site knows its own share of the noise, and as many as the quorum lets be lost. Sites insist on
        as many as their policies reckon with to collude (one), whoever is lost.

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

    max_depth: int | None = 10
    vote: str = "soft"
    bins: str = "shared"
    epsilon: float | None = None
    private: str = "tables"
    noise: str | None = None
    n_rows: int | None = None
    tolerate: int | None = None

    @property
    def expected_rounds(self) -> int | None:
        """The most rounds that training can take, where that is known before."""
        return None if self.max_depth is None else int(self.max_depth) + 2 + isinstance(self.threshold, str)

    def check(self) -> None:
        """Raise ``InputError`` for parameters that make no sense, before any site is asked."""
        super().check()
        if self.epsilon is not None and self.vote == "hard":
            raise InputError("vote must be 'soft' with epsilon: noisy leaves are averaged, not counted")
        if self.monotonic_cst is not None and (self.epsilon is not None or self.bins != "shared"):
            raise InputError("monotonic_cst is for bins='shared' and no epsilon: sums that are not exact tell no order")

    def drawn_rows(self, federation: Federation) -> np.ndarray | None:
        """Return which rows each tree drew; None for a private forest."""
        if self.epsilon is not None or self.forest_ is None:
            return None
        rows, key = pooled_rows(federation, self.schema_)
        return rows_of_trees(key, rows.row_keys, 0, len(self.forest_), self.row_draw())

    def draws(self, federation: Federation, contenders: list[tuple[str, object]]) -> dict[str, Draws]:
        """Return which rows the trees of models drew; those of a private forest are not known."""
        found = super().draws(federation, contenders)
        if self.epsilon is None and self.forest_ is not None:
            found[self.forest_.hash] = Draws((len(self.forest_),), bootstrap=self.row_draw())
        return found

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

    def asks(self, schema: Schema) -> tuple[type[Request], ...]:
        """Return the kinds of messages that fitting may ask of sites."""
        if self.epsilon is not None:
            return private_kinds(schema, self.private, self.n_rows)
        if self.bins == "shared":
            return CountGrid, CountFine, histogram_forest.GrowLevel, *asks_for_threshold(self.threshold)
        return AdaptiveLevel, AdaptiveLeaves, *asks_for_threshold(self.threshold)

    def questions(self, federation: Federation) -> Questions:
        """Return what fitting asks of sites; raise ``InputError`` where no private forest can be fitted."""
        questions = super().questions(federation)
        if self.epsilon is None:
            return questions
        check_epsilon(self.epsilon)
        check_private(federation, self.private, self.n_rows)
        sharers = 1 if self.private == "input" else self._placing(federation).sharers
        return replace(questions, epsilon=float(self.epsilon), sharers=sharers, min_leaf=None)

    def _placing(self, federation: Federation) -> Placing:
        return place(federation, self.noise, self.tolerate)

    def questions_of_judging(self, federation: Federation, epsilon: float | None = None) -> Questions:
        """Return what ``evaluate`` asks of sites, with noise for ``epsilon`` or, if None, without."""
        questions = super().questions_of_judging(federation)
        if epsilon is None:
            return questions if self.epsilon is None else replace(questions, hint=_WITH_NOISE)
        check_epsilon(epsilon)
        if self.epsilon is None:
            raise InputError(
                "epsilon of evaluate is for a forest that was fitted with epsilon: noise on figures hides the rows "
                "judged by, not those that the forest tells of"
            )
        sharers = self._placing(federation).sharers
        return replace(questions, kinds=(NoisyTally,), epsilon=float(epsilon), sharers=sharers, models=0)

    def _train_private(self, federation: Federation, settings: Settings, key: np.ndarray, epsilon: float) -> None:
        if self.bins != "shared":
            raise InputError("bins must be 'shared' with epsilon: adaptive bins show values of rows")
        if not all(site.draws_singly for site in federation.local_sites.values()):
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

    def evaluate(
        self, federation: Federation, table: Any = None, epsilon: float | None = None, *, by: Sequence[str] = ()
    ) -> "pl.DataFrame":
        """Compare the model as every learner does; a private one may be judged with noise.

        Parameters
        ----------
        federation
            The federation that the model was fitted on, made with test rows (``test=0.2``).
        table
            A table with the label to score every model on, in place of the test rows; in one process only.
        epsilon
            How much the figures may tell of a test row; charged to the sites' budgets. Then there is one line, for all
            sites together: the number of rows has noise, and each figure has a 95 % interval, noise included. None:
            figures are exact, and a site with a privacy budget refuses them.
        by
            Columns of categories, whose subgroups have lines of their own; not with ``epsilon``.

        Returns
        -------
        polars.DataFrame
            A line for each site and model, and for all sites together. The column ``guarantee`` of a model with
            ``epsilon`` says what covers the figures: "outside" for nothing.
        """
        if self.epsilon is None and epsilon is None:
            return super().evaluate(federation, table, by=by)
        import polars as pl

        if epsilon is not None:
            if by:
                raise InputError("by is for exact figures; leave it or epsilon out")
            if table is not None:
                raise InputError("epsilon is for the sites' test rows; leave it out to judge on a table of your own")
            frame, covered = figures_frame([self.judge_with_noise(federation, epsilon)]), f"epsilon {epsilon:g}"
        else:
            if table is None:
                announce(federation, self.questions_of_judging(federation))
            frame, covered = super().evaluate(federation, table, by=by), "outside"
        return frame.with_columns(pl.lit(covered).alias("guarantee"))

    def judge_with_noise(self, federation: Federation, epsilon: float) -> Row:
        """Return figures of the model over all sites' test rows, with noise; ``judging_privacy_`` accounts for them."""
        forest = self._forest_for(None)
        if federation.local_sites and not any(site.test for site in federation.local_sites.values()):
            raise InputError(NO_TEST_ROWS)
        announce(federation, self.questions_of_judging(federation, epsilon))
        with federation.working_on(f"judging {type(self).__name__}"):
            row, self.judging_privacy_ = evaluate_with_noise(
                federation, self.schema_, forest, epsilon, self._placing(federation)
            )
        self.counts_ = None
        return row


@write_shared_entries
@dataclass(repr=False, eq=False)
class PooledForest(HistogramForest):
    """The forest of all sites' rows in one place: a baseline, for federations in this process only.

    It takes the parameters of a ``HistogramForest``, so that one can be compared with the other.

    Parameters
    ----------
    n_estimators
        Number of trees.
    %(forest_parameters)s
    %(vote_parameter)s
    epsilon
        Must be None: the baseline has no noise.
    bins, private, noise, n_rows, tolerate
        Not used; parameters of a ``HistogramForest``.

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
        if self.epsilon is not None:
            raise InputError("PooledForest is a baseline without noise; epsilon is for HistogramForest")
        self.forest_ = pooled_forest(federation, self.schema_, settings, feature_key)
        self.forests_ = dict.fromkeys(federation.active, self.forest_)
