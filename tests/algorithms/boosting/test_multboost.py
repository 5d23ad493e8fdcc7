"""MultBoost: compared with AdaBoost and with a plain version of its description; sites that lie or leave."""

from functools import partial

import msgspec
import numpy as np
import polars as pl
import pytest
from helpers.boosters import WRONG_STUMPS, changed, few_values, lying, put, rows_of, uneven
from helpers.studies import Recorded, Stop, assert_books, disturbed, federate, from_reply, table

import silvan as sv
from silvan.algorithms.boosting.adaboost import ONE
from silvan.algorithms.boosting.multboost import FindStump, FoundStump, StageMasses, WeighStage
from silvan.algorithms.boosting.stumps import Boosting, find_stump, join_stumps
from silvan.errors import FederationError, RefusedError, SiteError
from silvan.federation import wire
from silvan.federation.message import Envelope
from silvan.federation.store import digest
from silvan.forest.predict import decide

SIGNED = r"sites (made and )?signed"

HALF = ONE >> 1
UNREADABLE = "the site could not read what it was sent"


@pytest.mark.parametrize("criterion", ["gini", "error"])
def test_with_one_site_it_is_adaboost(criterion):
    """The same stumps with the same weights, bit for bit, although here they travel in messages."""
    fed = federate({"a": table(n=300)})
    forest = sv.MultBoost(n_estimators=30, criterion=criterion).fit(fed).forest_
    own = sv.LocalAdaBoost(n_estimators=30, criterion=criterion).fit(fed).forests_["a"]
    assert np.array_equal(forest.say, own.weights)
    assert np.array_equal(forest.feature, own.feature)
    assert np.array_equal(forest.threshold, own.threshold)
    X = table(seed=2).drop("label")
    assert forest.predict_proba(X) == pytest.approx(own.predict_proba(X), abs=1e-12)


TASK = "MultBoost (1)"
"""What the first fit is called."""


def by_hand(fed, rounds, criterion):
    """The description in floats: exp and log, all rows in one place, votes of -1, 0 and 1."""
    rows = [rows_of(fed, site) for site in fed.sites]
    n = sum(len(y) for _, y, _ in rows)
    weights = [np.full(len(y), 1.0 / n) for _, y, _ in rows]
    alphas, stages = [], []
    for _ in range(rounds):
        settings = Boosting(criterion=criterion)
        found = [find_stump(ready, w, settings)[0] for (_, _, ready), w in zip(rows, weights, strict=True)]
        margins = []
        for X, y, _ in rows:
            vote = np.sign(sum(2.0 * decide(s.forest(fed.schema), X) - 1 for s in found))
            margins.append(vote * (2.0 * y - 1))
        right = sum(w[m > 0].sum() for w, m in zip(weights, margins, strict=True))
        wrong = sum(w[m < 0].sum() for w, m in zip(weights, margins, strict=True))
        if right <= wrong:
            break
        alphas.append(0.5 * np.log(right / wrong))
        stages.append(join_stumps(found))
        weights = [w * np.exp(-alphas[-1] * m) for w, m in zip(weights, margins, strict=True)]
        total = sum(w.sum() for w in weights)
        weights = [w / total for w in weights]
    return alphas, stages


@pytest.mark.parametrize("criterion", ["gini", "error"])
@pytest.mark.parametrize("n_sites", [2, 3])
def test_as_described(n_sites, criterion):
    fed = federate(dict(list(uneven().items())[:n_sites]))
    forest = sv.MultBoost(n_estimators=12, criterion=criterion).fit(fed).forest_
    alphas, stages = by_hand(fed, 12, criterion)
    assert len(alphas) > 3
    assert forest.say == pytest.approx(alphas, rel=1e-7)
    assert np.array_equal(forest.feature, join_stumps(stages).forest(fed.schema).feature)
    assert np.array_equal(forest.group, np.repeat(np.arange(len(alphas)), n_sites))


def test_a_tie_is_a_vote_for_neither():
    """Two sites disagree on some rows: these rows support neither class and keep their weight."""
    fed = federate(dict(list(uneven().items())[:2]))
    model = sv.MultBoost(n_estimators=1).fit(fed)
    scores = model.predict_proba(table(n=900, seed=5).drop("label"))[:, 1]
    assert set(scores) == {0.0, 0.5, 1.0}


def test_nearly_as_good_as_on_pooled_rows():
    """The claim of its authors, on similar sites."""
    X, y = few_values(900)
    tables = {f"s{i}": (X[i::3], y[i::3]) for i in range(3)}
    fed = federate(tables, test=0.3)
    figures = sv.MultBoost().fit(fed).evaluate(fed).filter(pl.col("site") == "all")
    auc = dict(zip(figures["model"], figures["auc"], strict=True))
    assert auc["federated"] > auc["pooled"] - 0.04
    assert auc["federated"] > 0.8


