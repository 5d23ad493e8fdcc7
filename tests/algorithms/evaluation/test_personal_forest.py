"""The forest that a site builds from the shared one, its rows and its trees, and that never leaves it."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from helpers.limits import limited
from helpers.naive_answers import goes_left
from helpers.studies import Recorded, disturbed, federate, parts, table
from sklearn.metrics import roc_auc_score

import silvan as sv
from silvan.algorithms.evaluation import personal_forest
from silvan.algorithms.evaluation.candidates import PersonalForest
from silvan.algorithms.evaluation.evaluate import evaluate
from silvan.algorithms.evaluation.out_of_bag import score_unseen
from silvan.algorithms.evaluation.personal_forest import MIXES, Ingredients, choose_mix, fit_leaves, make_forest
from silvan.algorithms.keyed_rows import RowSamples, rows_sampled
from silvan.errors import InputError, RefusedError
from silvan.federation import wire
from silvan.federation.message import Envelope
from silvan.forest import predict
from silvan.privacy.policy import PolicyBetweenMachines
from silvan.tree.sampling import rows_of_trees

SMALL = {"n_estimators": 8, "max_depth": 4}


def ingredients(fed, site="site 1", **learner):
    """A fitted AutoForest, and what a site builds its forest from."""
    model = sv.AutoForest(**SMALL, calibrate=False, **learner).fit(fed)
    own = sv.LocalForest(**SMALL).fit(fed).forests_[site].bare()
    return model, Ingredients(model.forest_, model.draws(fed, [])[model.forest_.hash], own)


def leaf_of(forest, tree, x):
    node = int(forest.offsets[tree])
    while forest.feature[node] >= 0:
        node = int(forest.left[node] if goes_left(forest, node, x) else forest.right[node])
    return int(forest.leaf[node])


@pytest.mark.parametrize("refit_leaves", [True, False])
@pytest.mark.parametrize("task", ["binary", "several", "number"])
def test_leaf_values_come_from_the_sites_rows(task, refit_leaves):
    """Row by row: rows in the sample of the site's i-th tree count in the i-th tree of every site, at least five."""
    fed = federate(parts(table(task, n=180), 3))
    _, parts_of = ingredients(fed, refit_leaves=refit_leaves)
    site, forest = fed.site("site 1"), parts_of.shared
    fitted, part = fit_leaves(site, fed.schema, parts_of), site.part(fed.schema)
    labels = {}
    for tree in range(len(forest)):
        drawn = rows_of_trees(site.sampling_key, part.row_keys, tree % 8, 1, True)[0]
        for x, y in zip(part.X[drawn], part.y[drawn], strict=True):
            labels.setdefault(leaf_of(forest, tree, x), []).append(y)
    expected = forest.value.copy()
    for leaf, here in labels.items():
        if len(here) >= 5:
            counts = np.bincount(here, minlength=forest.n_outputs) if task != "number" else np.zeros(1)
            mean = np.mean(here) if task == "number" else counts / counts.sum()
            expected[leaf] = (len(here) * mean + forest.value[leaf]) / (len(here) + 1)
    assert (fitted.value != forest.value).any()
    np.testing.assert_allclose(fitted.value, expected, atol=1e-4 if task == "number" else 1e-12)
    assert replace(fitted, value=forest.value) == forest


def test_rows_are_not_scored_by_leaf_values_they_contributed_to():
    fed = federate(parts(table(n=90), 2))
    _, parts_of = ingredients(fed, refit_leaves=False)
    site = fed.site("site 1")
    fitted, part = fit_leaves(site, fed.schema, parts_of), site.part(fed.schema)
    drawn, lines = rows_sampled(site, part, parts_of.fitted_draws())
    assert (lines >= 0).all()  # trees of other sites too
    scored = score_unseen(site, fed.schema, fitted, parts_of.fitted_draws())
    for row in range(5):
        left = fitted.take(np.flatnonzero(~drawn[lines, row]))
        np.testing.assert_allclose(scored.scores[row], left.scores(part.X[row : row + 1])[0], rtol=1e-9)


