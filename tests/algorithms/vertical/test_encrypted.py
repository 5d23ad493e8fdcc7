"""Encrypted labels give the same trees, and only the label holder learns gains and leaf values."""

from collections import Counter
from copy import copy
from functools import cache
from itertools import count

import msgspec
import numpy as np
import polars as pl
import pytest
from helpers.column_studies import (
    ID,
    MATCHING,
    Recorded,
    answering,
    asking,
    federate,
    lying,
    mirrored,
    split,
    task_of,
    wide,
)
from helpers.studies import TASKS, Reversed, Shuffled, Stop, stopping

import silvan as sv
from silvan.algorithms.vertical import encrypted_labels
from silvan.algorithms.vertical.encoded_labels import LabelsForParties
from silvan.algorithms.vertical.encrypted_decisions import DecideNodes, Decisions, KeepChosen
from silvan.algorithms.vertical.encrypted_labels import EncryptedLabels
from silvan.algorithms.vertical.encrypted_splits import EncryptedSums, LeftBits, SplitChosen, SumLabels
from silvan.algorithms.vertical.party_rows import Round
from silvan.algorithms.vertical.party_shares import LeafValues
from silvan.algorithms.vertical.scores_of_rows import EvaluateScores, RowLeaves, ask_label_holder
from silvan.federation import wire
from silvan.privacy.paillier.cipher import Ciphertexts
from silvan.privacy.paillier.paillier_keys import generate

pytest.importorskip("gmpy2", reason="no gmpy2, so encrypted labels are not tested; pip install 'silvan[vertical]'")

SMALL = {"n_estimators": 3, "max_depth": 3}
ENCRYPTED = {**SMALL, "labels": "encrypted", "key_bits": 256}


@pytest.fixture(autouse=True)
def _short_keys(monkeypatch):
    """Keys that protect nothing but are fast."""
    monkeypatch.setattr(encrypted_labels, "TESTING", True)


@cache
def recorded(task="binary"):
    """A small recorded federation and its forest, shared by several tests."""
    fed = federate(split(wide(task, n=90), 2), Recorded)
    return fed, sv.VerticalForest(**ENCRYPTED).fit(fed)


def messages(fed, way, kind):
    """All messages of a kind that parties received or sent, each with its party."""
    return [(s, wire.decode(e.body, kind)) for s, w, e in fed.transport.record if (w, e.kind) == (way, kind.__name__)]


def assert_same(fed, **parameters):
    parameters = {**SMALL, **parameters}
    pooled = sv.PooledForest(**parameters).fit(fed)
    model = sv.VerticalForest(**parameters, labels="encrypted", key_bits=256).fit(fed)
    assert model.forest_.hash == pooled.forest_.hash
    assert model.rounds_ <= 3 * parameters["max_depth"] + 4
    assert len(model.structure_.value) == 0
    return model


# -- the same trees


def test_roots_that_sample_several_times():
    """One column of six decides, and nodes sample one: some rounds split no root, and all are asked again."""
    n = 120
    label = np.random.default_rng(0).integers(0, 2, n)
    still = {f"still {i}": np.zeros(n) for i in range(5)}
    first = pl.DataFrame({ID: range(n), **dict(list(still.items())[:3]), "label": label})
    other = pl.DataFrame({ID: range(n), **dict(list(still.items())[3:]), "perfect": label.astype(float)})
    fed = federate({"first": first, "other": other})
    for seed in range(2):
        model = assert_same(fed, n_estimators=2, max_features=1, max_depth=8, random_state=seed)
    assert sorted(map(tuple, np.unique(model.forest_.value, axis=0).tolist())) == [(0.0, 1.0), (1.0, 0.0)]


