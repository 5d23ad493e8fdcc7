"""The estimators: scikit-learn's own checks, accuracy, and callers' mistakes."""

import numpy as np
import polars as pl
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, make_friedman1
from sklearn.ensemble import RandomForestClassifier
from sklearn.inspection import permutation_importance
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.utils.estimator_checks import (
    check_sample_weight_equivalence_on_dense_data,
    parametrize_with_checks,
)

import silvan as sv
from silvan import ForestClassifier, ForestRegressor
from silvan.errors import InputError
from silvan.tree.sampling import make_key, rows_of_trees

ESTIMATORS = [ForestClassifier(20), ForestRegressor(20)]
VARIANTS = [
    ForestClassifier(3, max_depth=2, max_features=None, criterion="entropy"),
    ForestClassifier(3, bootstrap=False, max_features=1, min_samples_leaf=5),
    ForestClassifier(3, max_features=0.5, class_weight="balanced", vote="hard", feature_sampling="tree"),
    ForestClassifier(3, max_samples=0.5, warm_start=True, min_samples_split=0.1),
    ForestRegressor(3, max_depth=5, max_features=None, max_samples=0.7, warm_start=True),
    ForestRegressor(3, bootstrap=False, max_features=0.5, min_samples_leaf=0.05, max_bins=8),
]
both = pytest.mark.parametrize("model", [ForestClassifier(5), ForestRegressor(5)], ids=["classes", "number"])

rng = np.random.default_rng(0)
X = rng.normal(size=(80, 4))
y = (X[:, 0] + X[:, 1] > 0).astype(int)


def fit(**parameters):
    return ForestClassifier(**({"n_estimators": 5} | parameters)).fit(X, y)


# -- scikit-learn's contract


def inapplicable(estimator):
    why = "a row's draw is keyed by its place in the table, so with bootstrap a row of weight two is not two rows"
    found = {}
    if estimator.bootstrap or estimator.min_samples_leaf > 2:  # with all columns and small leaves, it is
        found = {f"check_sample_weight_equivalence_on_{kind}_data": why for kind in ("dense", "sparse")}
    if getattr(estimator, "vote", "soft") == "hard":
        found["check_classifiers_train"] = "trees vote, which need not be for the class of the highest mean probability"
    return found


@parametrize_with_checks(ESTIMATORS + VARIANTS, expected_failed_checks=inapplicable)
@pytest.mark.filterwarnings("ignore:X is sparse and was made dense", "ignore:warm_start=True adds no tree")
def test_checks(estimator, check):
    check(estimator)


@both
def test_a_weight_of_two_equals_two_rows_without_sampling(model):
    exact = clone(model).set_params(bootstrap=False, max_features=None, min_samples_leaf=1, min_samples_split=2)
    check_sample_weight_equivalence_on_dense_data(type(model).__name__, exact)


@both
def test_clones_grow_the_same_forest(model):
    first = clone(model).fit(X, y)
    assert clone(first).fit(X, y).forest_ == first.forest_
    assert not hasattr(clone(first), "forest_")


@pytest.mark.parametrize("make", [int, np.int64, np.random.RandomState])
def test_random_state_repeats(make):
    assert fit(random_state=make(3)).forest_ == fit(random_state=make(3)).forest_
    assert fit(random_state=make(3)).forest_ != fit(random_state=make(4)).forest_


def test_random_state_goes_on():
    state = np.random.RandomState(0)
    assert fit(random_state=state).forest_ != fit(random_state=state).forest_
    assert fit(random_state=None).forest_ != fit(random_state=None).forest_


def test_seeds_of_any_size():
    assert len({fit(random_state=seed).forest_.hash for seed in (0, -1, 2**32, 2**64, 2**200)}) == 5


def test_tools_of_scikit_learn():
    model = ForestClassifier(20)
    assert cross_val_score(model, X, y, cv=3).mean() > 0.8
    importance = permutation_importance(model.fit(X, y), X, y, n_repeats=3, random_state=0).importances_mean
    assert set(np.argsort(importance)[-2:]) == {0, 1}
    assert set(np.argsort(model.feature_importances_)[-2:]) == {0, 1}


# -- scores


