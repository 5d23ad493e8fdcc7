"""BOFRF: weights compared with scikit-learn, abstention, messages, and invalid trees and scores."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from helpers.studies import TASKS, Recorded, assert_books, disturbed, federate, parts, table
from sklearn.metrics import matthews_corrcoef, r2_score

import silvan as sv
from silvan.algorithms.bofrf import weigh
from silvan.algorithms.bofrf.weigh import LocalTrees, thresholded
from silvan.algorithms.keyed_rows import hash_rows, learning_rows
from silvan.algorithms.requests import read_trees
from silvan.errors import InputError, RefusedError
from silvan.federation import wire
from silvan.federation.message import Envelope, Trouble
from silvan.tree.sampling import VALIDATION, siphash

PARAMETERS = {"n_estimators": 6, "max_depth": 4, "random_state": 3}


def fit(fed, **parameters):
    return sv.BOFRF(**{**PARAMETERS, **parameters}).fit(fed)


def trees_of(forest):
    """Every tree as a separate forest of weight 1."""
    plain = replace(forest, weights=np.ones(len(forest)), combine="mean")
    return [plain.take([t]) for t in range(len(forest))]


def training(fed, sites=None):
    rows = [fed.site(site).part(fed.schema) for site in sites or fed.sites]
    return np.concatenate([p.X for p in rows]), np.concatenate([p.y for p in rows])


# -- weights


@pytest.mark.parametrize("task", ["binary", "several"])
def test_weights_equal_scikit_learns(task):
    """Computed independently: all rows in one place, one forest per tree, and scikit-learn's correlation."""
    fed = federate(parts(table(task), 3), test=0.25)
    model = fit(fed)
    X, y = training(fed)
    expected = [matthews_corrcoef(y, tree.scores(X).argmax(axis=1)) for tree in trees_of(model.forest_)]
    assert np.allclose(model.weights_, expected, rtol=0, atol=1e-12)
    assert len(set(np.round(expected, 6))) > 10


