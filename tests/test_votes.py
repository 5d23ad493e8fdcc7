"""Forests whose trees vote for a class, by rows and by columns."""

import numpy as np
import polars as pl
import pytest
from helpers.naive_answers import vote_answers

import silvan as sv
from silvan.algorithms.vertical import encrypted_labels

LEARNERS = {
    "histogram": lambda **given: sv.HistogramForest(5, max_depth=4, **given),
    "adaptive": lambda **given: sv.HistogramForest(5, max_depth=4, bins="adaptive", **given),
    "merged": lambda **given: sv.MergedForest(6, max_depth=4, **given),
    "merged, by rows": lambda **given: sv.MergedForest(6, max_depth=4, weights="votes", **given),
    "pooled": lambda **given: sv.PooledForest(5, max_depth=4, **given),
}


def table(n=200, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)).round(1)
    y = np.digitize(X[:, 0] + X[:, 1] + rng.normal(size=n), np.linspace(-0.5, 0.5, classes - 1))
    return pl.DataFrame(X, schema=["a", "b", "c", "d"]).with_columns(id=pl.int_range(n), label=y)


def by_rows(classes=3, **given):
    frame = table(classes=classes).drop("id")
    policy = sv.Policy(messages=("*", "AdaptiveLevel"))
    return sv.federate_rows({"north": frame[:80], "south": frame[80:]}, policy=policy, test=0.3, **given)


def by_columns(frame=None, **given):
    frame = table() if frame is None else frame
    parties = {"north": frame["id", "a", "c", "label"], "south": frame["id", "b", "d"]}
    return sv.federate_columns(parties, id="id", label="label", test=0.3, **given)


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.filterwarnings("ignore")
def test_rows(name, tmp_path):
    """The same trees; the class has most votes, counted literally; probabilities are means as always."""
    fed = by_rows(classes=2 if name == "adaptive" else 3)
    soft, hard = LEARNERS[name]().fit(fed), LEARNERS[name](vote="hard").fit(fed)
    assert (soft.forest_.combine, hard.forest_.combine) == ("mean", "vote")
    assert soft.forest_.feature.tolist() == hard.forest_.feature.tolist()
    X = table(seed=1).drop("id", "label").to_numpy()
    _, votes = vote_answers(hard.forest_, X.astype(np.float32))
    assert (hard.predict(X) == votes.argmax(axis=1)).all()
    assert (hard.predict_proba(X) == soft.predict_proba(X)).all()
    assert (hard.predict(X) != soft.predict(X)).any()
    hard.forest_.save(tmp_path / "hard.silvan")
    assert (sv.Forest.load(tmp_path / "hard.silvan").predict(X) == hard.predict(X)).all()
    figures = hard.evaluate(fed).filter(site="all", model="federated")
    assert 0 < figures["accuracy"].item() < 1


@pytest.mark.parametrize("labels", ["encoded", "encrypted"])
def test_columns(labels, tmp_path, monkeypatch):
    """Over parties, on the joined forest and after saving, predictions equal the pooled forest's votes."""
    monkeypatch.setattr(encrypted_labels, "TESTING", True)
    fed = by_columns()
    model = sv.VerticalForest(5, max_depth=4, vote="hard", labels=labels, key_bits=256).fit(fed)
    pooled = sv.PooledForest(5, max_depth=4, vote="hard").fit(fed).forest_
    assert model.forest_ == pooled
    frame = table()
    answers = pooled.predict(frame.select(*pooled.schema.names))
    model.save(tmp_path / "model")
    for one in (model, sv.VerticalForest.load(tmp_path / "model")):
        assert (one.predict(fed)["prediction"] == answers).all()
        assert one.forest_ == pooled
    shares = model.predict_proba(fed).drop("id").to_numpy()
    assert (shares == pooled.predict_proba(frame.select(*pooled.schema.names))).all()
    assert (shares.argmax(axis=1) != answers).any()
    figures = model.evaluate(fed).filter(site="all")
    mine, theirs = (figures.filter(model=name).drop("model", "use", "gain") for name in ("federated", "pooled"))
    assert mine.select("auc", "accuracy", "mcc").equals(theirs.select("auc", "accuracy", "mcc"))


@pytest.mark.filterwarnings("ignore:every tree saw")
def test_one_table():
    frame = table(classes=2)
    X, y = frame.drop("id", "label").to_numpy(), frame["label"].to_numpy()
    model = sv.ForestClassifier(9, vote="hard", oob_score=True).fit(X, y)
    votes = vote_answers(model.forest_, X.astype(np.float32))[1]
    assert (model.predict(X) == votes.argmax(axis=1)).all()
    soft = sv.ForestClassifier(9, oob_score=True).fit(X, y)
    assert (model.predict_proba(X) == soft.predict_proba(X)).all()
    assert model.oob_score_ != soft.oob_score_


def test_a_number_has_no_votes():
    frame = table().with_columns(label=pl.col("a") * 1.5)
    rows = sv.federate_rows({"north": frame[:80].drop("id"), "south": frame[80:].drop("id")}, task="regression")
    for learner in (sv.HistogramForest(vote="hard"), sv.MergedForest(vote="hard"), sv.LocalForest(vote="hard")):
        with pytest.raises(sv.InputError, match="vote='hard' is for classification"):
            learner.fit(rows)
    with pytest.raises(sv.InputError, match="vote='hard' is for classification"):
        sv.VerticalForest(vote="hard").fit(by_columns(frame, task="regression"))
    assert rows.rounds == 0


def test_refused():
    with pytest.raises(sv.InputError, match="vote must be 'soft' or 'hard'"):
        sv.HistogramForest(vote="loud").fit(by_rows())
    with pytest.raises(sv.InputError, match="vote must be 'soft' with epsilon"):
        sv.HistogramForest(vote="hard", epsilon=1.0).fit(by_rows())