# -- rounds and what travels


def test_rounds():
    for T in (1, 3, 10):
        fed = federate(uneven())
        model = sv.MultBoost(n_estimators=T).fit(fed)
        assert model.rounds_ <= 2 * T
        assert len(model.forest_.say) <= T
    assert sv.MultBoost(n_estimators=3).fit(federate(uneven())).rounds_ == 6


def test_what_travels():
    fed = federate(uneven(), Recorded)
    before = len(fed.transport.record)
    model = sv.MultBoost(n_estimators=5).fit(fed)
    assert_books(fed)
    replies = [wire.decode(d, Envelope) for _, way, d in fed.transport.record[before:] if way == "sent"]
    assert [e.kind for e in replies] == (["FoundStump"] * 3 + ["StageMasses"] * 3) * 5
    for envelope in replies:
        if envelope.kind == "FoundStump":
            stump = wire.decode(envelope.body, FoundStump).stump
            assert (len(stump), stump.weight.tolist()) == (1, [1.0])  # without errors of its own
    masses = [wire.decode(e.body, StageMasses).masses for e in replies if e.kind == "StageMasses"]
    for stage in range(5):
        assert abs(int(sum(masses[3 * stage : 3 * stage + 3]).sum()) - ONE) < 1000
    asked = [wire.decode(d, Envelope) for _, way, d in fed.transport.record[before:] if way == "received"]
    assert not any(b"middle" in e.body or b"small" in e.body for e in asked)
    assert max(len(e.body) for e in asked) < 2000
    assert model.forest_.say.size == 5


def test_sums_are_refused_in_the_clear():
    fed = federate(uneven())
    kept = record(fed)
    sv.MultBoost(n_estimators=2).fit(fed)
    data = wire.encode(Envelope("s", "q", "", "WeighStage", wire.encode(kept[WeighStage][-1])))
    reply = wire.decode(fed.site("small").receive(data, "ask"), Envelope)
    assert reply.kind == "Trouble"
    with pytest.raises(RefusedError, match="sums over at least 4 sites"):
        sv.MultBoost(n_estimators=2).fit(federate(uneven(), policy=sv.Policy(min_sites=4)))


def test_a_site_may_restart_at_any_time():
    """A request contains all stages, so a reply does not depend on earlier requests."""
    fed = federate(uneven())
    kept = record(fed)
    sv.MultBoost(n_estimators=6).fit(fed)
    site = fed.site("small")
    site.outbox = None
    last = kept[FindStump][-1]

    def answer(member):
        data = wire.encode(Envelope(fed.study, "q", "", "FindStump", wire.encode(last), task=TASK))
        return member.receive(data, "ask")

    warm = answer(site)
    assert wire.decode(warm, Envelope).kind == "FoundStump"
    assert answer(site.rebuilt()) == warm
    site.cache.clear()
    for request in (kept[FindStump][0], last, kept[FindStump][2]):  # back and forth
        data = wire.encode(Envelope(fed.study, "q", "", "FindStump", wire.encode(request), task=TASK))
        site.receive(data, "ask")
    assert answer(site) == warm


# -- when it ends


def test_a_stage_that_is_always_right():
    X = np.array([*range(17), *range(100, 123)], float).reshape(-1, 1)
    y = (X[:, 0] >= 100).astype(int)
    fed = federate({"a": (X[::2], y[::2]), "b": (X[1::2], y[1::2])})
    model = sv.MultBoost(n_estimators=50).fit(fed)
    assert model.rounds_ == 2
    assert (model.predict(X) == y).all()
    assert model.forest_.say == pytest.approx([0.5 * np.log(40 / 0.5)])


def test_nothing_better_than_chance():
    even = pl.DataFrame({"x": [1.0] * 20, "label": ["no", "yes"] * 10})
    with pytest.warns(UserWarning, match="no stump is better than chance") as caught:
        model = sv.MultBoost().fit(federate({"a": even, "b": even}))
    assert caught[0].filename == __file__  # where the caller used the learner
    assert model.rounds_ == 1
    assert model.predict_proba([[1.0]]).tolist() == [[1.0, 0.0]]


def test_contradictory_sites():
    """What is right at one site is wrong at the other, so no merged stump is better than chance."""
    frame = table(n=300)
    flipped = frame.with_columns(label=pl.when(pl.col("label") == "yes").then(pl.lit("no")).otherwise(pl.lit("yes")))
    with pytest.warns(UserWarning, match="no stump is better than chance"):
        model = sv.MultBoost().fit(federate({"a": frame, "b": flipped}))
    assert model.rounds_ == 2


