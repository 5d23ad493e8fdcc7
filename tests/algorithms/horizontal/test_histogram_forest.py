"""Forests from summed histograms: rounds, bytes, and inconsistent requests."""

import msgspec
import numpy as np
import pytest
from helpers.asking import trouble
from helpers.studies import TASKS, Recorded, federate, parts, table

import silvan as sv
from silvan.algorithms.horizontal.histogram_forest import GrowLevel, Histograms
from silvan.algorithms.requests import MAX_TREES
from silvan.errors import InputError
from silvan.federation import wire
from silvan.federation.message import Envelope
from silvan.tree import rows
from silvan.tree.objectives import Measure

TABLES = parts(table(), 3)


# -- rounds and bytes


@pytest.mark.parametrize("depth", [1, 2, 5, 8])
@pytest.mark.parametrize("n_trees", [1, 30])
@pytest.mark.parametrize("max_features", [1, None])
def test_rounds(depth, n_trees, max_features):
    """One round per level and two for the bins, however many trees there are."""
    model = sv.HistogramForest(
        n_estimators=n_trees, max_depth=depth, max_features=max_features, min_samples_leaf=1
    ).fit(federate(TABLES, policy=sv.Policy(min_leaf=1)))
    assert model.rounds_ <= depth + 2 <= depth + 3
    assert model.forest_.depth.max() <= depth
    if depth < 5:
        assert model.rounds_ == depth + 2


@pytest.mark.parametrize("task", TASKS)
def test_a_level_in_several_messages(task, monkeypatch):
    """It takes several messages but one round, and gives the same forest."""
    tables = parts(table(task), 3)
    whole, cut = federate(tables), federate(tables)
    model = sv.HistogramForest(n_estimators=5, max_depth=5).fit(whole)
    monkeypatch.setattr("silvan.algorithms.horizontal.histogram_forest._LEVEL_BYTES", 1000)
    again = sv.HistogramForest(n_estimators=5, max_depth=5).fit(cut)
    assert again.forest_ == model.forest_
    assert again.rounds_ == model.rounds_
    assert cut.exchanges > whole.exchanges + 20


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("cold", [False, True])
def test_counting_along_the_rows_gives_the_same_forest(task, cold, monkeypatch):
    """A site may count in any way: node by node, or along the rows as in large tables."""
    learner = sv.HistogramForest(n_estimators=6, max_depth=5)
    expected = learner.fit(federate(parts(table(task), 3))).forest_.hash
    monkeypatch.setattr(rows, "SMALL_TABLE", -1)
    assert learner.fit(federate(parts(table(task), 3), cold=cold)).forest_.hash == expected


def test_rounds_of_adaptive_bins():
    tables = parts(table().drop_nulls(), 3)
    allowed = ("Describe", "CountCategories", "NameCategories", "AdaptiveLevel", "AdaptiveLeaves")
    fed = federate(tables, policy=sv.Policy(messages=allowed))
    model = sv.HistogramForest(n_estimators=5, max_depth=4, bins="adaptive").fit(fed)
    assert model.rounds_ <= 4 + 3


def test_rounds_of_merging_and_evaluation():
    fed = federate(TABLES, test=0.2)
    for weights in (None, "trees", "votes"):
        model = sv.MergedForest(n_estimators=9, max_depth=4, weights=weights).fit(fed)
        assert model.rounds_ == 1
    before = fed.agreement_rounds
    model.evaluate(fed)
    assert fed.agreement_rounds - before == 2


def test_bytes_do_not_depend_on_the_rows():
    """Sums travel, not rows: ten times the rows do not need ten times the bytes."""
    sizes = []
    for n in (300, 3000):
        model = sv.HistogramForest(n_estimators=4, max_depth=4).fit(federate(parts(table(n=n), 3)))
        sizes.append(sum(ways["sent"] for ways in model.bytes_.values()))
    assert sizes[1] < 3 * sizes[0]


