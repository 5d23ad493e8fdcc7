"""Linear models over columns: equal to scikit-learn's on the joined table; and what travels."""

import hashlib
from copy import copy
from dataclasses import replace
from functools import cache
from typing import ClassVar

import msgspec
import numpy as np
import polars as pl
import pytest
from helpers.column_studies import ID, MATCHING, SMALL, Recorded, asking, federate, lying, split, wide
from helpers.lies import answers_to_lies
from helpers.studies import TASKS, Stop, parts, stopping, table
from helpers.studies import federate as federate_rows
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import silvan as sv
from silvan.algorithms.vertical import linear_fit
from silvan.algorithms.vertical.linear_shares import Design, LinearModel, LinearShare, Predictors, linear_key
from silvan.algorithms.vertical.linear_steps import (
    FRACTION,
    Explain,
    KeepCoefficients,
    KeptConstant,
    Offer,
    OfferDirection,
    Unexplained,
    open_step,
)
from silvan.federation import wire
from silvan.federation.transport import InProcess
from silvan.learners import in_one_place
from silvan.learners.in_one_place import list_rows, own_schema

EXACT = {"tol": 1e-7}


def joined(fed):
    """All columns of the training rows as a linear model sees them, and the label."""
    rows = in_one_place.joined(fed, fed.columns.training)
    designs = [
        Design.of(rows.X[:, own.start : own.stop], own_schema(fed, party))[1] for party, own in fed.owners.items()
    ]
    return np.concatenate(designs, axis=1), rows.y


@cache
def fitted_once(task, n_parties):
    return sv.VerticalLinear().fit(federate(split(wide(task), n_parties)))


def fitted(task="binary", n_parties=2):
    """A model shared by several tests; each works on a copy, whose shares it may delete."""
    model = copy(fitted_once(task, n_parties))
    model.shares_ = dict(model.shares_)
    return model


def coefficients(model):
    return np.concatenate([share.coefficients for share in model.shares_.values()])


def asked(fed, kind):
    received = [(site, e) for site, way, e in fed.transport.record if way == "received" and e.kind == kind.__name__]
    return [(site, wire.decode(e.body, kind)) for site, e in received]


def sent(fed, kind):
    envelopes = [(site, e) for site, way, e in fed.transport.record if way == "sent" and e.kind == kind.__name__]
    return [(site, wire.decode(e.body, kind)) for site, e in envelopes]


# -- equal to the joined table


def assert_like_scikit_learn(fed, task, alpha=1.0):
    """Compares predictors: if two parties hold the same column, either may carry the weight."""
    model = sv.VerticalLinear(alpha=alpha, **EXACT).fit(fed)
    X, y = joined(fed)
    if task == "number":
        peer = Ridge(alpha=alpha).fit(X, y)
        assert np.allclose(X @ coefficients(model)[:, 0] * y.std(), X @ peer.coef_, atol=1e-4)
        assert model.model_.unit.tolist() == [y.mean(), y.std()]
    else:
        peer = LogisticRegression(C=1 / alpha, tol=1e-10, max_iter=10_000).fit(X, y)
        assert np.allclose(X @ coefficients(model), X @ peer.coef_.T, atol=1e-4)
        assert np.allclose(model.model_.constant, peer.intercept_, atol=1e-5)
    return model


