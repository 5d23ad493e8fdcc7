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
    "silvan.algorithms.bofrf.choose": ("Choose",),
    "silvan.algorithms.bofrf.clusters": ("Characterise",),
    "silvan.algorithms.bofrf.weigh": (
        "BringTrees",
        "ScoreTrees",
    ),
    "silvan.algorithms.boosting.adaboost": ("BoostStumps",),
    "silvan.algorithms.boosting.boppid": ("PickModels",),
    "silvan.algorithms.boosting.multboost": (
        "FindStump",
        "WeighStage",
    ),
    "silvan.algorithms.evaluation.out_of_bag": ("CountOutOfBag",),
    "silvan.algorithms.evaluation.evaluate": (
        "EvaluateModels",
        "CountByScore",
    ),
    "silvan.algorithms.evaluation.column_effects": (
        "SetColumns",
        "ShuffleColumns",
    ),
    "silvan.algorithms.horizontal.adaptive_forest": (
        "AdaptiveLeaves",
        "AdaptiveLevel",
    ),
    "silvan.algorithms.horizontal.histogram_forest": (
        "CountLeafTimes",
        "GrowLevel",
    ),
    "silvan.algorithms.horizontal.merged_forest": ("GrowTrees",),
    "silvan.algorithms.evaluation.personal_forest": ("ChooseShare",),
    "silvan.algorithms.evaluation.reliability": ("CountErrors",),
    "silvan.algorithms.evaluation.site_models": ("KeepAdjusted",),
    "silvan.algorithms.horizontal.weigh_halves": ("CompareHalves",),
    "silvan.algorithms.vertical.linear_steps": (
        "Explain",
        "KeepCoefficients",
        "OfferDirection",
    ),
    "silvan.algorithms.vertical.linear_shares": ("SumPredictors",),
    "silvan.algorithms.private.noisy_evaluation": ("CountByScoreWithNoise",),
    "silvan.algorithms.private.noisy_levels": ("NoisyLevel",),
    "silvan.algorithms.private.noisy_rows": ("DisguisedLevel",),
    "silvan.algorithms.private.table_counts": (
        "CountColumns",
        "CountPeople",
        "CountScores",
        "CountTables",
        "SumSlopes",
        "SumTargets",
    ),
    "silvan.algorithms.class_counts": ("CountClasses",),
    "silvan.algorithms.kept_results": ("KeepResults",),
    "silvan.algorithms.refit_leaves": (
        "CountLeafLabels",
        "CountLeafRows",
    ),
    "silvan.algorithms.shared_bins": (
        "CountFine",
        "CountGrid",
    ),
    "silvan.algorithms.describe_columns": (
        "CountCodes",
        "DescribeRows",
    ),
    "silvan.algorithms.vertical.columns": ("DescribeColumns",),
    "silvan.algorithms.vertical.encoded": (
        "FindValues",
        "SplitNodes",
    ),
    "silvan.algorithms.vertical.encoded_labels": ("EncodeLabels",),
    "silvan.algorithms.vertical.encrypted_labels": ("EncryptLabels",),
    "silvan.algorithms.vertical.encrypted_decisions": (
        "DecideNodes",
        "KeepChosen",
    ),
    "silvan.algorithms.vertical.encrypted_splits": (
        "SplitChosen",
        "SumLabels",
    ),
    "silvan.algorithms.vertical.scores_of_rows": (
        "EvaluateScores",
        "KeepPredictions",
    ),
    "silvan.algorithms.vertical.party_shares": (
        "KeepShare",
        "ShowShare",
    ),
    "silvan.algorithms.vertical.prediction": ("ReachLeaves",),
    "silvan.federation.describe": (
        "CountCategories",
        "CountRows",
        "Describe",
        "NameCategories",
    ),
    "silvan.privacy.announce": ("Announce",),
    "silvan.privacy.close_study": ("CloseStudy",),
    "silvan.privacy.held_columns": (
        "ListColumns",
        "NoteColumns",
    ),
    "silvan.privacy.identity.identity": ("Introduce",),
    "silvan.privacy.ledger_heads": ("CompareLedgers",),
    "silvan.privacy.identity.psi": (
        "HideIds",
        "HideTwice",
        "Intersect",
    ),
    "silvan.privacy.identity.shared_key": (
        "DealKey",
        "TakeKey",
    ),
}
"""The modules of this package that answer messages, and which. A test compares it with ``answers``."""

KINDS = {kind: module for module, kinds in _ANSWERED_IN.items() for kind in kinds}


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