def test_all_sites_send_similar_sizes():
    """Sizes of messages reveal little about a site, because all reply about the same nodes."""
    fed = federate(parts(table(n=600), 3), Recorded)
    sv.HistogramForest(n_estimators=4, max_depth=3).fit(fed)
    shapes = {}
    for site, way, data in fed.transport.record:
        envelope = wire.decode(data, Envelope)
        if way == "sent" and envelope.kind == "Histograms":
            sums = wire.decode(envelope.body, Histograms).sums
            shapes.setdefault(envelope.question, {})[site] = (sums.shape, sums.dtype)
    assert len(shapes) == 3
    assert all(len(by_site) == 3 and len(set(by_site.values())) == 1 for by_site in shapes.values())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"epsilon": 1.0}, "epsilon"),
        ({"bins": "mine"}, "bins must be"),
        ({"class_weight": {"maybe": 2.0}}, "class_weight names 'maybe'"),
        ({"criterion": "squared_error"}, "does not fit classification"),
    ],
    ids=str,
)
def test_parameters_that_do_not_fit_the_federation(given, said):
    with pytest.raises(InputError, match=said):
        sv.HistogramForest(**given).fit(federate(TABLES))


# -- inconsistent requests


@pytest.fixture(scope="module", params=TASKS)
def asked(request):
    """A site and the last request it received: three levels of splits."""
    fed = federate(parts(table(request.param), 2), Recorded)
    sv.HistogramForest(n_estimators=3, max_depth=4, max_features=2).fit(fed)
    data = [d for site, way, d in fed.transport.record if site == "site 0" and way == "received"][-1]
    envelope = wire.decode(data, Envelope)
    site = fed.site("site 0")
    site.outbox = None  # it allows no variants; what kernels rely on is checked anyway
    return site, envelope, wire.decode(envelope.body, GrowLevel)


def put(asked, **changes):
    site, envelope, question = asked
    body = wire.encode(msgspec.structs.replace(question, **changes))
    return wire.decode(site.receive(wire.encode(msgspec.structs.replace(envelope, body=body)), "total"), Envelope)


def changed(array, at, value):
    array = array.copy()
    array[at] = value
    return array


