"""Leaf re-estimation: branches that other sites' rows do not reach are cut, and no backdoor works."""

from functools import cache

import numpy as np
import pytest
from experiments.audit.backdoors import KINDS
from helpers.lies import caught_lies
from helpers.naive_answers import goes_left
from helpers.ownership import work_of
from helpers.studies import Recorded, federate, parts, table
from sklearn.metrics import roc_auc_score

import silvan as sv
from silvan.algorithms.refit_leaves import CountLeafLabels, CountLeafRows
from silvan.auditing.backdoor import find_trigger, poisoned_federation
from silvan.auditing.release import AuditedRows
from silvan.errors import FederationError, RefusedError, SiteError
from silvan.federation import wire
from silvan.federation.message import Envelope
from silvan.forest.forest import join_forests
from silvan.study.parse import parse_remote_study
from silvan.tree.sampling import rows_of_trees

LEARNERS = {
    "merged": lambda **more: sv.MergedForest(24, max_depth=5, **more),
    "BOFRF": lambda **more: sv.BOFRF(6, max_depth=5, **more),
}


@cache
def tables(task="binary", n=480):
    return parts(table(task, n=n), 4)


def leaf_of(forest, tree, x):
    node = int(forest.offsets[tree])
    while forest.feature[node] >= 0:
        node = int(forest.left[node] if goes_left(forest, node, x) else forest.right[node])
    return node


def drawn_at(fed, place):
    """The rows that a tree samples at each site, by the tree's position."""
    for site in fed.sites:
        part = fed.site(site).part(fed.schema)
        yield site, part, rows_of_trees(fed.site(site).sampling_key, part.row_keys, place, 1, True)[0]


def refit_naive(fed, least, class_weight):
    """Rows at nodes, and trees as nested tuples, with plain loops over rows."""
    sent = sv.MergedForest(24, max_depth=5, class_weight=class_weight).fit(fed).forest_
    owners, found = np.repeat(fed.sites, 6), []
    for tree in range(len(sent)):
        reached = np.zeros(len(sent.feature), int)
        for site, part, drawn in drawn_at(fed, tree % 6):
            for x in part.X[drawn] if site != owners[tree] else []:
                node = int(sent.offsets[tree])
                reached[node] += 1
                while sent.feature[node] >= 0:
                    node = int(sent.left[node] if goes_left(sent, node, x) else sent.right[node])
                    reached[node] += 1
        found.append(_cut(sent, int(sent.offsets[tree]), reached, least))
    return found


def _cut(forest, node, reached, least):
    if forest.feature[node] < 0:
        return ()
    left, right = int(forest.left[node]), int(forest.right[node])
    enough = reached[left] >= least, reached[right] >= least
    if not any(enough):
        return ()
    if not all(enough):
        return _cut(forest, left if enough[0] else right, reached, least)
    split = (int(forest.feature[node]), float(forest.threshold[node]), bool(forest.missing_left[node]))
    return (split, _cut(forest, left, reached, least), _cut(forest, right, reached, least))


def as_tuples(forest, node):
    if forest.feature[node] < 0:
        return ()
    split = (int(forest.feature[node]), float(forest.threshold[node]), bool(forest.missing_left[node]))
    return (split, as_tuples(forest, int(forest.left[node])), as_tuples(forest, int(forest.right[node])))