def test_out_of_bag_scores_are_close_to_holdout_scores():
    table = load_breast_cancer(return_X_y=True)
    X_fit, X_test, y_fit, y_test = train_test_split(*table, random_state=0)
    model = ForestClassifier(100, oob_score=True).fit(X_fit, y_fit)
    assert abs(model.oob_score_ - model.score(X_test, y_test)) < 0.03
    assert model.oob_score_ < model.score(X_fit, y_fit)
    X_fit, X_test, y_fit, y_test = train_test_split(*make_friedman1(800, noise=1.0, random_state=0), random_state=0)
    model = ForestRegressor(100, oob_score=True).fit(X_fit, y_fit)
    assert abs(model.oob_score_ - model.score(X_test, y_test)) < 0.05
    assert model.oob_score_ < model.score(X_fit, y_fit) - 0.05


def test_out_of_bag_scores_of_random_labels_are_chance():
    noise = rng.integers(0, 2, 400)
    model = ForestClassifier(100, oob_score=True, min_samples_leaf=1).fit(rng.normal(size=(400, 5)), noise)
    assert abs(model.oob_score_ - 0.5) < 0.1


def test_out_of_bag_rows_keep_their_order():
    weight = np.ones(80)
    weight[:30] = 0
    classes = ForestClassifier(50, oob_score=True).fit(X, y, weight)
    assert classes.oob_decision_function_.shape == (80, 2)
    assert np.isnan(classes.oob_decision_function_[:30]).all()
    assert (classes.oob_decision_function_[30:].argmax(axis=1) == y[30:]).mean() == classes.oob_score_
    number = ForestRegressor(50, oob_score=True).fit(X, y, weight)
    assert np.isnan(number.oob_prediction_[:30]).all()
    assert np.corrcoef(number.oob_prediction_[30:], y[30:])[0, 1] > 0.6


def test_out_of_bag_of_a_single_row():
    assert np.isnan(ForestClassifier(10, oob_score=True).fit(X[:1], y[:1]).oob_score_)
    assert np.isnan(ForestRegressor(10, oob_score=True).fit(X[:1], y[:1]).oob_score_)


def test_balanced_classes():
    rare, nothing = np.arange(80) % 10 == 0, np.ones((80, 1))
    for weight, share in ((None, 0.1), ("balanced", 0.5), ({True: 3}, 0.25), ({False: 10, True: 30}, 0.25)):
        model = ForestClassifier(50, class_weight=weight).fit(nothing, rare)
        assert model.predict_proba(nothing)[0, 1] == pytest.approx(share, abs=0.02)


def test_balanced_classes_with_weights_of_rows():
    """The classes have the same total weight, as in scikit-learn, whose forest has these leaf values."""
    rare, nothing = np.arange(80) % 10 == 0, np.ones((80, 1))
    weight = np.where(rare, 9.0, 1.0) * (np.arange(80) != 5)
    ours = ForestClassifier(5, class_weight="balanced", bootstrap=False).fit(nothing, rare, weight)
    theirs = RandomForestClassifier(5, class_weight="balanced", bootstrap=False).fit(nothing, rare, weight)
    assert ours.predict_proba(nothing)[0, 1] == pytest.approx(0.5, abs=1e-6)
    assert np.allclose(ours.predict_proba(nothing), theirs.predict_proba(nothing), atol=1e-6)


@pytest.mark.parametrize("size", [1e-320, 1e-300, 1e300])
@both
def test_weights_of_any_size(model, size):
    assert clone(model).fit(X, y, np.full(80, size)).score(X, y) > 0.8


@pytest.mark.parametrize("unit", [1e-200, 1e100, 1e200])
def test_numbers_of_any_size(unit):
    found = ForestRegressor(10).fit(X, y * unit).predict(X) / unit
    np.testing.assert_allclose(found, ForestRegressor(10).fit(X, y).predict(X), rtol=1e-9, atol=1e-9)


# -- parameters, one at a time

