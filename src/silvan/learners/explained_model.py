"""What the columns do in a model over rows: permutation importance and partial dependence, from sums over sites."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from silvan.algorithms.evaluation.candidates import Named, SentModel, Thresholds, sent_model
from silvan.algorithms.evaluation.column_effects import (
    SetColumns,
    ShuffleColumns,
    importances,
    make_grid,
    mean_predictions,
)
from silvan.algorithms.keyed_rows import RowSamples
from silvan.errors import InputError
from silvan.federation.federation import Federation
from silvan.forest.forest import Forest
from silvan.forest.importance import Importances
from silvan.learners.federated_estimator import FederatedEstimator
from silvan.learners.fixed_fields import REPEATS
from silvan.learners.result import ColumnEffects
from silvan.privacy.announce import RequestPlan

if TYPE_CHECKING:
    import polars as pl


class ExplainedModel(FederatedEstimator):
    """A learner whose global forest can be explained on the sites' test rows."""

    forest_: Forest | None

    @abstractmethod
    def _forest_for(self, site: str | None) -> Forest:
        """Return the global forest, or the one that a site should use."""

    @abstractmethod
    def feature_key(self) -> np.ndarray:
        """Return the key that decides which features a node may use."""

    @abstractmethod
    def draws(self, federation: Federation, candidates: Sequence[Named]) -> Mapping[str, RowSamples]:
        """Return the rows that the trees of models sampled, by the hash of the model, if known."""

    @abstractmethod
    def thresholds(self) -> Thresholds:
        """Return the decision thresholds for the positive class of two."""

    def permutation_importance(
        self, federation: Federation, repeats: int = REPEATS, by: Sequence[str] = (), *, training: bool = False
    ) -> Importances:
        """Return the permutation importance of each column for the global forest, most important first.

        Every site shuffles a column within its own rows. The sum over sites of squared errors shows how much the
        mean squared error (for two classes, the Brier score) increases. All columns take one round.

        Parameters
        ----------
        federation
            The federation that the model was fitted on, with test rows (``test=0.2``).
        repeats
            How often each column is shuffled.
        by
            The columns of subgroups, if the model is evaluated by subgroups: sites then group rows in the same way.
        training
            Use training rows, each scored by trees that did not see it, in place of test rows: to choose columns by, as
            ``select_columns`` does. In this process only.

        Returns
        -------
        dict
            Increase of the error by column; about 0 for an unimportant column.
        """
        forest, model = self._explained(federation)
        if training and (model.draws is None or by):
            raise InputError.about("training", "needs to know which rows trees sampled, and no subgroups (by)")
        held = self.held_to_text(federation, by=by, repeats=repeats, training=training)
        with federation.working_on(f"columns that matter to {type(self).__name__}"), held:
            key = self.feature_key()
            found = importances(federation, self.schema_, model, key, forest, repeats, by, training)
        return Importances(sorted(found.items(), key=lambda item: -item[1]))

    def partial_dependence(self, federation: Federation, column: str, grid: Any = None) -> "pl.DataFrame":
        """Return the mean prediction over all sites' test rows with a column set to each of some values.

        Parameters
        ----------
        federation
            The federation that the model was fitted on, with test rows (``test=0.2``).
        column
            The column.
        grid
            The values; None: all categories, or numbers within the schema's bounds or the range of cut points.

        Returns
        -------
        polars.DataFrame
            A line for each value: the mean probability of each class (of two, the positive one), or the mean number.
        """
        import polars as pl  # slow to import

        [(values, means)] = self.dependence(federation, [column], grid).values()
        names = self.schema_.label.scored or ["prediction"]
        return pl.DataFrame({column: values, **dict(zip(names, means.T.tolist(), strict=True))})

    def dependence(
        self, federation: Federation, columns: Sequence[str], grid: Any = None, by: Sequence[str] = ()
    ) -> dict[str, tuple[list[Any], np.ndarray]]:
        """Return values of columns with the mean predictions at each, (values, outputs), in one round.

        ``by`` are the columns of subgroups, if the model is evaluated by subgroups.
        """
        forest, model = self._explained(federation)
        grids = [make_grid(self.schema_, forest, column, grid) for column in columns]
        held = self.held_to_text(federation, by=by, dependence=columns)
        with federation.working_on(f"what {type(self).__name__} does with columns"), held:
            found = mean_predictions(federation, self.schema_, model, forest, grids, by)
        shown: dict[str, tuple[list[Any], np.ndarray]] = {}
        for column, of, means in zip(columns, grids, found, strict=True):
            names, values = self.schema_.features[of.feature].categories, of.values.tolist()
            shown[column] = (values if names is None else [names[int(code)] for code in values]), means
        return shown

    def explained(
        self, federation: Federation, importance: bool, columns: Sequence[str], by: Sequence[str]
    ) -> ColumnEffects:
        """Return the importance of columns and the dependence of predictions on some of them, if requested."""
        if self.forest_ is None:
            return super().explained(federation, importance, columns, by)
        permutation = self.permutation_importance(federation, by=by) if importance else None
        return ColumnEffects(permutation, self.dependence(federation, columns, by=by) if columns else {})

    def explanation_plan(self, importance: bool, columns: Sequence[str]) -> RequestPlan:
        """Return the requests of ``permutation_importance`` and ``dependence``, for a model that is evaluated."""
        kinds = (ShuffleColumns,) * importance + (SetColumns,) * bool(columns)
        return RequestPlan(kinds, settings=f"explaining {importance} {list(columns)}", tasks=len(kinds))

    def _explained(self, federation: Federation) -> tuple[Forest, SentModel]:
        """Return the global forest, and the form in which sites receive it."""
        forest = self._forest_for(None)
        if federation.columns is not None:
            raise InputError("parties hold columns of the same rows: use feature_importances_ instead")
        if self.is_private:
            raise InputError("column effects cannot be released with noise, and the forest has epsilon")
        return forest, sent_model(federation, forest, self.draws(federation, []), self.thresholds())
