"""BOPPID: which classifiers are picked and their weights, compared with the published formulas; and sites that lie."""

import math
from fractions import Fraction

import msgspec
import numpy as np
import polars as pl
import pytest
from helpers.boosters import WRONG_STUMPS, changed, lying, uneven, with_one_class
from helpers.ownership import work_of
from helpers.studies import Recorded, assert_books, federate, table
from hypothesis import given
from hypothesis import strategies as st

import silvan as sv
from silvan.algorithms.boosting.adaboost import Boosted, Picked, sigma
from silvan.errors import InputError, RefusedError, SiteError
from silvan.federation import wire
from silvan.federation.message import Envelope


def different():
    """Two similar sites, and one where the label means the opposite."""
    frame = table(n=600)
    flipped = frame.with_columns(label=pl.when(pl.col("label") == "yes").then(pl.lit("no")).otherwise(pl.lit("yes")))
    return {"one": frame[:250], "two": frame[250:400], "contrary": flipped[400:]}


def errors(fed, own, site):
    part = fed.site(site).part(fed.schema)
    classes = np.array(["no", "yes"])
    frame = fed.site(site).frame.to_native().drop("label")
    return {name: Fraction(int((f.predict(frame) != classes[part.y]).sum()), len(part)) for name, f in own.items()}


def by_hand(fed, own, site, tau, printed, X):
    """Lines 7 to 23 of Alg. 4, in fractions."""
    error = errors(fed, own, site)
    tau = Fraction(str(tau))
    if printed:
        picked = [q for q in own if q == site or error[site] - error[q] <= tau]
    else:
        picked = [q for q in own if q == site or abs(error[site] - error[q]) < tau]
    share = {q: Fraction(fed.rows[q], sum(fed.rows[s] for s in picked)) for q in picked}
    most, least = max(share.values()), min(share.values())
    factor = share[site] / most**2 * math.ceil(most**2 / least)
    margin, total = np.zeros(len(X)), 0.0
    for q in picked:
        weight = own[q].weights * float(share[q] * (factor if q == site else 1))
        votes = np.array([2 * own[q].take([t]).predict_proba(X)[:, 1] - 1 for t in range(len(own[q]))])
        margin += weight @ votes
        total += weight.sum()
    return picked, margin / total


@pytest.mark.parametrize("printed", [False, True])
@pytest.mark.parametrize("tau", [0.05, 0.1, 0.3])
def test_as_published(tau, printed):
    fed = federate(different())
    model = sv.BOPPID(n_estimators=8, tau=tau, printed=printed).fit(fed)
    own = sv.LocalAdaBoost(n_estimators=8).fit(fed).forests_
    X = table(seed=7).drop("label")
    for site in fed.sites:
        picked, margin = by_hand(fed, own, site, tau, printed, X)
        assert len(model.forests_[site]) == sum(len(own[q]) for q in picked)
        assert model.predict_proba(X, site=site)[:, 1] == pytest.approx((margin + 1) / 2, abs=1e-12)


def test_who_is_picked():
    """The printed line admits every worse classifier, even one that is always wrong; the text's reading does not."""
    fed = federate(different())
    sizes = {}
    for printed in (False, True):
        model = sv.BOPPID(n_estimators=8, tau=0.12, printed=printed).fit(fed)
        sizes[printed] = {site: len(forest) // 8 for site, forest in model.forests_.items()}
    assert sizes[False] == {"one": 2, "two": 2, "contrary": 1}
    assert sizes[True] == {"one": 3, "two": 3, "contrary": 3}
    alone = sv.BOPPID(n_estimators=8, tau=0).fit(fed)
    own = sv.LocalAdaBoost(n_estimators=8).fit(fed).forests_
    X = table(seed=7).drop("label")
    for site in fed.sites:
        assert alone.predict_proba(X, site=site) == pytest.approx(own[site].predict_proba(X), abs=1e-12)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=20), st.data())
def test_sigma(rows, data):
    """The formula in fractions; at least 1, so a site's own classifier weighs more than another of equal size."""
    own = data.draw(st.sampled_from(rows))
    share = [Fraction(n, sum(rows)) for n in rows]
    exact = Fraction(own, sum(rows)) / max(share) ** 2 * math.ceil(max(share) ** 2 / min(share))
    assert sigma(own, rows) == pytest.approx(float(exact), rel=1e-12)
    assert sigma(own, rows) * (1 + 1e-12) >= 1


def test_sigma_at_a_whole_number():
    """2/3 squared over 1/9 is exactly 4; rounded up slightly it would be 5."""
    assert sigma(6, [6, 1, 2]) == pytest.approx(9 / 6 * 4)
    assert sigma(5, [5, 5, 5]) == pytest.approx(3.0)
    assert sigma(5, [5]) == 1.0


def test_a_site_with_one_class():
    """Its own classifier has no weight, so its model consists of classifiers that are rarely wrong on its rows."""
    fed = federate(with_one_class())
    model = sv.BOPPID(n_estimators=10, tau=0.5).fit(fed)
    own = sv.LocalAdaBoost(n_estimators=10).fit(fed).forests_
    assert len(model.forests_["only yes"]) in (10, 20)
    assert all((forest.weights > 0).all() for forest in model.forests_.values())
    strict = sv.BOPPID(n_estimators=10, tau=1e-6).fit(fed).forests_["only yes"]
    assert strict == own["only yes"]
    assert set(strict.predict(table(seed=1).drop("label"))) == {"yes"}


