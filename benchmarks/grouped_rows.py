"""The cost of one row per person and tree instead of all rows: AUC and R2 on persons outside the training set.

Real tables become visits: each person has several rows whose numbers differ from the person's by noise of some share
of the column's standard deviation, and the label of all of them is the person's. In ``changing`` the label, a number,
follows the visit. Models are compared on single rows of other persons, over five folds.

    python -m benchmarks.grouped_rows
"""

from collections.abc import Iterator
from unittest import mock

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, make_friedman1
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.model_selection import GroupKFold

import silvan as sv
from silvan.tree import sampling

TREES, FOLDS, PERSONS = 60, 5, 600


def visits(X: np.ndarray, each: int, noise: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of persons, and the person of each row."""
    who = np.repeat(np.arange(len(X)), each)
    spread = np.nanstd(X, axis=0) * noise
    return X[who] + rng.normal(size=(len(who), X.shape[1])) * spread, who


def scored(X: np.ndarray, y: np.ndarray, who: np.ndarray, way: str, classes: bool) -> float:
    """Return the mean score over folds of persons."""
    kind, found = sv.ForestClassifier if classes else sv.ForestRegressor, []
    together = mock.patch.object(sampling, "_one_of_each", lambda key, row_keys, number: np.ones(len(row_keys), bool))
    for train, test in GroupKFold(FOLDS).split(X, y, who):
        model = kind(n_estimators=TREES, max_features="sqrt" if classes else 1.0, n_jobs=1)
        if way == "all rows of a person":
            with together:
                model.fit(X[train], y[train], groups=who[train])
        else:
            model.fit(X[train], y[train], groups=who[train] if way == "one row of a person" else None)
        single = test[np.unique(who[test], return_index=True)[1]]
        answers = model.predict_proba(X[single])[:, 1] if classes else model.predict(X[single])
        found.append(roc_auc_score(y[single], answers) if classes else r2_score(y[single], answers))
    return float(np.mean(found))


WAYS = ("one row of a person", "all rows of a person", "rows, not persons")


def tables() -> Iterator[tuple[str, np.ndarray, np.ndarray, bool]]:
    """Yield real tables of numbers, shuffled: name, features, label, and whether it has classes."""
    rng = np.random.default_rng(0)
    heart = sv.datasets.heart_disease().drop("hospital")
    known = {
        "heart disease": (heart.drop("disease").to_numpy().astype(float), heart["disease"].to_numpy(), True),
        "breast cancer": (*load_breast_cancer(return_X_y=True), True),
        "diabetes": (*load_diabetes(return_X_y=True), False),
    }
    for name, (X, y, classes) in known.items():
        kept = rng.permutation(len(X))[:PERSONS]
        yield name, X[kept], y[kept], classes


def main() -> None:
    """Print a line for each table, number of visits and noise."""
    print(f"{'table':16} visits  noise  " + "  ".join(f"{way:>20}" for way in WAYS))
    for each in (3, 10):
        for noise in (0.1, 0.5, 1.0):
            for name, X, y, classes in tables():
                rows, who = visits(X, each, noise, np.random.default_rng(1))
                show(name, each, noise, rows, y[who], who, classes)
        rng = np.random.default_rng(2)
        rows, label = make_friedman1(PERSONS // 2 * each, n_features=8, noise=1.0, random_state=3)
        who = np.repeat(np.arange(PERSONS // 2), each)
        show("changing", each, 1.0, rows, label + rng.normal(size=PERSONS // 2)[who], who, classes=False)


def show(name: str, each: int, noise: float, X: np.ndarray, y: np.ndarray, who: np.ndarray, classes: bool) -> None:
    """Print the scores of all ways to sample."""
    found = [scored(X, y, who, way, classes) for way in WAYS]
    print(f"{name:16} {each:6}  {noise:5.1f}  " + "  ".join(f"{score:20.3f}" for score in found), flush=True)


if __name__ == "__main__":
    main()
