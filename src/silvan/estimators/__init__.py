"""Forests on one table, with scikit-learn's interface."""

from silvan.estimators.forest_estimators import ForestClassifier, ForestRegressor

__all__ = ["ForestClassifier", "ForestRegressor"]
