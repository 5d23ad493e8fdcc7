"""How sites choose an ensemble: rows, metric and caution; and replies that name an ensemble that was not offered."""

from dataclasses import replace

import msgspec
import numpy as np
import polars as pl
import pytest
from helpers.ownership import work_of
from helpers.studies import TASKS, Recorded, disturbed, federate, parts, table
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, roc_auc_score, root_mean_squared_error

import silvan as sv
from silvan.algorithms.bofrf import choose as choosing
from silvan.algorithms.bofrf.choose import (
    STRATEGIES,
    TAUS,
    CandidateTrees,
    Choose,
    Chosen,
    choose,
    decide,
    score_candidates,
)
from silvan.algorithms.bofrf.weigh import thresholded
from silvan.algorithms.evaluation.score_quality import score_quality
from silvan.algorithms.keyed_rows import SHARES, learning_rows
from silvan.errors import InputError, RefusedError, SiteError
from silvan.federation import wire
from silvan.federation.describe import FLOOR
from silvan.federation.message import Envelope, Trouble
from silvan.forest.forest import Forest
from silvan.forest.predict import scores
from silvan.tree.sampling import rows_of_trees

PARAMETERS = {"n_estimators": 8, "max_depth": 4, "random_state": 3}


def fit(fed, **parameters):
    return sv.BOFRF(**{**PARAMETERS, **parameters}).fit(fed)


def naive_scores(model, fed, site, tau, own, X, seen):
    """An ensemble's score for each row: a site's own trees vote only on rows outside their sample."""
    forest = model.forest_
    mine = model.owners_ == site
    base = np.ones(len(forest))
    weights = np.zeros(len(forest))
    trees = mine if own else np.ones(len(forest), bool)
    weights[trees] = thresholded(model.weights_[trees], base[trees], tau)
    plain = replace(forest, weights=base, combine="mean")
    each = np.array([plain.take([t]).scores(X) for t in range(len(forest))])
    part = np.repeat(weights[:, None], len(X), axis=1)
    part[mine] *= ~seen
    with np.errstate(invalid="ignore"):
        return (each * part[:, :, None]).sum(axis=0) / part.sum(axis=0)[:, None]


# -- rows and trees that take part


@pytest.mark.parametrize("task", TASKS)
def test_local_trees_vote_only_on_out_of_bag_rows(task):
    """The metrics that a site chooses by, computed independently."""
    fed = federate(parts(table(task, n=300), 3), test=0.2)
    model = fit(fed, personal=True)
    for site in fed.sites:
        member = fed.site(site)
        part = member.part(fed.schema)
        seen = rows_of_trees(member.sampling_key, part.row_keys, 0, 8, True)
        figures = np.full((7, 2), np.nan)
        taus = [0.2, *(tau for tau in TAUS if tau != 0.2)]
        agreed = naive_scores(model, fed, site, 0.2, False, part.X, seen)
        for t, tau in enumerate(taus):
            for own in (False, True):
                trees = model.weights_[model.owners_ == site] if own else model.weights_
                if t and not (trees > tau).any():
                    continue
                answer = naive_scores(model, fed, site, tau, own, part.X, seen)
                rows = ~np.isnan(answer[:, 0]) & ~np.isnan(agreed[:, 0])
                y = part.y[rows]
                if task == "number":
                    figures[t, int(own)] = root_mean_squared_error(y, answer[rows, 0])
                elif task == "binary":
                    figures[t, int(own)] = roc_auc_score(y, answer[rows, 1])
                else:
                    figures[t, int(own)] = np.mean(
                        [roc_auc_score(y == c, answer[rows, c]) for c in range(4) if 0 < (y == c).sum() < len(y)]
                    )
        chosen = model.chosen_[site]
        assert chosen.measure == ("rmse" if task == "number" else "auc")
        assert chosen.rows == len(part)
        shown, local = chosen.metrics[:, :2], chosen.metrics[0, 2]
        assert np.allclose(shown, figures, rtol=6e-3, equal_nan=True)  # they leave the site rounded to three digits
        assert np.array_equal(np.isnan(shown), np.isnan(figures))
        if task == "binary":
            alone = scores(model._local[site], part.X, skip=seen)[:, 1]
            rows = ~np.isnan(alone) & ~np.isnan(agreed[:, 0])
            assert local == pytest.approx(roc_auc_score(part.y[rows], alone[rows]), abs=6e-4)