WRONG = [
    ("n_estimators", 0, "whole number of at least 1"),
    ("n_estimators", 2.5, "whole number"),
    ("criterion", "giny", "one of gini, entropy"),
    ("criterion", ["gini"], "one of gini, entropy"),
    ("criterion", "squared_error", "does not fit classification"),
    ("max_depth", 0, "at least 1"),
    ("max_depth", 10**6, "at most 4096"),
    ("min_samples_split", 1, "at least 2"),
    ("min_samples_leaf", 0, "at least 1"),
    ("min_samples_leaf", 1.5, "below 1"),
    ("max_features", 0, "at least 1"),
    ("max_features", 1.5, "at most 1"),
    ("max_features", 0.0, "above 0"),
    ("max_features", "auto", "'sqrt', 'log2'"),
    ("max_features", True, "a number or None"),
    ("max_bins", 1, "at least 2"),
    ("max_bins", 256, "between 2 and 255"),
    ("bootstrap", "yes", "True or False"),
    ("class_weight", "heavy", "balanced"),
    ("class_weight", {0: 0, 1: 1}, "above 0"),
    ("class_weight", {0: -1}, "above 0"),
    ("random_state", "seed", "seed"),
    ("n_jobs", 0, "whole number but 0"),
    ("n_jobs", "two", "got 'two'"),
    ("oob_score", "yes", "True, False or a function"),
    ("feature_sampling", "level", "'node' or 'tree'"),
    ("min_weight_fraction_leaf", 0.6, "between 0 and 0.5"),
    ("min_weight_fraction_leaf", float("nan"), "between 0 and 0.5"),
    ("vote", "loud", "'soft' or 'hard'"),
    ("max_samples", 0, "1 to the number of rows"),
    ("max_samples", 81, "1 to the number of rows, 80"),
    ("max_samples", 0.0, "above 0 and at most 1"),
    ("max_samples", 1.5, "above 0 and at most 1"),
    ("max_samples", float("nan"), "above 0 and at most 1"),
    ("max_samples", "half", "a share of the rows"),
    ("max_samples", True, "a share of the rows"),
    ("warm_start", "yes", "True or False"),
    ("monotonic_cst", [1], "1, -1 or 0 for each of 4 columns"),
    ("device", "gpu", "one of auto, cpu, cuda"),
]


@pytest.mark.parametrize(("name", "value", "hint"), WRONG)
def test_wrong_parameters(name, value, hint):
    with pytest.raises(ValueError, match=hint) as caught:
        fit(**{name: value})
    assert name in str(caught.value) or name == "random_state"  # which scikit-learn reads


def test_every_parameter_is_tested():
    assert {name for name, _, _ in WRONG} == set(ForestClassifier().get_params())


@pytest.mark.parametrize(
    ("make", "given", "said"),
    [
        (ForestClassifier, {"oob_score": True, "bootstrap": False}, "oob_score=True needs bootstrap=True"),
        (ForestClassifier, {"max_samples": 0.5, "bootstrap": False}, "max_samples needs bootstrap=True"),
        (ForestClassifier, {"min_samples_leaf": 1.5}, "min_samples_leaf as a share must be above 0 and below 1"),
        (ForestClassifier, {"class_weight": "balanced_subsample"}, "all trees of a forest use the same weights"),
        (ForestRegressor, {"criterion": "gini"}, "criterion 'gini' does not fit regression"),
        *(
            (ForestRegressor, {"criterion": name}, f"'{name}' is not supported, since .*; use 'squared_error'")
            for name in ("absolute_error", "friedman_mse", "poisson")
        ),
    ],
    ids=str,
)
def test_contradictory_or_unknown_parameters(make, given, said):
    with pytest.raises(InputError, match=said):
        make(**given).fit(X, y)


@pytest.mark.parametrize(("weight", "hint"), [(np.zeros(80), "zero"), (-np.ones(80), "negative")])
@both
def test_wrong_weights(model, weight, hint):
    with pytest.raises(ValueError, match=f"(?i)sample.weight.*{hint}"):
        model.fit(X, y, weight)


# -- features of scikit-learn's forests


def small():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4)).astype(np.float32)
    return X, (X[:, 0] + X[:, 1] > 0).astype(int)


def test_leaves_lengths_and_logarithms():
    X, y = small()
    model = ForestClassifier(7, max_depth=4).fit(X, y)
    assert len(model) == 7
    leaves, forest = model.apply(X), model.forest_
    assert leaves.shape == (200, 7)
    values = forest.value[forest.leaf[forest.offsets[:-1] + leaves]]
    np.testing.assert_allclose(values.mean(axis=1), model.predict_proba(X))
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), model.predict_proba(X))
    with pytest.raises(AttributeError):
        len(ForestClassifier())