@pytest.mark.parametrize(("task", "n_parties"), [*((task, 2) for task in TASKS), ("binary", 1), ("several", 8)])
def test_number_of_parties(task, n_parties):
    fed = federate(split(wide(task), n_parties, holder=n_parties // 2), test=0.2)
    model = assert_like_scikit_learn(fed, task)
    assert model.n_iter_ <= 40
    assert model.rounds_ == 2 * model.n_iter_ + 2


@pytest.mark.parametrize("load", [load_breast_cancer, load_wine, load_diabetes])
def test_it_equals_scikit_learn_on_the_joined_table(load):
    X, y = load(return_X_y=True)
    X, numbers = X.astype(np.float32).astype(np.float64), load is load_diabetes
    frame = pl.DataFrame(X, schema=[f"c{i}" for i in range(X.shape[1])])
    frame = frame.with_columns(pl.Series(ID, np.arange(len(X))), label=pl.Series(y))
    fed = federate(split(frame, 2), task="regression" if numbers else None)
    model = sv.VerticalLinear(**EXACT).fit(fed)
    peer = Ridge() if numbers else LogisticRegression(tol=1e-10, max_iter=10_000)
    peer = make_pipeline(StandardScaler(), peer).fit(X, y)
    scores = (model.predict if numbers else model.predict_proba)(fed).sort(ID).drop(ID).to_numpy()
    expected = peer.predict(X)[:, None] if numbers else peer.predict_proba(X)
    assert np.allclose(scores, expected, atol=1e-5 * (y.std() if numbers else 1))


@pytest.mark.parametrize("task", TASKS)
def test_however_the_parties_run(task):
    usual = sv.VerticalLinear(tol=1e-3).fit(federate(split(wide(task), 3)))
    for settings in ({"cold": True}, {"sums": "ring", "cold": True}, {"sums": "masked"}, {"timeout": 60}):
        model = sv.VerticalLinear(tol=1e-3).fit(federate(split(wide(task), 3), **settings))
        assert np.array_equal(coefficients(model), coefficients(usual))
        assert model.rounds_ == usual.rounds_


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("alpha", [0.01, 50.0])
def test_penalties(task, alpha):
    assert_like_scikit_learn(federate(split(wide(task), 2)), task, alpha)


def test_coefficients_of_columns_that_differ():
    """Small steps, to the last digits."""
    frame = wide().drop("height")  # missing where the age is missing
    fed = federate(split(frame, 3))
    model = sv.VerticalLinear(tol=1e-8).fit(fed)
    X, y = joined(fed)
    peer = LogisticRegression(tol=1e-12, max_iter=10_000).fit(X, y)
    assert np.allclose(coefficients(model), peer.coef_.T, atol=1e-6)


@pytest.mark.parametrize("task", TASKS)
def test_a_label_holder_without_columns(task):
    frame = wide(task)
    tables = {"labels": frame.select(ID, "label"), **split(frame.drop("label"), 2, holder=-1)}
    assert_like_scikit_learn(federate(tables), task)


def test_a_party_without_columns():
    tables = {**split(wide(), 2), "nothing": wide().select(ID)}
    assert_like_scikit_learn(federate(tables), "binary")


def test_more_columns_than_rows():
    rng = np.random.default_rng(0)
    X, n = rng.normal(size=(50, 160)), 50
    frame = pl.DataFrame(X, schema=[f"c{i}" for i in range(160)])
    frame = frame.with_columns(pl.Series(ID, np.arange(n)), label=pl.Series(X[:, :5].sum(axis=1) > 0).cast(int))
    fed = federate(split(frame, 2))
    model = sv.VerticalLinear(tol=1e-6).fit(fed)
    Z, y = joined(fed)
    peer = LogisticRegression(tol=1e-10, max_iter=10_000).fit(Z, y)
    assert np.allclose(Z @ coefficients(model), Z @ peer.coef_.T, atol=1e-4)


def test_the_default_tolerance_is_good_enough_for_predictions():
    fed = federate(split(wide(), 3))
    rough, exact = sv.VerticalLinear().fit(fed), sv.VerticalLinear(**EXACT).fit(fed)
    assert rough.rounds_ < exact.rounds_
    difference = rough.predict_proba(fed)["yes"] - exact.predict_proba(fed)["yes"]
    assert 0 < difference.abs().max() < 1e-3


def test_a_class_that_no_training_row_has():
    frame = wide("several")
    fed = federate(split(frame, 2), test=0.3)
    test = fed.columns.test
    order, ids = list_rows(fed, test)
    rows = dict(zip(ids, range(len(ids)), strict=True))
    label = ["only in the test part" if i in rows else x for i, x in zip(frame[ID], frame["label"], strict=True)]
    fed = federate(split(frame.with_columns(label=pl.Series(label)), 2), test=0.3)
    model = sv.VerticalLinear().fit(fed)
    shares = model.predict_proba(fed)
    assert (shares["only in the test part"] == 0).all()
    assert np.allclose(shares.drop(ID).sum_horizontal(), 1)
    assert len(order) == len(ids)


def test_training_rows_with_two_of_several_classes():
    frame = wide("several").filter(pl.col("label").is_in(["low", "high"]))
    schema = sv.Schema(federate(split(frame, 2)).schema.features, sv.Label("label", ("high", "low", "top")))
    model = sv.VerticalLinear().fit(fed := federate(split(frame, 2), schema=schema))
    assert model.model_.present.tolist() == [0, 1]
    shares = model.predict_proba(fed)
    assert (shares["top"] == 0).all()
    assert np.allclose(shares["high"] + shares["low"], 1)
    assert set(model.predict(fed)["prediction"]) == {"high", "low"}


# -- rounds, bytes, who learns what


def test_byte_counts_match_deliveries():
    fed = federate(split(wide(), 3), Recorded)
    start = len(fed.transport.data)
    model = sv.VerticalLinear().fit(fed)
    delivered = sum(map(len, fed.transport.data[start:]))
    assert sum(n for ways in model.bytes_.values() for n in ways.values()) == delivered
    n, rows = model.n_iter_, fed.rows["party 0"]
    assert model.bytes_["party 1"]["sent"] < n * (5 * rows + 1500) + 5000  # four bytes per row and step, and some more


def test_parties_learn_about_their_columns_only():
    fed = federate(split(wide(), 3), Recorded)
    sv.VerticalLinear().fit(fed)
    for site, request in asked(fed, OfferDirection):
        schema = sv.Schema.from_json(fed.content(request.terms.columns).decode())
        own = fed.owners[site]
        assert schema.names == fed.columns.schema.names[own.start : own.stop]
        assert schema.label.classes is None
    assert {site for site, _ in asked(fed, Explain)} == {"party 0"}
    assert [site for site, request in asked(fed, KeepCoefficients) if request.label is not None] == ["party 0"]


def test_coordinators_cannot_read_what_they_forward():
    fed = federate(split(wide(), 2), Recorded)
    model = sv.VerticalLinear().fit(fed)
    rows = in_one_place.joined(fed, fed.columns.training)
    fitted = np.log(model.score_rows(rows.X)[:, 1])
    hidden = [offer for site, offer in sent(fed, Offer) if site == "party 0"]
    plain = [offer for site, offer in sent(fed, Offer) if site == "party 1"]
    assert len(hidden) == len(plain) == model.n_iter_
    for own, other in zip(hidden, plain, strict=True):
        sums = own.column[:, 0] + other.column[:, 0]
        assert abs(np.corrcoef(sums, fitted)[0, 1]) < 0.3
        assert np.abs(other.column).max() < 2**40 < np.median(sums)
        assert 0.4 < np.mean(sums / 2**58) < 0.6
        assert own.products.min() > 2**40
    assert len({offer.column.tobytes() for offer in hidden}) == len(hidden)
    boxes = b"".join(reply.step for _, reply in sent(fed, Unexplained))
    y = rows.y
    for dtype in (np.int8, np.uint8, np.int32, np.int64, np.float64):
        assert y.astype(dtype).tobytes() not in boxes


def test_parties_learn_the_label():
    """What is disclosed, as docs/linear.md states: the sign of a residual is the label."""
    fed = federate(split(wide(), 2), Recorded)
    sv.VerticalLinear().fit(fed)
    request = asked(fed, OfferDirection)[-1][1]
    step = open_step(fed.party("party 1"), request.steps[0].hash, fed.rows["party 0"], 0)
    assert np.array_equal(step.residuals[:, 0] > 0, in_one_place.joined(fed, fed.columns.training).y == 1)
    assert np.abs(step.residuals).max() <= 1 << FRACTION


def test_directions_lost_to_rounding_are_requested_again():
    frame = wide()
    tables = {"a": frame.select(ID, "age", "dose", "label"), "b": frame.select(ID, "noise", "sex")}
    fed = federate(tables, Recorded)
    model = sv.VerticalLinear(tol=1e-8).fit(fed)
    [fit] = [v for k, v in fed.party("a").cache.items() if k[0] == "explaining"]
    assert len(fit.used) < model.n_iter_
    X, y = joined(fed)
    peer = LogisticRegression(tol=1e-12, max_iter=10_000).fit(X, y)
    assert np.allclose(coefficients(model), peer.coef_.T, atol=1e-7)


def test_label_holders_learn_columns():
    """What is disclosed: a party with a single column reveals it up to its scale, if no other party adds to the sum."""
    frame = wide()
    tables = {"a": frame.select(ID, "age", "dose", "label"), "b": frame.select(ID, "noise")}
    fed = federate(tables, Recorded)
    sv.VerticalLinear().fit(fed)
    offer = next(offer for site, offer in sent(fed, Offer) if site == "b")
    column = in_one_place.joined(fed, fed.columns.training).X[:, -1]
    assert abs(np.corrcoef(offer.column[:, 0], column)[0, 1]) > 1 - 1e-6


def test_policies_are_enforced():
    fed = federate(split(wide(), 2), policy=sv.Policy(messages=[*MATCHING, "Explain"]))
    with pytest.raises(sv.RefusedError, match="does not allow OfferDirection"):
        sv.VerticalLinear().fit(fed)


# -- prediction


def scoring(frame, n_parties=3, **settings):
    return federate(split(frame.drop("label"), n_parties, holder=-1), label=None, **settings)


@pytest.mark.parametrize(
    ("task", "how"),
    [
        *((task, {}) for task in TASKS),
        *(("several", how) for how in ({"cold": True}, {"sums": "ring"}, {"random_state": None})),
    ],
    ids=str,
)
def test_new_rows(task, how):
    model = fitted(task, 3)
    frame = wide(task, n=100, seed=5)
    fed = scoring(frame, **how)
    before = fed.rounds
    predictions = model.predict(fed)
    assert fed.rounds == before + 1
    assert predictions.columns == [ID, "prediction"]
    assert predictions[ID].to_list() == fed.party("party 0").frame[ID].to_list()  # in the order of the first table
    whole = model.predict(frame.sort(ID))
    if task == "number":
        assert np.allclose(predictions.sort(ID)["prediction"], whole, atol=1e-6)
    else:
        assert predictions.sort(ID)["prediction"].to_list() == whole.tolist()
        shares = model.predict_proba(fed)
        assert shares.columns == [ID, *map(str, model.schema_.label.classes)]
        assert np.allclose(shares.sort(ID).drop(ID).to_numpy(), model.predict_proba(frame.sort(ID)), atol=1e-8)


def test_rows_that_a_party_lacks():
    model, frame = fitted(n_parties=3), wide(n=80, seed=3)
    tables = split(frame.drop("label"), 3, holder=-1)
    tables["party 1"] = tables["party 1"].filter(pl.col(ID).is_in(frame[ID].to_list()[10:]))
    fed = federate(tables, label=None, match="keyed")
    assert len(model.predict(fed)) == 70
    predictions = model.predict_proba(fed, incomplete=True)
    assert model.lacking_ == {"party 0": 0, "party 1": 10, "party 2": 0}
    assert predictions["lacking"].value_counts().sort("lacking").rows() == [("", 70), ("party 1", 10)]
    first = frame[ID].to_list()[:10]
    own = [c for c in tables["party 1"].columns if c != ID]
    blanked = frame.with_columns(pl.when(~pl.col(ID).is_in(first)).then(pl.col(c)).alias(c) for c in own)
    assert np.allclose(predictions.sort(ID)["yes"], model.predict_proba(blanked.sort(ID))[:, 1], atol=1e-8)


def test_a_missing_party_or_share():
    model, frame = fitted(n_parties=3), wide(n=40, seed=1)
    tables = split(frame.drop("label"), 3, holder=-1)
    del tables["party 1"]
    with pytest.raises(sv.InputError, match="party 'party 1' has a share of this model and is not in the federation"):
        model.predict(federate(tables, label=None))
    del model.shares_["party 2"]
    with pytest.raises(sv.RefusedError, match=r"'party 2' refused .*: the party has no share of this model"):
        model.predict(scoring(frame))
    with pytest.raises(sv.InputError, match="the share of party 'party 2' is not known here"):
        model.predict(frame)


def test_coefficients_are_listed():
    fed = federate(split(wide("several"), 2))
    listed = sv.VerticalLinear().fit(fed).coefficients()
    assert set(listed["party"]) == {"party 0", "party 1"}
    assert {"age", "age is missing", "ward = a", "ward = other"} <= set(listed["column"])
    of_classes = [f"coefficient of {name}" for name in ("high", "low", "middle", "top")]
    assert listed.columns == ["party", "column", "mean", "deviation", *of_classes]
    assert listed.select(of_classes).sum_horizontal().abs().max() < 1e-9
    assert fitted().coefficients().columns[-1] == "coefficient"


# -- evaluating


@pytest.mark.parametrize("task", TASKS)
def test_evaluate(task):
    fed = federate(split(wide(task, n=400), 2), test=0.3)
    model = sv.VerticalLinear(**EXACT).fit(fed)
    rounds = fed.rounds
    figures = model.evaluate(fed)
    assert fed.rounds == rounds  # counted apart
    assert figures["site"].to_list() == ["party 0"] * 3 + ["party 1"] * 3 + ["all"] * 2
    assert figures["model"].to_list() == ["local", "federated", "pooled"] * 2 + ["federated", "pooled"]
    figure = figures.columns[3]
    shown = {(r["site"], r["model"]): r[figure] for r in figures.iter_rows(named=True)}
    assert shown["all", "federated"] == pytest.approx(shown["all", "pooled"], abs=1e-4)
    assert shown["party 0", "federated"] == shown["all", "federated"] != shown["party 0", "local"]
    used = figures.filter((pl.col("model") == "federated") & (pl.col("site") != "all"))
    assert used["use"].to_list() == (used["gain_low"] > 0).to_list()
    fresh = model.evaluate(fed, table=wide(task, n=300, seed=7))
    assert fresh["rows"].to_list() == [300] * 8


# -- files


def test_files(tmp_path):
    model = sv.VerticalLinear(alpha=2.0).fit(federate(split(wide("several"), 3)))
    model.save(tmp_path / "model")
    frame = wide("several", n=50, seed=2)
    same = sv.VerticalLinear.load(tmp_path / "model")
    assert same.alpha == 2.0
    assert np.array_equal(same.predict_proba(frame), model.predict_proba(frame))
    assert same.predict(scoring(frame)).equals(model.predict(scoring(frame)))
    (tmp_path / "model" / "party 1.share.silvan").unlink()
    part = sv.VerticalLinear.load(tmp_path / "model")
    assert set(part.shares_) == {"party 0", "party 2"}
    with pytest.raises(sv.InputError, match="there is no file"):
        sv.VerticalLinear.load(tmp_path)


@pytest.mark.parametrize("name", ["linear.silvan", "party 1.share.silvan"])
def test_damaged_files(tmp_path, name):
    model = fitted()
    model.save(tmp_path)
    data = (tmp_path / name).read_bytes()
    for bad in (b"", data[:-1], data[:-9] + b"\1" + data[-8:], data.replace(b"silvan linear", b"silvan lunear")):
        (tmp_path / name).write_bytes(bad)
        with pytest.raises(sv.FormatError, match=name):
            sv.VerticalLinear.load(tmp_path)
    other = sv.VerticalLinear(alpha=3.0).fit(federate(split(wide(), 2)))
    kept = other.model_ if name == "linear.silvan" else other.shares_["party 1"]
    (tmp_path / name).write_bytes(kept.to_bytes())
    with pytest.raises(sv.FormatError, match="it is not the share of party"):
        sv.VerticalLinear.load(tmp_path)


def test_forged_files():
    model = fitted()
    for changes in (
        {"constant": np.array([np.nan])},
        {"constant": np.zeros(3)},
        {"present": np.array([1, 0])},
        {"present": np.array([0, 7])},
        {"unit": np.zeros(3)},
        {"label_holder": "nobody"},
        {"columns": (1, 1)},
    ):
        with pytest.raises(sv.FormatError):
            LinearModel.from_bytes(replace(model.model_, **changes).to_bytes())
    share = model.shares_["party 1"]
    for coefficients_ in (share.coefficients[1:], share.coefficients * np.inf, share.coefficients[:, 0]):
        with pytest.raises(sv.FormatError):
            LinearShare.from_bytes(LinearShare(share.model, share.party, share.design, coefficients_).to_bytes())


# -- bad input


@cache
def two_parties():
    """A federation for refused input."""
    return federate(split(wide(), 2))


@pytest.mark.parametrize("name", ["alpha", "tol", "max_iter"])
@pytest.mark.parametrize("value", [0, -1, "1", None, True, float("nan")])
def test_parameters(name, value):
    with pytest.raises(sv.InputError, match=f"{name} must be"):
        sv.VerticalLinear(**{name: value}).fit(two_parties())


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda fed: sv.VerticalLinear(tol=1.5).fit(fed), "tol must be a number of at least 1e-08"),
        (lambda fed: sv.VerticalLinear(tol=1e-9).fit(fed), "tol must be a number of at least 1e-08"),
        (lambda fed: sv.VerticalLinear().fit(federate_rows(parts(table(), 2))), "a federation by columns is needed"),
        (lambda fed: sv.VerticalLinear().fit(wide()), r"fit\(sv.federate_columns\(tables\)\), and no y; got DataFrame"),
        (lambda fed: sv.VerticalLinear().fit(scoring(wide())), "no party holds the label"),
        (lambda fed: sv.VerticalLinear().predict(fed), "not fitted yet"),
        (lambda fed: fitted("number").predict_proba(fed), "predict_proba is for classification"),
        (lambda fed: fitted().evaluate(fed), "there are no test rows"),
        (lambda fed: fitted().evaluate(scoring(wide(), 2)), "no party holds the label"),
        (lambda fed: federate(split(wide(), 2), sums="ring"), "sums must be 'trusted' for fewer than 3 sites"),
    ],
)
def test_unusable_federations(use, said):
    with pytest.raises(sv.InputError, match=said):
        use(two_parties())


