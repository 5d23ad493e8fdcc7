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
        self, federation: Federation, repeats: int = REPEATS, by: Sequence[str] = ()
    ) -> Importances:
        """Return how much each column matters to the global forest: those that matter most come first.

        Every site shuffles a column within its own test rows; the sum over sites of squared errors says by how much
        the mean squared error grows (of two classes: the Brier score). One round for all columns.

        Parameters
        ----------
        federation
            The federation that the model was fitted on, made with test rows (``test=0.2``).
        repeats
            How often each column is shuffled.
        by
            The columns of subgroups, if the model is evaluated by some: sites then group rows as they do there.

        Returns
        -------
        dict
            Growth of the error by column; about 0 for a column that does not matter.
        """
        forest, model = self._explained(federation)
        held = self.held_to_text(federation, by=by, repeats=repeats)
        with federation.working_on(f"columns that matter to {type(self).__name__}"), held:
            found = importances(federation, self.schema_, model, self.feature_key(), forest, repeats, by)
        return Importances(sorted(found.items(), key=lambda item: -item[1]))

    def partial_dependence(self, federation: Federation, column: str, grid: Any = None) -> "pl.DataFrame":
        """Return the mean prediction of all sites' test rows with a column set to each of some values.

        Parameters
        ----------
        federation
            The federation that the model was fitted on, made with test rows (``test=0.2``).
        column
            The column.
        grid
            The values; None for all categories, or for numbers within the schema's bounds or the trees' cut points.

        Returns
        -------
        polars.DataFrame
            A line for each value: the mean probability of each class (of two: of the positive one), or the mean number.
        """
        import polars as pl  # slow to import

        [(values, means)] = self.dependence(federation, [column], grid).values()
        names = self.schema_.label.scored or ["prediction"]
        return pl.DataFrame({column: values, **dict(zip(names, means.T.tolist(), strict=True))})

    def dependence(
        self, federation: Federation, columns: Sequence[str], grid: Any = None, by: Sequence[str] = ()
    ) -> dict[str, tuple[list[Any], np.ndarray]]:
        """Return values of columns with the mean predictions at each, (values, outputs), in one round.

        ``by`` are the columns of subgroups, if the model is evaluated by some.
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
        """Return what ``permutation_importance`` and ``dependence`` ask of sites, of a model that they evaluate too."""
        kinds = (ShuffleColumns,) * importance + (SetColumns,) * bool(columns)
        return RequestPlan(kinds, settings=f"explaining {importance} {list(columns)}", tasks=len(kinds))

    def _explained(self, federation: Federation) -> tuple[Forest, SentModel]:
        """Return the global forest in the form that sites receive for evaluation."""
        forest = self._forest_for(None)
        if federation.columns is not None:
            raise InputError("parties hold columns of the same rows: feature_importances_ says what matters")
        if self.is_private:
            raise InputError("what columns do cannot be released with noise, and the forest has epsilon")
        return forest, sent_model(federation, forest, self.draws(federation, []), self.thresholds())
