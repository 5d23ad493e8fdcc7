"""AdaBoost across sites, as published: BOPPID, AdaBoost.PL and MultBoost, with local AdaBoost as the baseline."""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from silvan.algorithms.boosting import adaboost, multboost
from silvan.algorithms.boosting.adaboost import BoostStumps, pooled_boost
from silvan.algorithms.boosting.stumps import Boosting, check_two_classes
from silvan.algorithms.evaluation.candidates import Named
from silvan.algorithms.evaluation.evaluation import FEDERATED, LOCAL
from silvan.algorithms.keyed_rows import RowSamples
from silvan.data.schema import Schema
from silvan.errors import InputError
from silvan.federation.federation import Federation
from silvan.forest.forest import Forest
from silvan.learners.base import Learner
from silvan.learners.in_one_place import local_models
from silvan.learners.registry import (
    AdaBoostPLParameters,
    BoostingParameters,
    BOPPIDParameters,
    LocalAdaBoostParameters,
    MultBoostParameters,
)
from silvan.tree.fit import Settings


class _Booster(BoostingParameters, Learner):
    """The common part of boosting learners, which have the parameters of AdaBoost with stumps, not of a forest."""

    @property
    def _boosting(self) -> Boosting:
        return Boosting(self.n_estimators, str(self.criterion), self.min_samples_leaf, self.max_bins)

    def forest_settings(self, schema: Schema) -> Settings:
        """Return settings of trees with one split; everything else is in ``Boosting``."""
        return Settings(max_depth=1)

    def grow(self, federation: Federation, settings: Settings, feature_key: np.ndarray) -> None:
        """Boost across the sites; raise ``InputError`` unless the label has two classes."""
        check_two_classes(self.schema_)
        made = self._boost(federation, self._boosting)
        self.forest_ = made if isinstance(made, Forest) else None
        self.forests_ = dict.fromkeys(federation.active, made) if isinstance(made, Forest) else made

    @abstractmethod
    def _boost(self, federation: Federation, boosting: Boosting) -> Forest | dict[str, Forest]:
        """Return the model for all sites, or a model for each."""

    def site_candidates(self) -> list[Named]:
        """Return the models that a site may use, by name."""
        return [(LOCAL, self._boosting), (FEDERATED, self._federated())]

    def pooled_model(self, federation: Federation) -> Forest:
        """Return the pooled model, trained on all sites' rows in one place."""
        return pooled_boost(federation, self.schema_, self._boosting)

    def draws(self, federation: Federation, candidates: Sequence[Named]) -> dict[str, RowSamples]:
        """Return nothing: stumps are trained on all rows."""
        return {}


class LocalAdaBoost(LocalAdaBoostParameters, _Booster):
    """Local AdaBoost at each site: the baseline of boosting learners.

    For two classes, and for federations in this process only. There is no global model, so predictions need ``site=``.

    Attributes
    ----------
    forest_
        None: there is no global model.
    forests_
        Each site's stumps and their weights, by site.

    Examples
    --------
    >>> import silvan as sv
    >>> fed = sv.federate_rows(sv.datasets.heart_disease(), site="hospital", label="disease")
    >>> model = sv.LocalAdaBoost(n_estimators=10).fit(fed)
    >>> model.rounds_, sorted(model.forests_)
    (0, ['Cleveland', 'Hungarian', 'Switzerland', 'VA'])
    >>> model.predict(sv.datasets.heart_disease()[:2], site="VA")
    array([1, 1])
    """

    def _boost(self, federation: Federation, boosting: Boosting) -> Forest | dict[str, Forest]:
        if not federation.local_sites:
            raise InputError("LocalAdaBoost needs a federation in this process, because it shows every site's stumps")
        return local_models(federation, self.schema_, boosting, self.feature_key())


class BOPPID(BOPPIDParameters, _Booster):
    """AdaBoost at every site; each site picks classifiers of the others that do about as well on its rows: two rounds.

    For two classes. Every site has its own model; there is no global one, so predictions need ``site=``.

    Attributes
    ----------
    forest_
        None: there is no global model.
    forests_
        The stumps that each site uses and their weights, by site.

    Examples
    --------
    >>> import silvan as sv
    >>> fed = sv.federate_rows(sv.datasets.heart_disease(), site="hospital", label="disease")
    >>> model = sv.BOPPID(n_estimators=10).fit(fed)
    >>> model.rounds_, sorted(model.forests_)
    (2, ['Cleveland', 'Hungarian', 'Switzerland', 'VA'])
    """

    always_asks = (BoostStumps, adaboost.PickModels)

    def _boost(self, federation: Federation, boosting: Boosting) -> Forest | dict[str, Forest]:
        return adaboost.fit_boppid(federation, self.schema_, boosting, federation.rows, self.tau, self.printed)


class AdaBoostPL(AdaBoostPLParameters, _Booster):
    """AdaBoost at every site, merged stump by stump in the order of their weights: one round.

    For two classes.

    Attributes
    ----------
    forest_
        The merged stumps, a ``Forest`` whose trees vote in stages.

    Examples
    --------
    >>> import silvan as sv
    >>> fed = sv.federate_rows(sv.datasets.heart_disease(), site="hospital", label="disease")
    >>> model = sv.AdaBoostPL(n_estimators=10).fit(fed)
    >>> model.rounds_, len(model.forest_)
    (1, 40)
    >>> model.predict(sv.datasets.heart_disease()[:2])
    array([1, 1])
    """

    always_asks = (BoostStumps,)

    def _boost(self, federation: Federation, boosting: Boosting) -> Forest | dict[str, Forest]:
        return adaboost.fit_pl(federation, self.schema_, boosting)


class MultBoost(MultBoostParameters, _Booster):
    """AdaBoost over all sites; the classifier of a stage is a vote of one stump from each site: two rounds per stage.

    For two classes.

    Attributes
    ----------
    forest_
        The stumps of all stages, a ``Forest`` whose trees vote in stages.

    Examples
    --------
    >>> import silvan as sv
    >>> fed = sv.federate_rows(sv.datasets.heart_disease(), site="hospital", label="disease")
    >>> model = sv.MultBoost(n_estimators=5).fit(fed)
    >>> model.rounds_, len(model.forest_)
    (10, 16)
    >>> model.predict(sv.datasets.heart_disease()[:2])
    array([1, 1])
    """

    always_asks = (multboost.FindStump, multboost.WeighStage)

    def _boost(self, federation: Federation, boosting: Boosting) -> Forest | dict[str, Forest]:
        return multboost.fit(federation, self.schema_, boosting)
