"""The base of learners with forests: parameters, training, ``predict`` and evaluation."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.metrics import accuracy_score, r2_score

from silvan.algorithms.boosting.stumps import Boosting
from silvan.algorithms.evaluation.candidates import (
    NO_THRESHOLDS,
    AdjustedForest,
    Models,
    Named,
    Thresholds,
)
from silvan.algorithms.evaluation.evaluate import CountByScore, EvaluateModels, evaluate
from silvan.algorithms.evaluation.evaluation import (
    FEDERATED,
    LOCAL,
    POOLED,
    EncodedRows,
    Evaluation,
    evaluate_forests,
    pooled_hash,
)
from silvan.algorithms.evaluation.out_of_bag import CountOutOfBag, choose_threshold, total_unseen
from silvan.algorithms.evaluation.reliability import CountErrors, with_curve, with_errors
from silvan.algorithms.evaluation.site_models import KeepAdjusted, keep_adjusted
from silvan.algorithms.keyed_rows import RowSamples
from silvan.algorithms.vertical.columns import with_all_columns
from silvan.data.schema import Schema
from silvan.errors import InputError
from silvan.federation.federation import Federation
from silvan.federation.message import Request
from silvan.forest.forest import Forest
from silvan.learners.explained_model import ExplainedModel
from silvan.learners.fixed_fields import forest_settings
from silvan.learners.in_one_place import alone_at, joined_test_rows, local_models, pooled_forest, sampled_rows
from silvan.learners.registry import spec_of
from silvan.learners.result import Result
from silvan.metrics import decided_at
from silvan.privacy.announce import RequestPlan
from silvan.tree.fit import Settings
from silvan.tree.sampling import RowSampling, make_key

if TYPE_CHECKING:
    pass


class Learner(ExplainedModel):
    """A forest on a federation.

    Attributes
    ----------
    forest_
        The forest for all sites, a ``Forest``.
    forests_
        The forest that each site should use, by site.
    """

    sends_trees: ClassVar[bool] = False  # whether sites send local trees
    chooses_threshold: ClassVar[bool] = False  # whether a rule can choose the threshold
    restorable: ClassVar[bool] = True  # whether its forests are enough to evaluate it
    always_asks: ClassVar[tuple[type[Request], ...]] = ()  # requests of fitting, whatever the parameters are

    min_samples_leaf: int
    random_state: int
    criterion: Any

    # parameters of forests, absent from boosting
    bootstrap: bool = True
    class_weight: Any = None
    threshold: Any = None
    max_samples: float | None = None
    monotonic_cst: Any = None

    # of forests that quantify the reliability of their scores
    calibrate: bool | None = None
    intervals: bool = False

    at_sites_: Sequence[str] = ()
    _adjusted: Mapping[str, AdjustedForest] = MappingProxyType({})
    _counted: np.ndarray | None = None  # all sites' training rows by score before calibration, if counted

    forest_: Forest | None
    forests_: dict[str, Forest]
    threshold_: float | None = None

    def asks(self, schema: Schema) -> tuple[type[Request], ...]:
        """Return the requests that fitting may make."""
        return self.always_asks

    def request_plan(self, federation: Federation) -> RequestPlan:
        """Return the requests of fitting."""
        later = ("threshold", "max_samples", "monotonic_cst")  # named only if set
        given = {name: v for name, v in self.get_params(deep=False).items() if v is not None or name not in later}
        parameters = repr([type(self).__name__, sorted(given.items(), key=str)])
        settings = f"{parameters} {federation.schema.hash}"
        asks = *self.asks(federation.schema), *self._asks_to_trust(federation.schema)
        return RequestPlan(asks, min_leaf=self.min_samples_leaf, settings=settings)

    def evaluation_plan(
        self, federation: Federation, by: Sequence[str] = (), epsilon: float | None = None
    ) -> RequestPlan:
        """Return the requests of ``evaluate``, with subgroups by some columns."""
        if federation.schema.label.event is not None:
            raise InputError("survival forests have no metrics over sites yet: leave test and evaluate out")
        kinds = (EvaluateModels, CountByScore) if federation.schema.n_classes else (EvaluateModels,)
        models = spec_of(type(self)).models_evaluated(self.get_params(deep=False), by=by)
        models += bool(federation.local_sites)  # the pooled model
        return RequestPlan(kinds, settings="evaluating", models=models)

    def train(self, federation: Federation) -> None:
        """Check the parameters and grow the forest."""
        settings = self.forest_settings(federation.schema)
        self._check_threshold(federation.schema)
        self._check_reliability(federation.schema)
        self._adjusted, self._counted = {}, None
        self.grow(federation, settings, self.feature_key())
        if self.trusts_rows and not self.makes_site_forests:
            self._adjust(federation)
        self.__dict__.pop("threshold_", None)  # of an earlier fit
        if self.threshold is not None:
            self.threshold_ = self._threshold(federation)

    @property
    def calibrates(self) -> bool:
        """Whether probabilities are calibrated."""
        return bool(self.schema_.n_classes) and spec_of(type(self)).calibrates(self.get_params(deep=False))

    @property
    def trusts_rows(self) -> bool:
        """Whether the forest gets a calibration curve or errors, from out-of-bag rows."""
        return self.calibrates or self.intervals

    @property
    def makes_site_forests(self) -> bool:
        """Whether sites make forests and adjust curves during training."""
        return False

    @property
    def rounds_to_trust(self) -> int:
        """The maximum number of rounds for calibration, a chosen threshold and intervals."""
        calibrates = spec_of(type(self)).calibrates(self.get_params(deep=False))
        adjusts = (calibrates or self.intervals) and not self.makes_site_forests
        return (calibrates or isinstance(self.threshold, str)) + bool(self.intervals) + adjusts

    def _asks_to_trust(self, schema: Schema) -> tuple[type[Request], ...]:
        """Return the requests of calibration and intervals."""
        calibrates = bool(schema.n_classes) and spec_of(type(self)).calibrates(self.get_params(deep=False))
        kinds = (CountOutOfBag,) * calibrates + (CountErrors,) * bool(self.intervals)
        return (*kinds, KeepAdjusted) if kinds and not self.makes_site_forests else kinds

    def _check_reliability(self, schema: Schema) -> None:
        if not (self.calibrate or self.intervals):
            return
        name = "calibrate" if self.calibrate else "intervals"
        if schema.label.event is not None:
            raise InputError.about(name, "is not for survival: errors of times that are censored are not known")
        if self.calibrate and not schema.n_classes:
            raise InputError.about("calibrate", "is for classes; for numbers there are intervals")
        if self.is_private:
            raise InputError.about(name, "sums scores without noise, and the forest has epsilon: leave it out")
        if not self.bootstrap:
            raise InputError.about(name, "needs out-of-bag rows: set bootstrap=True")

    def trusted(self, federation: Federation, forest: Forest, draws: RowSamples) -> Forest:
        """Return the forest with a calibration curve and errors, if requested and missing: one round each."""
        if self.calibrates and forest.curve is None:
            self._counted = total_unseen(federation, self.schema_, forest, draws)
            forest = with_curve(self.schema_, forest, self._counted)
        wanted = self.intervals and forest.errors is None
        return with_errors(federation, self.schema_, forest, draws) if wanted else forest

    def _adjust(self, federation: Federation) -> None:
        """Add a curve and errors to the forest, which sites adjust to their own rows and keep."""
        known = {} if self.forest_ is None else self.draws(federation, [])
        if self.forest_ is None or self.forest_.hash not in known:
            raise InputError.about(
                "calibrate" if self.calibrate else "intervals",
                "needs a forest for all sites with known row samples: leave it out",
            )
        shared = self.trusted(federation, self.forest_, known[self.forest_.hash])
        forests = {
            site: replace(forest, curve=shared.curve, errors=shared.errors) for site, forest in self.forests_.items()
        }
        self.forest_, self.forests_ = shared, forests
        draws = self.draws(federation, [])
        self._adjusted = keep_adjusted(federation, self.schema_, forests, draws)
        self.forests_ = {site: one.forest for site, one in self._adjusted.items() if one.forest is not None}
        self.at_sites_ = [site for site, one in self._adjusted.items() if one.forest is None]

    def _check_threshold(self, schema: Schema) -> None:
        at = self.threshold
        if at is None:
            return
        if schema.n_classes != 2:
            raise InputError.about("threshold", "is for two classes")
        if isinstance(at, str) and (not self.chooses_threshold or self.is_private):
            raise InputError(f"threshold={at!r} cannot be chosen by this learner: give a number between 0 and 1")

    def _threshold(self, federation: Federation) -> float:
        if not isinstance(self.threshold, str):
            return float(self.threshold)
        draws = {} if self.forest_ is None else self.draws(federation, [])
        if self.forest_ is None or self.forest_.hash not in draws:
            raise InputError.about("threshold", "needs a forest for all sites with known row samples: give a number")
        counted = self._counted
        if counted is None:
            counted = total_unseen(federation, self.schema_, self.forest_.plain(), draws[self.forest_.hash])
        return choose_threshold(self.schema_, self.forest_, counted, self.threshold)

    def result(self) -> Result:
        """Return the result of training, for run folders and reports."""
        at_sites = list(self.at_sites_)
        return Result(
            self.rounds_, self.bytes_, self.forest_, self.forests_, at_sites=at_sites, threshold=self.threshold_
        )

    def restore(self, forests: Mapping[str, Forest], sites: Sequence[str], threshold: float | None) -> bool:
        """Restore the forests of an earlier fit; return False if they are not enough to evaluate it."""
        self.schema_ = next(iter(forests.values())).schema
        if not self.restorable or self.trusts_rows:  # sites must adjust curves again
            return False
        self.forest_, self.threshold_ = forests.get(""), threshold
        kept = {site: forests.get(site, forests.get("")) for site in sites}
        self.forests_ = {site: forest for site, forest in kept.items() if forest is not None}
        return True

    def thresholds(self) -> Thresholds:
        """Return the decision thresholds for the positive class of two: of this model, and of local ones."""
        if self.threshold_ is None:
            return NO_THRESHOLDS
        return Thresholds(self.threshold_, self.threshold if isinstance(self.threshold, str) else self.threshold_)

    def row_sampling(self) -> RowSampling:
        """Return how trees sample rows."""
        return Settings(bootstrap=self.bootstrap, max_samples=self.max_samples).row_sampling

    def sampled_rows(self, federation: Federation) -> np.ndarray | None:
        """Return which rows each tree of ``forest_`` drew: bool (trees, all sites' training rows); None if unknown.

        After leaf re-estimation trees sample rows of all sites, which nobody knows.
        """
        known = self.draws(federation, [])
        draws = known.get(self.forest_.hash) if known and self.forest_ is not None else None
        return None if draws is None or draws.refitted else sampled_rows(federation, self.schema_, draws)

    def draws(self, federation: Federation, candidates: Sequence[Named]) -> dict[str, RowSamples]:
        """Return which rows the trees of models sampled, by the model's hash, if known."""
        pooled = [model for name, model in candidates if name == POOLED and isinstance(model, Forest)]
        return {model.hash: RowSamples((len(model),), bootstrap=self.row_sampling()) for model in pooled}

    @abstractmethod
    def grow(self, federation: Federation, settings: Settings, feature_key: np.ndarray) -> None:
        """Grow the forest, and set ``forest_`` and ``forests_``."""

    def forest_settings(self, schema: Schema) -> Settings:
        """Return the settings of trees for a schema; raise ``InputError`` if they do not fit."""
        return forest_settings(self.get_params(deep=False), schema)

    def feature_key(self) -> np.ndarray:
        """Return the key that decides which features a node may use."""
        return make_key(self.random_state, "features")

    def _check_fitted(self) -> None:
        if not hasattr(self, "forests_"):
            raise InputError("this learner is not fitted yet; call fit(federation) first")

    def _forest_for(self, site: str | None) -> Forest:
        self._check_fitted()
        if site in self.at_sites_:
            raise InputError(f"the forest of site {site!r} includes its own rows and stays there: predict at the site")
        if site is not None:
            if site not in self.forests_:
                raise InputError(f"there is no site {site!r}; the sites are {', '.join(self.forests_)}")
            return self.forests_[site]
        if self.forest_ is None:
            raise InputError(f"{type(self).__name__} has no global forest; pass site=")
        return self.forest_

    def predict(self, X: Any, site: str | None = None) -> np.ndarray:
        """Predict the class or number of each row.

        Parameters
        ----------
        X
            Rows to predict: a data frame, with columns matched by name in any order, or an array with the columns in
            the order of ``schema_``.
        site
            The site whose forest to use; None for the global forest.

        Returns
        -------
        numpy.ndarray
            One class or number for each row.
        """
        forest = self._forest_for(site)
        if self.threshold_ is None or forest.classes is None:
            return forest.predict(X)
        return forest.classes[decided_at(self.threshold_, forest.predict_proba(X), forest.schema.label.positive_code)]

    def predict_proba(self, X: Any, site: str | None = None) -> np.ndarray:
        """Return class probabilities: (rows, classes), with classes in sorted order.

        Parameters
        ----------
        X
            Rows to predict, as for ``predict``.
        site
            The site whose forest to use; None for the global forest.
        """
        return self._forest_for(site).predict_proba(X)

    def predict_interval(self, X: Any, coverage: float = 0.9, site: str | None = None) -> np.ndarray:
        """Return an interval for each row, lower and upper ends, (rows, 2): see ``Forest.predict_interval``.

        For regression, fitted with ``intervals=True``.
        """
        return self._forest_for(site).predict_interval(X, coverage)

    def predict_quantiles(self, X: Any, q: Any = (0.05, 0.5, 0.95), site: str | None = None) -> np.ndarray:
        """Return quantiles of each row's number, (rows, quantiles): see ``Forest.predict_quantiles``."""
        return self._forest_for(site).predict_quantiles(X, q)

    def predict_set(self, X: Any, coverage: float = 0.9, site: str | None = None) -> np.ndarray:
        """Return the prediction set of each row, bool (rows, classes): see ``Forest.predict_set``."""
        return self._forest_for(site).predict_set(X, coverage)

    def predict_log_proba(self, X: Any, site: str | None = None) -> np.ndarray:
        """Return the logarithms of class probabilities."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X, site))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy of the global forest on rows, or R2 for regression."""
        answers, y = self.predict(X), np.asarray(y)
        if len(answers) != len(y) or not len(y):
            raise InputError(f"X has {len(answers)} rows and y has {len(y)}; they must match and not be 0")
        measure = accuracy_score if self.schema_.n_classes else r2_score
        return float(measure(y, answers, sample_weight=sample_weight))

    @property
    def feature_importances_(self) -> np.ndarray:
        """Share of each column in the decrease of impurity, if trees carry it.

        Trees that sites send do not, so merged forests and BOFRF have none: use ``permutation_importance``.
        """
        self.known_schema()
        forest = self.forest_
        if forest is None or forest.gain is None:
            raise AttributeError("the trees carry no gains; use permutation_importance(fed)")
        return np.array(forest.gain)

    def save(self, path: str | Path) -> None:
        """Write the global forest to a ``.silvan`` file for ``Forest.load``; ``forests_`` has the sites' forests."""
        self._forest_for(None).save(path)

    def evaluation_on_test_rows(
        self, federation: Federation, candidates: Sequence[Named], by: Sequence[str]
    ) -> Evaluation:
        """Evaluate models on the sites' test rows; test rows of parties are joined in this process."""
        if federation.columns is not None:
            rows = joined_test_rows(federation)
            return self.compare(federation, candidates, (rows.X, rows.y, np.zeros(rows.X.shape[1], np.bool_)))
        held = self.held_to_text(federation, by=by)
        with federation.working_on(f"evaluating {type(self).__name__}"), held:
            draws, thresholds = self.draws(federation, candidates), self.thresholds()
            return evaluate(federation, self.schema_, candidates, self.feature_key(), draws, thresholds, by)

    def candidates(self, federation: Federation) -> list[Named]:
        """Return the models to compare, by name: this one, the local ones and, in one process, the pooled one."""
        if federation.limited:
            return [(FEDERATED, self._federated())]  # the other models need all rows of a site in memory
        listed = self.site_candidates()
        if federation.local_sites:
            listed.append((POOLED, self.pooled_model(federation)))
        return listed

    def site_candidates(self) -> list[Named]:
        """Return the models that a site may use, by name: its local one, and this model with its variants.

        Raise ``InputError`` before ``fit``.
        """
        federated = self._federated()
        return [(LOCAL, self.forest_settings(self.schema_)), (FEDERATED, federated)]

    def _federated(self) -> Models:
        self._check_fitted()
        if self._adjusted:
            return self._adjusted
        return self.forests_ if self.forest_ is None else self.forest_

    def pooled_model(self, federation: Federation) -> Forest:
        """Return the pooled model, trained on all sites' rows in one place."""
        return pooled_forest(federation, self.schema_, self.forest_settings(self.schema_), self.feature_key())

    def compare(self, federation: Federation, candidates: Sequence[Named], rows: EncodedRows) -> Evaluation:
        """Evaluate models, including local ones, on encoded rows in one place."""
        models: list[tuple[str, Forest | dict[str, Forest]]] = []
        for name, model in candidates:
            if isinstance(model, Settings | Boosting):
                model = local_models(federation, self.schema_, model, self.feature_key())
            if isinstance(model, Mapping):
                made = {site: one if isinstance(one, Forest) else one.forest for site, one in model.items()}
                known = {site: with_all_columns(one, self.schema_) for site, one in made.items() if one is not None}
                models.append((name, known))
            elif isinstance(model, Forest):
                models.append((name, model))
        found = evaluate_forests(self.schema_, models, alone_at(federation), rows, self.feature_key(), self.threshold_)
        return Evaluation(found, pooled_hash=pooled_hash(candidates))