def test_all_trees_vote_on_validation_rows():
    fed = federate(parts(table(n=300), 3), test=0.2)
    model = fit(fed, validation=0.3)
    for site in fed.sites:
        held = learning_rows(fed.site(site), fed.schema, 0.3)[1]
        chosen = model.chosen_[site]
        assert chosen.rows == len(held)
        for strategy, forest in enumerate((model.forest_, model.own_[site])):
            assert chosen.metrics[0, strategy] == pytest.approx(
                roc_auc_score(held.y, forest.scores(held.X)[:, 1]), abs=6e-4
            )


def test_the_paper_chooses_on_test_rows():
    fed = federate(parts(table(n=300), 3), test=0.3)
    model = fit(fed, personal=True, protocol="paper")
    taus = [0.2, *(tau for tau in TAUS if tau != 0.2)]
    for site in fed.sites:
        part = fed.site(site).part(fed.schema, test=True)
        chosen = model.chosen_[site]
        assert chosen.rows == len(part)
        best = np.nanmax(chosen.metrics)
        mine = roc_auc_score(part.y, model.forests_[site].scores(part.X)[:, 1])
        assert mine == pytest.approx(best, abs=6e-4)
        assert chosen.metrics[taus.index(model.taus_[site]), STRATEGIES.index(model.strategies_[site])] == best
    with pytest.raises(InputError, match="protocol='paper' chooses on the test part: set test"):
        fit(federate(parts(table(n=100), 2)), protocol="paper")


def test_honest_choices_do_not_depend_on_test_rows():
    """The labels of the test set do not affect the choice."""
    tables = parts(table(n=300), 3)
    fed = federate(tables, test=0.3)
    model = fit(fed, personal=True)
    held = {site: fed.site(site).held_out for site in fed.sites}
    fake = {}
    for site, frame in tables.items():
        labels = np.array(frame["label"].to_list(), object)
        tested = held[site].between(0, len(frame))
        labels[tested] = np.where(labels[tested] == "yes", "no", "yes")
        fake[site] = frame.with_columns(label=pl.Series(labels.tolist()))
    again = federate(fake, test=0.3)
    for site in fed.sites:
        again.site(site).__dict__["held_out"] = held[site]  # which rows are held out depends on the class
    other = fit(again, personal=True)
    assert other.forests_ == model.forests_
    paper = [fit(f, personal=True, protocol="paper").chosen_ for f in (fed, again)]
    assert any(paper[0][s].metrics.tolist() != paper[1][s].metrics.tolist() for s in fed.sites)


# -- the decision rule


def scored(*columns):
    """Scores for two classes, given the probability of the second."""
    return [np.stack([1 - np.asarray(c, float), np.asarray(c, float)], axis=1) for c in columns]


def test_a_choice_needs_a_significant_lead():
    """A few rows cannot move a site away from the agreed ensemble; many rows can."""
    y = np.array([1, 0, 0, 1, 0, 1, 1, 1])
    agreed = np.linspace(0, 1, 8)
    few = dict(zip([(0, 0), (0, 1)], scored(agreed, agreed[[1, 0, 2, 3, 4, 5, 6, 7]]), strict=True))
    assert score_quality(few[0, 1], y, 2).merit > score_quality(few[0, 0], y, 2).merit
    assert decide(few, y, 2, [0.2], cautious=True).strategy == "global"
    assert decide(few, y, 2, [0.2], cautious=False).strategy == "own"
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    many = dict(zip([(0, 0), (0, 1)], scored(rng.random(400), 0.3 * y + 0.7 * rng.random(400)), strict=True))
    assert decide(many, y, 2, [0.2], cautious=True).strategy == "own"


def test_more_candidates_require_a_larger_lead():
    rng = np.random.default_rng(3)
    y = rng.integers(0, 2, 200)
    agreed, better = scored(0.3 * y + rng.random(200), 0.485 * y + rng.random(200))
    gain, error = score_quality(better, y, 2).lead(score_quality(agreed, y, 2))
    assert 2.0 < gain / error < 2.2
    alone = {(0, 0): agreed, (0, 1): better}
    assert decide(alone, y, 2, [0.2], cautious=True).strategy == "own"
    assert decide({**alone, (0, 2): agreed}, y, 2, [0.2], cautious=True).strategy == "global"