@pytest.mark.parametrize("mix", [(0.0, 0.0), (0.25, 0.5), (0.0, 1.0), (0.5, 0.0), (0.75, 0.25), (1.0, 0.0)])
def test_a_mix_is_built_as_it_was_scored(monkeypatch, mix):
    monkeypatch.setattr(personal_forest, "likely_mix", lambda judged, y: MIXES.index(mix))
    frame = table(n=180)
    fed = federate(parts(frame, 3), test=0.25)
    model, parts_of = ingredients(fed)
    site, rows, (own, by) = fed.site("site 1"), frame.drop("label"), mix
    fitted = fit_leaves(site, fed.schema, parts_of)
    each = [one.scores(rows) for one in (parts_of.shared, parts_of.own, fitted)]
    made = make_forest(site, fed.schema, parts_of)
    expected = (1 - own - by) * each[0] + own * each[1] + by * each[2]
    np.testing.assert_allclose(made.forest.scores(rows), expected, rtol=1e-9)
    assert made.forest == model.forests_["site 1"]
    assert sum(made.draws.sizes) == len(made.forest)
    chosen = choose_mix(site, fed.schema, parts_of)
    scored = score_unseen(site, fed.schema, made.forest, made.draws)
    if own in (0.0, 1.0):  # otherwise the number of local and shared trees that abstain differs from row to row
        np.testing.assert_allclose(scored.scores, chosen.scores[chosen.choice], rtol=1e-9)
    found = model.evaluate(fed).filter((pl.col("model") == "federated") & (pl.col("site") == "site 1"))
    assert found["threshold"].is_not_null().all()


def differing(n=450):
    """Three sites; at the last, the effect of age depends on the ward, and few rows are there."""
    tables = parts(table(n=n), 3)
    flip = pl.when(pl.col("ward") == "a").then(pl.col("label")).otherwise(pl.lit("no"))
    return tables | {"site 2": tables["site 2"].with_columns(label=flip)}


@pytest.mark.parametrize("settings", [{"sums": "masked"}, {"cold": True}, {"n_jobs": 2}, {"signed": True}])
def test_the_forest_does_not_depend_on_how_sites_run(settings):
    plain, other = (
        sv.AutoForest(**SMALL, calibrate=False).fit(federate(differing(), **more)) for more in ({}, settings)
    )
    assert any(share for share in [*plain.shares_.values(), *plain.fitted_.values()])
    assert {site: one.hash for site, one in plain.forests_.items()} == {
        site: one.hash for site, one in other.forests_.items()
    }
    assert plain.choices_ == other.choices_


def test_a_site_evaluates_the_forest_that_it_built():
    """A request that describes the forest and one that contains it give the same metrics."""
    fed = federate(differing(), test=0.3)
    model = sv.AutoForest(**SMALL, calibrate=False).fit(fed)
    again = federate(differing(), test=0.3)  # whose sites do not know the signed trees
    first, second = (model.evaluate(one).filter(pl.col("site") != "all") for one in (fed, again))
    assert first.equals(second)
    assert model.evaluate(again, table(n=90)).filter(model="federated").height >= 3


def test_overall_metrics_use_each_sites_forest():
    """Metrics over all sites rank all rows together, as for the other models."""
    fed = federate(differing(), test=0.3)
    model = sv.AutoForest(**SMALL, calibrate=False).fit(fed)
    scores, labels = [], []
    for name in fed.sites:
        part = fed.site(name).part(fed.schema, test=True)
        scores.append(predict.scores(model.forests_[name], part.X)[:, 1])
        labels.append(part.y)
    found = model.evaluate(fed).filter(site="all", model="federated").row(0, named=True)
    assert found["auc"] == pytest.approx(roc_auc_score(np.concatenate(labels), np.concatenate(scores)), abs=2e-3)
    assert found["gain"] is not None
    assert not found["note"]


