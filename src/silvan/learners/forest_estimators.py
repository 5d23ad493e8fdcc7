"""Forests on one table, as scikit-learn estimators.

They take arrays like any estimator, and data frames with text or categorical columns as they are: such
columns are split by category, missing values need no filling in.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags, check_random_state, column_or_1d, compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    check_is_fitted,
    validate_data,
)

from silvan.data.array_table import densify
from silvan.data.encode import encode_features, infer_features
from silvan.data.schema import CROWDED, Feature, Label, Schema
from silvan.errors import InputError
from silvan.forest.forest import Forest
from silvan.forest.predict import as_matrix, decide, leaves_of, scores, scores_and_decisions
from silvan.learners.estimator_input import (
    check_labels_present,
    keys_of,
    label_numbers,
    label_of,
    mixed_frame,
    rows_in_share,
    spread_over_rows,
    used_rows,
)
from silvan.learners.forest_parameters import VotingForestParameters
from silvan.learners.parameters import write_shared_entries
from silvan.tree.fit import Assembled, Settings, check_class_weight, fit_forest, monotonic_signs
from silvan.tree.objectives import Target
from silvan.tree.sampling import SamplingKeys, make_key, one_of_each, persons_of, rows_of_trees
from silvan.util.device import check_device
from silvan.util.user_warnings import warn_user

_MANY_ROWS = 1 << 40  # in place of the number of rows, before it is known


class _FittedForest(BaseEstimator):
    """Attributes that ``fit`` sets; not parameters, so not fields of the dataclasses below."""

    forest_: Forest
    _seed: int
    _shares: csr_array  # of features in the gains of trees


@dataclass(repr=False, eq=False)
class Estimator(_FittedForest):
    """The common part of all estimators: parameters, reading tables, growing, scoring.

    Parameters
    ----------
    min_samples_split
        Fewest rows in a node that is split, or a share of all rows. Rows are counted, not weights.
    min_samples_leaf
        Fewest rows in a leaf, or a share of all rows.
    bootstrap
        Grow each tree on its own sample of rows, without replacement: each row with probability 1 - 1/e.
    random_state
        An int gives the same forest anywhere, whatever ``n_jobs``.
    n_jobs
        Threads; None for all cores.
    min_weight_fraction_leaf
        Least share of the total weight in a leaf; weights of rows and classes count here.
    max_samples
        A share f of the rows, or their number f n, for smaller trees: each row is then in a tree with probability
        1 - exp(-f), as many as a bootstrap sample of that size would have. None: all rows, f = 1.
    device
        Where trees grow: "cpu", "cuda" for a graphics card, or "auto" for a graphics card where there is one and the
        table has a million rows or more. The forest is the same. A graphics card needs the extra ``gpu``.
    warm_start
        Keep the trees of the last ``fit`` and add those that ``n_estimators`` has more. On the same table the forest is
        the one that would have been grown at once; the seed of the first ``fit`` is kept.
    """

    n_estimators: int = 100
    criterion: str = "gini"
    max_depth: int | None = None
    min_samples_split: int | float = 2
    min_samples_leaf: int | float = 2
    max_features: str | int | float | None = "sqrt"
    max_bins: int = 64
    bootstrap: bool = True
    random_state: Any = 0
    n_jobs: int | None = None
    oob_score: bool | Callable[[np.ndarray, np.ndarray], float] = False
    feature_sampling: str = "node"
    min_weight_fraction_leaf: float = 0.0
    max_samples: int | float | None = None
    warm_start: bool = False
    monotonic_cst: Any = None
    device: str = "auto"

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags

    def _settings(self, n_rows: int = _MANY_ROWS, schema: Schema | None = None) -> Settings:
        if not isinstance(self.oob_score, bool | np.bool) and not callable(self.oob_score):
            raise InputError.wrong("oob_score", "True, False or a function of labels and answers", self.oob_score)
        if self.oob_score and not self.bootstrap:
            raise InputError("oob_score=True needs bootstrap=True: without it every tree sees every row")
        if not isinstance(self.warm_start, bool | np.bool):
            raise InputError.wrong("warm_start", "True or False", self.warm_start)
        check_device(self.device)
        names = Settings.__dataclass_fields__.keys() & self.get_params(deep=False).keys() - {"class_weight"}
        values = {name: getattr(self, name) for name in names - {"monotonic_cst"}}
        if schema is not None:
            values["monotonic_cst"] = monotonic_signs(self.monotonic_cst, schema)
        for name, least in (("min_samples_leaf", 1), ("min_samples_split", 2)):
            if isinstance(values[name], float | np.floating):
                values[name] = rows_in_share(name, float(values[name]), n_rows, least)
        n_sampled = self.max_samples
        if isinstance(n_sampled, int | np.integer) and not isinstance(n_sampled, bool):
            if not 1 <= n_sampled <= n_rows:
                raise InputError.wrong("max_samples", f"1 to the number of rows, {n_rows}, or a share", n_sampled)
            values["max_samples"] = float(n_sampled / n_rows)
        return Settings(**values)

    def _read_table(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """Check the table to fit on and describe its columns; return X as float32 (rows, features), and y as it is."""
        X = densify(X, warn=True)
        frame = mixed_frame(X)
        check_labels_present(y)
        if frame is None:
            with np.errstate(over="ignore"):  # what is too large becomes infinite, which is refused
                X, y = validate_data(self, X, y, dtype=np.float32, order="C", ensure_all_finite="allow-nan")
            names = getattr(self, "feature_names_in_", [f"x{i}" for i in range(X.shape[1])])
            self._features = tuple(Feature(str(name)) for name in names)
            return X, y
        _check_feature_names(self, X, reset=True)
        _check_n_features(self, X, reset=True)
        if y is None:
            raise InputError.about("y", "is None; pass the column to predict")
        y = column_or_1d(y, warn=True)
        if not 0 < len(frame) == len(y):
            raise InputError(f"X has {len(frame)} rows and y has {len(y)}; they must match and not be 0")
        self._features = infer_features(frame)
        for feature in self._features:
            if feature.crowded:
                mend = "if they matter, make numbers of them first (sklearn.preprocessing.TargetEncoder)"
                warn_user(f"column {feature.name!r} {CROWDED}; {mend}")
        return encode_features(frame, Schema(self._features, label_of(self._features))), y

    def _read(self, X: Any) -> np.ndarray:
        """Check rows to predict for against the table fitted on."""
        check_is_fitted(self)
        X = densify(X, warn=False)
        frame = mixed_frame(X)
        if frame is None and not any(f.categorical for f in self._features):
            with np.errstate(over="ignore"):
                return validate_data(self, X, dtype=np.float32, order="C", ensure_all_finite="allow-nan", reset=False)
        _check_feature_names(self, X, reset=False)
        _check_n_features(self, X, reset=False)
        return as_matrix(self.forest_.schema, X)

    def _grow(
        self,
        X: np.ndarray,
        target: Target,
        label: Label,
        row_keys: np.ndarray | None = None,
    ) -> None:
        schema = Schema(self._features, label)
        settings = self._settings(len(X) if row_keys is None else len(persons_of(row_keys)), schema)
        before = self._trees_before(schema)
        if before is None:
            state = self.random_state  # a whole number, or a generator that draws one, as scikit-learn's estimators do
            self._seed = int(state if isinstance(state, int | np.integer) else check_random_state(state).randint(2**31))
        keys = SamplingKeys(make_key(self._seed, "rows"), make_key(self._seed, "features"))
        given: dict[str, Any] = {"before": before, "row_keys": row_keys, "n_jobs": self.n_jobs, "device": self.device}
        self.forest_, shares = fit_forest(X, target, schema, settings, keys, **given)
        self._shares = csr_array(shares)

    def _trees_before(self, schema: Schema) -> Assembled | None:
        """Return the trees that are kept with ``warm_start``; raise ``InputError`` if none can be added to them."""
        if not self.warm_start or "forest_" not in vars(self):
            return None
        n = len(self.forest_)
        if self.forest_.schema != schema:
            raise InputError(
                "warm_start=True adds trees to those of the last fit, which had other columns, categories or classes; "
                "set warm_start=False to begin anew"
            )
        if self.n_estimators < n:
            raise InputError.wrong("n_estimators", f"at least {n}, the trees there are", self.n_estimators)
        if self.n_estimators == n:
            warn_user(f"warm_start=True adds no tree: there are {n} already, and n_estimators says no more")
        return Assembled(self.forest_, self._shares.toarray())

    def _scores(self, X: Any) -> np.ndarray:
        matrix = self._read(X)
        return scores(self.forest_, matrix, self.n_jobs)

    def _out_of_bag(self, X: np.ndarray, row_keys: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Score each row by the trees that did not see it or its person; also return what these decide.

        Scores are NaN where all trees did.
        """
        keys, n = np.arange(len(X), dtype=np.uint64), len(X)
        if row_keys is not None:
            keys, n = np.ascontiguousarray(row_keys["person"]), len(persons_of(row_keys))
        draw = self._settings(n).row_sampling
        seen = rows_of_trees(make_key(self._seed, "rows"), keys, 0, self.n_estimators, draw)
        everywhere = int(seen.all(axis=0).sum())
        if everywhere:
            seen_by_all = f"every tree saw {everywhere} of {len(X)} rows"
            warn_user(f"{seen_by_all}, which therefore have no out-of-bag score; grow more trees")
        return scores_and_decisions(self.forest_, X, self.n_jobs, skip=seen)

    def __len__(self) -> int:
        """Return how many trees there are; raise ``AttributeError`` before ``fit``, as scikit-learn's forests do."""
        return len(self.forest_)

    def apply(self, X: Any) -> np.ndarray:
        """Return the leaf that each row falls into in each tree, by its number in the tree: (rows, trees)."""
        return leaves_of(self.forest_, self._read(X), self.n_jobs)

    @property
    def feature_importances_(self) -> np.ndarray:
        """Share of each feature in the decrease of impurity."""
        check_is_fitted(self)
        return np.array(list(self.forest_.importances().values()))


