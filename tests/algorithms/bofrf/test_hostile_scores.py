"""BOFRF with dishonest participants: harmful trees and impossible scores."""

import struct
from functools import partial
from itertools import product

import msgspec
import numpy as np
import polars as pl
import pytest
from helpers.lies import answers_to_lies, caught_lies, first_replies, replies_in
from helpers.ownership import with_owner
from helpers.studies import Recorded, disturbed, federate, parts, table
from safetensors.numpy import save

import silvan as sv
import silvan.learners
from silvan.algorithms.bofrf import weigh
from silvan.algorithms.bofrf.weigh import BringTrees, LocalTrees, ScoreTrees, TreeScores
from silvan.algorithms.requests import MAX_NODES, read_trees
from silvan.errors import FederationError, FormatError, InputError, SiteError
from silvan.federation import wire
from silvan.federation.handlers import HANDLERS
from silvan.federation.message import Blob, Envelope, Trouble
from silvan.federation.store import digest
from silvan.forest.arrays import ARRAYS
from silvan.forest.category_set import SET_WORDS
from silvan.forest.forest import Forest
from silvan.forest.silvan_file import FORMAT, VERSION
from silvan.forest.tensors import content_digest
from silvan.tree.fit import Settings


def fit(fed, **parameters):
    return sv.BOFRF(n_estimators=6, max_depth=4, **parameters).fit(fed)


# -- harmful trees


def forged(schema, **changes):
    """A tree with one split, modified; its hash and digest match whatever it contains."""
    arrays = {
        "offsets": [0, 3],
        "feature": [0, -1, -1],
        "threshold": [0.5, 0, 0],
        "missing_left": [False] * 3,
        "sets": np.zeros((0, SET_WORDS)),
        "value": [[1, 0], [0, 1]],
        "weights": [1.0],
    } | changes
    arrays = {name: np.ascontiguousarray(arrays[name], dtype) for name, dtype in ARRAYS.items()}
    unchecked = object.__new__(Forest)
    vars(unchecked).update(arrays, schema=schema, combine=changes.get("combine", "mean"), group=None, say=None)
    metadata = {"format": FORMAT, "version": str(VERSION), "schema": schema.to_json(), "combine": unchecked.combine}
    metadata["hash"] = unchecked.hash
    metadata["digest"] = content_digest(metadata, arrays)
    return save(arrays, metadata)


def chain(n, schema, **changes):
    """A tree in which every right child is split again."""
    feature = np.concatenate([np.repeat([0], 1), np.tile([-1, 0], n - 1), [-1, -1]])
    leaves = n + 1
    return forged(
        schema,
        offsets=[0, len(feature)],
        feature=feature,
        threshold=np.where(feature == 0, 0.5, 0),
        missing_left=np.zeros(len(feature), bool),
        value=np.tile([[1.0, 0.0]], (leaves, 1)),
        **changes,
    )


def bushy(levels, schema):
    """A complete tree."""
    n = 2**levels - 1
    feature = np.concatenate([np.zeros(n, int), np.full(n + 1, -1)])
    return forged(
        schema,
        offsets=[0, len(feature)],
        feature=feature,
        threshold=np.where(feature == 0, 0.5, 0),
        missing_left=np.zeros(len(feature), bool),
        value=np.tile([[1.0, 0.0]], (n + 1, 1)),
    )


NUMBERS = sv.Schema.of(["a", "b"], sv.Label("label", ("no", "yes")))
OTHER = sv.Schema.of(["a", "c"], sv.Label("label", ("no", "yes")))
HOSTILE = {
    "feature outside the schema": lambda: forged(NUMBERS, feature=[2, -1, -1]),
    "feature below all": lambda: forged(NUMBERS, feature=[-2, -1, -1]),
    "threshold NaN": lambda: forged(NUMBERS, threshold=[np.nan, 0, 0]),
    "threshold infinite": lambda: forged(NUMBERS, threshold=[np.inf, 0, 0]),
    "leaf NaN": lambda: forged(NUMBERS, value=[[np.nan, 0], [0, 1]]),
    "a million nodes": lambda: bushy(19, NUMBERS),
    "a deep chain": lambda: chain(5000, NUMBERS),
    "a leaf too few": lambda: forged(NUMBERS, feature=[0, 0, -1], threshold=[0.5, 0.5, 0], value=[[1, 0]]),
    "a child before its parent": lambda: forged(
        NUMBERS,
        offsets=[0, 5],
        feature=[-1, 0, 0, -1, -1],
        threshold=[0, 0.5, 0.5, 0, 0],
        missing_left=[False] * 5,
        value=[[1, 0], [1, 0], [1, 0]],
    ),
    "another schema": lambda: forged(OTHER),
    "weights of its own": lambda: forged(NUMBERS, weights=[0.5]),
    "a vote": lambda: forged(NUMBERS, combine="vote"),
    "no bytes": lambda: b"",
    "not a forest": lambda: struct.pack("<Q", 2**60) + b"{}",
}