# -- sites that lie, leave, or receive lies


@pytest.mark.parametrize("how", [*WRONG_STUMPS, "another weight", "two stumps", "no stump"])
def test_unusable_stumps_are_refused(how):
    def change(reply):
        if how == "two stumps":
            return msgspec.structs.replace(reply, stump=reply.stump.take([0, 0]))
        if how == "no stump":
            return msgspec.structs.replace(reply, stump=reply.stump.take([]))
        changes = WRONG_STUMPS.get(how, {"weight": put(0, 7.0)})
        if "threshold" in changes:
            changes = {**changes, "feature": put(0, 0), "words": put(0, 0)}
        if how == "an unknown category":
            changes = {**changes, "feature": put(0, 2), "threshold": put(0, 0)}
        return msgspec.structs.replace(reply, stump=changed(reply.stump, **changes))

    with pytest.raises(SiteError, match="site 'middle': answered FindStump with something unusable"):
        sv.MultBoost(n_estimators=4).fit(federate(uneven(), lying("FoundStump", FoundStump, change, after=1)))
    fed = federate(uneven(), lying("FoundStump", FoundStump, change, after=1), quorum=2)
    forest = sv.MultBoost(n_estimators=4).fit(fed).forest_
    assert list(fed.lost) == ["middle"]
    assert np.bincount(forest.group).tolist() == [3, 2, 2, 2]
    assert np.isfinite(forest.say).all()


WRONG_MASSES = {
    "negative": [-1, 5, 0],
    "too many": [1, 1, 1, 1],
    "too large": [2 * ONE, HALF, 0],
    "larger than all rows": [ONE, HALF, 0],
}


@pytest.mark.parametrize("how", WRONG_MASSES)
def test_impossible_masses_are_refused(how):
    kind = lying("StageMasses", StageMasses, lambda _: StageMasses(masses=np.array(WRONG_MASSES[how])), after=1)
    with pytest.raises(SiteError, match="site 'middle': answered WeighStage with something unusable"):
        sv.MultBoost(n_estimators=4).fit(federate(uneven(), kind))


@pytest.mark.parametrize("sums", ["trusted", "ring"])
def test_inconsistent_masses_are_refused(sums):
    """The total mass is known, so a site that counts itself twice is detected, although not named."""
    fed = federate(uneven(), sums=sums)
    honest = fed.site("middle").part

    def twice(schema, test=False):
        part = honest(schema, test)
        return type(part)(*(np.concatenate([a, a]) for a in (part.X, part.y, part.row_keys)))

    fed.site("middle").part = twice
    with pytest.raises(FederationError, match="do not add up"):
        sv.MultBoost(n_estimators=4).fit(fed)


def test_a_site_is_lost_between_the_two_requests():
    """Its stump of that stage is kept; the weights of the others are normalised again."""
    silent = disturbed(lambda site, data: [] if site == "middle" and b"StageMasses" in data else [(site, data)])
    fed = federate(uneven(), silent, quorum=2)
    model = sv.MultBoost(n_estimators=5).fit(fed)
    assert list(fed.lost) == ["middle"]
    assert np.bincount(model.forest_.group).tolist() == [3, 2, 2, 2, 2]


def test_an_interrupted_fit_resumes(tmp_path):
    path = str(tmp_path / "journal")
    whole = sv.MultBoost(n_estimators=6).fit(federate(uneven()))
    before = len(federate(uneven(), Recorded).transport.record) // 2

    def stop(site, data):
        raise Stop

    fed = federate(uneven(), disturbed(from_reply(before + 20, stop)), journal=path)
    with pytest.raises(Stop):
        sv.MultBoost(n_estimators=6).fit(fed)
    fed.close()
    again = federate(uneven(), journal=path)
    model = sv.MultBoost(n_estimators=6).fit(again)
    again.close()
    assert (model.forest_, model.rounds_) == (whole.forest_, whole.rounds_)


def record(fed):
    """Keeps the requests of a federation by kind."""
    kept = {FindStump: [], WeighStage: []}
    for verb in ("ask", "total"):

        def spy(real, request, check=None):
            kept[type(request)].append(request)
            return real(request, check=check)

        setattr(fed, verb, partial(spy, getattr(fed, verb)))
    return kept


def merged_with(merged, **changes):
    return msgspec.structs.replace(merged, **changes)