def test_one_class():
    frame = wide().with_columns(label=pl.lit("yes"))
    with pytest.raises(sv.InputError, match="the label has one class only"):
        sv.VerticalLinear().fit(federate(split(frame, 2)))
    label = sv.Label("label", ("no", "yes"))
    schema = sv.Schema(federate(split(frame, 2)).schema.features, label)
    with pytest.raises(sv.RefusedError, match="'party 0' refused Explain: all training rows are of one class"):
        sv.VerticalLinear().fit(federate(split(frame, 2), schema=schema))


def test_a_constant_number():
    frame = wide("number").with_columns(label=pl.lit(2.5))
    model = sv.VerticalLinear().fit(fed := federate(split(frame, 2), task="regression"))
    assert np.allclose(model.predict(fed)["prediction"], 2.5)


def test_too_few_steps(monkeypatch):
    fed = federate(split(wide(), 3))
    with pytest.warns(ConvergenceWarning, match="stopped after 2 steps.*raise max_iter"):
        model = sv.VerticalLinear(max_iter=2).fit(fed)
    assert (model.n_iter_, model.rounds_) == (2, 6)
    assert len(model.predict(fed)) == 240
    monkeypatch.setattr(linear_fit, "HISTORY", 3 * 8 * 240)
    with pytest.warns(ConvergenceWarning, match="stopped after 3 steps"):
        sv.VerticalLinear(tol=1e-8).fit(fed)


