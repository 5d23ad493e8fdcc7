"""Federated feature selection: which columns a forest of all sites needs, by permutation importance from sums."""

from dataclasses import dataclass

from sklearn.base import clone

from silvan.errors import InputError
from silvan.federation.federation import Federation
from silvan.forest.importance import Importances
from silvan.learners.base import Learner
from silvan.learners.fixed_fields import REPEATS
from silvan.learners.horizontal import HistogramForest
from silvan.util.readable import count_of, format_names, html_table


@dataclass(frozen=True)
class SelectedColumns:
    """Columns to keep and to leave out; prints as a sentence and a list.

    Parameters
    ----------
    kept
        Columns that matter, the most important first.
    dropped
        The others: pass them as ``exclude`` to ``federate_rows``.
    importances
        Growth of the squared error when a column is shuffled, on training rows that trees did not see.
    least
        What a column must exceed: how much the importance of columns varies around zero by chance.

    Examples
    --------
    >>> import silvan as sv
    >>> fed = sv.federate_rows(sv.datasets.heart_disease(), site="hospital", label="disease")
    >>> found = sv.select_columns(fed, sv.HistogramForest(n_estimators=30, max_depth=5))
    >>> found.importances[found.kept[-1]] > found.least
    True
    """

    kept: list[str]
    dropped: list[str]
    importances: Importances
    least: float

    def __str__(self) -> str:
        dropped = format_names(self.dropped) if self.dropped else "none"
        kept = f"{len(self.kept)} of {count_of(len(self.importances), 'column')} kept"
        return f"{kept}; left out: {dropped}\n{self.importances!r}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        rows = [[name, round(value, 4), "yes" if name in self.kept else ""] for name, value in self.importances.items()]
        return html_table(["column", "importance", "kept"], rows)


def select_columns(
    federation: Federation, learner: Learner | None = None, *, most: int | None = None, repeats: int = REPEATS
) -> SelectedColumns:
    """Choose the columns that matter, from sums over sites.

    A forest is trained on all columns. Each site shuffles each column within its own training rows and sums how much
    the error of trees that did not see a row grows; the coordinator learns the sums over sites. A column is kept if its
    importance exceeds what chance makes of columns without any: the largest amount by which shuffling one made the
    error smaller (Strobl, Malley and Tutz, 2009). Test rows take no part, so they still measure what the choice costs.

    Parameters
    ----------
    federation
        The sites, in this process, made by ``federate_rows``.
    learner
        The learner to choose for, not fitted: one with a forest for all sites. None: ``HistogramForest()``.
    most
        The largest number of columns to keep; None for all that matter.
    repeats
        How often each column is shuffled.

    Returns
    -------
    SelectedColumns
        ``kept``, ``dropped`` and ``importances``.

    Examples
    --------
    >>> import silvan as sv
    >>> table = sv.datasets.heart_disease()
    >>> fed = sv.federate_rows(table, site="hospital", label="disease", test=0.2)
    >>> found = sv.select_columns(fed, sv.HistogramForest(n_estimators=30, max_depth=5), most=6)
    >>> len(found.kept)
    6
    >>> small = sv.federate_rows(table, site="hospital", label="disease", test=0.2, exclude=found.dropped)
    >>> len(small.schema.features)
    6
    """
    if federation.columns is not None or not federation.local_sites:
        raise InputError.about("federation", "must be one of rows in this process, made by federate_rows")
    if most is not None and most < 1:
        raise InputError.wrong("most", "at least 1, or None", most)
    model: Learner = HistogramForest() if learner is None else clone(learner)
    found = model.fit(federation).permutation_importance(federation, repeats, training=True)
    least = max(0.0, -min(found.values()))
    kept = [name for name, value in found.items() if value > least]
    kept = kept or list(found)[:1]  # nothing can be learned from no column at all
    kept = kept if most is None else kept[:most]
    return SelectedColumns(kept, [name for name in found if name not in kept], found, least)
