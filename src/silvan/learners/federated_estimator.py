"""The base of everything that is fitted on a federation: ``fit``, ``evaluate``, and what scikit-learn's tools need."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import ClassifierTags, RegressorTags

from silvan.algorithms.evaluation.candidates import Named
from silvan.algorithms.evaluation.evaluation import EncodedRows, Evaluation, read_rows
from silvan.data.schema import Schema
from silvan.errors import InputError
from silvan.federation.federation import Federation
from silvan.forest.arrays import class_array
from silvan.forest.forest import Forest
from silvan.learners.evaluation_frame import evaluation_frame
from silvan.learners.fixed_fields import fixed_fields, fixed_for_parties
from silvan.learners.parameters import write_shared_entries
from silvan.learners.result import ColumnEffects, Result
from silvan.privacy.announce import RequestPlan, announce
from silvan.privacy.gate import holding_to
from silvan.privacy.terms import StudyText
from silvan.tree.fit import Settings
from silvan.util.declared import convert, typed_keys
from silvan.util.user_warnings import warn_user

if TYPE_CHECKING:
    import polars as pl

NO_EPSILON = (
    "of evaluate is for a forest that was fitted with epsilon: noise on metrics protects the test rows, not the "
    "training rows behind the forest"
)


_METHODS = frozenset(
    {
        "fit",
        "predict",
        "predict_proba",
        "predict_log_proba",
        "score",
        "evaluate",
        "permutation_importance",
        "partial_dependence",
        "importances",
        "save",
        "load",
        "get_params",
        "set_params",
    }
)


class FederatedEstimator(BaseEstimator, ABC):
    """Base of everything that is fitted on a federation: checks parameters, and counts rounds and bytes.

    Attributes
    ----------
    schema_
        What the columns mean, as agreed by the sites: a ``Schema``.
    rounds_
        Number of rounds of messages that ``fit`` took.
    bytes_
        Bytes of these messages by site, "sent" and "received".
    """

    federated_by: ClassVar[str] = "federate_rows"  # the function that makes a federation for it
    one_table: ClassVar[str] = "for one table use ForestClassifier or ForestRegressor, which take X and y"

    schema_: Schema
    rounds_: int
    bytes_: dict[str, dict[str, int]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        write_shared_entries(cls)

    def __sklearn_tags__(self) -> Any:
        """Return the estimator type for scikit-learn's tools: classifier or regressor, once it is fitted."""
        tags = super().__sklearn_tags__()
        if "schema_" in vars(self):
            tags.estimator_type = "classifier" if self.schema_.n_classes else "regressor"
            tags.classifier_tags = ClassifierTags() if self.schema_.n_classes else None
            tags.regressor_tags = None if self.schema_.n_classes else RegressorTags()
        tags.input_tags.allow_nan = True
        return tags

    @property
    def classes_(self) -> np.ndarray:
        """The classes in the order of the probabilities; regression models have no such attribute."""
        names = self.known_schema().label.classes
        if names is None:
            raise AttributeError("a learner that predicts a number has no classes_")
        return class_array(names)

    @property
    def n_features_in_(self) -> int:
        """Number of features."""
        return len(self.known_schema().features)

    @property
    def feature_names_in_(self) -> np.ndarray:
        """The column names; models of arrays have no such attribute."""
        names = self.known_schema().names
        if names == tuple(f"x{i}" for i in range(len(names))):
            raise AttributeError("the columns have no names: tables were arrays")
        return np.array(names, np.object_)

    def known_schema(self) -> Schema:
        """Return the schema; before ``fit`` raise ``AttributeError``, as scikit-learn expects."""
        if "schema_" not in vars(self):
            raise AttributeError(f"this {type(self).__name__} is not fitted yet; call fit(federation) first")
        return self.schema_

    def __dir__(self) -> list[str]:
        """List public methods, parameters and, once fitted, results."""
        fitted = "schema_" in vars(self)
        names = {name for name in super().__dir__() if name in _METHODS or name.startswith("__")}
        results = {name for name in super().__dir__() if fitted and name.endswith("_") and not name.startswith("_")}
        return sorted(names | results | self.get_params(deep=False).keys())

    # -- fitting
    def fit(self, federation: Federation, y: Any = None) -> Self:
        """Train on all sites.

        Parameters
        ----------
        federation
            A federation from ``federate_rows`` or ``federate_columns``.
        y
            Unused: a federation knows its label.

        Returns
        -------
        self
        """
        if y is not None or not isinstance(federation, Federation):
            got = f"{type(federation).__name__}{'' if y is None else ' and y'}"
            raise InputError(
                f"fit takes a federation, fit(sv.{self.federated_by}(tables)), and no y; got {got}; {self.one_table}"
            )
        self.check()
        request_plan = self.request_plan(federation)
        if request_plan.epsilon:
            with self.held_to_text(federation):
                announce(federation, request_plan)
        schema, rounds, before = federation.schema, federation.rounds, federation.bytes
        with federation.working_on(type(self).__name__), self.held_to_text(federation):
            self.schema_ = schema
            self.train(federation)
        self.rounds_ = federation.rounds - rounds
        self.bytes_ = {
            site: {way: n - before[site][way] for way, n in ways.items()} for site, ways in federation.bytes.items()
        }
        return self

    def check(self) -> None:
        """Raise ``InputError`` for invalid parameters, before any request."""
        hints = typed_keys(type(self))
        for name in self.get_params(deep=False).keys() - Settings.__dataclass_fields__.keys():  # checks its own
            value = getattr(self, name)
            convert(name, value.item() if isinstance(value, np.generic) else value, hints[name])

    def held_to_text(self, federation: Federation, **evaluation: Any) -> AbstractContextManager[None]:
        """Make sites in this process enforce the parameters, as a separate study."""
        if not federation.local_sites or not _is_registered(type(self)):
            return nullcontext()
        schema, parameters = federation.schema, self.get_params(deep=False)
        by_rows = federation.columns is None

        def fixed(schema: Schema | None) -> Mapping[str, Any]:
            of_study = {"study": federation.study}
            if not by_rows:
                return of_study | fixed_for_parties(parameters)
            return of_study | fixed_fields(
                parameters, schema, random_state=parameters.get("random_state") or 0, **evaluation
            )

        clusters = not by_rows or parameters.get("clusters") is not None
        text = StudyText(schema.label.name, fixed, schema=schema if by_rows else None, clusters=clusters)
        trusting = parameters.get("tolerate") == 0  # sites that trust each other need no spare share of the noise
        return holding_to(text, federation.local_sites.values(), tolerate=0 if trusting else 1)

    @abstractmethod
    def request_plan(self, federation: Federation) -> RequestPlan:
        """Return the requests of fitting."""

    def evaluate(
        self, federation: Federation, table: Any = None, epsilon: float | None = None, *, by: Sequence[str] = ()
    ) -> "pl.DataFrame":
        """Compare the model with each site's local model and, in one process, with the pooled model.

        Each site scores its own test rows; only metrics and counts leave it. In a federation by columns the label
        holder compares scores of the test rows with its labels, and in one process each party's own model, trained on
        the label, is the local one.

        Parameters
        ----------
        federation
            The federation that the model was fitted on, made with test rows (``test=0.2``).
        table
            A table with the label to evaluate on instead of the test rows; in one process only.
        epsilon
            For a model with differential privacy: the epsilon of the metrics, charged to the sites' budgets. The result
            is then one line for all sites, with a noisy number of rows and a 95% confidence interval for each metric,
            noise included. None: metrics are exact, and a site with a privacy budget refuses them.
        by
            Categorical columns, such as ``["sex"]``: the result has separate lines for these subgroups, as far as
            sites' policies allow it. The column ``group`` names the subgroup; it is empty for all rows.

        Returns
        -------
        polars.DataFrame
            A line for each site and model, and for all sites together. ``gain`` is the improvement over the site's
            local model in AUC (or the reduction of RMSE), and ``gain_low`` to ``gain_high`` its 95% confidence
            interval: if it contains 0, the gain is not significant. With few test rows there is no interval. ``use``
            marks the model that the site should use, if the gain or loss is significant. ``positive`` names the
            positive class of two, which F1, sensitivity, specificity, precision and threshold refer to. For a model
            with ``epsilon`` the column ``guarantee`` says how the metrics are covered, or "outside" if they are not.
        """
        if not isinstance(federation, Federation):
            raise InputError(
                f"evaluate takes the federation that the model was fitted on, got {type(federation).__name__}; for a "
                "table, use evaluate(federation, table) or score(X, y)"
            )
        found = self.evaluation(federation, table, epsilon=epsilon, by=by)
        for text in found.warnings:
            warn_user(text)
        return evaluation_frame(found)

    def evaluation(
        self,
        federation: Federation,
        table: Any = None,
        *,
        candidates: Sequence[Named] | None = None,
        epsilon: float | None = None,
        by: Sequence[str] = (),
    ) -> Evaluation:
        """Evaluate the model like ``evaluate``; ``candidates`` replace the usual models to compare."""
        if epsilon is not None:
            return self.evaluation_with_noise(federation, table, epsilon, by)
        if self.is_private and table is None and candidates is None:
            announce(federation, self.evaluation_plan(federation))
        if by and (table is not None or federation.columns is not None):
            raise InputError.about("by", "is for the test rows of sites that hold rows; leave it out here")
        candidates = self.candidates(federation) if candidates is None else candidates
        if table is None:
            found = self.evaluation_on_test_rows(federation, candidates, by)
        elif not federation.local_sites:
            raise InputError("a table to evaluate on needs a federation in this process")
        else:
            found = self.compare(federation, candidates, read_rows(self.schema_, table))
        return replace(found, guarantee="outside") if self.is_private else found

    def evaluation_with_noise(
        self, federation: Federation, table: Any, epsilon: float, by: Sequence[str]
    ) -> Evaluation:
        """Evaluate a private model on test rows, at a cost to the sites' privacy budgets."""
        raise InputError.about("epsilon", NO_EPSILON)

    @property
    def is_private(self) -> bool:
        """Whether the model is differentially private."""
        return False

    @abstractmethod
    def evaluation_on_test_rows(
        self, federation: Federation, candidates: Sequence[Named], by: Sequence[str]
    ) -> Evaluation:
        """Evaluate models on the sites' test rows."""

    @abstractmethod
    def compare(self, federation: Federation, candidates: Sequence[Named], rows: EncodedRows) -> Evaluation:
        """Evaluate models, including local ones, on encoded rows in one place."""

    @abstractmethod
    def candidates(self, federation: Federation) -> list[Named]:
        """Return the models to compare, by name: this one, the local ones and, in one process, the pooled one."""

    @property
    def expected_rounds(self) -> int | None:
        """The maximum number of training rounds, if known in advance; for progress bars."""
        return None

    @abstractmethod
    def train(self, federation: Federation) -> None:
        """Train on all sites, and set the attributes of a fitted learner."""

    @abstractmethod
    def result(self) -> Result:
        """Return the result of training, for run folders and reports."""

    def restore(self, forests: Mapping[str, Forest], sites: Sequence[str], threshold: float | None) -> bool:
        """Restore the forests of an earlier fit (``Result.to_keep``); return False if a new fit is needed."""
        return False

    @abstractmethod
    def evaluation_plan(
        self, federation: Federation, by: Sequence[str] = (), epsilon: float | None = None
    ) -> RequestPlan:
        """Return the requests of an evaluation, with noise if ``epsilon`` is given."""

    def explanation_plan(self, importance: bool, columns: Sequence[str]) -> RequestPlan:
        """Return the requests of ``explained``."""
        return RequestPlan(())

    def explained(
        self, federation: Federation, importance: bool, columns: Sequence[str], by: Sequence[str]
    ) -> ColumnEffects:
        """Return the importance of columns and the dependence of predictions on some of them, if requested."""
        raise InputError("column effects need a forest for all sites, and this model has none")


def _is_registered(learner: type) -> bool:
    """Return whether a learner itself is registered: its parameter class has its name."""
    return any(base.__name__ == f"{learner.__name__}Parameters" for base in learner.__mro__)