# -- parties that reply nonsense

LIES = {
    "too few rows": (Offer, {"column": lambda c: c[1:]}, "does not match the rows"),
    "another type": (Offer, {"column": lambda c: c.astype(np.float64)}, "does not match the rows"),
    "more products": (Offer, {"products": lambda p: np.concatenate([p, p])}, "does not match the rows"),
    "too large": (Offer, {"column": lambda c: np.full_like(c, 1 << 62)}, "too large"),
    "a constant of others": (KeptConstant, {"constant": lambda c: np.ones(1)}, "without holding the label"),
}


@pytest.mark.parametrize("lie", LIES)
def test_nonsense_replies_of_a_party(lie):
    kind, changes, text = LIES[lie]
    fed = federate(split(wide(), 2), lying("party 1", kind, **changes))
    with pytest.raises(sv.SiteError, match=f"'party 1'.*{text}"):
        sv.VerticalLinear().fit(fed)


@pytest.mark.parametrize("which", [0, 1])
def test_inconsistent_sums(which):
    def lie(products):
        products[which] -= 1 << 50
        return products

    fed = federate(split(wide(), 2), lying("party 1", Offer, products=lie))
    with pytest.raises(sv.FederationError, match="does not fit together, so some party is wrong"):
        sv.VerticalLinear().fit(fed)


