"""Learners on federations: parameters in, an algorithm called, results in names that end in an underscore."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator

from silvan import metrics
from silvan.algorithms import adaptive, histogram, merge
from silvan.algorithms.evaluate import Row, evaluate
from silvan.algorithms.pooled import pooled_forest
from silvan.data.encode import encode_features, encode_label
from silvan.data.schema import Schema
from silvan.data.table import read_table
from silvan.errors import InputError
from silvan.federation.federation import Federation
from silvan.federation.local import LocalFederation
from silvan.tree.draw import make_key
from silvan.tree.fit import Settings
from silvan.tree.forest import Forest
from silvan.tree.predict import scores

if TYPE_CHECKING:
    import polars as pl


class _Fitted(BaseEstimator):
    """What is there after ``fit``; not parameters, so not fields of the dataclasses below."""

    schema_: Schema
    forest_: Forest | None
    forests_: dict[str, Forest]
    rounds_: int
    bytes_: dict[str, dict[str, int]]


@dataclass(repr=False, eq=False)
class _Learner(_Fitted):
    """What all learners share.

    After ``fit``: ``forest_`` is the global forest, ``forests_`` the one each site should use, ``rounds_`` and
    ``bytes_`` what it took.
    """

    n_estimators: int = 100
    criterion: str | None = None
    max_depth: int | None = None
    min_samples_split: int = 2
    min_samples_leaf: int = 2
    max_features: str | int | float | None = "sqrt"
    max_bins: int = 64
    bootstrap: bool = True
    class_weight: Any = None
    random_state: int = 0
    feature_draw: str = "node"

    def fit(self, federation: Federation) -> Self:
        """Learn from all sites."""
        if not isinstance(federation, Federation):
            raise InputError(
                f"fit takes a federation (see federate_rows), got {type(federation).__name__}; for X and y use "
                "ForestClassifier or ForestRegressor"
            )
        self.schema_ = federation.schema
        rounds, before = federation.rounds, federation.bytes
        self._train(federation, self._settings(federation.schema), self._feature_key())
        self.rounds_ = federation.rounds - rounds
        self.bytes_ = {
            site: {way: n - before[site][way] for way, n in ways.items()} for site, ways in federation.bytes.items()
        }
        return self

    def _train(self, federation: Federation, settings: Settings, feature_key: np.ndarray) -> None:
        raise NotImplementedError

    def _settings(self, schema: Schema) -> Settings:
        default = "gini" if schema.n_classes else "squared_error"
        names = set(Settings.__dataclass_fields__) & set(self.get_params(deep=False))
        values = {name: getattr(self, name) for name in names - {"criterion", "class_weight"}}
        weight = self.class_weight
        if isinstance(weight, dict):
            if schema.label.classes is None:
                raise InputError("class_weight is for classification")
            unknown = [c for c in weight if c not in schema.label.classes]
            if unknown:
                raise InputError(f"class_weight names {unknown[0]!r}, which is not a class of {schema.label.name!r}")
            weight = [float(weight.get(c, 1.0)) for c in schema.label.classes]
        return Settings(criterion=self.criterion or default, class_weight=weight, **values)

    def _feature_key(self) -> np.ndarray:
        return make_key(self.random_state, "features")

    def _forest_for(self, site: str | None) -> Forest:
        if not hasattr(self, "forests_"):
            raise InputError("this learner is not fitted yet; call fit(federation) first")
        if site is not None:
            if site not in self.forests_:
                raise InputError(f"there is no site {site!r}; the sites are {', '.join(self.forests_)}")
            return self.forests_[site]
        if self.forest_ is None:
            raise InputError(f"{type(self).__name__} has no global forest; pass site=")
        return self.forest_

    def predict(self, X: Any, site: str | None = None) -> np.ndarray:
        """Predict with the global forest, or with the one that a site should use."""
        return self._forest_for(site).predict(X)

    def predict_proba(self, X: Any, site: str | None = None) -> np.ndarray:
        """Give class probabilities by the global forest, or by the one that a site should use."""
        return self._forest_for(site).predict_proba(X)

    def evaluate(self, federation: Federation, table: Any = None) -> "pl.DataFrame":
        """Judge the model beside what each site has alone, and beside pooled rows where that can be known.

        Each site scores its own test part; nothing but figures and counts moves. With a ``table`` every model is
        scored on that table instead.
        """
        contenders = self._contenders(federation)
        if table is not None:
            return _frame(self._on_table(federation, contenders, table))
        rows, self.counts_ = evaluate(federation, self.schema_, contenders, self._feature_key())
        return _frame(rows)

    def _contenders(self, federation: Federation) -> list[tuple[str, object]]:
        federated = self._federated()  # says so if there is none yet
        settings = self._settings(self.schema_)
        listed: list[tuple[str, object]] = [("local", settings), ("federated", federated)]
        if isinstance(federation, LocalFederation):
            listed.append(("pooled", self._pooled(federation, settings)))
        return listed

    def _federated(self) -> object:
        self._forest_for(next(iter(getattr(self, "forests_", {"": None}))))
        return self.forests_ if self.forest_ is None else self.forest_

    def _pooled(self, federation: LocalFederation, settings: Settings) -> Forest:
        return pooled_forest(federation, self.schema_, settings, self._feature_key())

    def _on_table(self, federation: Federation, contenders: list[tuple[str, object]], table: Any) -> list[Row]:
        if not isinstance(federation, LocalFederation):
            raise InputError("a table to evaluate on needs a federation in this process")
        frame = read_table(table, self.schema_.label.name)
        X, y = encode_features(frame, self.schema_, fill_absent=True), encode_label(frame, self.schema_)
        rows = []
        for name, model in contenders:
            by_site: dict[str, Any]
            if isinstance(model, Settings):
                by_site = {
                    site: merge.local_forest(
                        federation.site(site), self.schema_, model, self._feature_key(), model.n_estimators
                    )
                    for site in federation.active
                }
            else:
                by_site = model if isinstance(model, dict) else dict.fromkeys(federation.active, model)
            figures = {}
            for site, forest in by_site.items():
                answer = scores(forest, X)
                figures[site] = (
                    metrics.classification(answer, y) if self.schema_.n_classes else metrics.regression(answer[:, 0], y)
                )
                rows.append(Row(site, name, len(y), figures[site]))
            if isinstance(model, Forest):
                rows.append(Row("all", name, len(y), figures[federation.active[0]]))
        return sorted(rows, key=lambda row: [*federation.sites, "all"].index(row.site))


def _frame(rows: list[Row]) -> "pl.DataFrame":
    import polars as pl  # slow to import, and only tables of figures need it

    return pl.DataFrame([{"site": r.site, "model": r.model, "rows": r.rows, **r.figures} for r in rows])


@dataclass(repr=False, eq=False)
class HistogramForest(_Learner):
    """A forest grown from summed histograms: exactly the one that all rows in one place would give.

    Parameters are those of ``ForestClassifier`` (``criterion`` None: gini or squared error, as the label is), with
    ``max_depth=10`` by default, since a level is a round.

    Examples
    --------
    >>> import silvan as sv
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> fed = sv.federate_rows({"north": (X[::2], y[::2]), "south": (X[1::2], y[1::2])})
    >>> model = sv.HistogramForest(n_estimators=20, max_depth=4).fit(fed)
    >>> model.rounds_ <= 4 + 3
    True
    >>> model.forest_ == sv.PooledForest(n_estimators=20, max_depth=4).fit(fed).forest_
    True
    """

    max_depth: int | None = 10
    bins: str = "shared"
    epsilon: float | None = None
    private: str = "tables"

    def _train(self, federation: Federation, settings: Settings, feature_key: np.ndarray) -> None:
        if self.epsilon is not None:
            raise InputError("epsilon is not built yet; leave it out")
        if self.bins not in ("shared", "adaptive"):
            raise InputError(f"bins must be 'shared' or 'adaptive', got {self.bins!r}")
        algorithm = histogram if self.bins == "shared" else adaptive
        self.forest_ = algorithm.fit(federation, self.schema_, settings, feature_key)
        self.forests_ = dict.fromkeys(federation.active, self.forest_)


@dataclass(repr=False, eq=False)
class PooledForest(HistogramForest):
    """The forest of all sites' rows in one place: a baseline, for federations in this process only."""

    def _train(self, federation: Federation, settings: Settings, feature_key: np.ndarray) -> None:
        if not isinstance(federation, LocalFederation):
            raise InputError("PooledForest needs all rows in one place: a federation in this process")
        self.forest_ = pooled_forest(federation, self.schema_, settings, feature_key)
        self.forests_ = dict.fromkeys(federation.active, self.forest_)


@dataclass(repr=False, eq=False)
class LocalForest(_Learner):
    """Each site's own forest, on its own rows: what a site has without joining."""

    def _train(self, federation: Federation, settings: Settings, feature_key: np.ndarray) -> None:
        if not isinstance(federation, LocalFederation):
            raise InputError("LocalForest shows every site's forest: a federation in this process is needed")
        self.forest_ = None
        self.forests_ = {
            site: merge.local_forest(federation.site(site), self.schema_, settings, feature_key, settings.n_estimators)
            for site in federation.active
        }


@dataclass(repr=False, eq=False)
class MergedForest(_Learner):
    """Sites' own trees put together: one round, and only trees travel.

    ``weights``: None for as many trees from every site; "trees" for as many as its share of rows; "votes" for equally
    many, each with a say in proportion to its site's rows.
    """

    weights: merge.Weights | None = None

    def _train(self, federation: Federation, settings: Settings, feature_key: np.ndarray) -> None:
        self.forest_, _ = merge.fit(federation, self.schema_, settings, feature_key, federation.rows, self.weights)
        self.forests_ = dict.fromkeys(federation.active, self.forest_)