def test_skill_equals_scikit_learns():
    fed = federate(parts(table("number"), 3), test=0.25)
    model = fit(fed)
    X, y = training(fed)
    expected = [r2_score(y, tree.scores(X)[:, 0]) for tree in trees_of(model.forest_)]
    assert np.allclose(model.weights_, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("shift", [0.0, 1e9, -1e-9])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_skill_of_numbers_of_any_size(shift, scale):
    """The fixed point follows the values of the trees; the unit of the label does not matter."""
    frame = table("number")
    other = frame.with_columns(label=(pl.col("label") - 1000) * scale + shift * scale)
    one = fit(federate(parts(frame, 3)))
    two = fit(federate(parts(other, 3), task="regression"))
    assert np.allclose(one.weights_, two.weights_, atol=1e-3)


@pytest.mark.parametrize("task", TASKS)
def test_trees_equal_those_grown_locally(task):
    fed = federate(parts(table(task), 3), test=0.25)
    model = fit(fed)
    alone = sv.LocalForest(**PARAMETERS).fit(fed).forests_
    assert model.owners_.tolist() == [site for site in fed.sites for _ in range(6)]
    for site in fed.sites:
        mine = model.owners_ == site
        assert replace(model.forest_.take(mine), weights=np.ones(6), combine="mean") == alone[site].bare()


@pytest.mark.parametrize("tau", [0.45, 0.5, 0.65])
def test_only_trees_above_tau_have_weight(tau):
    fed = federate(parts(table(), 3))
    model = fit(fed, tau=tau)
    expected = np.where(model.weights_ > tau, model.weights_, 0.0)
    assert 0 < (expected > 0).sum() < 18
    assert np.array_equal(model.forest_.weights, expected)
    assert model.forest_.combine == "vote"
    for site in fed.sites:
        mine = model.owners_ == site
        kept = expected[mine] if expected[mine].any() else np.ones(6)
        assert np.array_equal(model.own_[site].weights, kept)


def test_a_correlation_equal_to_tau_gives_no_weight():
    alphas = np.array([0.2, 0.2 + 1e-12, -0.5])
    assert thresholded(alphas, np.ones(3), 0.2).tolist() == [0.0, 0.2 + 1e-12, 0.0]
    assert thresholded(alphas, np.array([1.0, 0.0, 1.0]), 0.0).tolist() == [0.2, 0.0, 0.0]


def test_no_tree_above_tau():
    fed = federate(parts(table(), 3))
    with pytest.warns(
        UserWarning, match=r"no tree is above tau = 0.99 \(the best is at 0.\d\d\): all trees count alike"
    ):
        model = fit(fed, tau=0.99)
    assert (model.forest_.weights == 1).all()
    assert (model.own_["site 0"].weights == 1).all()


def test_prediction_is_the_weighted_vote():
    """The sign of the sum of weighted votes of -1 and 1, as published; 0 means the first class."""
    fed = federate(parts(table(), 3))
    model, X = fit(fed), table(seed=5).drop("label")
    votes = [2.0 * tree.scores(X).argmax(axis=1) - 1.0 for tree in trees_of(model.forest_)]
    total = np.tensordot(model.forest_.weights, votes, axes=1)
    assert np.array_equal(model.predict(X), np.where(total > 1e-12, "yes", "no"))
    proba = np.array([tree.scores(X) for tree in trees_of(model.forest_)])
    mean = np.tensordot(model.forest_.weights, proba, axes=1) / model.forest_.weights.sum()
    assert np.allclose(model.predict_proba(X), mean, atol=1e-12)


# -- sites that lack columns or classes


@pytest.mark.parametrize("task", ["binary", "number"])
@pytest.mark.filterwarnings("ignore:.* absent at")
def test_trees_abstain_where_a_column_is_missing(task):
    tables = parts(table(task), 3)
    tables["site 1"] = tables["site 1"].drop("age")
    fed = federate(tables, test=0.25)
    model = fit(fed)
    age = fed.schema.names.index("age")
    uses = model.forest_.uses[:, age]
    assert uses.any()
    assert not uses.all()
    assert not uses[model.owners_ == "site 1"].any()
    for t, tree in enumerate(trees_of(model.forest_)):
        X, y = training(fed, ["site 0", "site 2"] if uses[t] else None)
        answer = tree.scores(X)
        expected = matthews_corrcoef(y, answer.argmax(axis=1)) if task == "binary" else r2_score(y, answer[:, 0])
        assert model.weights_[t] == pytest.approx(expected, abs=1e-6)
    if task == "binary":
        # there, predictions come from the trees that do not use it
        forest, X = model.globals_["site 1"], tables["site 1"].drop("label")
        able = forest.take(~uses & (forest.weights > 0))
        full = X.with_columns(age=pl.lit(40.0)).select(fed.schema.names)
        assert np.array_equal(forest.predict(X), able.predict(full))
        assert np.allclose(forest.predict_proba(X), able.predict_proba(full), atol=1e-12)
    model.evaluate(fed)


def test_a_site_with_one_class():
    """Its trees have one class and no weight; its test set has no AUC."""
    frame = table(n=300)
    yes = frame.filter(pl.col("label") == "yes")
    fed = federate({"yes": yes[:60], "a": frame[:100], "b": frame[100:220]}, test=0.3)
    model = fit(fed)
    assert (model.weights_[model.owners_ == "yes"] == 0).all()
    assert model.chosen_["yes"].measure == "accuracy"
    figures = model.evaluate(fed).filter(pl.col("site") == "yes")
    assert figures["auc"].is_nan().all()
    assert figures["accuracy"].is_not_nan().all()


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("n_sites", [1, 2])
def test_few_sites(task, n_sites):
    fed = federate(parts(table(task), n_sites), test=0.25)
    model = fit(fed, personal=True)
    assert len(model.forest_) == 6 * n_sites
    assert set(model.forests_) == set(fed.sites)


@pytest.mark.parametrize("task", TASKS)
def test_sites_with_few_rows(task):
    frame = table(task, n=90)
    fed = federate({"big": frame[:80], "one": frame[80:81], "two": frame[81:83], "three": frame[83:86]})
    model = fit(fed, personal=True)
    X = frame.drop("label")
    for site in fed.sites:
        assert np.isfinite(model.forests_[site].scores(X)).all()


# -- what travels


def test_three_rounds_and_trees_travel_once():
    fed = federate(parts(table(), 4), Recorded)
    before = len(fed.transport.record)
    model = fit(fed, personal=True)
    assert model.rounds_ == 3
    assert_books(fed)
    asked = [
        wire.decode(data, Envelope)
        for site, way, data in fed.transport.record[before:]
        if (site, way) == ("site 1", "received")
    ]
    assert [envelope.kind for envelope in asked] == ["BringTrees", "ScoreTrees", "Choose"]
    assert [len(envelope.blobs) for envelope in asked] == [1, 4, 0]  # the schema, the trees of all sites, nothing new


def test_released_trees_have_no_counts_and_are_on_the_grid():
    fed = federate(parts(table(), 3), Recorded)
    fit(fed)
    sent = [wire.decode(data, Envelope) for _, way, data in fed.transport.record if way == "sent"]
    replies = [wire.decode(e.body, LocalTrees) for e in sent if e.kind == "LocalTrees"]
    assert len(replies) == 3
    for reply in replies:
        assert read_trees(reply.forest, fed.schema).gain is None
        assert b"gain" not in reply.forest


def test_scores_are_never_sent_in_the_clear():
    fed = federate(parts(table(), 3), Recorded)
    fit(fed)
    asked = [d for s, way, d in fed.transport.record if (s, way) == ("site 1", "received") and b"ScoreTrees" in d[:300]]
    member = fed.site("site 1")
    assert wire.decode(member.receive(asked[0], "total"), Envelope).kind == "TreeScores"
    answer = wire.decode(member.receive(asked[0], "ask"), Envelope)
    assert wire.decode(answer.body, Trouble).code == "refused"


def test_the_policy_on_leaves_is_enforced():
    fed = federate(parts(table(), 2), policy=sv.Policy(min_leaf=5))
    with pytest.raises(RefusedError, match="leaves of at least 5 rows"):
        fit(fed)
    assert len(fit(fed, min_samples_leaf=5).forest_) == 12


@pytest.mark.parametrize("task", TASKS)
def test_both_kinds_of_sums_give_the_same_result(task):
    tables = parts(table(task), 3)
    one, two = (fit(federate(tables, sums=sums), personal=True) for sums in ("trusted", "ring"))
    assert np.array_equal(one.weights_, two.weights_)
    assert one.forest_ == two.forest_
    assert one.forests_ == two.forests_


def test_parameters_are_checked():
    fed = federate(parts(table(), 2))
    for given, said in [
        ({"tau": 1.0}, "tau must be a number of at least 0 and below 1, got 1.0"),
        ({"tau": -0.1}, "tau must be"),
        ({"tau": "0.2"}, "tau must be"),
        ({"protocol": "fair"}, "protocol must be 'honest' or 'paper', got 'fair'"),
        ({"validation": 0.0}, "validation must be a number above 0"),
        ({"validation": 0.8}, "validation must be a number above 0"),
        ({"validation": 0.2, "protocol": "paper"}, "leave validation out"),
        ({"bootstrap": False}, "set validation=0.2, or bootstrap=True"),
        ({"tune": "random"}, "tune must be"),
        ({"clusters": 3}, "clusters must be a whole number from 1 to the 2 sites, got 3"),
        ({"metric": "cosine"}, "metric must be"),
        ({"first": "site 0"}, "set clusters, or leave it out"),
        ({"personal": "yes"}, "personal must be True or False, got 'yes'"),
        (
            {"criterion": "squared_error"},
            "criterion 'squared_error' does not fit classification: leave it out, or use 'gini'",
        ),
        ({"random_state": None}, "random_state must be a whole number of at least 0, got None"),
        ({"random_state": -1}, "random_state must be"),
        ({"random_state": "x"}, "random_state must be"),
    ]:
        with pytest.raises(InputError, match=said):
            fit(fed, **given)
    assert len(fit(fed, bootstrap=False, validation=0.2).forest_) == 12


def test_clusters_train_separately():
    """Each cluster is a separate federation, in the same rounds."""
    frame = table(n=360)
    near, far = frame[:180], frame[180:].with_columns(age=pl.col("age") + 60)
    tables = {f"n{i}": t for i, t in enumerate(parts(near, 3).values())}
    tables |= {f"f{i}": t for i, t in enumerate(parts(far, 3).values())}
    fed = federate(tables, test=0.25)
    model = fit(fed, clusters=2, first="n0", personal=True)
    assert model.clusters_ == {
        "n0": ["n0", "n1", "n2"],
        model.clusters_ and next(c for c in model.clusters_ if c != "n0"): ["f0", "f1", "f2"],
    }
    assert model.rounds_ <= 6
    assert model.forest_ is None
    with pytest.raises(InputError, match="no global forest; pass site="):
        model.predict(frame.drop("label"))
    for members in model.clusters_.values():
        alone = federate({site: tables[site] for site in members}, test=0.25, schema=fed.schema)
        apart = fit(alone, personal=True)
        for site in members:
            assert model.globals_[site] == apart.forest_
            assert model.forests_[site] == apart.forests_[site]
    assert set(model.evaluate(fed)["model"]) == {"local", "own", "global", "personalised", "federated", "pooled"}


# -- validation rows


def test_validation_rows_affect_no_tree_and_no_weight():
    fed = federate(parts(table(), 3), test=0.25)
    model = fit(fed, validation=0.25)
    rows = [learning_rows(fed.site(site), fed.schema, 0.25)[0] for site in fed.sites]
    X, y = np.concatenate([p.X for p in rows]), np.concatenate([p.y for p in rows])
    expected = [matthews_corrcoef(y, tree.scores(X).argmax(axis=1)) for tree in trees_of(model.forest_)]
    assert np.allclose(model.weights_, expected, rtol=0, atol=1e-12)
    # changing labels of the validation rows changes only the choice
    tables = parts(table(), 3)
    held = learning_rows(fed.site("site 1"), fed.schema, 0.25)[1]
    frame = tables["site 1"]
    position = {key: i for i, key in enumerate(fed.site("site 1").part(fed.schema).row_keys)}
    train = np.flatnonzero(~fed.site("site 1").held_out.between(0, len(fed.site("site 1").frame)))
    swap = train[[position[key] for key in held.row_keys]]
    labels = np.array(frame["label"].to_list(), object)
    labels[swap] = np.where(labels[swap] == "yes", "no", "yes")
    fake = fed.site("site 1").rebuilt()
    fake.source = frame.with_columns(label=pl.Series(labels.tolist()))
    fake.__dict__["held_out"] = fed.site("site 1").held_out
    # which rows are validation rows depends on the class, so they are given
    with pytest.MonkeyPatch.context() as patch:
        truth = weigh.learning_rows

        def given(site, schema, validation):
            if site.name != "site 1":
                return truth(site, schema, validation)
            part = site.part(schema)
            mine = np.isin(part.row_keys, held.row_keys)
            return tuple(type(part)(part.X[m], part.y[m], part.row_keys[m]) for m in (~mine, mine))

        patch.setattr(weigh, "learning_rows", given)
        patch.setattr("silvan.algorithms.bofrf.choose.learning_rows", given)
        fed.local_sites["site 1"] = fake
        again = fit(fed, validation=0.25)
    assert again.forest_ == model.forest_
    assert again.chosen_["site 1"].metrics.tolist() != model.chosen_["site 1"].metrics.tolist()


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5])
def test_validation_rows_follow_from_class_and_key(share):
    fed = federate({"here": table("several", n=200), "there": table("several", n=50, seed=1)}, random_state=1)
    site = fed.site("here")
    kept, held = learning_rows(site, fed.schema, share)
    everything = site.part(fed.schema)
    assert sorted([*kept.row_keys, *held.row_keys]) == sorted(everything.row_keys)
    for c in range(4):
        assert abs((held.y == c).sum() - share * (everything.y == c).sum()) < 1.0001
    again = learning_rows(site.rebuilt(), fed.schema, share)[1]
    assert np.array_equal(again.row_keys, held.row_keys)
    site.sampling_key = site.sampling_key + np.uint64(1)
    assert not np.array_equal(learning_rows(site, fed.schema, share)[1].row_keys, held.row_keys)