def test_invented_columns():
    # whatever it claims about its rows, the others' model is unharmed
    rng = np.random.default_rng(0)
    liar = lying("party 1", Offer, column=lambda c: rng.integers(-(1 << 28), 1 << 28, c.shape))
    with pytest.warns(ConvergenceWarning):
        model = sv.VerticalLinear(max_iter=5).fit(federate(split(wide(), 2), liar))
    assert np.isfinite(coefficients(model)).all()


@pytest.mark.parametrize(
    ("kind", "changes", "text"),
    [
        (Unexplained, {"width": lambda w: 5}, "not as many as the label has classes"),
        (Unexplained, {"width": lambda w: 0}, "not as many as the label has classes"),
        (KeptConstant, {"constant": lambda c: c * np.nan}, "its constant"),
        (KeptConstant, {"present": lambda p: p + 1}, "its classes"),
        (KeptConstant, {"unit": lambda u: u[:1]}, "its constant"),
    ],
)
def test_a_label_holder_that_answers_nonsense(kind, changes, text):
    fed = federate(split(wide(), 2), lying("party 0", kind, **changes))
    with pytest.raises(sv.SiteError, match=f"'party 0'.*{text}"):
        sv.VerticalLinear().fit(fed)


@pytest.mark.parametrize("change", [lambda p: p[1:], lambda p: p.astype(np.float64)])
def test_invalid_predictors(change):
    fed = federate(split(wide(), 2), lying("party 1", Predictors, parts=change))
    with pytest.raises(sv.SiteError, match=r"'party 1'.*not as many as the rows"):
        sv.VerticalLinear().fit(fed).predict(fed)


