"""Which function answers which kind of message: a closed table, so that a site imports only what it is asked for.

A kind that comes with a message is looked up here and never imported by its name. Algorithms outside this package
register with ``answers`` alone (``federation/site.py``), as soon as their module is imported.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any

from silvan.federation.message import Reply, Request

Function = Callable[[Any, Any], Reply]
"""Answers a request at a site."""

KINDS = {
    "Choose": "silvan.algorithms.bofrf.choose:choose",
    "Characterise": "silvan.algorithms.bofrf.clusters:answer_characterise",
    "BringTrees": "silvan.algorithms.bofrf.weigh:bring_trees",
    "ScoreTrees": "silvan.algorithms.bofrf.weigh:score_all",
    "BoostStumps": "silvan.algorithms.boosting.adaboost:boost_stumps",
    "PickModels": "silvan.algorithms.boosting.boppid:pick_models",
    "FindStump": "silvan.algorithms.boosting.multboost:find",
    "WeighStage": "silvan.algorithms.boosting.multboost:weigh_stage",
    "CountOutOfBag": "silvan.algorithms.evaluation.out_of_bag:count_unseen",
    "EvaluateModels": "silvan.algorithms.evaluation.evaluate:evaluate_models",
    "CountByScore": "silvan.algorithms.evaluation.evaluate:count_by_score",
    "SetColumns": "silvan.algorithms.evaluation.column_effects:set_columns",
    "ShuffleColumns": "silvan.algorithms.evaluation.column_effects:shuffle_columns",
    "AdaptiveLeaves": "silvan.algorithms.horizontal.adaptive_forest:adaptive_leaves",
    "AdaptiveLevel": "silvan.algorithms.horizontal.adaptive_forest:adaptive_level",
    "GrowLevel": "silvan.algorithms.horizontal.histogram_forest:grow_level",
    "GrowTrees": "silvan.algorithms.horizontal.merged_forest:grow_trees",
    "ChooseShare": "silvan.algorithms.evaluation.personal_forest:choose_share",
    "CompareHalves": "silvan.algorithms.horizontal.weigh_halves:compare_halves",
    "Explain": "silvan.algorithms.vertical.linear_fit:explain",
    "KeepCoefficients": "silvan.algorithms.vertical.linear_fit:keep_coefficients",
    "OfferDirection": "silvan.algorithms.vertical.linear_fit:offer_direction",
    "SumPredictors": "silvan.algorithms.vertical.linear_shares:sum_predictors",
    "CountByScoreWithNoise": "silvan.algorithms.private.noisy_evaluation:noisy_tally",
    "NoisyLevel": "silvan.algorithms.private.noisy_levels:noisy_level",
    "DisguisedLevel": "silvan.algorithms.private.noisy_rows:disguised_level",
    "CountColumns": "silvan.algorithms.private.tables:_answer",
    "CountPeople": "silvan.algorithms.private.tables:count_people",
    "CountScores": "silvan.algorithms.private.tables:_answer",
    "CountTables": "silvan.algorithms.private.tables:_answer",
    "SumSlopes": "silvan.algorithms.private.tables:_answer",
    "SumTargets": "silvan.algorithms.private.tables:_answer",
    "CountClasses": "silvan.algorithms.class_counts:count_classes",
    "KeepResults": "silvan.algorithms.kept_results:keep_results",
    "CountLeafLabels": "silvan.algorithms.recount:count_labels",
    "CountLeafRows": "silvan.algorithms.recount:count_rows",
    "CountFine": "silvan.algorithms.shared_bins:count_fine",
    "CountGrid": "silvan.algorithms.shared_bins:count_grid",
    "DescribeColumns": "silvan.algorithms.vertical.columns:describe_columns",
    "FindValues": "silvan.algorithms.vertical.encoded:find_values",
    "SplitNodes": "silvan.algorithms.vertical.encoded:split_nodes",
    "EncodeLabels": "silvan.algorithms.vertical.encoded_labels:encode",
    "EncryptLabels": "silvan.algorithms.vertical.encrypted_labels:encrypt_labels",
    "KeepChosen": "silvan.algorithms.vertical.encrypted_splits:keep_chosen",
    "SplitChosen": "silvan.algorithms.vertical.encrypted_splits:split_chosen",
    "DecideNodes": "silvan.algorithms.vertical.encrypted_splits:decide_nodes",
    "SumLabels": "silvan.algorithms.vertical.encrypted_splits:sum_labels",
    "EvaluateScores": "silvan.algorithms.vertical.scores_of_rows:evaluate_scores",
    "KeepPredictions": "silvan.algorithms.vertical.scores_of_rows:write_predictions",
    "KeepShare": "silvan.algorithms.vertical.party_shares:keep_share",
    "ShowShare": "silvan.algorithms.vertical.party_shares:show_share",
    "GoLeft": "silvan.algorithms.vertical.prediction:go_left",
    "ReachLeaves": "silvan.algorithms.vertical.prediction:reach",
    "CountCategories": "silvan.federation.describe:count_categories",
    "CountRows": "silvan.federation.describe:count_rows",
    "Describe": "silvan.federation.describe:describe",
    "NameCategories": "silvan.federation.describe:name_categories",
    "Announce": "silvan.privacy.announce:would_refuse",
    "Introduce": "silvan.privacy.identity.identity:introduce",
    "HideIds": "silvan.privacy.identity.psi:hide_ids",
    "HideTwice": "silvan.privacy.identity.psi:hide_twice",
    "Intersect": "silvan.privacy.identity.psi:intersect",
    "DealKey": "silvan.privacy.identity.shared_key:deal_key",
    "TakeKey": "silvan.privacy.identity.shared_key:take_key",
}
"""Where each kind of message of this package is answered: "module:function". A test compares it with ``answers``."""


class Handlers(MutableMapping[str, tuple[type[Request], Function]]):
    """Requests and the functions that answer them, by kind; each is imported when it is first looked up."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places
        self._loaded: dict[str, tuple[type[Request], Function]] = {}

    def register(self, request: type[Request], function: Function) -> None:
        """Add a kind; raise ``TypeError`` if its name is taken."""
        kind, place = request.kind(), f"{function.__module__}:{function.__name__}"
        known = self._loaded.get(kind)
        owner = self._places.get(kind, place if known is None else known[0].__module__)
        if owner not in (place, request.__module__):  # a cell of a notebook may run again
            raise TypeError(f"{kind} is the name of a message of {owner.partition(':')[0]} already")
        self._loaded[kind] = request, function

    def __getitem__(self, kind: str) -> tuple[type[Request], Function]:
        if kind not in self._loaded:
            import_module(self._places[kind].partition(":")[0])  # where ``answers`` registers it
        return self._loaded[kind]

    def __setitem__(self, kind: str, handler: tuple[type[Request], Function]) -> None:
        self._loaded[kind] = handler

    def __delitem__(self, kind: str) -> None:
        del self._loaded[kind]

    def __contains__(self, kind: object) -> bool:
        return kind in self._loaded or kind in self._places

    def __iter__(self) -> Iterator[str]:
        return iter({**self._places, **self._loaded})

    def __len__(self) -> int:
        return len({**self._places, **self._loaded})


HANDLERS = Handlers(KINDS)
