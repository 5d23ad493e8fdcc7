"""AutoForest: the mean of a federated and a merged forest, with more local trees and rows where that helps."""

import re
from typing import NamedTuple

import numpy as np
import polars as pl
import pytest
from helpers.limits import limited
from helpers.private_study import schema as public_schema
from helpers.studies import federate, parts, table

import silvan as sv
from silvan.algorithms.evaluation.candidates import PersonalModel
from silvan.algorithms.evaluation.out_of_bag import score_unseen
from silvan.algorithms.evaluation.personal_forest import MIXES, ChooseShare, ChosenShare, check_chosen, likely_mix
from silvan.algorithms.evaluation.score_quality import score_quality
from silvan.errors import FormatError, InputError, RefusedError, SiteError
from silvan.forest import predict
from silvan.privacy.policy import PolicyBetweenMachines

SMALL = {"n_estimators": 8, "max_depth": 4}


def turned(n=300, task="binary"):
    """Three sites; at the last one the label means the opposite."""
    tables = parts(table(task, n=n), 3)
    if task == "number":
        return tables | {"site 2": tables["site 2"].with_columns(label=2060 - pl.col("label"))}
    swap = pl.when(pl.col("label") == "yes").then(pl.lit("no")).otherwise(pl.lit("yes"))
    return tables | {"site 2": tables["site 2"].with_columns(label=swap)}


@pytest.mark.parametrize("task", ["several", "number"])
def test_the_shared_forest_is_the_mean_of_both(task):
    frame = table(task)
    fed = federate(parts(frame, 3))
    plain, model = (
        sv.AutoForest(**SMALL, calibrate=False, choose=False, refit_leaves=refit_leaves).fit(fed)
        for refit_leaves in (False, True)
    )
    federated = sv.HistogramForest(**SMALL).fit(fed).forest_
    merged = sv.MergedForest(n_estimators=24, max_depth=4).fit(fed).forest_
    refitted = sv.MergedForest(n_estimators=24, max_depth=4, equal=True, refit_leaves=True).fit(fed).forest_
    rows = frame.drop("label")
    mean = (federated.scores(rows) + merged.scores(rows)) / 2
    np.testing.assert_allclose(plain.forest_.scores(rows), mean, rtol=1e-12)
    mean = 0.4 * federated.scores(rows) + 0.6 * refitted.scores(rows)
    np.testing.assert_allclose(model.forest_.scores(rows), mean, rtol=1e-12)
    assert all(forest is model.forest_ for forest in model.forests_.values())
    assert set(model.choices_.values()) == {"the shared forest"}
    assert model.rounds_ <= model.expected_rounds


@pytest.mark.parametrize(("task", "refit_leaves"), [("binary", True), ("binary", False), ("number", True)])
def test_a_site_that_differs_gets_its_local_trees(task, refit_leaves):
    fed = federate(turned(task=task), test=0.25, sums="masked")
    model = sv.AutoForest(**SMALL, calibrate=False, refit_leaves=refit_leaves, fit_leaves=False).fit(fed)
    assert model.shares_["site 2"] == 1.0
    assert set(model.fitted_.values()) == {0.0}
    own = sv.LocalForest(**SMALL).fit(fed).forests_["site 2"]
    assert model.forests_["site 2"] == own.bare()
    assert model.choices_["site 2"].startswith("its own trees alone: " + ("AUC" if task == "binary" else "RMSE"))
    figures = [word for text in model.choices_.values() for word in re.findall(r"\d+\.\d+", text)]
    assert all(len(word) == 5 if task == "binary" else len(word) == 4 for word in figures), figures
    figures = model.evaluate(fed).filter(site="site 2")
    name = "auc" if task == "binary" else "rmse"
    value = {row["model"]: row[name] for row in figures.iter_rows(named=True)}
    assert value["federated"] == value["local"]
    assert (value["shared"] < value["local"] - 0.2) if task == "binary" else (value["shared"] > 1.2 * value["local"])


def test_an_inverted_label_is_reported():
    choices = sv.AutoForest(**SMALL, calibrate=False).fit(federate(turned())).choices_
    hint = "; the shared forest ranks rows the wrong way round: is the label coded the same way here?"
    assert [text.endswith(hint) for text in choices.values()] == [False, False, True]