def site_of_numbers(**settings):
    rng = np.random.default_rng(0)
    frame = pl.DataFrame({"a": rng.normal(size=40), "b": rng.normal(size=40), "label": ["no", "yes"] * 20})
    return federate({"here": frame, "there": frame}, schema=NUMBERS, **settings).site("here")


def send(site, request, blobs, verb):
    named = {digest(blob): blob for blob in blobs}
    envelope = Envelope("study", "q", "", type(request).__name__, wire.encode(request), named, ["here", "there"])
    signed = with_owner(envelope, site.keys, *blobs)  # a malicious site signs whatever it wants
    return wire.decode(site.receive(wire.encode(signed), verb), Envelope)


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_trees_are_refused(what):
    """The coordinator checks trees first, and so does every site."""
    data = HOSTILE[what]()
    with pytest.raises(FormatError):
        read_trees(data, NUMBERS)
    schema = NUMBERS.to_json().encode()
    request = ScoreTrees(
        schema=Blob(digest(schema)), forests=[Blob(digest(data))], validation=0.0, offset=0.0, scale=1.0
    )
    answer = send(site_of_numbers(), request, [schema, data], "total")
    assert wire.decode(answer.body, Trouble).code == "format"


def test_the_honest_tree_is_not_refused():
    data, schema = forged(NUMBERS), NUMBERS.to_json().encode()
    assert len(read_trees(data, NUMBERS)) == 1
    assert len(read_trees(chain(4000, NUMBERS), NUMBERS)) == 1
    assert len(read_trees(bushy(18, NUMBERS), NUMBERS).feature) < MAX_NODES < 10**6
    request = ScoreTrees(
        schema=Blob(digest(schema)), forests=[Blob(digest(data))], validation=0.0, offset=0.0, scale=1.0
    )
    answer = send(site_of_numbers(), request, [schema, data], "total")
    scores = wire.decode(answer.body, TreeScores)
    assert scores.rows.tolist() == [40]
    assert scores.counts.sum() == 40


def test_files_cannot_contain_cycles():
    """Nodes have no pointers: children always come after their parents, or the file is refused."""
    seen = 0
    for feature in (np.array(inner) for n in (1, 3, 5, 7) for inner in product([0, -1], repeat=n)):
        n = len(feature)
        leaves = int((feature < 0).sum())
        changes = {
            "offsets": [0, n],
            "feature": feature,
            "threshold": np.where(feature == 0, 0.5, 0),
            "missing_left": [False] * n,
            "value": np.tile([[1.0, 0.0]], (leaves, 1)).reshape(leaves, 2),
        }
        try:
            forest = read_trees(forged(NUMBERS, **changes), NUMBERS)
        except FormatError:
            continue
        seen += 1
        nodes = np.flatnonzero(forest.feature >= 0)
        assert (forest.left[nodes] > nodes).all()
        assert sorted([*forest.left[nodes], *forest.right[nodes]]) == list(range(1, n))  # one parent each
    assert seen == 1 + 1 + 2 + 5  # the binary trees of one to four leaves


def test_a_tree_from_a_site_names_the_site():
    tables = parts(table(), 3)
    data = forged(NUMBERS)

    def twist(site, reply):
        envelope = wire.decode(reply, Envelope)
        if site == "site 2" and envelope.kind == "LocalTrees":
            changed = msgspec.structs.replace(wire.decode(envelope.body, LocalTrees), forest=data)
            reply = wire.encode(msgspec.structs.replace(envelope, body=wire.encode(changed)))
        return [(site, reply)]

    with pytest.raises(SiteError, match="another schema") as error:
        fit(federate(tables, disturbed(twist)))
    assert error.value.site == "site 2"


# -- impossible scores