@pytest.mark.parametrize(("task", "n_parties"), [*((task, 2) for task in TASKS), ("binary", 1), ("several", 8)])
def test_number_of_parties(task, n_parties):
    model = assert_same(federate(split(wide(task, n=90), n_parties, holder=n_parties // 2)))
    assert model.forest_.depth.max() == 3


@pytest.mark.parametrize("task", ["several", "number"])
@pytest.mark.parametrize(
    "parameters",
    [
        {"bootstrap": False, "max_features": None},
        {"feature_sampling": "tree"},
        {"max_features": 1, "max_depth": 5},  # nodes that sample again
        {"min_samples_leaf": 7, "max_bins": 255},
    ],
    ids=str,
)
def test_parameters(task, parameters):
    assert_same(federate(split(wide(task, n=90), 3)), **parameters)


@pytest.mark.parametrize("task", ["binary", "several"])
@pytest.mark.parametrize("parameters", [{"criterion": "entropy"}, {"class_weight": "balanced"}, {}], ids=str)
def test_parameters_of_classification(task, parameters):
    weight = {"class_weight": {"yes": 3.5} if task == "binary" else {"low": 0.25, "top": 7}}
    assert_same(federate(split(wide(task, n=90), 2)), **(parameters or weight))


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        *((task, {"cold": True}) for task in TASKS),
        *(("binary", settings) for settings in ({"kind": Reversed}, {"kind": Shuffled}, {"random_state": None})),
    ],
    ids=str,
)
def test_however_the_parties_run(task, settings):
    assert_same(federate(split(wide(task, n=90), 3), **settings))


@pytest.mark.parametrize("cold", [False, True])
def test_a_party_with_the_label_alone(cold):
    frame = wide(n=90)
    tables = {"labels": frame.select(ID, "label"), **split(frame.drop("label"), 2, holder=-1)}
    assert_same(federate(tables, cold=cold))


@pytest.mark.parametrize("n_classes", [1, 23])
def test_many_classes(n_classes):
    rng = np.random.default_rng(0)
    frame = wide(n=200).with_columns(label=rng.permutation(np.arange(200) % n_classes))
    assert_same(federate(split(frame, 2, holder=1)), max_depth=4)


def test_keys_of_full_length(monkeypatch):
    monkeypatch.setattr(encrypted_labels, "TESTING", False)
    fed = federate(split(wide(n=30), 2))
    model = sv.VerticalForest(n_estimators=1, max_depth=2, labels="encrypted").fit(fed)
    assert model.forest_ == sv.PooledForest(n_estimators=1, max_depth=2).fit(fed).forest_
    with pytest.raises(sv.InputError, match="key_bits must be 2048 or 3072, got 1024"):
        sv.VerticalForest(labels="encrypted", key_bits=1024).fit(fed)


KEY_OF_3072_BITS = (
    "f37cb4b9df84b0ee83b3b09a02ec27d86d21821c4347505bb91915e12fb56a1689f5f3fb811b8bf03a1093f62386d66dd9afb52f3473c3"
    "fec8e58ca3f8a968cd8ed56ffd697840cc58b49c48a185e87fc09c2fec8a4ec8cdc239c749c1b67ddedf2a5a23ecb4eab028ddfc99202e"
    "96b6cfc33025e8d326acdb87aad6a3d26dd16d192f8a423e90aef734a9a6533725b4848fa0377ce030280cb5323b08793f5b9d45b4df38"
    "96b13221b28e9785738b1f10a207bd7bf15490580f98fa6afd32d8afa4e52d870a1c84b1ce8f984efbc46b1782cb2b447b2651592be088"
    "9150e11a65d2f038458b9a0ee2097285c43c3ac35ceedb5e772f2c091f781ef9d92bc7f59449f8c2265916831c94b503149951eb1fa1dc"
    "0ea1ddaa828a0370a228eda04a605e6a381d2be79622d1d81100a8de28f319c27ed3e38743a5283b1dbcec86ab3d18004ce6351f6c1c03"
    "6f6bca8b8ae4d9f192d9f314fd12b54648246fa379bd2d6055f41c467771d4db01213c0f10c3d9297299ee451f89d83f43908c3d12fd"
)
"""Drawing one takes half a minute; this one is public, and protects nothing."""


def test_longer_keys(monkeypatch):
    monkeypatch.setattr(encrypted_labels, "TESTING", False)
    fed = federate(split(wide(n=20), 2))
    fed.party("party 0").store.put("paillier key 3072", bytes.fromhex(KEY_OF_3072_BITS))
    small = {"n_estimators": 1, "max_depth": 1}
    model = sv.VerticalForest(**small, labels="encrypted", key_bits=3072).fit(fed)
    assert model.forest_ == sv.PooledForest(**small).fit(fed).forest_
    assert len(model.forest_.feature) == 3


# -- prediction, files, evaluation


@pytest.mark.parametrize("task", TASKS)
def test_prediction_takes_one_round(task):
    _, model = recorded(task)
    frame = wide(task, n=50, seed=3)
    fed = federate(split(frame.drop("label"), 2, holder=-1), Recorded, label=None)
    before = fed.rounds
    predictions = model.predict(fed).sort(ID)
    assert fed.rounds == before + 1
    assert predictions["prediction"].to_list() == model.forest_.predict(frame.sort(ID)).tolist()
    if task != "number":
        proba = model.predict_proba(fed).sort(ID).drop(ID).to_numpy()
        assert np.array_equal(proba, model.forest_.predict_proba(frame.sort(ID)))  # bit for bit


def test_predictions_elsewhere_need_the_share_of_the_label_holder(monkeypatch):
    """As between machines, where the coordinator sees shares only if they were given to an auditor."""
    fed, model = recorded()
    expected = model.predict(fed).sort(ID)["prediction"].to_list()
    monkeypatch.setattr(type(fed), "local_sites", property(lambda self: {}))
    model = copy(model)
    model.shares_ = {"party 0": model.shares_["party 0"]}
    assert Counter(model.predict(fed)["prediction"]) == Counter(expected)
    model.shares_ = {}
    with pytest.raises(sv.InputError, match="only party 'party 0' knows the leaf values"):
        model.predict(fed)


def test_leaf_values_stay_with_the_label_holder(tmp_path):
    fed = federate(split(wide("several", n=200), 2, holder=1), Recorded)
    model = sv.VerticalForest(**ENCRYPTED).fit(fed)
    assert model.shares_["party 1"].value.shape == (model.structure_.n_leaves, 4)
    assert len(model.shares_["party 0"].value) == 0
    values = {v for v in model.shares_["party 1"].value.ravel().tolist() if v not in (0.0, 1.0, 0.5)}
    assert len(values) > 5
    everything = b"".join(fed.transport.data)
    assert not any(np.float64(v).tobytes() in everything for v in values)
    model.save(tmp_path)
    again = sv.VerticalForest.load(tmp_path)
    assert again.forest_ == model.forest_
    (tmp_path / "party 1.share.silvan").unlink()
    rest = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert not any(np.float64(v).tobytes() in rest for v in values)
    again = sv.VerticalForest.load(tmp_path)
    with pytest.raises(sv.RefusedError, match="'party 1' refused"):
        again.predict(federate(split(wide("several", n=30), 2, holder=1)))


def test_an_auditor_learns_all():
    fed = federate(split(wide(n=90), 2))
    audited = sv.VerticalForest(**ENCRYPTED, auditor=True).fit(fed)
    assert audited.rounds_ <= 3 * SMALL["max_depth"] + 4
    assert audited.forest_ == sv.PooledForest(**SMALL).fit(fed).forest_
    closed = sv.Policy(messages=[m for m in MESSAGES if m != "ShowShare"])
    with pytest.raises(sv.RefusedError, match="does not allow ShowShare"):
        sv.VerticalForest(**ENCRYPTED, auditor=True).fit(federate(split(wide(n=90), 2), policy=closed))


MESSAGES = [*MATCHING, "EncryptLabels", "SumLabels", "DecideNodes", "SplitChosen", "KeepChosen"]


def test_evaluate():
    """The label holder looks up leaves itself: the coordinator sees no score and no leaf value."""
    fed = federate(split(wide(n=300), 2), Recorded, test=0.3)
    table = sv.VerticalForest(**ENCRYPTED).fit(fed).evaluate(fed)
    federated, pooled = (table.filter(site="all", model=m)["auc"].to_list() for m in ("federated", "pooled"))
    assert federated == pytest.approx(pooled, rel=1e-12)
    for envelope in (envelope for _, _, envelope in fed.transport.record):
        if envelope.kind == "EvaluateScores":
            assert isinstance(wire.decode(envelope.body, EvaluateScores).found, RowLeaves)


# -- who learns what


def test_ciphertexts_of_labels_are_not_sent_back_to_the_label_holder():
    fed, _ = recorded()
    [(_, labels)] = messages(fed, "sent", LabelsForParties)
    received = [(site, e.blobs.values()) for site, way, e in fed.transport.record if way == "received"]
    assert {site for site, blobs in received if labels.labels in blobs} == {"party 1"}


@pytest.mark.parametrize("task", TASKS)
def test_labels_are_in_no_message(task):
    fed, _ = recorded(task)
    kinds = {e.kind for _, _, e in fed.transport.record}
    assert kinds.isdisjoint({"EncodeLabels", "FindValues", "SplitNodes", "KeepShare"})
    for site, way, envelope in fed.transport.record:
        if way == "received" and site != "party 0":
            assert envelope.kind != "DecideNodes"
            if envelope.kind in ("SumLabels", "SplitChosen", "KeepChosen"):
                kind = {"SumLabels": SumLabels, "SplitChosen": SplitChosen, "KeepChosen": KeepChosen}[envelope.kind]
                request = wire.decode(envelope.body, kind)
                labels = wire.decode(fed.content(request.ground.labels), EncryptedLabels)
                assert labels.rows == request.ground.rows.hash
                assert request.ground.settings.class_weight is None
    sums = [reply for _, reply in messages(fed, "sent", EncryptedSums)]
    texts = {row.tobytes() for reply in sums for row in reply.sums.data}
    assert len(texts) == sum(len(reply.sums) for reply in sums)  # no two are equal, though many sums are


def test_a_repeated_request_gets_the_same_reply():
    """Otherwise repeating a request would give sums under other masks, which differ by an encryption of zero."""
    fed = federate(split(wide(n=60), 2), Recorded)
    sv.VerticalForest(**ENCRYPTED).fit(fed)
    asked = [request for _, request in messages(fed, "received", SumLabels)]
    replies = [reply for _, reply in messages(fed, "sent", EncryptedSums)]
    fed.party("party 1").outbox = None  # which refuses to go back
    fed.task = task_of(fed)
    for request, reply in zip(asked, replies, strict=True):
        fed.party("party 1").cache.clear()
        again = fed.ask({"party 1": request})["party 1"]
        assert np.array_equal(again.sums.data, reply.sums.data)
        assert again.layout == reply.layout
    other = msgspec.structs.replace(asked[0], nodes=asked[0].nodes[:1], features=asked[0].features[:1])
    assert not np.isin(fed.ask({"party 1": other})["party 1"].sums.data[0], replies[0].sums.data[0]).all()


def test_only_the_winner_receives_the_choice():
    fed = federate(split(wide(n=120), 3), Recorded)
    sv.VerticalForest(**{**ENCRYPTED, "n_estimators": 9}, max_features=1).fit(fed)
    by_party = dict(messages(fed, "received", SplitChosen))
    request = by_party["party 1"]
    fed.task = task_of(fed)
    for name in fed.sites:
        fed.party(name).outbox = None  # which refuses to go back
    with pytest.raises(sv.RefusedError, match="changed on its way, or belongs elsewhere"):
        fed.ask({"party 2": msgspec.structs.replace(by_party["party 2"], choice=request.choice)})
    broken = bytearray(request.choice)
    broken[-1] ^= 1
    with pytest.raises(sv.RefusedError, match="changed on its way"):
        fed.ask({"party 1": msgspec.structs.replace(request, choice=bytes(broken))})
    fewer = msgspec.structs.replace(
        request, nodes=request.nodes[:-1], features=request.features[:-1], needed=request.needed[:-1]
    )
    with pytest.raises(sv.SiteError, match="could not read what it was sent"):
        fed.ask({"party 1": fewer})


# -- nonsense


def _other_key(sums):
    return Ciphertexts(generate(256, testing=True).public.fingerprint, sums.data)


def _too_large(sums):
    return Ciphertexts(sums.key, np.full_like(sums.data, 255))


def _zero(sums):
    return Ciphertexts(sums.key, np.zeros_like(sums.data))


_LEVELS = count()


def _labels(changes, text):
    def change(data):
        labels = wire.decode(data, EncryptedLabels)
        fields = {name: made(getattr(labels, name)) for name, made in changes.items()}
        return wire.encode(msgspec.structs.replace(labels, **fields))

    return "party 0", LabelsForParties, {"labels": change}, text


LIES = {
    "another key": ("party 1", EncryptedSums, {"sums": _other_key}, "ciphertexts are for key"),
    "out of range": ("party 1", EncryptedSums, {"sums": _too_large}, "a ciphertext is out of range"),
    "no ciphertext": ("party 1", EncryptedSums, {"sums": _zero}, "a ciphertext is out of range"),
    "short ones": ("party 1", EncryptedSums, {"sums": lambda s: _cut(s, 1, 0)}, "rows of 64 bytes"),
    "fewer bits": ("party 1", LeftBits, {"bits": lambda bits: bits[1:]}, "a partition with the wrong number of bits"),
    "leaf values": (
        "party 1",
        LeafValues,
        {"value": lambda value: np.ones((2, 2))},
        "it sent leaf values without being asked",
    ),
    "fewer labels": _labels({"numbers": lambda numbers: _cut(numbers, 0, 1)}, "ciphertexts were agreed on"),
    "other lanes": _labels({"lanes": lambda lanes: _fields(lanes, 3)}, "not encrypted as agreed"),
    "a key that is none": _labels({"public": lambda key: bytes(len(key))}, "not the product"),
    "labels that it has not signed": _labels({"rows": lambda rows: "0" * 64}, "with what it did not sign"),
    "sums that it has not signed": ("party 1", EncryptedSums, {"asked": lambda asked: asked[1:]}, "it did not sign"),
    "fewer decisions": ("party 0", Decisions, {"winner": lambda winner: winner[1:]}, "not as many as the nodes"),
    "a party that is none": ("party 0", Decisions, {"winner": lambda winner: winner * 0 + 7}, "without a column there"),
    "endless worth": ("party 0", Decisions, {"gain": lambda gain: gain + np.inf}, "not possible"),
    "rows below zero": ("party 0", Decisions, {"rows": lambda rows: rows - 10**6}, "not possible"),
    "no choices": ("party 0", Decisions, {"choices": lambda choices: {}}, "without a column there"),
    "no end": (
        "party 0",
        Decisions,
        {"is_open": lambda is_open: is_open | (next(_LEVELS) > 1)},
        "where trees must end",
    ),
}


def _cut(ciphertexts, columns, rows):
    return Ciphertexts(ciphertexts.key, ciphertexts.data[rows:, columns:].copy())


def _fields(lanes, n):
    return msgspec.structs.replace(lanes, fields=n)


@pytest.mark.parametrize("lie", LIES)
def test_nonsense_replies_of_a_party(lie):
    liar, kind, changes, text = LIES[lie]
    fed = federate(split(wide(n=90), 2), lying(liar, kind, **changes))
    with pytest.raises(sv.SiteError, match=f"'{liar}'.*{text}"):
        sv.VerticalForest(**ENCRYPTED).fit(fed)


def test_sums_that_do_not_add_up():
    """The label holder detects sums over rows other than the node's."""
    fed = federate(split(wide(n=90), 2))
    answering(fed.party("party 1"), EncryptedSums, sums=lambda s: Ciphertexts(s.key, s.data[::-1].copy()))
    with pytest.raises(sv.RefusedError, match=r"'party 0'.*the sums of party 'party 1' do not fit the rows"):
        sv.VerticalForest(**ENCRYPTED, max_features=None).fit(fed)


def _sums(fed, request):
    """The sums of one party, reordered."""
    turned = {}
    for name, offer in request.offers.items():
        sums = Ciphertexts(offer.reply.sums.key, offer.reply.sums.data[::-1].copy())
        turned[name] = msgspec.structs.replace(offer, reply=msgspec.structs.replace(offer.reply, sums=sums))
    return msgspec.structs.replace(request, offers=turned)


def _nodes(fed, request):
    """The sums of some nodes in place of others."""
    turned = {name: msgspec.structs.replace(o, which=o.which[1:]) for name, o in request.offers.items()}
    return msgspec.structs.replace(request, offers=turned)


def _partition(fed, request):
    """A partition that no party made."""
    *before, last = request.ground.rounds or [None]
    if last is None:
        return request
    level = wire.decode(fed.content(last), Round)
    rounds = [*before, fed.blob(wire.encode(msgspec.structs.replace(level, bits=mirrored(level.bits))))]
    return msgspec.structs.replace(request, ground=msgspec.structs.replace(request.ground, rounds=rounds))


def _closed(fed, request):
    """A node that was already split."""
    nodes = np.r_[np.int32(0), request.nodes[1:]].astype(np.int32)
    return msgspec.structs.replace(request, nodes=nodes) if request.notes else request


CHANGED = {
    "sums": (_sums, "the sums are not those that party 'party 1' signed"),
    "nodes of sums": (_nodes, "the sums are not those that party 'party 1' signed"),
    "partitions": (_partition, "a partition is not the one that party 'party [01]' signed"),
    "nodes": (_closed, "not those that the party left open"),
}


@pytest.mark.parametrize("what", CHANGED)
def test_signed_messages_cannot_be_changed_in_transit(what):
    change, text = CHANGED[what]
    fed = asking(federate(split(wide(n=90), 2)), DecideNodes, change)
    with pytest.raises(sv.RefusedError, match=rf"'party 0'.*{text}"):
        sv.VerticalForest(**ENCRYPTED, max_features=None).fit(fed)


def test_a_level_is_decided_once():
    """A second decision on the same nodes would reveal how gains change with the offered splits."""
    fed = federate(split(wide(n=90), 2), Recorded)
    sv.VerticalForest(**ENCRYPTED).fit(fed)
    *_, before, last = [request for _, request in messages(fed, "received", DecideNodes)]
    fed.task = task_of(fed, DecideNodes)
    for request, text in ((before, "does not go on from where"), (last, "answers one form in a task")):
        with pytest.raises(sv.RefusedError, match=text):
            fed.ask(msgspec.structs.replace(request, offers={}), to=["party 0"])


@pytest.mark.parametrize(
    "change",
    [
        {"leaves": np.full((3, 4), 10**6)},
        {"leaves": np.full((3, 4), -1)},
        {"leaves": np.zeros((3, 3), np.int64)},
        {"weights": np.array([1.0, 0.0, 2.0, 1.0])},
        {"weights": np.zeros(4)},
    ],
    ids=str,
)
def test_leaves_that_would_reveal_single_values_are_refused(change):
    fed = federate(split(wide(n=60), 2), test=0.5)
    model = sv.VerticalForest(**{**ENCRYPTED, "n_estimators": 4}).fit(fed)
    found = RowLeaves(model.structure_.model, np.zeros((3, 4), np.int64), np.ones(4))
    with pytest.raises(sv.SiteError, match="could not read what it was sent"):
        ask_label_holder(
            fed, "party 0", fed.columns.schema, fed.columns.test[:3], msgspec.structs.replace(found, **change)
        )


def test_a_label_holder_without_its_key():
    fed = federate(split(wide(n=90), 2), Recorded, random_state=None)
    sv.VerticalForest(**ENCRYPTED).fit(fed)
    requests = [request for _, request in messages(fed, "received", DecideNodes)]
    request = next(r for r in requests if r.offers)
    holder, fed.task = fed.party("party 0"), task_of(fed, DecideNodes)
    holder.cache.clear()
    del holder.store._values["paillier key 256"]
    with pytest.raises(sv.RefusedError, match="no longer has the key"):
        fed.ask(request, to=["party 0"])
    holder.store.put("paillier key 256", generate(256, testing=True).to_bytes())
    with pytest.raises(sv.SiteError, match="could not read what it was sent"):
        fed.ask(request, to=["party 0"])


@pytest.mark.parametrize("stop", [1, 6, 11, 15])
def test_a_killed_study_resumes(tmp_path, stop):
    """With the same key, which follows from the seed: the parties run in this process and forget everything."""
    tables, path = split(wide(n=90), 2), str(tmp_path / "journal.db")
    _, whole = recorded()
    with pytest.raises(Stop):
        sv.VerticalForest(**ENCRYPTED).fit(federate(tables, stopping(stop), journal=path))
    fed = federate(tables, journal=path)
    model = sv.VerticalForest(**ENCRYPTED).fit(fed)
    assert model.forest_ == whole.forest_
    assert model.rounds_ == whole.rounds_
    assert model.predict(fed).equals(whole.predict(fed))


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": np.array([999], np.int32)},
        {"nodes": np.array([0, 0], np.int32)},
        {"deeper": np.ones(1, np.bool_)},
        {"parties": ["party 1"]},
        {"which": np.array([5], np.int64)},
        {"features": np.full((1, 1), 77, np.int32)},
    ],
    ids=str,
)
def test_nonsense_requests_of_a_coordinator(change):
    fed, _ = recorded()
    requests = [request for _, request in messages(fed, "received", DecideNodes)]
    with fed.working_on("nonsense"), pytest.raises(sv.SiteError, match="could not read what it was sent"):
        fed.ask(msgspec.structs.replace(requests[0], **{"offers": {}, **change}), to=["party 0"])