def test_without_a_choice_none_is_reported():
    model = sv.AutoForest(**SMALL, calibrate=False, choose=False).fit(federate(parts(table(n=60), 2)))
    assert "training rows" not in str(model.choices_)


def test_similar_sites_share_a_forest_and_choosing_takes_two_rounds():
    fed = federate(parts(table(n=240), 3))
    model = sv.AutoForest(**SMALL, calibrate=False).fit(fed)
    assert model.shares_ == dict.fromkeys(fed.sites, 0.0)
    assert model.rounds_ == sv.AutoForest(**SMALL, calibrate=False, choose=False).fit(fed).rounds_ + 2
    halves = sv.HistogramForest(**SMALL), sv.MergedForest(**SMALL, refit_leaves=True)
    assert model.rounds_ == sum(one.fit(fed).rounds_ for one in halves) + 2


def test_a_mix_weights_local_trees_by_its_share(monkeypatch):
    """Predictions and known samples, for a site between the shared forest and its local trees."""
    half = MIXES.index((0.5, 0.0))
    monkeypatch.setattr("silvan.algorithms.evaluation.personal_forest.likely_mix", lambda judged, y: half)
    frame = table(n=240)
    fed = federate(parts(frame, 3), test=0.25)
    model = sv.AutoForest(**SMALL, calibrate=False).fit(fed)
    rows, mixed = frame.drop("label"), model.forests_["site 1"]
    own = sv.LocalForest(**SMALL).fit(fed).forests_["site 1"]
    np.testing.assert_allclose(mixed.scores(rows), (model.forest_.scores(rows) + own.scores(rows)) / 2, rtol=1e-12)
    draws = model.draws(fed, [])[mixed.hash]
    assert draws.owners == ("", "site 0", "site 1", "site 2", "site 1")
    found = model.evaluate(fed).filter((pl.col("model") == "federated") & (pl.col("site") == "site 1"))
    assert found["threshold"].is_not_null().all()


def test_rows_are_scored_by_out_of_bag_trees():
    """Trees from sums and local trees abstain on rows in their sample; trees of other sites never do."""
    fed = federate(parts(table(n=60), 2))
    model = sv.AutoForest(**SMALL, calibrate=False, refit_leaves=False).fit(fed)
    site, forest = fed.site("site 0"), model.forest_
    scored = score_unseen(site, fed.schema, forest, model.draws(fed, [])[forest.hash])
    part, drawn = site.part(fed.schema), model.sampled_rows(fed)[:, : site.n_train]
    assert drawn[:8].any()
    assert drawn[8:16].any()
    assert not drawn[16:].any()
    for row in range(3):
        left = forest.take(np.flatnonzero(~drawn[:, row]))
        expected = predict.scores(left, part.X[row : row + 1])
        np.testing.assert_allclose(scored.scores[row : row + 1], expected, rtol=1e-9)


