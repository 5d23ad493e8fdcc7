"""Details beside the metrics equal scikit-learn's on the same rows, without using the rows."""

import numpy as np
import polars as pl
import pytest
from helpers.limits import in_groups_of
from helpers.studies import TASKS, federate, parts, table
from msgspec import structs
from sklearn import metrics as sk
from sklearn.linear_model import LogisticRegression

import silvan as sv
from silvan import metrics
from silvan.algorithms.evaluation.details import Floors, check_detail, class_groups, detail_of, net_benefit, nothing
from silvan.algorithms.evaluation.evaluation import answer_of
from silvan.algorithms.evaluation.out_of_bag import best_threshold, site_threshold, unseen_rows
from silvan.algorithms.evaluation.score_groups import Answer
from silvan.algorithms.keyed_rows import RowSamples
from silvan.errors import FormatError
from silvan.forest.predict import scores as score_rows
from silvan.privacy.policy import PolicyBetweenMachines
from silvan.tree.sampling import rows_of_trees

SMALL = {"n_estimators": 12, "max_depth": 4}


def fitted(task="binary", learner=sv.HistogramForest, n=500, **settings):
    fed = federate(parts(table(task, n=n), 3), test=0.4, **settings)
    return fed, learner(**SMALL).fit(fed)


def rows_of(fed, model, site="site 0"):
    part = fed.site(site).part(fed.schema, test=True)
    return answer_of(model.forest_, part.X, np.zeros(part.X.shape[1], bool)), part.y


def line(frame, site, model="federated"):
    [row] = frame.filter(site=site, model=model).to_dicts()
    return row


# -- metrics from counts


def counted(score, y):
    return np.unique(score)[::-1], *metrics.count_scores(np.stack([1 - score, score], axis=1), y, exact=True)[0]


@pytest.fixture
def scored():
    rng = np.random.default_rng(5)
    y = (rng.random(400) < 0.3).astype(np.int64)
    return np.clip(np.round(0.35 + 0.2 * y + rng.normal(0, 0.2, 400), 2), 0.0, 1.0), y


def test_losses_equal_scikit_learns(scored):
    score, y = scored
    near = np.clip(score, metrics.CERTAIN, 1 - metrics.CERTAIN)
    brier, loss = metrics.losses_from_counts(*counted(score, y))
    assert brier == pytest.approx(sk.brier_score_loss(y, score), abs=1e-12)
    assert loss == pytest.approx(sk.log_loss(y, near), abs=1e-12)
    assert np.isnan(metrics.losses_from_counts(np.zeros(0), np.zeros(0), np.zeros(0))).all()
    proba = np.random.default_rng(0).dirichlet([1, 1, 1], 400)
    several = np.arange(400) % 3
    proba = 0.01 + 0.97 * proba
    assert metrics.log_loss(proba, several) == pytest.approx(sk.log_loss(several, proba), abs=1e-12)
    assert metrics.brier(proba, several) == pytest.approx(
        np.mean(((proba - np.eye(3)[several]) ** 2).sum(axis=1)), abs=1e-12
    )


def test_the_calibration_line_is_a_logistic_regression(scored):
    score, y = scored
    near = np.clip(score, metrics.CERTAIN, 1 - metrics.CERTAIN)
    odds = np.log(near / (1 - near))
    intercept, slope = metrics.calibration_line(*counted(score, y))
    model = LogisticRegression(C=1e12, tol=1e-12, max_iter=1000).fit(odds[:, None], y)
    assert slope == pytest.approx(model.coef_[0, 0], abs=1e-5)
    # with the slope held at 1, as many rows are expected as observed
    assert (1 / (1 + np.exp(-intercept - odds))).sum() == pytest.approx(y.sum(), abs=1e-6)
    assert np.isnan(metrics.calibration_line(np.array([0.2, 0.8]), np.array([5, 0]), np.array([0, 5]))[1])
    assert np.isnan(metrics.calibration_line(np.array([0.2, 0.8]), np.array([5, 3]), np.zeros(2))).all()