def test_a_mean_over_sites_is_not_compared_with_an_overall_ranking():
    """Where models differ by site and cannot be summed, the line says so, and has no gain."""
    fed = federate(differing(), test=0.3)
    model = sv.AutoForest(**SMALL, calibrate=False).fit(fed)
    elsewhere = federate(differing(), test=0.3)
    found = model.evaluate(elsewhere).filter(site="all", model="federated").row(0, named=True)
    assert found["gain"] is None
    assert "the mean of the sites' metrics" in found["note"]


# -- what does not leave


def test_the_personal_forest_never_leaves():
    """No message contains its leaf values or their bytes; the ledger says that it stays."""
    fed = federate(differing(), Recorded, test=0.3, policy=PolicyBetweenMachines())
    model = sv.AutoForest(**SMALL, calibrate=False).fit(fed)
    model.evaluate(fed)
    made = {site: one for site, one in model.forests_.items() if one != model.forest_}
    assert made
    sent = [data for _, _, data in fed.transport.record]
    for site, forest in made.items():
        own = forest.value[: len(model.forest_.value)]
        changed = own[(own * 2**20 % 1 != 0).all(axis=1)]  # not 0, 1 or a half, which occur in any forest
        sent_before = {value.tobytes() for value in model.forest_.value}
        changed = [value for value in changed if value.tobytes() not in sent_before]
        assert len(changed) > 10
        assert not any(value.tobytes() in data for value in changed for data in sent)
        assert not any(forest.to_bytes() in data for data in sent)
        lines = [line.what for line in fed.site(site).outbox.ledger.lines() if line.kind == "ChooseShare"]
        assert "a forest that stays there" in lines[0]


def test_between_machines_the_coordinator_lacks_personal_forests(monkeypatch):
    """A remote coordinator has only the shared forest, and says which sites have another."""
    monkeypatch.setattr("silvan.federation.federation.Federation.local_sites", {})
    model = sv.AutoForest(**SMALL, calibrate=False).fit(federate(differing()))
    assert model.at_sites_
    assert set(model.forests_) == {"site 0", "site 1", "site 2"} - set(model.at_sites_)
    with pytest.raises(InputError, match="includes its own rows and stays there: predict at the site"):
        model.predict(table(n=9).drop("label"), site=model.at_sites_[0])


# -- a coordinator that asks for more


def judge_mixed(fed, model, own, made_in, site="site 2"):
    drawn = model.draws(fed, [])[model.forest_.hash]
    personal = PersonalForest(model.forest_, drawn, own, made_in)
    made = {name: personal if name == site else model.forest_ for name in fed.sites}
    return evaluate(fed, model.schema_, [("federated", made)], np.zeros(2, np.uint64), model.draws(fed, []), by=()).rows


def test_trees_of_other_sites_are_not_mistaken_for_local_ones():
    fed = federate(differing(), test=0.3)
    model = sv.AutoForest(**SMALL, calibrate=False).fit(fed)
    right = model._made["site 2"]
    assert judge_mixed(fed, model, right.own, right.made_in)
    others = fed.blob(model.forest_.take(np.arange(8)).to_bytes())
    for wrong in ((others, right.made_in), (right.own, "another task")):
        with fed.working_on("more"), pytest.raises(RefusedError, match="not this site's own trees"):
            judge_mixed(fed, model, *wrong)


def test_every_forest_in_a_mix_counts_as_a_model():
    """A coordinator cannot have many forests fitted to a site's rows and evaluated: each counts as a model."""
    fed = limited(federate(differing(), test=0.3), models=4)
    model = sv.AutoForest(**SMALL, calibrate=False).fit(fed)
    model.evaluate(fed)
    forged = replace(model.forest_, value=model.forest_.value[::-1].copy())
    right = model._made["site 2"]
    personal = PersonalForest(forged, model._drawn, right.own, right.made_in)
    made = dict.fromkeys(fed.sites, model.forest_) | {"site 2": personal}
    draws = {forged.hash: model._drawn}
    with fed.working_on("more"), pytest.raises(RefusedError, match="4 at most"):
        evaluate(fed, model.schema_, [("federated", made)], np.zeros(2, np.uint64), draws)