def judged_mixes(n, shared, own, numbers=False):
    """Labels, and mixes of two scores that contain a share of them, as a site evaluates them."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=n) if numbers else rng.integers(0, 2, n)
    both = [rng.normal(size=n) * (0.5 if numbers else 1.0) + y * strength for strength in (shared, own)]
    mixes = [None if fitted else (1 - own) * both[0] + own * both[1] for own, fitted in MIXES]
    return judged(mixes, y, 2 * (not numbers)), y


def judged(mixes, y, n_classes):
    """Scores of mixes as a site evaluates them; mixes that are not offered stay None."""
    shown = [None if mix is None else np.stack([-mix, mix], axis=1) if n_classes else mix[:, None] for mix in mixes]
    return tuple(None if mix is None else score_quality(mix, y, n_classes) for mix in shown)


def own_share(*given):
    return MIXES[likely_mix(*given)][0]


def test_local_trees_are_weighted_by_their_gain():
    assert own_share(*judged_mixes(2000, 0.1, 2.0)) == 1.0
    assert own_share(*judged_mixes(2000, 2.0, 0.1)) == 0.0
    alike = own_share(*judged_mixes(2000, 1.0, 1.0))  # with independent errors: half and half is best
    assert 0.25 <= alike <= 0.75
    assert own_share(*judged_mixes(12, 1.0, 1.0)) < alike  # the same with too few rows to be sure
    assert own_share(*judged_mixes(2000, -1.0, 1.0, numbers=True)) == 1.0
    assert own_share(*judged_mixes(2000, 1.0, -1.0, numbers=True)) == 0.0


@pytest.mark.parametrize(
    ("strengths", "mix"),
    [
        ((2.0, 0.1, 0.1), (0.0, 0.0)),
        ((0.1, 2.0, 0.1), (1.0, 0.0)),
        ((0.1, 0.1, 2.0), (0.0, 1.0)),
        ((0.1, 1.5, 1.5), (0.5, 0.5)),
        ((1.5, 0.1, 1.5), (0.0, 0.5)),
    ],
)
def test_every_part_of_a_mix_is_weighted_by_its_gain(strengths, mix):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 4000)
    parts = [rng.normal(size=4000) + y * strength for strength in strengths]
    mixes = [(1 - own - fitted) * parts[0] + own * parts[1] + fitted * parts[2] for own, fitted in MIXES]
    assert MIXES[likely_mix(judged(mixes, y, 2), y)] == mix


class Lead(NamedTuple):
    """A mix with a given lead and standard error."""

    gain: float
    error: float
    metric: str = "auc"

    def lead(self, other):
        return self.gain, self.error


@pytest.mark.parametrize(("noise", "share"), [(1.0, 1.0), (2.0, 1.0), (3.0, 0.5), (4.0, 0.5), (8.0, 0.0)])
def test_a_clearer_lead_is_shrunk_less(noise, share):
    """More local trees are better; the best lead is 9, 4.5, 3, 2.2 and 1.1 standard errors."""
    gains, errors = [0, 0.035, 0.06, 0.066, 0.07], [0, 0.0045, 0.008, 0.014, 0.018]
    leads = [None if fitted else Lead(gains[int(4 * own)], noise * errors[int(4 * own)]) for own, fitted in MIXES]
    assert own_share(tuple(leads), np.arange(4) % 2) == share


@pytest.mark.parametrize(("error", "share"), [(0.0005, 1.0), (0.02, 0.75)])
def test_many_rows_distinguish_small_gains(error, share):
    """Local trees alone beat every mix by a thousandth; with few rows the site does not choose them."""
    gains = np.array([0.0, 0.097, 0.098, 0.099, 0.1])
    leads = [None if fitted else Lead(gains[int(4 * own)], error * own) for own, fitted in MIXES]
    assert own_share(tuple(leads), np.arange(4) % 2) == share


def test_numeric_gains_are_scaled_by_the_spread():
    """Euros or cents, the choice is the same; a constant label leaves nothing to choose."""
    rng = np.random.default_rng(1)
    y, noise = rng.normal(size=300), rng.normal(size=(300, 2))
    scores = [y + 0.6 * noise[:, 0], y + 0.55 * noise[:, 1]]

    def chosen(unit):
        mixes = [None if fitted else unit * ((1 - own) * scores[0] + own * scores[1]) for own, fitted in MIXES]
        return likely_mix(judged(mixes, unit * y, 0), unit * y)

    assert 0 < chosen(1.0) == chosen(1000.0) == chosen(1e-6)
    constant = np.zeros(300)
    assert likely_mix(judged(scores, constant, 0), constant) == 0


def test_few_rows_keep_the_shared_forest():
    tables = parts(table(n=90), 2) | {"small": table(n=6, seed=5)}
    model = sv.AutoForest(**SMALL, calibrate=False).fit(federate(tables))
    assert model.choices_["small"] == "the shared forest: too few rows to choose by"
    assert model.forests_["small"] is model.forest_
    assert "gain beyond chance" in str(model.choices_)
    assert "<td" in model.choices_._repr_html_()


def test_grouped_rows_hide_the_chosen_mix():
    """The values of all mixes would reveal labels to anyone with the trees: experiments/attacks/told_of_groups.py."""
    fed = federate(turned(), policy=PolicyBetweenMachines())
    model = sv.AutoForest(**SMALL, calibrate=False).fit(fed)
    said = {s: [x.what for x in fed.site(s).outbox.ledger.lines() if x.kind == "ChooseShare"] for s in fed.sites}
    made = {site for site, share in model.shares_.items() if np.isnan(share)}
    assert made
    for site in fed.sites:
        n = "2 mixes" if site in made else "1 mix"
        assert [f"metrics of {n} on" in what for what in said[site]] == [True]
        assert model.choices_[site].count("0.") == (2 if site in made else 1)
        assert model.choices_[site].startswith("a forest that it made" if site in made else "the shared forest:")
        assert (model.forests_[site] == model.forest_) == (site not in made)


# -- what is refused


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"choose": "yes"}, "choose must be True or False, got 'yes'"),
        ({"bootstrap": False}, "leaves no out-of-bag rows to choose on"),
        ({"refit_leaves": 1.5}, "refit_leaves must be True, False or None"),
        ({"fit_leaves": "no"}, "fit_leaves must be True, False or None, got 'no'"),
        ({"fit_leaves": True, "choose": False}, "fit_leaves is for sites that choose"),
        ({"threshold": 0}, "a number above 0 and below 1 or None, got 0"),
        ({"fit_leaves": True, "monotonic_cst": {"age": 1}}, "may violate monotonic_cst"),
    ],
)
def test_invalid_parameters(wrong, match):
    with pytest.raises(InputError, match=match):
        sv.AutoForest(**SMALL, calibrate=False, **wrong).fit(federate(parts(table(n=60), 2)))


def test_a_site_with_a_privacy_budget_refuses_it():
    fed = federate(parts(table(n=60), 2), policy=sv.Policy(epsilon=1.0), schema=public_schema("binary"))
    with pytest.raises(RefusedError, match="the site has a privacy budget, and CountGrid is answered without noise"):
        sv.AutoForest(**SMALL, calibrate=False).fit(fed)


def asked_of(fed, **changed):
    """The coordinator's request, with some fields changed."""
    model = sv.AutoForest(**SMALL, calibrate=False).fit(fed)
    shared = fed.blob(model.forest_.to_bytes())
    draws = model.draws(fed, [])[model.forest_.hash]
    of = {"shared": shared, "draws": draws, "own": shared, "made_in": fed.task, **changed}
    return ChooseShare(schema=fed.blob(fed.schema.to_json().encode()), model=PersonalModel(**of))