LIES = {
    "a row more": lambda rows, counts: (
        rows,
        counts + np.eye(2, dtype=np.int64)[None] * (np.arange(len(rows)) == 3)[:, None, None],
    ),
    "a row less": lambda rows, counts: (rows, counts - (counts == counts.max()).astype(np.int64)),
    "rows moved to another class": lambda rows, counts: (
        rows,
        counts[:, ::-1] * (np.arange(len(rows)) == 0)[:, None, None]
        + counts * (np.arange(len(rows)) != 0)[:, None, None],
    ),
    "more rows than there are": lambda rows, counts: (rows * 2, counts * 2),
    "negative": lambda rows, counts: (rows, counts + np.array([[[5, -5], [0, 0]]])),
    "of another tree": lambda rows, counts: (rows[1:], counts[1:]),
}


def liar(lie, name="site 1"):
    kind, truth = HANDLERS["ScoreTrees"]

    def handler(site, request):
        scores = truth(site, request)
        if site.name == name:
            rows, counts = lie(scores.rows, scores.counts)
            scores = TreeScores(rows=rows, counts=counts.astype(np.int64))
        return scores

    return kind, handler


@pytest.mark.parametrize("lie", LIES)
def test_scores_that_do_not_add_up(lie, monkeypatch):
    monkeypatch.setitem(HANDLERS, "ScoreTrees", liar(LIES[lie]))
    with pytest.raises(SiteError) as error:
        fit(federate(parts(table(), 3)))
    assert error.value.site == "site 1"


@pytest.mark.parametrize("lie", [name for name in LIES if name not in ("of another tree", "negative")])
def test_scores_that_do_not_add_up_in_a_ring(lie, monkeypatch):
    """Nobody sees which part is wrong, but impossible sums are noticed. Wrong votes with correct row counts are not."""
    monkeypatch.setitem(HANDLERS, "ScoreTrees", liar(LIES[lie]))
    with pytest.raises(FederationError, match="cannot be"):
        fit(federate(parts(table(), 3), sums="ring"))


def test_inconsistent_requests_are_refused():
    site, schema = site_of_numbers(), NUMBERS.to_json().encode()
    site.outbox = None
    named = Blob(digest(schema))
    settings, key = Settings(n_estimators=2), np.zeros(2, np.uint64)
    good = BringTrees(schema=named, settings=settings, feature_key=key, validation=0.0, oob=True, tune=None)
    assert send(site, good, [schema], "ask").kind == "LocalTrees"
    for changes in ({"validation": -0.1}, {"validation": 0.9}, {"validation": np.nan}, {"feature_key": key[:1]}):
        answer = send(site, msgspec.structs.replace(good, **changes), [schema], "ask")
        assert wire.decode(answer.body, Trouble).code == "format", changes


def test_too_many_classes_and_trees_are_refused(monkeypatch):
    monkeypatch.setattr(weigh, "MAX_CELLS", 50)
    with pytest.raises(InputError, match="18 trees of all sites and 2 classes are more than can be scored at once"):
        fit(federate(parts(table(), 3)))


# -- every field of every message


TABLES = {task: parts(table(task, n=40), 2) for task in ("binary", "number")}
KINDS = replies_in("silvan.algorithms.bofrf.weigh", "silvan.algorithms.bofrf.choose")


def study(kind, task="binary", **parameters):
    fed = federate(TABLES[task], kind)
    return sv.BOFRF(n_estimators=2, max_depth=2, personal=True, **parameters).fit(fed), fed


@pytest.mark.parametrize("task", TABLES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:no tree is above tau", "ignore:.*are the units the same")
def test_a_lie(kind, task):
    caught = caught_lies(partial(study, task=task), kind)
    assert len(caught) > 3
    assert {error.site for error in caught if isinstance(error, SiteError)} == {"site 1"}


def test_every_kind_is_tested_with_lies():
    assert set(KINDS) == {"LocalTrees", "TreeScores", "Chosen"}
    assert set(KINDS) <= set(first_replies(study))


@pytest.mark.parametrize("task", TABLES)
@pytest.mark.filterwarnings("ignore:no tree is above tau")
def test_a_coordinator_that_lies(task):
    _, fed = study(Recorded, task)
    asked = [(site, way, data) for site, way, data in fed.transport.record if b"Describe" not in data[:300]]
    codes = answers_to_lies(fed, [one for one in asked if b"Categories" not in one[2][:300]])
    assert codes.count("format") > 100
    assert "internal" not in codes