# -- a coordinator that requests nonsense


def changed(**changes):
    return lambda fed, r: msgspec.structs.replace(r, **{name: change(fed, r) for name, change in changes.items()})


NONSENSE = {
    "no steps": (OfferDirection, changed(steps=lambda fed, r: [])),
    "a step that nobody sealed": (OfferDirection, changed(steps=lambda fed, r: [fed.blob(b"x" * 99)])),
    "a step twice": (OfferDirection, changed(steps=lambda fed, r: [*r.steps, r.steps[0]])),
    "no penalty": (
        OfferDirection,
        changed(terms=lambda fed, r: msgspec.structs.replace(r.terms, alpha=0.0)),
    ),
    "a sum of another shape": (
        Explain,
        changed(
            offered=lambda fed, r: [
                fed.blob(wire.encode(Offer(column=np.zeros((3, 1), np.int64), products=np.zeros(2, np.int64))))
                for _ in r.offered
            ]
        ),
    ),
    "a number instead of classes": (Explain, changed(label=lambda fed, r: sv.Label("label"))),
    "to keep nothing": (KeepCoefficients, changed(steps=lambda fed, r: [])),
}


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_nonsense_requests_of_a_coordinator(nonsense):
    fed = asking(federate(split(wide(), 2)), *NONSENSE[nonsense])
    with pytest.raises((sv.SiteError, sv.RefusedError), match=r"could not read|refused"):
        sv.VerticalLinear().fit(fed)