def test_intervals_of_aucs_are_delongs(scored):
    """The variance by definition: of the share of the other class that each row ranks above."""
    score, y = scored
    above = (score[y == 1][:, None] > score[y == 0]) + 0.5 * (score[y == 1][:, None] == score[y == 0])
    variance = above.mean(axis=1).var(ddof=1) / (y == 1).sum() + above.mean(axis=0).var(ddof=1) / (y == 0).sum()
    low, high = metrics.roc_auc_interval(*counted(score, y)[1:])
    auc = sk.roc_auc_score(y, score)
    assert [low, high] == pytest.approx([auc - metrics.Z * variance**0.5, auc + metrics.Z * variance**0.5], abs=1e-12)
    assert np.isnan(metrics.roc_auc_interval(np.array([0, 5]), np.array([5, 0]))).all(), "rows that agree prove nothing"


def test_auc_intervals_have_their_nominal_coverage():
    rng, held = np.random.default_rng(0), 0
    for _ in range(300):
        y = np.arange(120) % 3 == 0
        score = rng.normal(size=120) + y  # the true AUC is that of a normal distribution at 1 / sqrt(2)
        low, high = metrics.roc_auc_interval(*counted(score, y.astype(np.int64))[1:])
        held += low <= 0.760250 <= high
    assert 0.91 <= held / 300 <= 0.98


@pytest.mark.parametrize("rule", ["youden", "f1"])
def test_no_threshold_does_better(scored, rule):
    score, y = scored

    def merit(at):
        decided = score >= at
        if rule == "f1":
            return sk.f1_score(y, decided)
        return sk.recall_score(y, decided) + sk.recall_score(1 - y, 1 - decided)

    chosen = best_threshold(*counted(score, y), rule)
    assert merit(chosen) == pytest.approx(max(merit(at) for at in np.unique(score)), abs=1e-12)
    assert np.isnan(best_threshold(np.array([0.5, 0.2]), np.array([3, 4]), np.zeros(2)))


def test_net_benefit_by_its_definition(scored):
    score, y = scored
    some, everybody = net_benefit(*counted(score, y), np.array([0.1, 0.4]))
    for at, found, always in zip((0.1, 0.4), some, everybody, strict=True):
        true, false = ((score >= at) & (y == 1)).mean(), ((score >= at) & (y == 0)).mean()
        assert found == pytest.approx(true - false * at / (1 - at), abs=1e-12)
        assert always == pytest.approx(y.mean() - (1 - y.mean()) * at / (1 - at), abs=1e-12)


# -- at sites


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("least", [1, 5])
def test_details_of_each_site(task, least):
    fed, model = fitted(task, policy=in_groups_of(least))
    frame = model.evaluate(fed)
    row, (answer, y) = line(frame, "site 0"), rows_of(fed, model)
    assert row["note"] == ""
    if task == "number":
        assert row["mae"] == pytest.approx(sk.mean_absolute_error(y, answer.scores[:, 0]), rel=0.05)
    elif least == 1 and task == "binary":
        score = answer.scores[:, 1]
        assert row["brier"] == pytest.approx(sk.brier_score_loss(y, score), abs=5.1e-4)
        assert row["auc_low"] < row["auc"] < row["auc_high"]
        decided = score >= row["threshold"]
        assert row["sensitivity"] == pytest.approx(sk.recall_score(y, decided), abs=5.1e-4)
        assert row["specificity"] == pytest.approx(sk.recall_score(1 - y, ~decided), abs=5.1e-4)
        assert row["precision"] == pytest.approx(sk.precision_score(y, decided), abs=5.1e-4)
    elif task == "several" and least == 1:
        assert row["brier"] == pytest.approx(metrics.brier(answer.scores, y), abs=5.1e-4)


def test_details_over_all_sites_equal_those_of_all_rows():
    fed, model = fitted()
    row = line(model.evaluate(fed), "all")
    both = [rows_of(fed, model, site) for site in fed.sites]
    score, y = np.concatenate([a.scores[:, 1] for a, _ in both]), np.concatenate([y for _, y in both])
    assert row["brier"] == pytest.approx(sk.brier_score_loss(y, score), abs=1e-3)  # by the grid of scores
    intercept, slope = metrics.calibration_line(*counted(score, y))
    assert row["calibration_slope"] == pytest.approx(slope, rel=0.02)
    assert row["calibration_intercept"] == pytest.approx(intercept, abs=0.02)
    assert [row["auc_low"], row["auc_high"]] == pytest.approx(
        metrics.roc_auc_interval(*counted(score, y)[1:]), abs=2e-3
    )


