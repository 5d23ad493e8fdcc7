"""Which function answers which kind of message: a closed table, so that a site imports only what it needs.

A kind that comes with a message is looked up here and never imported by its name. Algorithms outside this package
register with ``answers`` alone (``federation/site.py``), as soon as their module is imported.
"""

from collections import ChainMap
from collections.abc import Callable
from importlib import import_module
from typing import Any

from silvan.federation.message import Reply, Request

_ANSWERED_IN = {
    "algorithms.bofrf.choose": "Choose",
    "algorithms.bofrf.clusters": "Characterise",
    "algorithms.bofrf.weigh": "BringTrees ScoreTrees",
    "algorithms.boosting.adaboost": "BoostStumps PickModels",
    "algorithms.boosting.multboost": "FindStump WeighStage",
    "algorithms.class_counts": "CountClasses",
    "algorithms.describe_columns": "CountCodes DescribeRows",
    "algorithms.evaluation.column_effects": "SetColumns ShuffleColumns",
    "algorithms.evaluation.evaluate": "CountByScore EvaluateModels",
    "algorithms.evaluation.out_of_bag": "CountOutOfBag",
    "algorithms.evaluation.personal_forest": "ChooseShare",
    "algorithms.evaluation.reliability": "CountErrors",
    "algorithms.evaluation.site_models": "KeepAdjusted",
    "algorithms.horizontal.adaptive_forest": "AdaptiveLeaves AdaptiveLevel",
    "algorithms.horizontal.histogram_forest": "CountLeafTimes GrowLevel",
    "algorithms.horizontal.merged_forest": "GrowTrees",
    "algorithms.horizontal.weigh_halves": "CompareHalves",
    "algorithms.kept_results": "KeepResults",
    "algorithms.private.noisy_evaluation": "CountByScoreWithNoise",
    "algorithms.private.noisy_levels": "NoisyLevel",
    "algorithms.private.noisy_rows": "DisguisedLevel",
    "algorithms.private.table_counts": "CountColumns CountPeople CountScores CountTables SumSlopes SumTargets",
    "algorithms.refit_leaves": "CountLeafLabels CountLeafRows",
    "algorithms.shared_bins": "CountFine CountGrid",
    "algorithms.vertical.columns": "DescribeColumns",
    "algorithms.vertical.encoded": "FindValues SplitNodes",
    "algorithms.vertical.encoded_labels": "EncodeLabels",
    "algorithms.vertical.encrypted_decisions": "DecideNodes KeepChosen",
    "algorithms.vertical.encrypted_labels": "EncryptLabels",
    "algorithms.vertical.encrypted_splits": "SplitChosen SumLabels",
    "algorithms.vertical.linear_shares": "SumPredictors",
    "algorithms.vertical.linear_steps": "Explain KeepCoefficients OfferDirection",
    "algorithms.vertical.party_shares": "KeepShare ReachLeaves ShowShare",
    "algorithms.vertical.scores_of_rows": "EvaluateScores KeepPredictions",
    "federation.describe": "CountCategories CountRows Describe NameCategories",
    "privacy.announce": "Announce",
    "privacy.close_study": "CloseStudy",
    "privacy.held_columns": "ListColumns NoteColumns",
    "privacy.identity.identity": "Introduce",
    "privacy.identity.psi": "HideIds HideTwice Intersect",
    "privacy.identity.shared_key": "DealKey TakeKey",
    "privacy.ledger_heads": "CompareLedgers",
}
"""The modules of this package that answer messages, and which. A test compares it with ``answers``."""

KINDS = {kind: f"silvan.{module}" for module, kinds in _ANSWERED_IN.items() for kind in kinds.split()}


class Handlers(ChainMap[str, Any]):
    """Requests and the functions that answer them, by kind; each is imported when it is first looked up."""

    def register(self, request: type[Request], function: Callable[[Any, Any], Reply]) -> None:
        """Add a kind; raise ``TypeError`` if its name is taken."""
        kind, known = request.kind(), self.maps[0].get(request.kind())
        owner = KINDS.get(kind, function.__module__ if known is None else known[0].__module__)
        if owner not in (function.__module__, request.__module__):  # a cell of a notebook may run again
            raise TypeError(f"{kind} is the name of a message of {owner} already")
        self[kind] = request, function

    def __getitem__(self, kind: str) -> tuple[type[Request], Callable[[Any, Any], Reply]]:
        if kind not in self.maps[0]:
            import_module(KINDS[kind])  # where ``answers`` registers it
        found: tuple[type[Request], Callable[[Any, Any], Reply]] = self.maps[0][kind]
        return found


HANDLERS = Handlers({}, KINDS)
