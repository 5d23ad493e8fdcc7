"""Learners that are fitted on federations, with scikit-learn's conventions for parameters and fitted attributes."""

from silvan.learners.auto_forest import AutoForest
from silvan.learners.base import Learner
from silvan.learners.bofrf import BOFRF
from silvan.learners.boosting import BOPPID, AdaBoostPL, LocalAdaBoost, MultBoost
from silvan.learners.horizontal import HistogramForest, PooledForest
from silvan.learners.linear import VerticalLinear
from silvan.learners.site_trees import LocalForest, MergedForest
from silvan.learners.vertical import VerticalForest

__all__ = [
    "BOFRF",
    "BOPPID",
    "AdaBoostPL",
    "AutoForest",
    "HistogramForest",
    "Learner",
    "LocalAdaBoost",
    "LocalForest",
    "MergedForest",
    "MultBoost",
    "PooledForest",
    "VerticalForest",
    "VerticalLinear",
]