def test_a_site_may_keep_its_local_forest(monkeypatch):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    ranked = scored(rng.random(400), 0.5 * y + rng.random(400), 2.0 * y + rng.random(400))
    chosen = decide(dict(zip([(0, 0), (0, 1), (0, 2)], ranked, strict=True)), y, 2, [0.2], cautious=True)
    assert chosen.strategy == "local"
    monkeypatch.setattr(choosing, "decide", lambda *given, **named: chosen)
    fed = federate(parts(table(n=300), 2), test=0.2)
    model = fit(fed)
    found = model.evaluate(fed).filter(pl.col("model").is_in(["local", "federated"]) & (pl.col("site") != "all"))
    assert (found.group_by("site").agg(pl.col("auc").n_unique())["auc"] == 1).all()


def test_the_paper_has_no_local_candidate():
    model = fit(federate(parts(table(n=300), 2), test=0.2), protocol="paper")
    assert all(np.isnan(reply.metrics[:, 2]).all() for reply in model.chosen_.values())


def test_grouped_rows_give_metrics_of_two_candidates():
    """The values of all ensembles together would reveal labels to anyone who knows the trees."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    at = [(0, 0), (0, 1), (1, 0), (1, 1)]
    scores = dict(zip(at, scored(*(share * y + rng.random(400) for share in (0.0, 0.1, 0.9, 0.2))), strict=True))
    assert not np.isnan(decide(scores, y, 2, [0.2, 0.1], cautious=True).metrics[:, :2]).any()
    told = ~np.isnan(decide(scores, y, 2, [0.2, 0.1], cautious=True, groups=5).metrics)
    assert told.tolist() == [[True, False, False], [True, False, False]]


def test_ties():
    """An honest site keeps the global ensemble; the paper leaves local trees only for better ones (Eq. 3.11)."""
    y = np.array([0, 1] * 20)
    same = scored(y)[0]
    taus = [0.2, 0.0, 0.15, 0.4]
    everything = {(t, s): same for t in range(4) for s in range(2)}
    for cautious, strategy in ((False, "own"), (True, "global")):
        chosen = decide(everything, y, 2, taus, cautious=cautious)
        assert (chosen.tau, chosen.strategy) == (0, strategy)
    # better ones, all equal: global before local, then the tau nearest to 0.2
    rng = np.random.default_rng(1)
    better = {**everything, (0, 0): scored(rng.random(40))[0], (0, 1): scored(rng.random(40))[0]}
    chosen = decide(better, y, 2, taus, cautious=True)
    assert (chosen.tau, chosen.strategy) == (2, "global")


def test_without_rows_the_agreed_ensemble_stays():
    for known in ({}, {(0, 0): np.zeros((0, 2)), (0, 1): np.zeros((0, 2))}):
        chosen = decide(known, np.zeros(0, int), 2, [0.2], cautious=True)
        assert (chosen.strategy, chosen.measure, chosen.rows) == ("global", "", 0)
        assert np.isnan(chosen.metrics).all()
    # all trees of other sites abstain, so there is no global ensemble here
    chosen = decide({(0, 1): scored([0.5, 0.4])[0]}, np.array([0, 1]), 2, [0.2], cautious=True)
    assert chosen.strategy == "own"


@given(st.integers(0, 2**32), st.integers(4, 60), st.integers(2, 4))
def test_metrics_equal_scikit_learns(seed, n, n_classes):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n)
    answer = np.round(rng.dirichlet(np.ones(n_classes), n), 1)
    quality = score_quality(answer, y, n_classes)
    classes = [1] if n_classes == 2 else range(n_classes)
    each = [roc_auc_score(y == c, answer[:, c]) for c in classes if 0 < (y == c).sum() < n]
    if each:
        assert quality.value == pytest.approx(np.mean(each), abs=1e-12)
    else:
        assert quality.metric == "accuracy"
        assert quality.value == pytest.approx(accuracy_score(y, answer.argmax(axis=1)))
    assert quality.influence.sum() == pytest.approx(0, abs=1e-9)


@given(st.integers(0, 2**32), st.integers(4, 40), st.integers(2, 5))
def test_classes_are_weighted_by_their_pairs_of_rows(seed, n, n_classes):
    """The share of pairs (one row of the class, one of another) that the score of the class ranks correctly."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n)
    answer = np.round(rng.dirichlet(np.ones(n_classes), n), 1)
    quality = score_quality(answer, y, n_classes, by_pairs=True)
    right, pairs = 0.0, 0
    for c in [1] if n_classes == 2 else range(n_classes):
        gaps = answer[y == c, c][:, None] - answer[y != c, c][None, :]
        right, pairs = right + (gaps > 0).sum() + 0.5 * (gaps == 0).sum(), pairs + gaps.size
    if pairs:
        assert quality.merit == quality.value == pytest.approx(right / pairs)
        assert quality.influence.sum() == pytest.approx(0, abs=1e-9)
    else:
        assert quality.metric == "accuracy"