def test_no_global_model():
    model = sv.BOPPID(n_estimators=2).fit(federate(uneven()))
    assert model.forest_ is None
    with pytest.raises(InputError, match="BOPPID has no global forest; pass site="):
        model.predict(table().drop("label"))


def test_two_rounds_and_what_travels():
    fed = federate(uneven(), Recorded)
    before = len(fed.transport.record)
    model = sv.BOPPID(n_estimators=20).fit(fed)
    assert model.rounds_ == 2
    assert_books(fed)
    replies = [wire.decode(d, Envelope) for _, way, d in fed.transport.record[before:] if way == "sent"]
    assert [e.kind for e in replies] == ["Boosted"] * 3 + ["Picked"] * 3
    asked = [wire.decode(d, Envelope) for _, way, d in fed.transport.record[before:] if way == "received"]
    for site, envelope in zip(fed.sites, asked[3:], strict=True):
        others = [name for name in fed.sites if name != site]
        assert not any(name.encode() in envelope.body for name in others)
    # error rates stay at their site
    assert all(set(wire.decode(e.body, Picked).__struct_fields__) == {"picked"} for e in replies[3:])


@pytest.mark.parametrize("tau", [-0.1, np.nan, np.inf, "0.1", None, True])
def test_tau(tau):
    with pytest.raises(InputError, match="tau must be a number of at least 0"):
        sv.BOPPID(tau=tau).fit(federate(uneven()))
    with pytest.raises(InputError, match="printed must be True or False, got 'yes'"):
        sv.BOPPID(printed="yes").fit(federate(uneven()))


# -- sites and requests that lie


@pytest.mark.parametrize("how", ["a weight that is no number", "a feature outside the schema"])
def test_unusable_stumps_are_refused(how):
    kind = lying("Boosted", Boosted, lambda reply: Boosted(stumps=changed(reply.stumps, **WRONG_STUMPS[how])))
    with pytest.raises(SiteError, match="site 'middle': answered BoostStumps with something unusable"):
        sv.BOPPID(n_estimators=10).fit(federate(uneven(), kind))


WRONG_CHOICES = {
    "too few": lambda picked: picked[:1],
    "not its own": lambda picked: np.array([True, False, True]),
    "numbers": lambda picked: picked.astype(np.int64),
    "a table": lambda picked: picked.reshape(1, -1),
}


@pytest.mark.parametrize("how", WRONG_CHOICES)
def test_invalid_choices_are_refused(how):
    def kind():
        return lying("Picked", Picked, lambda reply: Picked(picked=WRONG_CHOICES[how](reply.picked)))

    with pytest.raises(SiteError, match="site 'middle': answered PickModels with something unusable"):
        sv.BOPPID(n_estimators=4).fit(federate(uneven(), kind()))
    fed = federate(uneven(), kind(), quorum=2)
    model = sv.BOPPID(n_estimators=4, printed=True).fit(fed)
    assert list(model.forests_) == ["large", "small"]
    assert len(model.forests_["large"]) == 12  # its stumps arrived before it was lost


WRONG_QUESTIONS = {
    "own": {"own": 3},
    "below": {"own": -1},
    "tau": {"tau": float("nan")},
    "tau without end": {"tau": float("inf")},
    "no models": {"models": []},
}


@pytest.mark.parametrize("how", WRONG_QUESTIONS)
def test_what_a_site_refuses(how):
    fed = federate(uneven())
    asked = []
    ask = fed.ask
    fed.ask = lambda request, **given: (asked.append(request), ask(request, **given))[1]
    sv.BOPPID(n_estimators=3).fit(fed)
    request = asked[-1]["small"]
    fed.task = "BOPPID (1)"
    fed.site("small").outbox = None
    with pytest.raises(SiteError, match="site 'small': PickModels: the site could not read what it was sent"):
        ask({"small": msgspec.structs.replace(request, **WRONG_QUESTIONS[how])})
    forged = [fed.blob(fed.content(request.models[0]) + b"\0"), *request.models[1:]]
    with pytest.raises(RefusedError, match="only what sites signed"):
        ask({"small": msgspec.structs.replace(request, models=forged)})
    signed = [work_of(fed, "large", b"no stumps"), *request.models[1:]]
    with pytest.raises(SiteError, match="site 'small'"):
        ask({"small": msgspec.structs.replace(request, models=signed)})


def test_a_policy_may_exclude_it():
    allowed = ("Describe", "CountCategories", "NameCategories", "BoostStumps")
    fed = federate(uneven(), policy=sv.Policy(messages=allowed))
    assert sv.AdaBoostPL(n_estimators=2).fit(fed).rounds_ == 1
    with pytest.raises(RefusedError, match="policy does not allow PickModels"):
        sv.BOPPID(n_estimators=2).fit(fed)