def test_local_trees_are_those_the_site_signed():
    fed = federate(parts(table(n=60), 2))
    with fed.working_on("another task"), pytest.raises(RefusedError, match="not this site's own trees"):
        fed.ask(asked_of(fed))


@pytest.mark.parametrize("wrong", [{"made_in": "an earlier task"}, {"draws": None}, {"shared": None}, {"own": None}])
def test_the_parts_of_a_mix_must_be_known(wrong):
    """Local trees of the task, a forest that is sent, and the rows in the samples of its trees."""
    fed = federate(parts(table(n=60), 2))
    with fed.working_on("a task"), pytest.raises(SiteError, match="could not read what it was sent"):
        fed.ask(asked_of(fed, **wrong))


def test_the_shared_forest_and_its_halves_count_as_evaluated_models():
    fed = limited(federate(parts(table(n=60), 2)), models=3)
    sv.AutoForest(**SMALL, calibrate=False).fit(fed)
    with pytest.raises(RefusedError, match="3 at most"):
        sv.AutoForest(**SMALL, calibrate=False, random_state=1).fit(fed)


@pytest.mark.parametrize(
    ("lie", "match"),
    [
        ({"choice": len(MIXES)}, "choice was not on offer"),
        ({"choice": -2}, "choice was not on offer"),
        ({"rows": -1}, "choice was not on offer"),
        ({"metric": np.inf}, "impossible"),
        ({"metrics": np.zeros(3)}, "not the ones requested"),
        ({"metrics": np.full(len(MIXES), -1.0)}, "impossible"),
    ],
)
def test_impossible_choices_are_refused(lie, match):
    given = {"choice": 0, "measure": "auc", "rows": 9, "metric": 0.5, "metrics": np.zeros(len(MIXES))}
    with pytest.raises(FormatError, match=match):
        check_chosen("a site", ChosenShare(**{**given, **lie}))
    check_chosen("a site", ChosenShare(**given))


# -- files


def test_it_is_saved_and_exported_like_any_forest(tmp_path):
    frame = table(n=120)
    model = sv.AutoForest(n_estimators=4, max_depth=3).fit(federate(parts(frame, 2)))
    model.save(tmp_path / "auto.silvan")
    again = sv.Forest.load(tmp_path / "auto.silvan")
    assert again == model.forest_
    rows = frame.drop("label")
    np.testing.assert_array_equal(again.predict(rows), model.predict(rows))
    shap = again.shap(rows[:5])
    np.testing.assert_allclose(shap.values.sum(axis=1) + shap.base, again.plain().scores(rows[:5]), atol=1e-9)