@pytest.mark.parametrize(("task", "site"), [("binary", "party 1"), ("number", "party 0")])
def test_a_coordinator_that_lies(task, site):
    """A party replies to every request, or says that it cannot."""

    class Raw(InProcess):
        record: ClassVar[list] = []

        def deliver(self, messages, verb, timeout):
            self.record += [(name, "received", data) for name, data in messages.items()]
            yield from super().deliver(messages, verb, timeout)

    fed = federate(split(wide(task, n=60), 2), Raw)
    Raw.record.clear()
    model = sv.VerticalLinear(tol=1e-2).fit(fed)
    model.predict(fed)
    codes = answers_to_lies(fed, Raw.record, site)
    assert codes.count("format") > 150
    assert "internal" not in codes


def test_a_party_follows_one_sequence_of_steps():
    """A party continues from its own replies: other residuals would reveal its table from another side."""
    fed = federate(split(wide(), 2), Recorded)
    sv.VerticalLinear().fit(fed)
    terms = {site: request.terms for site, request in asked(fed, OfferDirection)}
    steps = asked(fed, OfferDirection)[-1][1].steps
    with fed.working_on("something"), pytest.raises(sv.RefusedError, match="has not answered"):
        fed.total({site: OfferDirection(terms=own, steps=steps[:2]) for site, own in terms.items()})
    with fed.working_on("something else"):
        fed.total({site: OfferDirection(terms=own, steps=steps[:1]) for site, own in terms.items()})
        with pytest.raises(sv.RefusedError, match="answers one form in a task"):
            fed.total({site: OfferDirection(terms=own, steps=steps[1:2]) for site, own in terms.items()})