@pytest.mark.parametrize("task", ["binary", "several"])
def test_groups_are_points_of_the_roc_curve_and_hold_ten_rows(task):
    fed, model = fitted(task)
    answer, y = rows_of(fed, model)
    detail = detail_of(*answer, y, fed.schema.n_classes, Floors())
    assert np.array_equal(detail.confusion, sk.confusion_matrix(y, answer.decided))
    for c, groups in zip([1] if task == "binary" else range(4), detail.groups, strict=True):
        assert groups[:, 1:].sum(axis=1).min() >= 10
        assert groups[:, 1:].sum(axis=0).tolist() == [(y != c).sum(), (y == c).sum()]
        false, true, _ = sk.roc_curve(y == c, answer.scores[:, c], drop_intermediate=False)
        points = {(round(a, 9), round(b, 9)) for a, b in zip(false, true, strict=True)}
        mine = np.cumsum(groups[::-1, 1:], axis=0) / groups[:, 1:].sum(axis=0)
        assert {(round(a, 9), round(b, 9)) for a, b in mine} <= points


def test_groups_of_a_numeric_label_hide_single_rows():
    fed, model = fitted("number")
    answer, y = rows_of(fed, model)
    [groups] = detail_of(*answer, y, 0, Floors()).groups
    assert groups[:, 2].min() >= 10
    assert (np.diff(groups[:, 0]) >= 0).all()
    assert (groups[:, 1] * groups[:, 2]).sum() == pytest.approx(y.sum(), rel=1e-3)


def test_groups_respect_the_policys_minimum():
    policy = sv.Policy(min_test=25)
    fed, model = fitted(policy=policy)
    answer, y = rows_of(fed, model)
    groups = class_groups(answer.scores[:, 1], y == 1, Floors.of(policy))
    assert groups[:, 1:].sum(axis=1).min() >= 25
    assert len(class_groups(answer.scores[:5, 1], y[:5] == 1, Floors())) == 0


# -- thresholds


@pytest.mark.parametrize("learner", [sv.HistogramForest, sv.MergedForest, sv.BOFRF])
def test_thresholds_are_chosen_out_of_bag(learner):
    """Thresholds do not depend on test rows: other test labels give the same thresholds."""
    fed, model = fitted(learner=learner)
    site, draws = fed.site("site 1"), model.draws(fed, [])[model.forest_.hash]
    (answer, labels), part = unseen_rows(site, fed.schema, model.forest_, draws), site.part(fed.schema)
    drawn = rows_of_trees(site.sampling_key, part.row_keys, 0, 12, True)
    if learner is not sv.HistogramForest:
        start = sum(draws.sizes[:1])
        whole = np.zeros((len(model.forest_), len(part)), bool)
        whole[start : start + draws.sizes[1]] = drawn[: draws.sizes[1]]
        drawn = whole
    by_hand = score_rows(model.forest_, part.X, skip=drawn)
    known = ~np.isnan(by_hand[:, 0])
    assert np.allclose(answer.scores, by_hand[known])
    assert np.array_equal(labels, part.y[known])
    seen = score_rows(model.forest_, part.X)
    assert not np.allclose(answer.scores, seen[known])
    row = line(model.evaluate(fed), "site 1")
    assert row["threshold"] == pytest.approx(site_threshold(site, fed.schema, model.forest_, draws), abs=5.1e-4)


def test_metrics_at_thresholds_give_their_number_of_sites():
    """A site whose training rows have one class chooses no threshold; then `all` leaves it out, and says so."""
    tables = parts(table("binary", n=300), 3)
    tables["site 2"] = tables["site 2"].filter(pl.col("label") == "no")
    fed = federate(tables, test=0.4)
    judged = sv.HistogramForest(**SMALL).fit(fed).evaluate(fed)
    assert np.isnan(line(judged, "site 2")["threshold"])
    row = line(judged, "all")
    assert row["note"] == "sensitivity, specificity, precision of 2 of 3 sites: the rest chose no threshold"
    assert row["sensitivity"] > 0
    fed, model = fitted()
    assert line(model.evaluate(fed), "all")["note"] == ""


def test_no_threshold_without_out_of_bag_rows():
    fed, model = fitted()
    site = fed.site("site 0")
    for draws in (None, RowSamples((3,)), RowSamples((len(model.forest_),), bootstrap=False)):
        assert np.isnan(site_threshold(site, fed.schema, model.forest_, draws)), draws
    boosted = sv.BOPPID(5).fit(fed).evaluate(fed)
    assert np.isnan(line(boosted, "site 0")["threshold"])


