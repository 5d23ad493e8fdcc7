"""The base of everything that is fitted on a federation: ``fit``, and what scikit-learn's tools ask."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import ClassifierTags, RegressorTags

from silvan.data.schema import Schema
from silvan.errors import InputError
from silvan.federation.federation import Federation
from silvan.forest.arrays import class_array
from silvan.privacy.gate.announce import Questions, announce


class SklearnAttributes(BaseEstimator):
    """Attributes that follow from the schema of what was learnt."""

    schema_: Schema

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn's tools ask: whether this is a classifier or a regressor, once it is fitted."""
        tags = super().__sklearn_tags__()
        if "schema_" in vars(self):
            tags.estimator_type = "classifier" if self.schema_.n_classes else "regressor"
            tags.classifier_tags = ClassifierTags() if self.schema_.n_classes else None
            tags.regressor_tags = None if self.schema_.n_classes else RegressorTags()
        tags.input_tags.allow_nan = True
        return tags

    @property
    def classes_(self) -> np.ndarray:
        """The classes, in the order of the probabilities; there is no such attribute where a number is predicted."""
        names = self.known_schema().label.classes
        if names is None:
            raise AttributeError("a learner that predicts a number has no classes_")
        return class_array(names)

    @property
    def n_features_in_(self) -> int:
        """How many columns there are to learn from."""
        return len(self.known_schema().features)

    @property
    def feature_names_in_(self) -> np.ndarray:
        """The names of the columns; no such attribute where tables were arrays, whose columns have no names."""
        names = self.known_schema().names
        if names == tuple(f"x{i}" for i in range(len(names))):
            raise AttributeError("the columns have no names: tables were arrays")
        return np.array(names, np.object_)

    def known_schema(self) -> Schema:
        """Return the schema; raise ``AttributeError`` before ``fit``, by which scikit-learn sees that there is none."""
        if "schema_" not in vars(self):
            raise AttributeError(f"this {type(self).__name__} is not fitted yet; call fit(federation) first")
        return self.schema_


class FederatedEstimator(SklearnAttributes, ABC):
    """Base of everything that is fitted on a federation: checks parameters, and counts rounds and bytes."""

    federated_by: ClassVar[str] = "federate_rows"  # what makes a federation for it
    one_table: ClassVar[str] = "for one table use ForestClassifier or ForestRegressor, which take X and y"

    rounds_: int
    bytes_: dict[str, dict[str, int]]

    def fit(self, federation: Federation, y: Any = None) -> Self:
        """Learn from all sites.

        Parameters
        ----------
        federation
            What ``federate_rows`` or ``federate_columns`` made, or a study between machines.
        y
            Not used: a federation knows its label.

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
        questions = self.questions(federation)
        if questions.epsilon:
            announce(federation, questions)
        schema, rounds, before = federation.schema, federation.rounds, federation.bytes
        with federation.working_on(type(self).__name__):
            self.schema_ = schema
            self.train(federation)
        self.rounds_ = federation.rounds - rounds
        self.bytes_ = {
            site: {way: n - before[site][way] for way, n in ways.items()} for site, ways in federation.bytes.items()
        }
        return self

    def check(self) -> None:  # most parameters are checked where they are used
        """Raise ``InputError`` for parameters that make no sense, before any site is asked."""

    @abstractmethod
    def questions(self, federation: Federation) -> Questions:
        """Return what fitting asks of sites."""

    @property
    def expected_rounds(self) -> int | None:
        """The most rounds that training can take, where that is known before; for progress bars."""
        return None

    @abstractmethod
    def train(self, federation: Federation) -> None:
        """Learn from all sites, and set the attributes of a fitted learner."""
