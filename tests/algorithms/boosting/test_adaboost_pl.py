"""AdaBoost.PL: stumps merged by rank, compared with the published formula; and sites that lie."""

import msgspec
import numpy as np
import polars as pl
import pytest
from helpers.boosters import WRONG_STUMPS, changed, lying, uneven
from helpers.studies import Recorded, assert_books, federate, table

import silvan as sv
from silvan.algorithms.boosting.adaboost import Boosted, ask_stumps, merge
from silvan.algorithms.boosting.stumps import Boosting, Stumps
from silvan.data.schema import Schema
from silvan.errors import SiteError
from silvan.federation import wire
from silvan.federation.message import Envelope


def by_hand(forests, X):
    """Alg. 3 on each site's AdaBoost: sorted by weight, merged by rank from the top, by the sign of summed votes."""
    ranked = []
    for forest in forests:
        order = np.argsort(forest.weights, kind="stable")
        votes = [2 * forest.take([t]).predict_proba(X)[:, 1] - 1 for t in order]
        ranked.append(list(zip(votes, forest.weights[order], strict=True))[::-1])
    margin = np.zeros(len(X))
    total = 0.0
    for t in range(max(map(len, ranked))):
        at = [stumps[t] for stumps in ranked if t < len(stumps)]
        alpha = sum(a for _, a in at) / len(forests)
        margin += alpha * np.sign(sum(votes for votes, _ in at))
        total += alpha
    return margin / total


@pytest.mark.parametrize("n_sites", [2, 3])
def test_as_published(n_sites):
    """With two sites a disagreement is a tie, which counts for neither class."""
    fed = federate(dict(list(uneven().items())[:n_sites]))
    model = sv.AdaBoostPL(n_estimators=15).fit(fed)
    own = sv.LocalAdaBoost(n_estimators=15).fit(fed).forests_
    X = table(seed=7).drop("label")
    margin = by_hand(own.values(), X)
    assert model.predict_proba(X)[:, 1] == pytest.approx((margin + 1) / 2, abs=1e-12)
    clear = np.abs(margin) > 1e-9
    assert np.array_equal(model.predict(X)[clear], np.where(margin > 0, "yes", "no")[clear])
    assert model.forest_.combine == "stages"
    assert (model.forest_.say.tolist(), len(model.forest_)) == (sorted(model.forest_.say), 15 * n_sites)
    scores = model.forest_.take(slice(0, n_sites)).predict_proba(X)[:, 1]
    assert set(scores) == ({0.0, 0.5, 1.0} if n_sites == 2 else {0.0, 1.0})


def stumps(weights, vote=(0, 1), feature=0):
    n = len(weights)
    return Stumps(
        feature=np.full(n, feature, np.int32),
        threshold=np.arange(n, dtype=np.float32) if feature >= 0 else np.zeros(n, np.float32),
        missing_left=np.zeros(n, np.bool_),
        words=np.zeros((n, 4), np.uint64),
        vote=np.tile(np.array(vote, np.uint8), (n, 1)),
        weight=np.array(weights, np.float64),
    )


SCHEMA = Schema.of(["x"], sv.Label("label", ("no", "yes")))


def test_a_site_with_fewer_stumps_is_in_the_highest_ranks():
    forest = merge([stumps([0.1, 0.2, 0.6]), stumps([0.4])], SCHEMA)
    assert forest.group.tolist() == [0, 1, 2, 2]
    assert forest.say == pytest.approx([0.05, 0.1, 0.5])
    assert forest.threshold[forest.feature >= 0].tolist() == [0, 1, 2, 0]


def test_a_stump_without_weight_has_no_vote():
    forest = merge([stumps([0.3, 0.4]), stumps([0.0], (1, 1), -1)], SCHEMA)
    assert forest.weights.tolist() == [1, 1, 0]
    assert forest.predict([[9.0], [-9.0]]).tolist() == ["yes", "no"]


def test_nothing_learned_anywhere():
    """One constant column: every site can only guess, and all guesses are equally good."""
    even = pl.DataFrame({"x": [1.0] * 20, "label": ["no", "yes"] * 10})
    with pytest.warns(UserWarning, match="no stump is better than chance") as caught:
        model = sv.AdaBoostPL().fit(federate({"a": even, "b": even}))
    assert caught[0].filename == __file__  # where the caller used the learner
    assert len(model.forest_.say) == 1
    assert model.predict([[1.0]]).tolist() == ["no"]


def test_one_round_and_what_travels():
    fed = federate(uneven(), Recorded)
    before = len(fed.transport.record)
    model = sv.AdaBoostPL(n_estimators=20).fit(fed)
    assert model.rounds_ == 1
    assert_books(fed)
    replies = [wire.decode(d, Envelope) for _, way, d in fed.transport.record[before:] if way == "sent"]
    assert [e.kind for e in replies] == ["Boosted"] * 3
    for envelope in replies:
        weight = wire.decode(envelope.body, Boosted).stumps.weight
        assert (np.diff(weight) >= 0).all()  # sorted, not in the order in which they were found
        assert len(envelope.body) < 20 * 80


# -- sites that lie


@pytest.mark.parametrize("how", WRONG_STUMPS)
def test_unusable_stumps_are_refused(how):
    def change(reply):
        return Boosted(stumps=changed(reply.stumps, **WRONG_STUMPS[how]))

    kind = lying("Boosted", Boosted, change)
    with pytest.raises(SiteError, match="site 'middle': answered BoostStumps with something unusable") as caught:
        sv.AdaBoostPL(n_estimators=20).fit(federate(uneven(), kind))
    assert caught.value.site == "middle"
    fed = federate(uneven(), lying("Boosted", Boosted, change), quorum=2)
    assert len(sv.AdaBoostPL(n_estimators=4).fit(fed).forest_) == 8
    assert list(fed.lost) == ["middle"]


OTHER_STUMPS = {
    "none": lambda s: s.take([]),
    "too many": lambda s: s.take([*range(len(s)), len(s) - 1]),
    "in another order": lambda s: s.take(slice(None, None, -1)),
}


@pytest.mark.parametrize("how", OTHER_STUMPS)
def test_unrequested_stumps_are_refused(how):
    kind = lying("Boosted", Boosted, lambda reply: Boosted(stumps=OTHER_STUMPS[how](reply.stumps)))
    with pytest.raises(SiteError, match="site 'middle': answered BoostStumps with something unusable"):
        sv.AdaBoostPL(n_estimators=10).fit(federate(uneven(), kind))


def test_what_a_site_refuses():
    """A site checks the settings it receives too."""
    fed = federate(uneven())
    bad = Boosting()
    object.__setattr__(bad, "n_estimators", 10**9)
    with pytest.raises(SiteError, match="site 'large'"):
        ask_stumps(fed, fed.schema, bad)
    schema = msgspec.structs.replace(fed.schema, label=sv.Label("label", ("a", "b", "c")))
    with pytest.raises(sv.InputError, match="has 3 classes"):
        ask_stumps(fed, schema, Boosting())
