"""A forest: checked arrays, with methods to predict, to save and to exchange with other libraries.

Conversions to other libraries are imported where they are used, because growing trees needs none of them.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from silvan.errors import FormatError, InputError
from silvan.forest import intervals, predict, silvan_file
from silvan.forest.arrays import ARRAYS, ForestArrays, not_none
from silvan.forest.check import check
from silvan.forest.curves import Curves, moved, survival
from silvan.forest.importance import Importances, permutation_importances
from silvan.forest.shap import Shap, shap_values
from silvan.util.files import write_whole
from silvan.util.readable import count_of, html_table

_MOST_SHOWN = 5  # columns shown in a summary


class Forest(ForestArrays):
    """Decision trees and how they combine.

    Made by learners, ``load`` and ``from_sklearn``; every forest is checked when it is made, so one that
    exists can be used. Its arrays are read-only. Equality is equality of ``hash``.

    The nodes of a tree are in level order: the k-th inner node of a tree, counted from 0, has its children at positions
    2k + 1 and 2k + 2 of that tree.

    Parameters
    ----------
    schema
        The meaning of the columns, a ``Schema``.
    offsets
        The start of each tree's nodes, and the end of the last tree's: (trees + 1,).
    feature
        The index of the feature that a node splits on, -1 for a leaf: (nodes,).
    threshold
        A numeric split sends values up to this one left: (nodes,).
    missing_left
        Whether rows with a missing value go left: (nodes,).
    sets
        For splits by category, in the order of the nodes: the bins that go left, as bits of four words,
        (category splits, 4).
    value
        Class probabilities, or a number, of leaves, in the order of the nodes: (leaves, outputs).
    weights
        The weight of each tree: (trees,).
    combine
        How trees are combined. "mean": the weighted mean of leaf values. "vote": each tree votes with its weight for
        the most probable class of its leaf. "stages": trees of a stage vote, and stages vote by their weights.
        "log_odds": a calibrated sum of leaf values.
    gain
        Each feature's share in the decrease of impurity: (features,); None if it is not known.
    group, say
        With "stages" only: the stage of each tree, (trees,), and the weight of each stage, (stages,).
    knots, odds
        With "log_odds" only: the calibration by class, summed leaf values and their log-odds, (classes, points).
    curve
        Of classes, with "mean" and "vote": the intercept and slope that map log-odds of scores to calibrated ones,
        (classes, 2); None for scores as they are.
    errors
        With "mean" and "vote": out-of-bag errors, and how many rows have at most these,
        (2, points); what intervals and prediction sets are made of. None: there are none.
    times
        Of survival forests: the times that leaf values are cumulative hazards at, (outputs,).

    Examples
    --------
    >>> import tempfile
    >>> import silvan as sv
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> forest = sv.ForestClassifier(n_estimators=10).fit(X, y).forest_
    >>> len(forest), forest.schema.names
    (10, ('x0', 'x1', 'x2', 'x3'))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     forest.save(f"{folder}/iris.silvan")
    ...     again = sv.Forest.load(f"{folder}/iris.silvan")
    >>> again == forest
    True
    >>> again.predict(X[:2])
    array([0, 0])
    """

    def __post_init__(self) -> None:
        """Make read-only copies of the arrays and check them."""
        super().__post_init__()
        check(self)

    def _repr_html_(self) -> str:
        """Return a summary for notebooks."""
        n = len(self)
        kind = "a number" if self.classes is None else count_of(len(self.classes), "class")
        kind = kind if self.times is None else count_of(len(self.times), "time")
        facts: list[tuple[str, object]] = [
            ("trees", n),
            ("nodes", len(self.feature)),
            ("depth", int(self.depth.max(initial=0))),
            ("columns", self.n_features),
            ("predicts", f"{self.schema.label.name}, {kind}"),
            ("hash", self.hash[:12]),
        ]
        if self.gain is not None:
            shares = sorted(self.importances().items(), key=lambda pair: -pair[1])[:_MOST_SHOWN]
            facts.append(("most important", ", ".join(f"{name} {share:.2f}" for name, share in shares)))
        return html_table(("Forest", ""), facts)

    # -- use

    def scores(self, X: Any, n_jobs: int | None = None) -> np.ndarray:
        """Return a share for each class, the number, or cumulative hazards at ``times``: (rows, outputs).

        The weighted mean of the leaf values, each class's share of the stages' say, or what log-odds make. A table
        must have all columns of the schema; if trees vote, those that ask about a column which it lacks abstain.
        """
        rows, absent = predict.as_rows(self, X)
        return predict.scores(self, rows, n_jobs, absent)

    def predict_proba(self, X: Any, n_jobs: int | None = None) -> np.ndarray:
        """Return class probabilities, columns in the order of ``classes``."""
        if self.classes is None:
            raise InputError("predict_proba is for classification; this forest predicts a number")
        return self.scores(X, n_jobs)

    def predict_interval(self, X: Any, coverage: float = 0.9, n_jobs: int | None = None) -> np.ndarray:
        """Return an interval for each row, (rows, 2), that contains the number for this share of rows.

        Its width follows from out-of-bag errors; it is infinite if these are too few.
        """
        return intervals.predict_interval(self, self.scores(X, n_jobs), coverage)

    def predict_quantiles(self, X: Any, q: Any = (0.05, 0.5, 0.95), n_jobs: int | None = None) -> np.ndarray:
        """Return quantiles of each row's number, (rows, quantiles): the prediction plus quantiles of errors."""
        return intervals.predict_quantiles(self, self.scores(X, n_jobs), q)

    def predict_set(self, X: Any, coverage: float = 0.9, n_jobs: int | None = None) -> np.ndarray:
        """Return the possible classes, bool (rows, classes), which include the true one for this share of rows.

        A row may have several classes, or none if every class is less probable than most true classes are.
        """
        return intervals.predict_set(self, self.scores(X, n_jobs), coverage)

    def predict(self, X: Any, n_jobs: int | None = None) -> np.ndarray:
        """Return the class, the number, or the risk: the sum of cumulative hazards over ``times``.

        If ``combine`` is "vote" and there is no calibration ``curve``, votes decide the class, which need not be the
        most probable one. Otherwise it is the class of the highest score.
        """
        rows, absent = predict.as_rows(self, X)
        decided = predict.decide(self, rows, n_jobs, absent)
        return decided if self.classes is None else self.classes[decided]

    def predict_cumulative_hazard_function(self, X: Any, n_jobs: int | None = None) -> Curves:
        """Return each row's cumulative hazard, the mean of the trees' Nelson-Aalen curves; for survival forests."""
        return Curves(self._known_times(), self.scores(X, n_jobs), 0.0)

    def predict_survival_function(self, X: Any, n_jobs: int | None = None) -> Curves:
        """Return each row's survival function, the mean of the trees' Kaplan-Meier curves; for survival forests."""
        times, (rows, absent) = self._known_times(), predict.as_rows(self, X)
        return Curves(times, predict.scores(self, rows, n_jobs, absent, value=survival(self.value)), 1.0)

    def _known_times(self) -> np.ndarray:
        if self.times is None:
            raise InputError("this forest has no curves: they are of forests fitted with task='survival'")
        return self.times

    def importances(self, X: Any = None, y: Any = None, repeats: int = 5, random_state: int = 0) -> Importances:
        """Return the importance of each feature, by name.

        Without rows: its share in the decrease of impurity, averaged over trees; the shares add up to 1. With rows
        X and y: the drop in accuracy (or R2) when its column is shuffled.
        """
        if X is not None:
            return permutation_importances(self, X, y, repeats, random_state)
        if self.gain is None:
            raise InputError("this forest has no gains; pass rows X and y for importances by shuffling")
        return Importances(zip(self.schema.names, map(float, self.gain), strict=True))

    def shap(self, X: Any, background: Any = None, n_jobs: int | None = None) -> Shap:
        """Return Shapley values: how much each feature moves a row's scores away from the mean.

        ``values`` is (rows, features, outputs); ``base`` (outputs,) is the mean score of ``background`` rows, by
        default X. A row's values and ``base`` add up to its ``scores``. As in tree explainers, a split on an unknown
        feature averages both sides by their shares of background rows. Values are exact up to rounding, also for
        categorical columns and weighted trees. For a calibrated forest they explain ``plain()``, the scores before
        calibration, because calibrated scores are no sum over trees.
        """
        rows, absent = predict.as_rows(self, X)
        behind = rows if background is None else predict.as_rows(self, background)[0]
        return shap_values(self, rows, behind, absent, n_jobs)

    # -- files and other libraries

    def to_bytes(self) -> bytes:
        """Return the content of a ``.silvan`` file."""
        return silvan_file.to_bytes(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read the content of a ``.silvan`` file, checking everything."""
        return silvan_file.from_bytes(data, cls)

    def save(self, path: str | Path) -> None:
        """Write a ``.silvan`` file."""
        write_whole(path, self.to_bytes())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a ``.silvan`` file, checking everything."""
        try:
            return cls.from_bytes(Path(path).read_bytes())
        except FormatError as error:
            raise type(error)(f"{path}: {error}") from None

    @classmethod
    def from_sklearn(cls, model: Any) -> Self:
        """Convert a fitted scikit-learn forest or decision tree; predictions are identical."""
        from silvan.forest import sklearn_trees

        return sklearn_trees.from_sklearn(model, cls)

    def to_sklearn(self, X: Any = None, y: Any = None) -> Any:
        """Return a fitted ``RandomForestClassifier`` or ``RandomForestRegressor`` that predicts the same.

        With rows X and y, nodes get the counts of these rows, so that importances, Shapley values and drawn trees of
        the copy hold for them. A forest stores no counts: without rows they are meaningless, and a warning says
        so.
        """
        from silvan.forest import sklearn_trees

        if X is None:
            return sklearn_trees.to_sklearn(self)
        return sklearn_trees.to_sklearn(self, *self._labelled(X, y))

    def _labelled(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return encoded rows, and their labels as class codes or numbers."""
        rows, y = predict.as_rows(self, X)[0], np.asarray(y)
        if y.shape != (len(rows),) or not len(y):
            raise InputError(
                f"X has {len(rows)} rows and y has shape {y.shape}; there must be one label per row, and rows"
            )
        if self.classes is None:
            return rows, y.astype(np.float64)
        codes = {name: code for code, name in enumerate(self.classes.tolist())}
        try:
            return rows, np.array([codes[name] for name in y.tolist()])
        except KeyError as error:
            raise InputError.about("y", f"holds {error.args[0]!r}, which is not a class of this forest") from None

    def to_onnx(self, path: str | Path) -> None:
        """Write an ONNX model, after checking that onnxruntime predicts the same from it."""
        from silvan.forest import onnx_file

        onnx_file.to_onnx(self, path)

    def to_treelite(self) -> Any:
        """Return a ``treelite.Model``, after checking that it predicts the same."""
        from silvan.forest import treelite_model

        return treelite_model.to_treelite(self)


def join_forests(forests: Sequence[Forest], say: Sequence[float] | None = None) -> Forest:
    """Return one forest with the trees of several.

    ``say`` has a factor per forest, for the weights of its trees or of its stages.
    """
    first = forests[0]
    if any(f.schema != first.schema for f in forests):
        raise InputError("forests with different schemas cannot be joined")
    if any(f.combine != first.combine for f in forests):
        ways = ", ".join(sorted({repr(f.combine) for f in forests}))
        raise InputError(f"forests that combine their trees differently ({ways}) cannot be joined")
    if any(f.curve is not None or f.errors is not None for f in forests):
        raise InputError("calibrated forests cannot be joined, because each has its own curve; take plain() of each")
    if first.times is not None:
        forests = on_same_times(forests)
    if first.combine == "log_odds":
        raise InputError("forests that add log-odds cannot be joined, because each has its own calibration")
    factors = [1.0] * len(forests) if say is None else say
    starts = np.cumsum([0] + [len(f.feature) for f in forests])
    arrays = {name: np.concatenate([getattr(f, name) for f in forests]) for name in ARRAYS}
    begun = [f.offsets[:-1] + start for f, start in zip(forests, starts, strict=False)]
    arrays["offsets"] = np.concatenate([*begun, starts[-1:]])
    if first.combine == "stages":
        before = np.cumsum([0] + [len(not_none(f.say)) for f in forests])
        arrays["group"] = np.concatenate([not_none(f.group) + n for f, n in zip(forests, before, strict=False)])
        arrays["say"] = np.concatenate([not_none(f.say) * x for f, x in zip(forests, factors, strict=True)])
    else:
        arrays["weights"] = np.concatenate([f.weights * x for f, x in zip(forests, factors, strict=True)])
    for array in arrays.values():
        array.setflags(write=False)  # nobody else has them, so they need not be copied
    gains = [f.gain for f in forests if f.gain is not None]
    gain = np.mean(gains, axis=0) if len(gains) == len(forests) else None
    return Forest(first.schema, **arrays, combine=first.combine, gain=gain, times=forests[0].times)


def on_same_times(forests: Sequence[Forest]) -> Sequence[Forest]:
    """Return survival forests with curves at the same times: those of all, or evenly chosen ones of too many."""
    known = [not_none(forest.times) for forest in forests]
    if all(np.array_equal(times, known[0]) for times in known):
        return forests
    times = np.unique(np.concatenate(known))
    most = max(map(len, known))
    if len(times) > most:
        times = times[len(times) - 1 - np.arange(most)[::-1] * len(times) // most]
    return [_with_times(forest, times) for forest in forests]


def at_times_of(forest: Forest, other: Forest) -> Forest:
    """Return a survival forest with curves at the times of another one."""
    return _with_times(forest, not_none(other.times))


def _with_times(forest: Forest, times: np.ndarray) -> Forest:
    own = not_none(forest.times)
    if np.array_equal(own, times):
        return forest
    return replace(forest, value=moved(own, forest.value, times), times=times)