def test_a_threshold_is_chosen_by_groups_of_rows():
    """A model built to isolate a training row finds it only among others."""
    fed, model = fitted(policy=in_groups_of(20))
    answer, _ = unseen_rows(fed.site("site 0"), fed.schema, model.forest_, RowSamples((12,)))
    _, rows = np.unique(answer.scores[:, 1], return_counts=True)
    assert rows.min() >= 20
    fed, model = fitted(policy=sv.Policy(min_test=200))
    assert unseen_rows(fed.site("site 0"), fed.schema, model.forest_, RowSamples((12,))) is None


# -- words instead of numbers


def test_a_site_without_test_rows_and_one_of_one_class():
    tables = parts(table(n=400), 3)
    tables["site 1"] = tables["site 1"].filter(pl.col("label") == "no")
    tables["site 2"] = tables["site 2"][:1]
    fed = federate(tables, test=0.3)
    frame = sv.HistogramForest(**SMALL).fit(fed).evaluate(fed)
    assert line(frame, "site 0")["note"] == ""
    assert line(frame, "site 1")["note"] == "no AUC: all test rows are of one class"
    assert line(frame, "site 2")["note"] == "no test rows"


def test_an_evaluation_without_any_row_of_a_class():
    tables = {name: frame.filter(pl.col("label") == "no") for name, frame in parts(table(n=400), 3).items()}
    schema = federate(parts(table(n=400), 3)).schema
    fed = federate(tables, test=0.3, schema=schema)
    frame = sv.MergedForest(**SMALL).fit(fed).evaluate(fed)
    assert set(frame["note"]) == {"no AUC: all test rows are of one class"}
    assert (frame["accuracy"] == 1.0).all()


def test_details_that_are_withheld():
    fed, model = fitted(policy=sv.Policy(min_test=1000))
    frame = model.evaluate(fed)
    row = line(frame, "site 0")
    assert row["note"] == "too few test rows for the site's policy, or columns are lacking that all trees need"
    assert all(np.isnan(row[name]) for name in ("auc", "brier", "sensitivity"))


# -- lies


@pytest.mark.parametrize("task", TASKS)
def test_impossible_details_are_refused(task):
    fed, model = fitted(task)
    answer, y = rows_of(fed, model)
    detail = detail_of(*answer, y, fed.schema.n_classes, Floors())
    check_detail(detail, fed.schema.n_classes, len(y))
    check_detail(nothing(), fed.schema.n_classes, len(y))
    lies = [
        {"metrics": detail.metrics[:0].astype(np.int64)},
        {"metrics": np.append(detail.metrics, 0.0)},
        {"metrics": np.full_like(detail.metrics, np.inf)},
        {"groups": [*detail.groups, *detail.groups]},
        {"groups": [detail.groups[0] * 1e6]},
        {"groups": [detail.groups[0][:, :2]]},
        {"groups": [np.full((21, 3), 0.1)]},
        {"confusion": np.full((5, 5), 1)},
        {"at_threshold": np.full((2, 2), -1)},
    ]
    for lie in lies:
        with pytest.raises(FormatError, match="details are not possible"):
            check_detail(structs.replace(detail, **lie), fed.schema.n_classes, len(y))


def test_groups_of_one_number_are_left_out():
    """The mean of rows that have the same number, all or all but one, could reveal each of them."""
    y = np.concatenate([np.zeros(10), [*np.zeros(9), 7.0], [*np.zeros(8), 7.0, 9.0], np.arange(10.0)])
    answer = Answer(np.arange(40.0)[:, None], np.zeros(40, np.int64))
    [shown] = detail_of(*answer, y, 0, Floors()).groups
    [kept] = detail_of(*answer, y, 0, Floors.of(PolicyBetweenMachines())).groups
    assert len(shown) == 4
    np.testing.assert_array_equal(kept, shown[2:])


@pytest.mark.parametrize(
    "draws",
    [RowSamples((3, 3), ("a",)), RowSamples((3,), ("a", "b")), RowSamples((3, 3)), RowSamples((-3, 9), ("a", "b"))],
)
def test_samples_that_do_not_match_their_sites_are_refused(draws):
    with pytest.raises(sv.FormatError, match="the trees' samples do not match their sites"):
        unseen_rows(None, None, None, draws)