def test_shares_of_rows():
    X, y = small()
    shared = ForestClassifier(5, min_samples_leaf=0.1, min_samples_split=0.25).fit(X, y)
    assert shared.forest_ == ForestClassifier(5, min_samples_leaf=20, min_samples_split=50).fit(X, y).forest_


def test_out_of_bag_by_any_function():
    X, y = small()
    plain = ForestClassifier(30, oob_score=True).fit(X, y)
    by_function = ForestClassifier(30, oob_score=lambda labels, answers: (labels == answers).mean()).fit(X, y)
    assert plain.oob_score_ == by_function.oob_score_
    numbers = ForestRegressor(30, oob_score=lambda labels, answers: -np.abs(labels - answers).max()).fit(X, X[:, 0])
    assert numbers.oob_score_ < 0
    with pytest.warns(UserWarning, match="which therefore have no out-of-bag score; grow more trees"):
        ForestClassifier(2, oob_score=True).fit(X, y)


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_trees_sample_a_share_of_rows(share):
    """The expected number in a bootstrap of that share; the rest is out of bag."""
    X, y = np.arange(4000.0)[:, None], np.arange(4000) % 2
    model = ForestRegressor(20, max_samples=share, oob_score=True, min_samples_leaf=1, max_bins=255).fit(X, y)
    drawn = rows_of_trees(make_key(0, "rows"), np.arange(4000, dtype=np.uint64), 0, 20, share)
    assert drawn.mean() == pytest.approx(1 - np.exp(-share), abs=0.01)
    unseen = (~drawn).sum(axis=0) > 0
    assert (np.isfinite(model.oob_prediction_) == unseen).all()
    assert (
        ForestRegressor(20, max_samples=int(4000 * share), min_samples_leaf=1, max_bins=255).fit(X, y).forest_
        == model.forest_
    )


def test_the_default_share_is_all_rows():
    X, y = small()
    plain = ForestClassifier(5).fit(X, y).forest_
    assert plain == ForestClassifier(5, max_samples=1.0).fit(X, y).forest_
    assert plain == ForestClassifier(5, max_samples=200).fit(X, y).forest_
    assert plain != ForestClassifier(5, max_samples=199).fit(X, y).forest_


@pytest.mark.parametrize("given", [{}, {"max_samples": 0.5}, {"random_state": None}, {"max_depth": 1}])
def test_trees_are_added(given):
    """The forest equals one grown at once, including its importances and out-of-bag scores."""
    X, y = small()
    model = ForestClassifier(3, warm_start=True, **given).fit(X, y)
    first = model.forest_
    for n in (4, 31):
        model.set_params(n_estimators=n, oob_score=n == 31).fit(X, y)
    assert len(model) == 31
    if given.get("random_state", 0) is None:
        assert (model.forest_.feature[: len(first.feature)] == first.feature).all()
        return
    at_once = ForestClassifier(31, oob_score=True, **given).fit(X, y)
    assert model.forest_.hash == at_once.forest_.hash
    assert np.array_equal(model.feature_importances_, at_once.feature_importances_)  # which are not in the hash
    assert model.oob_score_ == at_once.oob_score_
    late = ForestClassifier(3, **given).fit(X, y).set_params(n_estimators=31, warm_start=True).fit(X, y)
    assert late.forest_.hash == at_once.forest_.hash


def test_trees_that_cannot_be_added():
    X, y = small()
    model = ForestClassifier(3, warm_start=True).fit(X, y)
    with pytest.warns(UserWarning, match="adds no tree: there are 3 already"):
        assert model.fit(X, y).forest_ == ForestClassifier(3).fit(X, y).forest_
    with pytest.raises(InputError, match="n_estimators must be at least 3, the trees there are, got 2"):
        model.set_params(n_estimators=2).fit(X, y)
    model.set_params(n_estimators=5)
    for other in ((X[:, :2], y), (X, y + 1)):
        with pytest.raises(InputError, match="other columns, categories or classes; set warm_start=False"):
            model.fit(*other)
    assert len(model.set_params(warm_start=False).fit(X[:, :2], y)) == 5