# -- restarted parties, stopped coordinators


@pytest.mark.parametrize(
    "learner", [sv.VerticalLinear(), sv.VerticalForest(**SMALL)], ids=["VerticalLinear", "VerticalForest"]
)
def test_a_finished_study_is_read_from_its_journal(tmp_path, learner):
    """Nobody receives a second request, so parties keep their shares with the journal."""
    tables, path = split(wide(), 2), str(tmp_path / "journal.db")
    model = clone(learner).fit(federate(tables, journal=path))
    fed = federate(tables, Recorded, journal=path)
    again = clone(learner).fit(fed)
    assert not fed.transport.record
    assert {name: share.to_bytes() for name, share in again.shares_.items()} == {
        name: share.to_bytes() for name, share in model.shares_.items()
    }
    assert again.predict(fed).equals(model.predict(fed))


@pytest.mark.parametrize("stop", [1, 4, 8, 15])
def test_a_killed_coordinator_resumes(tmp_path, stop):
    tables, path = split(wide(), 2), str(tmp_path / "journal.db")
    whole = fitted()
    with pytest.raises(Stop):
        sv.VerticalLinear().fit(federate(tables, stopping(stop), journal=path))
    fed = federate(tables, journal=path)
    model = sv.VerticalLinear().fit(fed)
    assert np.array_equal(coefficients(model), coefficients(whole))
    assert model.rounds_ == whole.rounds_
    assert len(model.predict(fed)) == 240


def test_shares_are_kept_for_good():
    fed = federate(split(wide(), 2), cold=True)
    model = sv.VerticalLinear().fit(fed)
    for name in fed.sites:
        assert fed.party(name).store.get(linear_key(model.model_.model)) == model.shares_[name].to_bytes()
    other = sv.VerticalLinear(alpha=5.0).fit(fed)
    assert other.model_.model != model.model_.model
    again = sv.VerticalLinear().fit(fed)
    assert hashlib.sha256(again.model_.to_bytes()).digest() == hashlib.sha256(model.model_.to_bytes()).digest()