@dataclass(repr=False, eq=False)
class ForestClassifier(ClassifierMixin, Estimator):
    """A random forest for two or more classes.

    Takes arrays, and data frames with text or categorical columns as they are; missing values need no filling in.

    Parameters
    ----------
    criterion
        "gini" or "entropy" ("log_loss" is the same).
    class_weight
        None, "balanced", or a dict of weights. "balanced" gives every class the same weight in sum, weights of rows
        included.
    oob_score
        Score the forest on the rows that trees did not see: ``oob_score_`` and ``oob_decision_function_``; by accuracy,
        or by a function of labels and answers.
    monotonic_cst
        Which way predictions may go with a column: 1 up, -1 down, 0 either; a number for each column, or a dict by
        name. For two classes, and then of the probability of the second.

    Attributes
    ----------
    forest_
        The trees, a ``Forest``, which can be saved and exported.
    classes_, n_classes_
        The classes in the order of probabilities, and how many there are.
    feature_importances_
        Share of each feature in the decrease of impurity; the shares add up to 1.
    n_features_in_, feature_names_in_
        Number of columns seen by ``fit``, and their names if these are text.
    oob_score_
        With ``oob_score``, the share of rows that are classified right by the trees that did not see them.
    oob_decision_function_
        With ``oob_score``, each row's class probabilities by the trees that did not see it; NaN where all did.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> import silvan as sv
    >>> X, y = load_iris(return_X_y=True)
    >>> model = sv.ForestClassifier(n_estimators=20).fit(X, y)
    >>> model.predict(X[:2])
    array([0, 0])
    """

    class_weight: Any = None
    vote: str = "soft"

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Train the forest.

        Parameters
        ----------
        X
            Rows to train on, (rows, features): an array, or a data frame, also with text columns. NaN is missing.
        y
            The class of each row.
        sample_weight
            A weight for each row; None for equal weights. Rows of weight 0 are left out.
        groups
            The id of each row's person, where persons have several rows: each tree samples persons and takes one row of
            each, so that rows are counted by person, and a row is out of bag where its person is. To evaluate a model,
            keep persons together too (``sklearn.model_selection.GroupKFold``).

        Returns
        -------
        self
        """
        self._settings()
        X, y = self._read_table(X, y)
        check_classification_targets(y)
        used, weight = used_rows(X, sample_weight)
        X, y = X[used], y[used]
        keys = keys_of(groups, used)
        self.classes_, codes = np.unique(y, return_inverse=True)
        self.n_classes_ = len(self.classes_)
        by_class = None
        check_class_weight(self.class_weight)
        if self.class_weight is not None:
            counted = np.ones(len(y), np.bool_) if keys is None else one_of_each(keys)
            by_class = compute_class_weight(self.class_weight, classes=self.classes_, y=y[counted])
            if isinstance(self.class_weight, str) and weight is not None:  # balanced
                masses = np.bincount(codes[counted], weight[counted], self.n_classes_)
                by_class = masses.sum() / (len(masses) * masses)
        target = self._settings().objective_for("classification").target(codes, self.n_classes_, weight, by_class)
        self._grow(X, target, label_of(self._features, tuple(self.classes_.tolist())), keys)
        if self.oob_score:
            shares, decided = self._out_of_bag(X, keys)
            known = ~np.isnan(shares[:, 0])
            self.oob_score_ = np.nan
            if known.any():
                answers, right = self.classes_[decided[known]], codes[known] == decided[known]
                self.oob_score_ = float(self.oob_score(y[known], answers) if callable(self.oob_score) else right.mean())
            self.oob_decision_function_ = spread_over_rows(shares, used)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return class probabilities, columns in the order of ``classes_``."""
        return _evened(self._scores(X))

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithms of class probabilities."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """Return the class of each row of ``X``: the most probable one; with ``vote="hard"`` the one with most votes.

        A data frame must have the columns of ``fit`` in the same order, as scikit-learn requires.
        """
        rows = self._read(X)
        if self.forest_.combine == "vote":
            return self.classes_[decide(self.forest_, rows, self.n_jobs)]
        return self.classes_[_evened(scores(self.forest_, rows, self.n_jobs)).argmax(axis=1)]


def _evened(probability: np.ndarray) -> np.ndarray:
    """Round so that equal probabilities are equal, in whatever order trees were added up."""
    rounded: np.ndarray = np.rint(probability * 2.0**50) / 2.0**50
    return rounded


@dataclass(repr=False, eq=False)
class ForestRegressor(RegressorMixin, Estimator):
    """A random forest for a number.

    Takes arrays, and data frames with text or categorical columns as they are; missing values need no filling in.

    Parameters
    ----------
    criterion
        "squared_error".
    max_features
        Features tried at a node: "sqrt", "log2", a whole number, a share, or None for all. By default all, as in
        scikit-learn.
    oob_score
        Score the forest on the rows that trees did not see: ``oob_score_`` and ``oob_prediction_``; by R2, or by a
        function of labels and answers.
    monotonic_cst
        Which way predictions may go with a column: 1 up, -1 down, 0 either; a number for each column, or a dict by
        name. Not for columns of categories.

    Attributes
    ----------
    forest_
        The trees, a ``Forest``, which can be saved and exported.
    feature_importances_
        Share of each feature in the decrease of impurity; the shares add up to 1.
    n_features_in_, feature_names_in_
        Number of columns seen by ``fit``, and their names if these are text.
    oob_score_
        With ``oob_score``, R2 of predictions by the trees that did not see a row.
    oob_prediction_
        With ``oob_score``, each row's prediction by the trees that did not see it; NaN where all did.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> import silvan as sv
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = sv.ForestRegressor(n_estimators=20, oob_score=True).fit(X, y)
    >>> model.oob_score_ > 0.3
    True
    """

    criterion: str = "squared_error"
    max_features: str | int | float | None = 1.0

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Train the forest.

        Parameters
        ----------
        X
            Rows to train on, (rows, features): an array, or a data frame, also with text columns. NaN is missing.
        y
            The number of each row.
        sample_weight
            A weight for each row; None for equal weights. Rows of weight 0 are left out.
        groups
            The id of each row's person, where persons have several rows: each tree samples persons and takes one row of
            each, so that rows are counted by person, and a row is out of bag where its person is. To evaluate a model,
            keep persons together too (``sklearn.model_selection.GroupKFold``).

        Returns
        -------
        self
        """
        self._settings()
        X, y = self._read_table(X, y)
        y = label_numbers(y)
        used, weight = used_rows(X, sample_weight)
        X, y = X[used], y[used]
        keys = keys_of(groups, used)
        target = self._settings().objective_for("regression").target(y, 0, weight)
        self._grow(X, target, label_of(self._features), keys)
        if self.oob_score:
            means = self._out_of_bag(X, keys)[1]
            known = ~np.isnan(means)
            spread = ((y[known] - y[known].mean()) ** 2).sum() if known.any() else 0.0
            error = ((y[known] - means[known]) ** 2).sum()
            self.oob_score_ = float(1.0 - error / spread) if spread > 0 else np.nan
            if callable(self.oob_score) and known.any():
                self.oob_score_ = float(self.oob_score(y[known], means[known]))
            self.oob_prediction_ = spread_over_rows(means, used)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the predicted number of each row of ``X``: the mean of the trees' leaves.

        A data frame must have the columns of ``fit`` in the same order, as scikit-learn requires.
        """
        return self._scores(X)[:, 0]


write_shared_entries(ForestClassifier, like=VotingForestParameters)
write_shared_entries(ForestRegressor, like=VotingForestParameters)
