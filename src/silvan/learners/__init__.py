"""Learners that are fitted on federations, with scikit-learn's conventions for parameters and fitted attributes.

A learner is imported when it is first used; `silvan.learners.registry` knows them all without importing any.
"""

from typing import TYPE_CHECKING, Any

from silvan.learners.registry import LEARNERS

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    if name in LEARNERS:
        return LEARNERS[name].load()
    if name == "Learner":
        from silvan.learners.base import Learner

        return Learner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