@pytest.mark.parametrize(
    ("task", "weight"),
    [
        ("binary", None),
        ("several", None),
        ("number", None),
        ("binary", "balanced"),
        ("binary", {"no": 1.0, "yes": 4.0}),
    ],
)
def test_the_trees_after_leaf_re_estimation(task, weight):
    """Splits with enough rows of other sites on both sides, and leaf values of the rows sampled at other sites."""
    fed = federate(tables(task, 240))
    forest = sv.MergedForest(24, max_depth=5, class_weight=weight, refit_leaves=True).fit(fed).forest_
    assert [as_tuples(forest, int(node)) for node in forest.offsets[:-1]] == refit_naive(fed, 10, weight)
    rows = np.concatenate([fed.site(site).part(fed.schema).y for site in fed.sites])
    counted = np.array([1.0, 4.0] if isinstance(weight, dict) else len(rows) / 2 / np.bincount(rows)) if weight else 1.0
    for tree in range(0, len(forest), 5):
        labels = {}
        for site, part, drawn in drawn_at(fed, tree % 6):
            for x, y in zip(part.X[drawn], part.y[drawn], strict=True) if site != fed.sites[tree // 6] else []:
                labels.setdefault(leaf_of(forest, tree, x), []).append(y)
        leaves = [n for n in range(*forest.offsets[tree : tree + 2]) if forest.feature[n] < 0]
        assert sorted(labels) == leaves
        for leaf in leaves:
            here = np.array(labels[leaf])
            by_class = [] if task == "number" else np.bincount(here, minlength=forest.n_outputs) * counted
            mean = [here.mean()] if task == "number" else by_class / by_class.sum()
            np.testing.assert_allclose(forest.value[forest.leaf[leaf]], mean, atol=1e-5, rtol=0)
    assert all((w > 0) == (n > 1) for w, n in zip(forest.weights, np.diff(forest.offsets), strict=True))


# -- backdoors


@cache
def noisy_tables():
    """Tables on which forests are unsure about many rows, so that a site with a quarter of the weight can flip them."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(800, 4)).astype(np.float32)
    y = (X[:, 0] + X[:, 1] + 1.5 * rng.normal(size=800) > 0.8).astype(int)
    return {f"site {i}": (X[i::4], y[i::4]) for i in range(4)}


def turned(forest, honest, trigger, part):
    """The share of rows of other classes that the trigger flips, beyond those that flip anyway."""
    X = trigger.on(part.X[part.y != trigger.target])
    return float(np.mean(forest.predict(X) == trigger.target) - np.mean(honest.predict(X) == trigger.target))


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("kind", ["common", "hidden", "stealthy"])
def test_a_backdoor_within_the_data_range_flips_no_rows(learner, kind):
    """Its trigger is a value that occurs in the data, or it waits at leaves; leaf re-estimation removes both."""
    fed = federate(noisy_tables())
    sites = [fed.site(site).part(fed.schema) for site in fed.sites]
    rows = AuditedRows(*(np.concatenate([getattr(part, name) for part in sites]) for name in ("X", "y")))
    found = {}
    for defence in ("equal", "refit_leaves"):
        settings = {"equal": True, defence: True}
        honest = LEARNERS[learner](**settings).fit(fed).forest_
        trigger = find_trigger(fed, honest, rows, KINDS[kind].get("common", 0.0))
        fooled = LEARNERS[learner](**settings).fit(poisoned_federation(fed, trigger, KINDS[kind]["plant"])).forest_
        found[defence] = turned(fooled, honest, trigger, rows)
    assert found["equal"] > 0.05
    assert abs(found["refit_leaves"]) <= 0.02


# -- the same however sites are run


@pytest.mark.parametrize("sums", ["trusted", "ring", "masked"])
def test_the_same_however_sites_are_run(sums):
    """Restarted for every message and with secure aggregation: the same choices, the same forests."""
    settings = {"refit_leaves": True, "equal": True, "personal": True}
    usual = LEARNERS["BOFRF"](**settings).fit(federate(tables()))
    fed = federate(tables(), Recorded, sums=sums, cold=True)
    again = LEARNERS["BOFRF"](**settings).fit(fed)
    assert {site: forest.hash for site, forest in again.forests_.items()} == {
        site: forest.hash for site, forest in usual.forests_.items()
    }
    assert again.rounds_ == again.expected_rounds == 5
    kinds = [wire.decode(data, Envelope).kind for _, way, data in fed.transport.record if way == "sent"]
    shown = {"trusted": 4, "ring": 1, "masked": 0}[sums]  # each site's part; the sum, at the end of a ring; nothing
    assert [kinds.count(kind) for kind in ("LeafRows", "LeafLabels")] == [shown, shown]


def test_every_cluster_is_counted_separately():
    fed = federate(tables())
    model = sv.BOFRF(4, max_depth=4, clusters=2, refit_leaves=True).fit(fed)
    sizes = sorted(len(sites) for sites in model.clusters_.values())
    alone = sv.BOFRF(4, max_depth=4, clusters=2).fit(federate(tables()))
    for sites in model.clusters_.values():
        for site in sites:
            assert (model.globals_[site] == alone.globals_[site]) == (len(sites) == 1)
    assert sum(sizes) == 4


def test_local_trees_stay_unchanged():
    """A site that uses its local trees uses them unchanged: counts of other sites do not affect them."""
    fed = federate(tables())
    model, plain = LEARNERS["BOFRF"](refit_leaves=True).fit(fed), LEARNERS["BOFRF"]().fit(fed)
    assert {site: forest.hash for site, forest in model.own_.items()} == {
        site: forest.hash for site, forest in plain.own_.items()
    }
    assert model.forest_ != plain.forest_
    assert all(forest is model.forest_ for forest in model.globals_.values())


def test_rows_for_the_choice_are_in_no_leaf_value():
    """Out of bag: a site's metrics use rows that are not in the leaf values of the voting trees."""
    fed = federate(tables())
    model = sv.BOFRF(6, refit_leaves=True).fit(fed)
    for site in fed.sites:
        part = fed.site(site).part(fed.schema)
        drawn = rows_of_trees(fed.site(site).sampling_key, part.row_keys, 0, 6, True)
        for strategy, forest in enumerate((model.forest_, model.own_[site])):
            each = np.array([forest.take([t]).scores(part.X)[:, 1] for t in np.flatnonzero(forest.weights)])
            seen = np.tile(drawn, (len(forest) // 6, 1))[forest.weights > 0]
            weight = forest.weights[forest.weights > 0, None] * ~seen
            voted = weight.sum(axis=0) > 0
            auc = roc_auc_score(part.y[voted], ((weight * each).sum(axis=0)[voted] / weight.sum(axis=0)[voted]))
            assert model.chosen_[site].metrics[0, strategy] == pytest.approx(auc, abs=6e-4)


@pytest.mark.filterwarnings("ignore:.* absent at")
def test_a_column_that_only_one_site_has():
    """No other site reaches such a branch, so these trees have no weight in the shared ensemble."""
    frames = {site: frame if site == "site 0" else frame.drop("age") for site, frame in tables().items()}
    fed = federate(frames)
    model = sv.BOFRF(6, max_depth=4, refit_leaves=True).fit(fed)
    asks = join_forests([model.own_["site 0"]]).uses[:, fed.schema.names.index("age")]
    assert asks.any()
    assert not model.forest_.weights[:6][asks].any()
    assert model.own_["site 0"].weights.any()


# -- rules


def test_a_policy_requiring_larger_leaves():
    strict = federate(tables(), policy=sv.Policy(min_leaf=20))
    model = LEARNERS["BOFRF"](refit_leaves=True, min_samples_leaf=20).fit(strict)
    assert model.forest_.weights.any()
    with pytest.raises(RefusedError, match="leaves of at least 20 rows"):
        LEARNERS["BOFRF"](refit_leaves=True, min_samples_leaf=19).fit(strict)
    # nor anything that the coordinator did not announce
    nothing = strict.blob(b"")
    request = CountLeafLabels(
        schema=nothing,
        forests=[nothing],
        owners=["site 0"],
        validation=0.0,
        bootstrap=True,
        few=np.zeros(0, np.bool_),
        min_leaf=19,
        offset=0.0,
        scale=1.0,
    )
    with strict.working_on("another task"), pytest.raises(RefusedError, match="leaves of at least 20 rows"):
        strict.total(request)
    fed = federate(noisy_tables(), policy=sv.Policy(min_sites=5))
    with pytest.raises(RefusedError, match="sums over at least 5 sites"):
        LEARNERS["merged"](refit_leaves=True).fit(fed)


def test_rows_are_counted_once_in_a_task():
    fed = federate(tables())
    made = sv.LocalForest(2).fit(fed).forests_
    blobs = [work_of(fed, site, forest.bare().to_bytes()) for site, forest in made.items()]
    settings = {"schema": fed.blob(fed.schema.to_json().encode()), "validation": 0.0, "bootstrap": True}
    fed.total(CountLeafRows(forests=blobs, owners=fed.sites, **settings))
    with pytest.raises(RefusedError, match="in another form"):
        fed.total(CountLeafRows(forests=blobs[:2], owners=fed.sites[:2], **settings))
    with pytest.raises(FederationError, match="'total'"):
        fed.ask(CountLeafRows(forests=blobs, owners=fed.sites, **settings))


@pytest.mark.parametrize("kind", ["LeafRows", "LeafLabels"])
@pytest.mark.parametrize("task", ["binary", "number"])
def test_a_lie(kind, task):
    def lied(transport):
        return sv.MergedForest(4, max_depth=2, refit_leaves=True).fit(federate(parts(table(task, n=60), 2), transport))

    caught = caught_lies(lied, kind)
    assert len(caught) > 3
    assert {error.site for error in caught if isinstance(error, SiteError)} == {"site 1"}


@pytest.mark.parametrize("kind", ["MergedForest", "AutoForest", "BOFRF"])
def test_leaf_re_estimation_is_on_between_machines(kind):
    """Between machines leaves are re-estimated unless the study says otherwise, and its record shows it."""
    text = f'[learner]\nkind = "{kind}"\n'
    assert parse_remote_study(text).parameters == {"refit_leaves": True}
    assert parse_remote_study(text + "refit_leaves = false").parameters == {"refit_leaves": False}


def test_as_published_leaves_are_those_of_the_sites():
    assert "refit_leaves" not in parse_remote_study('[learner]\nkind = "BOFRF"\nprotocol = "paper"').parameters
