"""A site's policy: approval before any reply, and no metrics of a handful of rows."""

import numpy as np
import polars as pl
import pytest
from helpers.column_studies import federate as federate_by_columns
from helpers.column_studies import split, wide
from helpers.limits import limited
from helpers.private_study import federate as federate_with_bounds
from helpers.runs import silvan
from helpers.studies import Recorded, federate, parts, table

import silvan as sv
from silvan.algorithms.vertical.scores_of_rows import RowScores, ask_label_holder
from silvan.errors import FormatError, InputError, RefusedError
from silvan.privacy.gate import Gate
from silvan.privacy.identity.shared_key import share_key
from silvan.privacy.policy import Policy, PolicyBetweenMachines
from silvan.privacy.site_folder import APPROVALS, Approval, Approvals

TABLES = parts(table(n=160), 3)


def approving(kind=Recorded, **settings):
    return federate(TABLES, kind, policy=sv.Policy(approve=True), **settings)


def approve(fed, *sites, **what):
    for name in sites or fed.sites:
        fed.site(name).outbox.approve(fed.study, **{"messages": ["*"], **what})
    return fed


# -- approval


def test_there_is_no_reply_before_approval():
    fed = approving()
    assert not fed.transport.record  # not even the names of columns
    with pytest.raises(
        RefusedError, match="site 'site 0' refused Describe: the site's owner has not approved this study"
    ):
        sv.HistogramForest(2, max_depth=2).fit(fed)
    approve(fed, "site 0", "site 1")
    with pytest.raises(RefusedError, match="site 'site 2' refused Describe"):
        sv.HistogramForest(2, max_depth=2).fit(fed)
    approve(fed, "site 2")
    model = sv.HistogramForest(2, max_depth=2).fit(fed)
    assert model.forest_ == sv.HistogramForest(2, max_depth=2).fit(federate(TABLES)).forest_
    lines = fed.site("site 2").outbox.ledger.lines()
    assert [line.outcome for line in lines].count("refused") == 2


def test_columns_wait_for_approval_too():
    fed = federate_by_columns(split(wide(n=120), 2), policy=sv.Policy(approve=True))
    with pytest.raises(RefusedError, match="has not approved"):
        sv.VerticalForest(2, max_depth=2).fit(fed)
    assert sv.VerticalForest(2, max_depth=2).fit(approve(fed)).forest_


def test_an_approval_covers_one_study():
    fed = approving(random_state=0)
    other = approving(random_state=1)
    for name in fed.sites:
        other.site(name).outbox.approve(fed.study, ["*"])
    with pytest.raises(RefusedError, match="has not approved this study"):
        sv.HistogramForest(2, max_depth=1).fit(other)


def test_an_approval_names_the_messages():
    agreement = ["Describe", "CountCategories", "NameCategories"]
    fed = approve(approving(), messages=[*agreement, "CountGrid", "CountFine", "GrowLevel"])
    sv.HistogramForest(2, max_depth=1).fit(fed)
    with pytest.raises(RefusedError, match="approved this study without GrowTrees"):
        sv.MergedForest(3).fit(fed)


def test_an_approval_names_the_amounts():
    fed = approve(approving(test=0.25), tasks=2)
    model = sv.HistogramForest(2, max_depth=1).fit(fed)
    model.evaluate(fed)
    with pytest.raises(RefusedError, match="takes part in 2 tasks"):
        model.evaluate(fed)


def test_an_approval_names_the_participants():
    fed = approve(approving(), sites=["site 0", "site 1"])
    with pytest.raises(RefusedError, match="approved this study with other sites"):
        sv.HistogramForest(2, max_depth=1).fit(fed)


def test_a_changed_table_gets_no_replies_about_rows():
    """Requests that reveal nothing about rows are handled anyway: a site still accepts the results of a study."""
    fed = sv.federate_rows(parts(table(n=120), 3), signed=True)
    for site in fed.local_sites.values():
        site.outbox.close_rows("its table has changed")
    with pytest.raises(RefusedError, match="its table has changed"):
        sv.HistogramForest(2).fit(fed)
    share_key(fed)


def test_an_approval_may_be_withdrawn():
    fed = approve(approving())
    sv.HistogramForest(2, max_depth=1).fit(fed)
    fed.site("site 1").outbox.approvals.withdraw(fed.study)
    with pytest.raises(RefusedError, match="site 'site 1' refused CountGrid: the site's owner has not approved"):
        sv.HistogramForest(2, max_depth=1).fit(fed)
    with pytest.raises(InputError, match="nothing to withdraw"):
        fed.site("site 1").outbox.approvals.withdraw(fed.study)