def test_the_standard_error_agrees_with_resampling():
    """Compares DeLong's standard error of an AUC difference with a bootstrap; the error of a mean is exact."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 300)
    a = y + rng.normal(size=300)
    b = y + 0.7 * rng.normal(size=300) + 0.3 * a
    one, two = (score_quality(np.stack([-s, s], axis=1), y, 2) for s in (a, b))
    error = np.sqrt(((one.influence - two.influence) ** 2).sum())
    gaps = []
    for _ in range(600):
        rows = np.concatenate([rng.choice(np.flatnonzero(y == c), (y == c).sum()) for c in (0, 1)])
        pair = [score_quality(np.stack([-s[rows], s[rows]], axis=1), y[rows], 2).merit for s in (a, b)]
        gaps.append(pair[0] - pair[1])
    assert error == pytest.approx(np.std(gaps), rel=0.15)
    numbers = score_quality(a[:, None], y.astype(float), 0)
    square = (a - y) ** 2
    assert np.sqrt((numbers.influence**2).sum()) == pytest.approx(square.std() / np.sqrt(300))


def test_candidates_equal_those_built_one_by_one():
    """Trees are added from the highest tau down; each ensemble equals the one computed by itself."""
    fed = federate(parts(table("several", n=200), 3))
    model = fit(fed)
    forest = replace(model.forest_, weights=np.ones(24), combine="mean")
    X = fed.site("site 0").part(fed.schema).X
    own, rng = np.arange(8, 16), np.random.default_rng(0)
    seen, alphas = rng.random((8, len(X))) < 0.5, rng.uniform(-0.2, 0.8, 24)
    voting = (rng.random(24) < 0.8).astype(float)
    taus = [0.2, 0.0, 0.5, 0.35, 0.79]
    lines = np.full(24, -1)
    lines[own] = np.arange(8)
    scores = score_candidates(CandidateTrees(forest, alphas, voting, own, lines), X, taus, seen)
    each = np.array([forest.take([t]).scores(X) for t in range(24)])
    skip = np.zeros((24, len(X)), bool)
    skip[own] = seen
    for t, tau in enumerate(taus):
        for s, trees in enumerate((np.arange(24), own)):
            weights = np.zeros(24)
            weights[trees] = np.where(alphas[trees] > tau, alphas[trees], 0.0)
            weights *= voting
            assert ((t, s) in scores) == weights.any()
            if weights.any():
                part = weights[:, None] * ~skip
                with np.errstate(invalid="ignore"):
                    mean = (each * part[:, :, None]).sum(axis=0) / part.sum(axis=0)[:, None]
                assert np.allclose(scores[t, s], mean, equal_nan=True)


def test_a_site_that_differs_keeps_its_local_trees():
    """If labels mean the opposite at a site, trees of other sites mislead there, and the local rows show it clearly."""
    frame = table(n=900)
    swapped = frame[:300].with_columns(label=pl.col("label").replace_strict({"yes": "no", "no": "yes"}))
    fed = federate({"odd": swapped, "a": frame[300:600], "b": frame[600:]}, test=0.2)
    model = fit(fed, n_estimators=30, personal=True)
    assert model.strategies_.pop("odd") in ("own", "local")
    assert model.strategies_ == {"a": "global", "b": "global"}
    assert set(np.unique(model.owners_[model.forest_.weights > 0])) <= {"a", "b"}
    figures = model.evaluate(fed).filter(pl.col("site") == "odd")
    auc = dict(zip(figures["model"], figures["auc"], strict=True))
    assert auc["federated"] > 0.7 > 0.3 > auc["global"]


def test_what_each_site_should_use():
    fed = federate(parts(table(n=300), 3), test=0.2)
    model = fit(fed, personal=True)
    assert set(model.taus_) == set(model.strategies_) == set(model.forests_) == set(fed.sites)
    for site in fed.sites:
        tau, mine = model.taus_[site], model.owners_ == site
        if model.strategies_[site] == "global":
            assert np.array_equal(model.forests_[site].weights, thresholded(model.weights_, np.ones(24), tau))
        elif model.strategies_[site] == "own":
            assert np.array_equal(model.forests_[site].weights, thresholded(model.weights_[mine], np.ones(8), tau))


def test_base_has_one_tau():
    model = fit(federate(parts(table(), 2)), tau=0.3)
    assert set(model.taus_.values()) == {0.3}
    assert all(reply.metrics.shape == (1, 3) for reply in model.chosen_.values())


def test_the_agreed_tau_is_tried_first_and_once(monkeypatch):
    asked = []
    truth = choosing.Choose
    monkeypatch.setattr(choosing, "Choose", lambda **fields: asked.append(fields["taus"]) or truth(**fields))
    fed = federate(parts(table(), 2))
    fit(fed, personal=True, tau=0.2)
    fit(fed, personal=True, tau=0.33)
    assert asked[0] == [0.2, 0.0, 0.1, 0.15, 0.25, 0.3, 0.4]
    assert asked[-1] == [0.33, *TAUS]


# -- a coordinator that wants to learn a row


@pytest.mark.parametrize("cautious", [True, False])
def test_metrics_of_few_rows_are_withheld(cautious):
    """A metric of one row reveals its label, and a few rows are no evidence."""
    for n in range(1, FLOOR + 2):
        y = np.arange(n) % 2
        right, wrong = np.eye(2)[y], np.eye(2)[1 - y]
        chosen = decide({(0, 0): wrong, (0, 1): right}, y, 2, [0.2], cautious=cautious)
        assert chosen.rows == n
        assert np.isnan(chosen.metrics).all() == (n < FLOOR)
        assert chosen.strategy == STRATEGIES[not cautious or n >= FLOOR]


def question(fed, site):
    """Returns a site and the last request it received."""
    asked = [wire.decode(d, Envelope) for s, way, d in fed.transport.record if (s, way) == (site, "received")][-1]
    return fed.site(site), wire.decode(asked.body, Choose)


def test_a_share_that_holds_out_one_row_discloses_nothing():
    fed = federate(parts(table(), 2), Recorded)
    fit(fed, personal=True)
    site, asked = question(fed, "site 1")
    share = 0.51 / len(site.part(fed.schema))
    _, held = learning_rows(site, fed.schema, share)
    assert len(held) == 1
    chosen = choose(site, msgspec.structs.replace(asked, validation=share))
    assert (chosen.tau, chosen.strategy, chosen.measure, chosen.rows) == (0, "global", "", 1)
    assert np.isnan(chosen.metrics).all()


def test_the_number_of_validation_shares_is_limited():
    """Two nearly equal shares differ by one row."""
    fed = federate(parts(table(), 2), Recorded)
    fit(fed, personal=True)
    site, asked = question(fed, "site 1")
    shares = np.linspace(0.2, 0.3, SHARES + 1).tolist()
    first = [choose(site, msgspec.structs.replace(asked, validation=share)).rows for share in shares[:SHARES]]
    for same in (site, site.rebuilt()):
        with pytest.raises(RefusedError, match=f"at most {SHARES} different shares"):
            learning_rows(same, fed.schema, shares[SHARES])
        assert [len(learning_rows(same, fed.schema, share)[1]) for share in shares[:SHARES]] == first


@pytest.mark.parametrize("label", ["no", "yes", None])
def test_forged_trees_reveal_a_known_patient_only_if_a_site_signs_them(label):
    """What rounding does not prevent, as docs/bofrf.md states: a coordinator and a site that forges trees."""
    rng = np.random.default_rng(1)
    frame = pl.DataFrame({"x": rng.normal(size=60), "label": ["no", "yes"] * 30})
    if label is not None:
        frame = pl.concat([frame, pl.DataFrame({"x": [9.0], "label": [label]})])
    fed = federate({"here": frame, "there": frame}, Recorded)
    fit(fed)
    _, asked = question(fed, "here")
    forged, own = [
        Forest(
            schema=fed.schema,
            offsets=np.array([0, 3]),
            feature=np.array([0, -1, -1]),
            threshold=np.array([8.5, 0, 0]),
            missing_left=np.zeros(3, bool),
            sets=np.zeros((0, 4), np.uint64),
            value=np.array(value),
            weights=np.ones(1),
        ).to_bytes()
        for value in ([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]])
    ]
    changed = msgspec.structs.replace(asked, own=1, alphas=np.array([0.9, 0.0]))
    with fed.working_on("a coordinator's own"):
        blobs = [fed.blob(forged), work_of(fed, "here", own)]
        with pytest.raises(RefusedError, match="only what sites signed"):
            fed.ask({"here": msgspec.structs.replace(changed, forests=blobs)})
    with fed.working_on("with a site"):
        blobs = [work_of(fed, "there", forged), work_of(fed, "here", own)]
        chosen = fed.ask({"here": msgspec.structs.replace(changed, forests=blobs)})["here"]
    assert np.sign(chosen.metrics[0, 0] - 0.5) == {"no": -1, "yes": 1, None: 0}[label]


# -- lies


def twisted(changes):
    def twist(site, data):
        envelope = wire.decode(data, Envelope)
        if site == "site 1" and envelope.kind == "Chosen":
            changed = msgspec.structs.replace(wire.decode(envelope.body, Chosen), **changes)
            data = wire.encode(msgspec.structs.replace(envelope, body=wire.encode(changed)))
        return [(site, data)]

    return disturbed(twist)


@pytest.mark.parametrize(
    "changes",
    [
        {"tau": 7},
        {"tau": -1},
        {"rows": -1},
        {"strategy": "best"},
        {"measure": "luck"},
        {"metrics": np.zeros((1, 2))},
        {"metrics": np.zeros((7, 2), np.float32)},
        {"metrics": np.full((7, 2), np.inf)},
        {"metrics": np.full((7, 2), -1.0)},
    ],
    ids=str,
)
def test_choices_outside_the_offer_are_refused(changes):
    with pytest.raises(SiteError) as error:
        fit(federate(parts(table(), 2), twisted(changes)), personal=True)
    assert error.value.site == "site 1"


def test_impossible_requests_are_refused(monkeypatch):
    fed = federate(parts(table(), 2), Recorded)
    fit(fed, personal=True)
    asked = [wire.decode(d, Envelope) for s, way, d in fed.transport.record if (s, way) == ("site 1", "received")][-1]
    good, member = wire.decode(asked.body, Choose), fed.site("site 1")
    member.outbox = None
    monkeypatch.setattr("silvan.algorithms.bofrf.weigh.MAX_TREES", 16)
    for changes in (
        {"own": 2},
        {"own": -1},
        {"alphas": good.alphas[1:]},
        {"alphas": good.alphas.astype(np.float32)},
        {"alphas": np.full(16, np.nan)},
        {"taus": []},
        {"taus": [-0.1]},
        {"taus": [1.0]},
        {"taus": [float("nan")]},
        {"taus": [0.1] * 65},
        {"validation": 0.7},
        {"forests": []},
    ):
        body = wire.encode(msgspec.structs.replace(good, **changes))
        answer = wire.decode(member.receive(wire.encode(msgspec.structs.replace(asked, body=body)), "ask"), Envelope)
        assert wire.decode(answer.body, Trouble).code == "format", changes
    body = wire.encode(msgspec.structs.replace(good, forests=good.forests * 2))
    answer = wire.decode(member.receive(wire.encode(msgspec.structs.replace(asked, body=body)), "ask"), Envelope)
    assert wire.decode(answer.body, Trouble).code == "refused"  # the trees of each site, once