@pytest.mark.parametrize(("n", "told"), [(4, False), (40, True)])
def test_leaves_with_few_rows_ignore_their_labels(n, told):
    """Whatever a coordinator forges: where there are fewer than five rows, their labels do not matter."""
    frame = table(n=300).select("age", "label").filter(pl.col("age").is_not_null())
    fed = federate(parts(frame, 3))
    model = sv.AutoForest(n_estimators=8, max_depth=1, max_features=None, refit_leaves=False).fit(fed)
    site, shared = fed.site("site 1"), model.forest_
    draws, own = model.draws(fed, [])[shared.hash], shared.take(np.arange(8))
    ages = np.sort(site.part(fed.schema).X[:, 0])
    forged = replace(shared, threshold=np.where(shared.feature >= 0, ages[n - 1 : n + 1].mean(), shared.threshold))
    fitted = fit_leaves(site, fed.schema, Ingredients(forged, draws, own))
    youngest = [leaf_of(forged, tree, ages[:1]) for tree in np.flatnonzero(np.diff(forged.offsets) > 1)]
    assert youngest
    assert (fitted.value[youngest] != forged.value[youngest]).any() == told


FORGED = [
    {"draws": RowSamples((1,), ("",))},  # with fewer trees than there are
    {"draws": RowSamples((), ())},
    {"draws": RowSamples((10**11,), ("",))},
    {"draws": RowSamples((32,), ("",), bootstrap=False)},  # all rows would count
    {"vote": True},
]


@pytest.mark.parametrize("wrong", FORGED)
def test_forged_requests_are_refused_before_rows_are_read(wrong):
    """One error, whatever the rows are: no crash of the site's process, and no mix revealed by an error."""
    fed = federate(differing(), test=0.3)
    model = sv.AutoForest(**SMALL, calibrate=False).fit(fed)
    made = model._made["site 2"]
    forged = replace(made, shared=replace(model.forest_, combine="vote")) if "vote" in wrong else replace(made, **wrong)
    models = dict.fromkeys(fed.sites, model.forest_) | {"site 2": replace(forged, forest=None)}
    with fed.working_on("more"), pytest.raises(sv.FederationError, match="could not read what it was sent"):
        evaluate(fed, model.schema_, [("federated", models)], np.zeros(2, np.uint64), model.draws(fed, []))


def test_a_site_lost_on_the_way():
    """The others evaluate their models anyway, because every site that grew the shared trees knows their samples."""

    def lose(site, data):
        lost = (site, wire.decode(data, Envelope).kind) == ("site 0", "HalvesGap")
        return [(site, TimeoutError("within 1 s"))] if lost else [(site, data)]

    tables = differing() | {"site 3": table(n=90, seed=4)}
    fed = federate(tables, disturbed(lose), test=0.3, quorum=2)
    model = sv.AutoForest(**SMALL, calibrate=False).fit(fed)
    assert "site 0" not in fed.active
    found = model.evaluate(fed)
    assert set(found["site"]) == {"site 1", "site 2", "site 3", "all"}
    assert found.filter(model="federated")["auc"].is_not_nan().all()


def test_it_is_refused_with_class_weights():
    """The coordinator sets the weights, and large ones could make a leaf of many rows reveal one of them."""
    with pytest.raises(InputError, match="ignore class_weight"):
        sv.AutoForest(**SMALL, calibrate=False, fit_leaves=True, class_weight="balanced").fit(federate(differing()))
    model = sv.AutoForest(**SMALL, calibrate=False, class_weight="balanced").fit(federate(differing()))
    assert set(model.fitted_.values()) == {0.0}