def test_an_approval_cannot_go_beyond_the_policy():
    gate = Gate(Policy(approve=True, messages=["Describe"]))
    with pytest.raises(InputError, match="messages names 'GrowLevel', which the site's policy does not allow"):
        gate.approve("study", messages=["GrowLevel"])
    for wrong in ({"study": " "}, {"tasks": 0}, {"losses": -1}, {"messages": None}, {"messages": []}):
        with pytest.raises(InputError):
            Approvals().approve(Approval(**{"study": "x", "messages": ["*"], **wrong}))


def test_approvals_on_disk_by_command(tmp_path):
    """The owner approves in another process; the site reads that at the next request."""
    fed = approving(ledgers=tmp_path)
    with pytest.raises(RefusedError):
        sv.HistogramForest(2, max_depth=1).fit(fed)
    assert "No study is approved" in silvan("site", "approve", tmp_path / "site 0").output
    for name in fed.sites:
        shown = silvan("site", "approve", tmp_path / name, fed.study, "--message", "*", "--tasks", 1).output
        assert "all that the policy allows" in " ".join(shown.split())
    sv.HistogramForest(2, max_depth=1).fit(fed)
    with pytest.raises(RefusedError, match="takes part in 1 task"):
        sv.HistogramForest(2, max_depth=1).fit(fed)
    assert "Withdrawn" in silvan("site", "approve", tmp_path / "site 0", fed.study, "--withdraw").output
    assert silvan("site", "approve", tmp_path / "site 0", fed.study, "--withdraw", ok=False).exit_code == 1
    assert silvan("site", "approve", tmp_path / "site 0", "--withdraw", ok=False).exit_code == 1
    (tmp_path / "site 1" / APPROVALS).write_text("[1]")
    with pytest.raises(FormatError, match="not a list of approvals"):
        Approvals(tmp_path / "site 1" / APPROVALS).listed()


# -- how trees are grown


GROWN = [sv.HistogramForest, sv.MergedForest, sv.BOFRF, sv.AdaBoostPL]


@pytest.mark.parametrize("learner", GROWN)
def test_a_policy_caps_trees_and_bins(learner):
    """For forests, the site's share of trees counts."""
    model = learner(6, max_bins=16)
    for allowed in ({"max_trees": 6}, {"max_bins": 16}):
        model.fit(federate(TABLES, policy=sv.Policy(**allowed)))
    most = 1 if learner is sv.MergedForest else 5
    with pytest.raises(RefusedError, match=f"policy allows {most} trees? at most"):
        model.fit(federate(TABLES, policy=sv.Policy(max_trees=most)))
    with pytest.raises(RefusedError, match="policy allows 15 bins of a column at most"):
        model.fit(federate(TABLES, policy=sv.Policy(max_bins=15)))


@pytest.mark.parametrize("learner", GROWN)
def test_a_policy_asks_for_trees_on_samples_of_rows(learner):
    fed = federate(TABLES, policy=sv.Policy(bootstrap=True))
    if learner is sv.AdaBoostPL:  # every stump sees all rows
        with pytest.raises(RefusedError, match="trees grown on samples"):
            learner(2).fit(fed)
        return
    other = {"validation": 0.2} if learner is sv.BOFRF else {}
    learner(2, max_depth=2).fit(fed)
    learner(2, max_depth=2, max_samples=0.5).fit(fed)
    with pytest.raises(RefusedError, match="trees grown on samples of its rows: set bootstrap=True"):
        learner(2, max_depth=2, bootstrap=False, **other).fit(fed)


def test_a_policy_caps_trees_of_parties():
    fed = federate_by_columns(split(wide(n=120), 2), policy=sv.Policy(max_trees=2, bootstrap=True))
    sv.VerticalForest(2, max_depth=2).fit(fed)
    for more in ({"n_estimators": 3}, {"bootstrap": False}):
        with pytest.raises(RefusedError, match="the site's policy"):
            sv.VerticalForest(**{"n_estimators": 2, "max_depth": 2, **more}).fit(fed)


def test_noise_makes_caps_unnecessary():
    policy = sv.Policy(max_trees=1, max_bins=2, bootstrap=True, epsilon=1.0)
    fed = federate_with_bounds(n=600, policy=policy)
    sv.HistogramForest(3, max_depth=2, epsilon=0.5).fit(fed)


# -- test rows


def figures(fed, learner=None):
    frame = (learner or sv.HistogramForest(3, max_depth=3)).fit(fed).evaluate(fed)
    return frame.filter(pl.col("site") == "small"), frame.filter(pl.col("site") == "all")


def test_without_the_minimum_a_rows_class_is_revealed():
    """Two models that predict the same for everybody: accuracy is 0 or 1, and so the label is known."""
    fed = federate({"small": table(n=4), "big": table(n=120)}, test=0.25)
    frame, _ = figures(fed)
    assert frame["rows"].unique().to_list() == [1]
    assert set(frame["accuracy"]) <= {0.0, 1.0}


