"""What scikit-learn's tools ask of a fitted estimator: tags, classes, names and number of columns."""

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import ClassifierTags, RegressorTags

from silvan.data.schema import Schema
from silvan.forest.arrays import class_array


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