@pytest.mark.parametrize("kind", [FindStump, WeighStage])
def test_only_signed_stumps_weight_rows(kind):
    """Modified stumps, one site's stump twice, stumps of another task: no site made these for this request."""
    fed = federate(uneven())
    kept = record(fed)
    sv.MultBoost(n_estimators=3).fit(fed)
    for name in fed.sites:
        fed.site(name).outbox = None
    ask = type(fed).ask if kind is FindStump else type(fed).total
    fed.task = TASK
    request = kept[kind][-1]
    merged = request.merged
    forged = changed(merged.stumps, vote=put(0, 1 - merged.stumps.vote[0]))
    named = (fed.blob(FoundStump(stump=forged.take(slice(0, 1)), after=digest(b"")).work()), *merged.made[1:])
    n = len(fed.sites)
    alone = next(i for i in range(len(merged.made)) if len(fed.makers(merged.made[i])) == 1)
    taken = np.arange(len(merged.made))
    taken[alone - alone % n + (alone + 1) % n] = alone
    twice = {"stumps": merged.stumps.take(taken), "made": tuple(merged.made[i] for i in taken)}
    for wrong in (
        merged_with(merged, stumps=forged),
        merged_with(merged, stumps=forged, made=named),
        merged_with(merged, made=()),
        merged_with(merged, **twice),
    ):
        with pytest.raises(RefusedError, match=SIGNED):
            ask(fed, msgspec.structs.replace(request, merged=wrong))
    fed.task = "another"
    with pytest.raises(RefusedError, match=SIGNED):
        ask(fed, request)


@pytest.mark.parametrize("kind", [FindStump, WeighStage])
def test_a_stump_is_valid_for_its_stage_only(kind):
    """Signed by its site for the same task but for an earlier stage, it is refused in a later one."""
    fed = federate(uneven())
    kept = record(fed)
    sv.MultBoost(n_estimators=3).fit(fed)
    for name in fed.sites:
        fed.site(name).outbox = None
    fed.task = TASK
    ask, request = type(fed).ask if kind is FindStump else type(fed).total, kept[kind][-1]
    merged, n = request.merged, len(fed.sites)
    taken = np.arange(len(merged.made))
    ask(fed, request)
    taken[-n:] -= n
    wrong = merged_with(merged, stumps=merged.stumps.take(taken), made=tuple(merged.made[i] for i in taken))
    with pytest.raises(RefusedError, match=SIGNED):
        ask(fed, msgspec.structs.replace(request, merged=wrong))


WRONG_STAGES = {
    "fewer masses": lambda m: merged_with(m, masses=m.masses[:-1]),
    "negative masses": lambda m: merged_with(m, masses=-m.masses),
    "huge masses": lambda m: merged_with(m, masses=m.masses * 5),
    "masses of another type": lambda m: merged_with(m, masses=m.masses.astype(np.float64)),
    "no better than chance": lambda m: merged_with(m, masses=np.full_like(m.masses, 1000)),
    "masses of other rows": lambda m: merged_with(m, masses=np.tile([[ONE, 1, 0]], (len(m.masses), 1))),
    "empty stage": lambda m: merged_with(m, sizes=np.array([0, *m.sizes[1:]])),
    "negative stage": lambda m: merged_with(m, sizes=np.array([-1, *m.sizes[1:]])),
    "stage too large": lambda m: merged_with(m, sizes=m.sizes + 1),
    "stages of another type": lambda m: merged_with(m, sizes=m.sizes.astype(np.float64)),
    "a stage without votes": lambda m: merged_with(m, stumps=m.stumps.weighted(np.zeros(len(m.stumps)))),
    "a feature outside the schema": lambda m: merged_with(m, stumps=changed(m.stumps, feature=put(0, 99))),
    "no number": lambda m: merged_with(m, stumps=changed(m.stumps, weight=put(0, np.nan))),
}


@pytest.mark.parametrize("how", WRONG_STAGES)
@pytest.mark.parametrize("kind", [FindStump, WeighStage])
def test_what_a_site_refuses(how, kind):
    """Kernels trust their input, so an inconsistent request is refused first."""
    fed = federate(uneven())
    kept = record(fed)
    sv.MultBoost(n_estimators=4).fit(fed)
    for name in fed.sites:
        fed.site(name).outbox = None
    ask = type(fed).ask if kind is FindStump else type(fed).total
    request = kept[kind][-1]
    fed.task = TASK
    assert ask(fed, request)
    # stumps are signed together with the preceding masses
    error, said = (RefusedError, SIGNED) if how == "masses of other rows" else (SiteError, UNREADABLE)
    with pytest.raises(error, match=f"{kind.__name__}.*{said}"):
        ask(fed, msgspec.structs.replace(request, merged=WRONG_STAGES[how](request.merged)))
    for rows in (0, -5, 10, 2**60):
        with pytest.raises(SiteError, match=f"{kind.__name__}: {UNREADABLE}"):
            ask(fed, msgspec.structs.replace(request, rows=rows))