@pytest.mark.parametrize("task", ["binary", "several", "number"])
def test_few_test_rows_have_no_metrics(task):
    tables = {"small": table(task, n=36), "big": table(task, n=160)}
    frame, overall = figures(federate(tables, test=0.25, policy=sv.Policy(min_test=10)))
    assert frame["rows"].unique().to_list() == [9]
    names = ["rmse", "r2"] if task == "number" else ["auc", "accuracy", "f1", "mcc"]
    assert all(frame[name].is_nan().all() for name in names)
    assert frame["gain_low"].is_null().all() or frame["gain_low"].is_nan().all()
    assert not any(overall[name].is_nan().any() for name in names[:2])  # over all sites there are
    allowed, _ = figures(federate(tables, test=0.25, policy=sv.Policy(min_test=9)))
    assert not allowed[names[-1]].is_nan().all()  # of few rows the first, AUC, may be undefined


def test_ten_rows_are_enough():
    tables = {"small": table(n=40), "big": table(n=160)}
    frame, _ = figures(federate(tables, test=0.25, policy=sv.Policy(min_test=10)))
    assert frame["rows"].unique().to_list() == [10]
    assert not frame["accuracy"].is_nan().any()


def test_the_label_holder_evaluates_no_handful_of_rows():
    fed = federate_by_columns(split(wide(n=40), 2), test=0.1, policy=sv.Policy(min_test=10))
    model = sv.VerticalForest(2, max_depth=2).fit(fed)
    assert len(fed.columns.test) < 10
    with pytest.raises(RefusedError, match="the rows held out for evaluation are fewer"):
        model.evaluate(fed)


def test_scores_are_evaluated_once():
    """Anyone who can score single rows can read labels from the metrics."""
    fed = federate_by_columns(split(wide(n=160), 2), test=0.25)
    digests = fed.columns.test
    scores = np.full((len(digests), 2), 0.5)
    holder = fed.columns.label_holder
    with fed.working_on("evaluating"):
        first = ask_label_holder(fed, holder, fed.columns.schema, digests, RowScores(scores)).metrics
        again = ask_label_holder(fed, holder, fed.columns.schema, digests, RowScores(scores)).metrics
        assert again == pytest.approx(first, nan_ok=True)
        other = scores.copy()
        other[0] = [0.0, 1.0]
        with pytest.raises(RefusedError, match="in another form"):
            ask_label_holder(fed, holder, fed.columns.schema, digests, RowScores(other))


def test_scores_that_isolate_a_row_do_not_reveal_its_label():
    """With arbitrary scores of the coordinator: metrics and counts use groups, few digits, and few models."""
    told = {}
    for groups in (1, 5):
        policy = sv.Policy() if groups == 1 else PolicyBetweenMachines()
        fed = limited(federate_by_columns(split(wide(n=160), 2), test=0.25, policy=policy), models=2)
        digests, holder, schema = fed.columns.test, fed.columns.label_holder, fed.columns.schema
        scores, apart = np.full((len(digests), 2), 0.5), np.zeros(len(digests), np.int64)
        apart[3] = 1
        with fed.working_on("one row decided apart"):
            told[groups] = ask_label_holder(fed, holder, schema, digests, RowScores(scores, apart)).detail
        ranks = np.linspace(0.01, 0.99, len(digests))
        with fed.working_on("every row its own score"):
            row = ask_label_holder(fed, holder, schema, digests, RowScores(np.column_stack([1 - ranks, ranks])))
        assert all(value == round(value, 3) for value in row.metrics.values()) == (groups > 1)
        with fed.working_on("a third"), pytest.raises(RefusedError, match="2 at most"):
            ask_label_holder(fed, holder, schema, digests, RowScores(scores))
    assert told[1].confusion[:, 1].sum() == 1  # of this row: whether it has the class
    assert told[5].confusion[:, 1].sum() == 0


def test_groups_do_not_evaluate_rows_of_one_class():
    frame = wide(n=160).with_columns(label=pl.Series(["yes"] + ["no"] * 159))
    fed = federate_by_columns(split(frame, 2), test=0.25, policy=PolicyBetweenMachines())
    scores = np.full((len(fed.columns.test), 2), 0.5)
    row = ask_label_holder(fed, fed.columns.label_holder, fed.columns.schema, fed.columns.test, RowScores(scores))
    assert np.isnan(list(row.metrics.values())).all()
    assert not len(row.detail.metrics)


def test_policies_that_contradict_a_study_are_reported_first(monkeypatch):
    """The site's rows are not touched."""
    numbers = {name: frame.select("age", "noise", "label") for name, frame in TABLES.items()}
    fed = federate(numbers, policy=sv.Policy(messages=["*"], min_sites=5))
    for name in fed.sites:
        monkeypatch.setattr(fed.site(name), "part", None)
    with pytest.raises(RefusedError, match="sums over at least 5 sites"):
        sv.HistogramForest(2).fit(fed)