def test_row_hashes_are_siphash():
    key, rows = np.array([3, 4], np.uint64), np.arange(5, dtype=np.uint64)
    naive = [siphash(key, np.uint64(5 << 56), row) for row in rows]
    assert np.array_equal(hash_rows(key, rows, VALIDATION), np.array(naive, np.uint64))


# -- tuned at the site


def test_tuned_at_each_site():
    fed = federate(parts(table(), 3))
    model = fit(fed, tune={"max_depth": [1, 5], "n_estimators": [4, 8]})
    assert all(s.max_depth in (1, 5) and s.n_estimators in (4, 8) for s in model.settings_.values())
    for site, settings in model.settings_.items():
        assert (model.owners_ == site).sum() == settings.n_estimators
    assert model.rounds_ == 3


# -- sites that fail


def test_a_lost_site():
    """With a quorum the study continues; the trees of a site that fails later are kept."""
    tables = parts(table(), 4)
    silent = disturbed(lambda site, data: [] if site == "site 2" and b"TreeScores" in data else [(site, data)])
    fed = federate(tables, silent, quorum=3)
    model = fit(fed)
    assert list(fed.lost) == ["site 2"]
    assert set(model.forests_) == {"site 0", "site 1", "site 3"}
    X, y = training(fed, ["site 0", "site 1", "site 3"])
    expected = [matthews_corrcoef(y, tree.scores(X).argmax(axis=1)) for tree in trees_of(model.forest_)]
    assert np.allclose(model.weights_, expected, rtol=0, atol=1e-12)
    assert (model.owners_ == "site 2").sum() == 6


def test_to_bytes_equals_the_message():
    """A forest has a single representation: the coordinator forwards exactly what the site sent."""
    fed = federate(parts(table(), 2), Recorded)
    fit(fed)
    sent = [wire.decode(d, Envelope) for _, way, d in fed.transport.record if way == "sent"]
    trees = [wire.decode(e.body, LocalTrees).forest for e in sent if e.kind == "LocalTrees"]
    assert [read_trees(data, fed.schema).to_bytes() for data in trees] == trees