WRONG = {
    "no such node": lambda q: {"nodes": changed(q.nodes, 0, q.n_trees + 2 * len(q.split_node))},
    "a node below zero": lambda q: {"nodes": changed(q.nodes, 0, -1)},
    "a node twice": lambda q: {"nodes": changed(q.nodes, 0, q.nodes[1])},
    "a node that was split": lambda q: {"nodes": changed(q.nodes, 0, q.split_node[0])},
    "nodes without features": lambda q: {"nodes": q.nodes[:-1]},
    "nodes in two dimensions": lambda q: {"nodes": q.nodes[:, None]},
    "nodes of another type": lambda q: {"nodes": q.nodes.astype(np.int64)},
    "no such feature": lambda q: {"features": changed(q.features, (0, 1), 5)},
    "a feature below zero": lambda q: {"features": changed(q.features, (0, 0), -2)},
    "a feature twice": lambda q: {"features": changed(q.features, 0, 3)},
    "features that fall": lambda q: {"features": q.features[:, ::-1].copy()},
    "a gap among features": lambda q: {"features": changed(q.features, 0, [-1, 2])},
    "no features": lambda q: {"features": q.features[:, :0]},
    "more features than there are": lambda q: {"features": np.tile(np.arange(6, dtype=np.int32), (len(q.nodes), 1))},
    "a very wide empty question": lambda q: {"nodes": q.nodes[:0], "features": np.zeros((0, 10_000_000), np.int32)},
    "features of another type": lambda q: {"features": q.features.astype(np.float32)},
    "features in one dimension": lambda q: {"features": q.features[:, 0]},
    "a split by no such feature": lambda q: {"split_feature": changed(q.split_feature, 0, 5)},
    "a split by a feature below zero": lambda q: {"split_feature": changed(q.split_feature, 0, -1)},
    "a split by a feature far out": lambda q: {"split_feature": changed(q.split_feature, 0, 2**31 - 1)},
    "a split after no such bin": lambda q: {"split_bin": changed(q.split_bin, 0, 300)},
    "a split after a bin below zero": lambda q: {"split_bin": changed(q.split_bin, 0, -1)},
    "a split of a node to come": lambda q: {"split_node": changed(q.split_node, 0, q.n_trees)},
    "a split of a node far out": lambda q: {"split_node": changed(q.split_node, 0, 2**31 - 1)},
    "a split of a node below zero": lambda q: {"split_node": changed(q.split_node, 0, -1)},
    "a node split twice": lambda q: {"split_node": changed(q.split_node, -1, q.split_node[0])},
    "a column too short": lambda q: {"split_bin": q.split_bin[:-1]},
    "sizes that do not add up": lambda q: {"round_sizes": changed(q.round_sizes, 0, 0)},
    "a size below zero": lambda q: {"round_sizes": np.array([len(q.split_node) + 1, -1])},
    "sizes that wrap round": lambda q: {"round_sizes": np.concatenate([q.round_sizes, np.array([2**62] * 4)])},
    "sizes of another type": lambda q: {"round_sizes": q.round_sizes.astype(np.float64)},
    "short sets": lambda q: {"split_words": q.split_words[:, :3]},
    "sets of another type": lambda q: {"split_words": q.split_words.astype(np.int64)},
    "directions of another type": lambda q: {"split_missing_left": q.split_missing_left.astype(np.int8)},
    "no trees": lambda q: {"n_trees": 0},
    "too many trees": lambda q: {"n_trees": MAX_TREES + 1},
    "one statistic": lambda q: {"measure": msgspec.structs.replace(q.measure, n_stats=1)},
    "many statistics": lambda q: {"measure": msgspec.structs.replace(q.measure, n_stats=100)},
    "another lead": lambda q: {"measure": msgspec.structs.replace(q.measure, lead=2)},
    "a measure of numbers for classes, or of classes for numbers": lambda q: {
        "measure": Measure("squared_error", 2, 1, (1,), 9, 0.0, 1.0)
        if q.measure.counts_rows
        else Measure("gini", 2, 0, (1, 1), 9)
    },
    "an objective that is not there": lambda q: {"measure": msgspec.structs.replace(q.measure, objective="none")},
    "an objective for another label": lambda q: {
        "measure": msgspec.structs.replace(q.measure, objective="squared_error" if q.measure.counts_rows else "gini")
    },
    "an endless offset": lambda q: {"measure": msgspec.structs.replace(q.measure, offset=np.inf)},
    "a share of rows below zero": lambda q: {"bootstrap": -0.5},
    "no share of rows": lambda q: {"bootstrap": 0.0},
    "more than all rows": lambda q: {"bootstrap": 1.5},
    "a share that is no number": lambda q: {"bootstrap": np.nan},
    "no number": lambda q: {"measure": msgspec.structs.replace(q.measure, scale=np.nan)},
}


@pytest.mark.parametrize("how", WRONG)
def test_inconsistent_level_requests_are_refused(asked, how):
    """Refused before any kernel runs, and the site continues as before."""
    truth = put(asked)
    assert truth.kind == "Histograms"
    assert trouble(put(asked, **WRONG[how](asked[2]))).code == "format"
    assert put(asked) == truth


def test_too_few_rows_per_tree_are_refused(asked):
    """With a tiny share, a root has one or two rows, and its histograms are these rows."""
    refused = trouble(put(asked, bootstrap=0.01))
    assert refused.code == "refused"
    assert put(asked, bootstrap=0.2).kind == "Histograms"


def test_an_empty_request(asked):
    reply = put(asked, nodes=asked[2].nodes[:0], features=asked[2].features[:0])
    assert len(wire.decode(reply.body, Histograms).sums) == 0


def test_an_older_request_repeated(asked):
    """A site whose rows have moved further down the trees repeats its earlier reply."""
    site, _, q = asked
    cut = int(q.round_sizes[0])
    early = {
        name: getattr(q, name)[:cut]
        for name in ("split_node", "split_feature", "split_bin", "split_missing_left", "split_words")
    }
    nodes = np.arange(q.n_trees, q.n_trees + 2 * cut, dtype=np.int32)[: len(q.nodes)]
    early |= {"round_sizes": q.round_sizes[:1], "nodes": nodes, "features": q.features[: len(nodes)]}
    now = put(asked)
    then = put(asked, **early)
    assert then.kind == "Histograms"
    assert put(asked) == now
    site.cache.clear()
    assert put(asked, **early) == then
