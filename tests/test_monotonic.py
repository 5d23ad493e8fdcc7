"""Monotonic predictions (``monotonic_cst``), wherever rows and columns are."""

import numpy as np
import polars as pl
import pytest
from sklearn.ensemble import RandomForestRegressor

import silvan as sv
from silvan.algorithms.vertical import encrypted_labels
from silvan.algorithms.vertical.party_rows import Descent
from silvan.errors import FederationError, InputError
from silvan.tree.sampling import Ties

SIGNS = {"a": 1, "b": -1}
NAMES = ("a", "b", "c", "d")


def table(kind="number", n=300, seed=0):
    """A label that rises with a and falls with b, with enough noise that unconstrained trees do otherwise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    X[rng.random((n, 4)) < 0.05] = np.nan
    signal = np.nan_to_num(X[:, 0] - 0.5 * X[:, 1] + np.sin(3 * X[:, 2])) + 2 * rng.normal(size=n)
    label = signal if kind == "number" else np.where(signal > 0, "yes", "no")
    frame = pl.DataFrame(X, schema=NAMES).with_columns(id=pl.int_range(n), label=pl.Series(label))
    return frame.fill_nan(None)


def steps(forest, column, n=60, seed=1):
    """Returns the smallest and the largest step of predictions as a column rises, all else equal."""
    rng = np.random.default_rng(seed)
    X = np.repeat(rng.normal(size=(n, 4)), 40, axis=0)
    X[rng.random(len(X) // 40).repeat(40) < 0.2, 3] = np.nan
    X[:, column] = np.tile(np.linspace(-3, 3, 40), n)
    scores = forest.scores(X.astype(np.float32))[:, -1].reshape(n, 40)
    return np.diff(scores).min(), np.diff(scores).max()


def assert_monotonic(forest):
    assert steps(forest, 0)[0] >= -1e-12
    assert steps(forest, 0)[1] > 0
    assert steps(forest, 1)[1] <= 1e-12
    assert steps(forest, 2)[0] < 0 < steps(forest, 2)[1]  # which is free


KINDS = pytest.mark.parametrize("kind", ["number", "classes"])


@KINDS
@pytest.mark.parametrize("given", [{}, {"max_depth": 3, "max_features": None}, {"min_samples_leaf": 10}])
def test_one_table(kind, given):
    frame = table(kind)
    X, y = frame.select(NAMES).to_pandas(), frame["label"].to_numpy()
    make = sv.ForestRegressor if kind == "number" else sv.ForestClassifier
    free = make(20, **given).fit(X, y).forest_
    assert steps(free, 0)[0] < 0 < steps(free, 1)[1]
    model = make(20, monotonic_cst=SIGNS, **given).fit(X, y)
    assert_monotonic(model.forest_)
    assert make(20, monotonic_cst=[1, -1, 0, 0], **given).fit(X, y).forest_ == model.forest_
    assert make(20, monotonic_cst=[0, 0, 0, 0], **given).fit(X, y).forest_ == free
    weighted = make(20, monotonic_cst=SIGNS, **given).fit(X, y, np.linspace(0.1, 3, len(y)))
    assert_monotonic(weighted.forest_)


def test_as_good_as_scikit_learn():
    """With the constraint, on labels that do rise and fall: about the same error on other rows."""
    train, test = table(n=600).fill_null(0.0), table(n=600, seed=9).fill_null(0.0)
    X, y = train.select(NAMES).to_numpy(), train["label"].to_numpy()
    ours = sv.ForestRegressor(50, min_samples_leaf=5, monotonic_cst=[1, -1, 0, 0]).fit(X, y)
    theirs = RandomForestRegressor(50, min_samples_leaf=5, monotonic_cst=[1, -1, 0, 0], random_state=0).fit(X, y)
    truth = test["label"].to_numpy()
    errors = [np.square(m.predict(test.select(NAMES).to_numpy()) - truth).mean() for m in (ours, theirs)]
    assert errors[0] < 1.05 * errors[1]


@KINDS
@pytest.mark.parametrize("cold", [False, True])
def test_rows(kind, cold):
    frame = table(kind).drop("id")
    fed = sv.federate_rows({"north": frame[:90], "south": frame[90:]}, test=0.2, n_jobs=1, cold=cold)
    parameters = {"n_estimators": 8, "max_depth": 5, "max_features": None, "monotonic_cst": SIGNS}
    model = sv.HistogramForest(**parameters).fit(fed)
    assert model.forest_ == sv.PooledForest(**parameters).fit(fed).forest_
    assert_monotonic(model.forest_)
    assert_monotonic(sv.MergedForest(**parameters).fit(fed).forest_)
    auto = sv.AutoForest(**parameters).fit(fed)
    assert not auto.refits_leaves
    for forest in (auto.forest_, *auto.forests_.values()):
        assert_monotonic(forest)
    assert len(model.evaluate(fed)) > 1


def test_trees_that_vote():
    frame = table("classes").drop("id")
    fed = sv.federate_rows({"north": frame[:90], "south": frame[90:]}, n_jobs=1)
    forest = sv.BOFRF(8, max_features=None, monotonic_cst=SIGNS, tau=0.0).fit(fed).forest_
    assert steps(forest, 0)[0] >= -1e-12
    assert steps(forest, 1)[1] <= 1e-12


@KINDS
@pytest.mark.parametrize("labels", ["encoded", "encrypted"])
@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])  # by which the code may reverse the order
def test_columns(kind, labels, cold, seed, monkeypatch, tmp_path):
    monkeypatch.setattr(encrypted_labels, "TESTING", True)
    frame = table(kind, n=150)
    parties = {"one": frame["id", "c", "a"], "two": frame["id", "label", "b"], "three": frame["id", "d"]}
    fed = sv.federate_columns(
        parties, id="id", label="label", test=0.2, n_jobs=1, match="keyed", cold=cold, random_state=seed
    )
    parameters = {"n_estimators": 5, "max_depth": 4, "max_features": 2, "monotonic_cst": SIGNS}
    pooled = sv.PooledForest(**parameters).fit(fed)
    model = sv.VerticalForest(labels=labels, key_bits=256, **parameters).fit(fed)
    assert model.forest_.hash == pooled.forest_.hash
    if not (cold or seed):
        assert len(model.evaluate(fed)) > 1  # with what each party has alone
        signs = np.array([SIGNS.get(name, 0) for name in fed.schema.names])
        again = sv.VerticalForest(labels=labels, key_bits=256, **parameters | {"monotonic_cst": signs}).fit(fed)
        again.save(tmp_path)
        assert sv.VerticalForest.load(tmp_path).monotonic_cst == signs.tolist()


WRONG = [
    ([1, 0], "1, -1 or 0 for each of 4 columns"),
    ([1, 0, 2, 0], "1, -1 or 0 for each of 4 columns"),
    ([1, 0, 0.5, 0], "1, -1 or 0 for each of 4 columns"),
    ([[1, 0, 0, 0]], "1, -1 or 0 for each of 4 columns"),
    (["up", 0, 0, 0], "1, -1 or 0 for each of 4 columns"),
    (1, "1, -1 or 0 for each of 4 columns"),
    ({"a": 1, "x": 1}, "names 'x', which is not a column"),
]


@pytest.mark.parametrize(("given", "hint"), WRONG)
def test_invalid_constraints(given, hint):
    frame = table()
    with pytest.raises(InputError, match=f"monotonic_cst.*{hint}"):
        sv.ForestRegressor(monotonic_cst=given).fit(frame.select(NAMES).to_pandas(), frame["label"].to_numpy())


def test_unsupported_combinations_are_refused():
    frame = table("classes").drop("id")
    named = frame.with_columns(a=pl.when(pl.col("a") > 0).then(pl.lit("high")).otherwise(pl.lit("low")))
    fed = sv.federate_rows({"north": frame[:90], "south": frame[90:]}, n_jobs=1)
    classifier = sv.ForestClassifier(monotonic_cst=SIGNS)
    labels, three = frame["label"].to_numpy(), np.arange(300) % 3
    refitted = (sv.MergedForest, sv.BOFRF, sv.AutoForest)
    for learner, given, said in (
        (classifier, (named.drop("label"), labels), "monotonic_cst is for numbers, and column 'a' has categories"),
        (classifier, (frame.select(NAMES).to_pandas(), three), "monotonic_cst is for a number or two classes"),
        (sv.HistogramForest(monotonic_cst=SIGNS, bins="adaptive"), (fed,), "is for bins='shared' without epsilon"),
        (sv.HistogramForest(monotonic_cst=SIGNS, epsilon=1.0), (fed,), "is for bins='shared' without epsilon"),
        *(
            (kind(monotonic_cst=SIGNS, refit_leaves=True), (fed,), "set refit_leaves=False, or leave mono")
            for kind in refitted
        ),
    ):
        with pytest.raises(InputError, match=said):
            learner.fit(*given)


def by_columns(kind="classes"):
    frame = table(kind, n=150)
    parties = {"one": frame["id", "c", "a"], "two": frame["id", "label", "b"]}
    return sv.federate_columns(parties, id="id", label="label", n_jobs=1)


def test_a_party_that_violates_the_constraint_is_named(monkeypatch):
    """The coordinator knows the values of both sides of a split, and the allowed direction."""
    monkeypatch.setattr(
        Descent, "ties", lambda self, seeds, n, bounds=None: Ties(self.tie_key, seeds, self.first_column)
    )
    with pytest.raises(FederationError, match=r"(one|two).*a split that is not monotonic"):
        sv.VerticalForest(5, max_depth=4, monotonic_cst=SIGNS).fit(by_columns())