def test_sparse_tables_are_made_dense():
    X, y = small()
    X[X < 0.5] = 0
    with pytest.warns(UserWarning, match="X is sparse and was made dense: 3.2 KB"):
        model = ForestClassifier(5).fit(csr_array(X), y)
    assert model.forest_ == ForestClassifier(5).fit(X, y).forest_
    assert (model.predict(csr_array(X)) == model.predict(X)).all()
    with pytest.warns(UserWarning, match="X is sparse and was made dense"):
        fed = sv.federate_rows({"dense": (X, y), "sparse": (csr_array(X), y)})
    assert (fed.site("sparse").part(fed.schema).X == X).all()
    huge = csr_array((10**6, 10**4), dtype=np.float32)
    for use in (lambda: ForestClassifier(5).fit(huge, np.zeros(10**6)), lambda: model.predict(huge)):
        with pytest.raises(InputError, match=r"X is sparse, and dense it would take 40\.0 GB, over 2\.0 GB"):
            use()


def test_too_many_categories_to_name():
    codes = [f"c{i % 300}" for i in range(900)]
    frame = pl.DataFrame({"code": codes, "x": np.arange(900.0)})
    with pytest.warns(UserWarning, match="'code' has more than 254 categories.*TargetEncoder"):
        model = ForestClassifier(5).fit(frame, np.arange(900) % 2)
    assert len(model.forest_.schema.features[0].categories) == 254
    few = pl.DataFrame({"code": [f"c{i % 254}" for i in range(900)], "x": np.arange(900.0)})
    ForestClassifier(5).fit(few, np.arange(900) % 2)  # no warning


# -- several rows per person


def coin_flips(seed=0, people=90, each=3):
    """Rows of people who look alike at each visit, with labels that nothing can predict."""
    rng = np.random.default_rng(seed)
    who = rng.permutation(np.repeat(np.arange(people), each))
    X = rng.normal(size=(people, 5))[who] + rng.normal(size=(len(who), 5)) / 50
    return X, rng.integers(0, 2, people)[who], who


@pytest.mark.parametrize("ids", [lambda who: who, lambda who: [f"p{i}" for i in who], lambda who: who.astype(float)])
def test_rows_are_out_of_bag_with_their_person(ids):
    X, y, who = coin_flips()
    known = sv.ForestClassifier(n_estimators=30, oob_score=True).fit(X, y)
    model = sv.ForestClassifier(n_estimators=30, oob_score=True).fit(X, y, groups=ids(who))
    assert known.oob_score_ > 0.9
    assert abs(model.oob_score_ - 0.5) < 0.2
    number = sv.ForestRegressor(n_estimators=30, oob_score=True).fit(X, y.astype(float), groups=ids(who))
    assert number.oob_score_ < 0.1


def test_trees_count_persons():
    """Leaf minima, sampling shares and balanced weights count persons."""
    X, y, who = coin_flips(each=4)
    model = sv.ForestClassifier(n_estimators=5, min_samples_leaf=0.2, bootstrap=False).fit(X, y, groups=who)
    leaves = model.apply(X)
    for tree in range(5):
        persons = [len(np.unique(who[leaves[:, tree] == leaf])) for leaf in np.unique(leaves[:, tree])]
        assert min(persons) >= 18  # a fifth of 90 persons, each with one row in the tree
    X, who = np.vstack([X, X[who < 9]]), np.concatenate([who, who[who < 9]])
    lopsided = np.where(who < 9, 1, 0)
    a = sv.ForestClassifier(n_estimators=3, class_weight="balanced", bootstrap=False).fit(X, lopsided, groups=who)
    b = sv.ForestClassifier(n_estimators=3, class_weight={0: 90 / 162, 1: 5.0}, bootstrap=False)
    assert a.forest_.hash == b.fit(X, lopsided, groups=who).forest_.hash


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ([1, 2], "groups has 2 rows and X has 270"),
        ([None] * 3 + [1] * 267, "groups is missing in 3 of 270 rows"),
        ([np.nan] * 3 + [1.0] * 267, "groups is missing in 3 of 270 rows"),
    ],
)
def test_bad_groups(groups, text):
    X, y, _ = coin_flips()
    with pytest.raises(sv.InputError, match=text):
        sv.ForestClassifier(n_estimators=2).fit(X, y, groups=np.array(groups, object) if None in groups else groups)
