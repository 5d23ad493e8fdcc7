"""A survival forest on one table, by scikit-survival's conventions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import narwhals as nw
import numpy as np

from silvan.data.bins.time_bins import N_CODES, check_events, time_cells
from silvan.data.encode import encode_label
from silvan.data.schema import Label, Schema
from silvan.data.table import read_table
from silvan.errors import InputError
from silvan.forest.arrays import not_none
from silvan.forest.curves import Curves
from silvan.learners.estimator_input import keys_of, label_of, spread_over_rows
from silvan.learners.forest_estimators import Estimator
from silvan.learners.forest_parameters import VotingForestParameters
from silvan.learners.parameters import write_shared_entries
from silvan.survival_metrics import concordance
from silvan.tree.fit import TIME_BINS


@dataclass(repr=False, eq=False)
class SurvivalForest(Estimator):
    """A random survival forest: for times until an event, some of which are censored.

    Takes arrays, and data frames with text or categorical columns as they are; missing values need no filling in. See
    docs/survival.md.

    Parameters
    ----------
    criterion
        "log_rank".
    oob_score
        Score the forest on the rows that trees did not see: ``oob_score_`` and ``oob_prediction_``; by the C-index, or
        by a function of labels, as ``fit`` takes them, and risks.
    time_bins
        The most times that curves have, at most 255.

    Attributes
    ----------
    forest_
        The trees, a ``Forest``, which can be saved.
    unique_times_
        The times that curves have: ends of bins, of which each has about equally many events.
    feature_importances_
        Share of each feature in the decrease of the squared error of log-rank scores; the shares add up to 1.
    n_features_in_, feature_names_in_
        Number of columns seen by ``fit``, and their names if these are text.
    oob_score_
        With ``oob_score``, the C-index of risks by the trees that did not see a row.
    oob_prediction_
        With ``oob_score``, each row's risk by the trees that did not see it; NaN where all did.

    Examples
    --------
    >>> import numpy as np
    >>> import silvan as sv
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 3))
    >>> time = rng.exponential(np.exp(-X[:, 0])) * 100
    >>> y = np.array(list(zip(time < 200, np.minimum(time, 200))), dtype=[("event", bool), ("time", float)])
    >>> model = sv.SurvivalForest(n_estimators=50, oob_score=True).fit(X, y)
    >>> model.oob_score_ > 0.6
    True
    >>> model.predict_survival_function(X[:2])([0.0, 50.0]).shape
    (2, 2)
    """

    criterion: str = "log_rank"
    min_samples_split: int | float = 10
    min_samples_leaf: int | float = 5
    oob_score: bool | Callable[[np.ndarray, np.ndarray], float] = False
    time_bins: int = TIME_BINS

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train the forest.

        Parameters
        ----------
        X
            Rows to train on, (rows, features): an array, or a data frame, also with text columns. NaN is missing.
        y
            The event and the time of each row: a structured array with two fields, of which the one that is boolean or
            called "event" is the event, as scikit-survival takes it; or a data frame with columns "time" and "event".
        groups
            The id of each row's person, where persons have several rows, as for ``ForestRegressor``.

        Returns
        -------
        self
        """
        self._settings()
        labels = signed_labels(y)
        check_events(np.bincount(time_cells(labels), minlength=N_CODES))
        X, labels = self._read_table(X, labels)
        keys = keys_of(groups, np.ones(len(labels), np.bool_))
        label = label_of(self._features)
        label = Label(label.name, event=f"event of {label.name}")
        target = self._settings().target(Schema(self._features, label), labels)
        self._grow(X, target, label, keys)
        self.unique_times_ = np.array(not_none(self.forest_.times))
        if self.oob_score:
            found = self._out_of_bag(X, keys)[1]
            known = ~np.isnan(found)
            by_function = callable(self.oob_score)
            given = np.asarray(y)[known] if by_function and isinstance(y, np.ndarray) else labels[known]
            scored = self.oob_score(given, found[known]) if callable(self.oob_score) else None
            self.oob_score_ = concordance(labels[known], found[known]) if scored is None else float(scored)
            self.oob_prediction_ = spread_over_rows(found, np.ones(len(labels), np.bool_))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the risk of each row: the sum of its cumulative hazards over ``unique_times_``; higher is earlier."""
        return self.forest_.predict(self._read(X), self.n_jobs)

    def predict_cumulative_hazard_function(self, X: Any, return_array: bool = False) -> Curves | np.ndarray:
        """Return each row's cumulative hazard: curves that can be called with times, or (rows, ``unique_times_``)."""
        found = self.forest_.predict_cumulative_hazard_function(self._read(X), self.n_jobs)
        return found.y if return_array else found

    def predict_survival_function(self, X: Any, return_array: bool = False) -> Curves | np.ndarray:
        """Return each row's survival function: curves that can be called with times, or (rows, ``unique_times_``)."""
        found = self.forest_.predict_survival_function(self._read(X), self.n_jobs)
        return found.y if return_array else found

    def score(self, X: Any, y: Any) -> float:
        """Return the C-index of risks on rows: the share of comparable pairs that they rank right."""
        return concordance(signed_labels(y), self.predict(X))


def signed_labels(y: Any) -> np.ndarray:
    """Return the labels that ``fit`` takes as signed times (``data/survival.py``)."""
    names = getattr(getattr(y, "dtype", None), "names", None)
    if names is not None:
        frame = nw.from_dict({name: np.ascontiguousarray(y[name]) for name in names}, backend="polars")
    elif nw.dependencies.is_into_dataframe(y):
        frame = read_table(y)
    else:
        raise InputError.about(
            "y",
            "must be a structured array or a data frame with an event and a time for each row, such as columns "
            "'event' and 'time'",
        )
    columns = list(frame.columns)
    events = [name for name in columns if frame[name].dtype == nw.Boolean] or [n for n in columns if n == "event"]
    if len(columns) != 2 or len(events) != 1:
        raise InputError.about("y", f"must have an event, of true and false, and a time; got columns {columns}")
    label = Label(next(name for name in columns if name != events[0]), event=events[0])
    return encode_label(frame, Schema((), label)).astype(np.float64)


write_shared_entries(SurvivalForest, like=VotingForestParameters)
