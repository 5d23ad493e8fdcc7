"""Requests and replies of vertical forests; nonsense from or to a party is reported by name."""

from functools import cache

import msgspec
import numpy as np
import polars as pl
import pytest
from helpers.column_studies import ID, MATCHING, SMALL, Recorded, asking, federate, lying, split, task_of, wide
from helpers.studies import TASKS, Stop, stopping

import silvan as sv
from silvan.algorithms.vertical.encoded import FindValues, Sides, SplitNodes, Values
from silvan.algorithms.vertical.encoded_labels import CodedLabels, EncodeLabels, LabelsForParties, open_labels
from silvan.algorithms.vertical.party_rows import Round
from silvan.algorithms.vertical.party_shares import KeepShare, LeafValues, ShownShare, share_key
from silvan.errors import FormatError
from silvan.federation import wire
from silvan.federation.message import Blob
from silvan.federation.transport import InProcess
from silvan.learners.in_one_place import joined, own_schema


def asked(fed, kind):
    """All requests of a kind, each with the party that received it."""
    received = [(site, e) for site, way, e in fed.transport.record if way == "received" and e.kind == kind.__name__]
    return [(site, wire.decode(e.body, kind)) for site, e in received]


@cache
def recorded(n_parties=2):
    """A small recorded federation and its forest, shared by several tests."""
    fed = federate(split(wide(), n_parties), Recorded)
    return fed, sv.VerticalForest(**SMALL).fit(fed)


# -- rounds


@pytest.mark.parametrize("n_estimators", [1, 20])
@pytest.mark.parametrize("max_depth", [1, 3, 5])
def test_rounds(n_estimators, max_depth):
    fed = federate(split(wide(), 3))
    model = sv.VerticalForest(n_estimators=n_estimators, max_depth=max_depth).fit(fed)
    assert model.rounds_ <= 2 * max_depth + 2
    audited = sv.VerticalForest(n_estimators=n_estimators, max_depth=max_depth, auditor=True).fit(fed)
    assert audited.rounds_ == model.rounds_ + 1 <= 2 * max_depth + 3
    before = fed.rounds
    model.predict(fed)
    assert fed.rounds == before + 1


def test_nodes_that_sample_again_wait_for_the_next_round():
    fed = federate(split(wide(), 3))
    assert sv.VerticalForest(n_estimators=9, max_depth=6, max_features=1).fit(fed).rounds_ <= 2 * 6 + 2


def test_byte_counts_match_deliveries():
    fed = federate(split(wide(), 2), Recorded)
    before = fed.bytes
    start = len(fed.transport.data)
    model = sv.VerticalForest(**SMALL).fit(fed)
    delivered = sum(map(len, fed.transport.data[start:]))
    assert sum(n for ways in model.bytes_.values() for n in ways.values()) == delivered
    assert all(fed.bytes[p][w] - before[p][w] == n for p, ways in model.bytes_.items() for w, n in ways.items())


# -- who learns what


def test_parties_receive_requests_about_their_columns_only():
    fed = federate(split(wide(), 3), Recorded)
    model = sv.VerticalForest(**SMALL, max_features=None).fit(fed)
    requests = asked(fed, FindValues)
    assert {site for site, _ in requests} == set(fed.sites)
    for site, request in requests:
        own = fed.owners[site]
        drawn = request.features[request.features >= 0]
        assert set(drawn.tolist()) == set(range(len(own)))  # local numbers: nothing about the others
        schema = sv.Schema.from_json(fed.content(request.ground.columns).decode())
        assert schema.names == fed.columns.schema.names[own.start : own.stop]
        assert schema.label.classes is None
        assert request.ground.settings.class_weight is None
    names = {name: set(fed.schema.names) - set(own_schema(fed, name).names) for name in fed.sites}
    for site, way, envelope in fed.transport.record:
        if way == "received" and envelope.kind != "Introduce":
            sent = b"".join([envelope.body, *envelope.blobs.values()])
            assert not any(name.encode() in sent for name in names[site] if len(name) > 4)
    for party, share in model.shares_.items():
        assert np.array_equal(np.sort(share.node), np.flatnonzero(model.structure_.owner == fed.sites.index(party)))


def test_class_weights_do_not_reveal_the_code():
    fed = federate(split(wide("several"), 2), Recorded)
    weight = {"low": 0.5, "middle": 2.0, "high": 3.0, "top": 4.0}
    sv.VerticalForest(**SMALL, class_weight=weight).fit(fed)
    for _, request in asked(fed, FindValues):
        assert request.ground.settings.class_weight is None
        labels = wire.decode(fed.content(request.ground.labels), CodedLabels)
        assert sorted(labels.measure.class_weight) != [1, 1, 1, 1]
    assert all(request.leaves is None for site, request in asked(fed, KeepShare) if site != "party 0")


def test_the_winner_of_a_node_is_disclosed_to_nobody():
    fed, _ = recorded(3)
    assert Round.__struct_fields__ == ("nodes", "needed", "bits")
    rounds = {b.hash: fed.content(b) for _, request in asked(fed, FindValues) for b in request.ground.rounds}
    assert len(rounds) == SMALL["max_depth"] - 1
    for site in fed.sites:
        seen = {b.hash for s, request in asked(fed, FindValues) if s == site for b in request.ground.rounds}
        assert seen == set(rounds)  # all receive the same


def test_the_last_splits_are_not_disclosed():
    """No party needs the rows of splits whose children are leaves."""
    fed = federate(split(wide(), 2), Recorded)
    sv.VerticalForest(n_estimators=4, max_depth=1).fit(fed)
    for _, way, envelope in fed.transport.record:
        if way == "sent" and envelope.kind == "Sides":
            assert len(wire.decode(envelope.body, Sides).bits) == 0


@pytest.mark.parametrize("task", TASKS)
def test_labels_travel_in_code(task):
    fed = federate(split(wide(task), 2, holder=1), Recorded)
    sv.VerticalForest(**SMALL).fit(fed)
    [(holder, _)] = asked(fed, EncodeLabels)
    assert holder == "party 1"
    [sent] = [e for _, way, e in fed.transport.record if way == "sent" and e.kind == "LabelsForParties"]
    reply = wire.decode(sent.body, LabelsForParties)
    ground = asked(fed, FindValues)[0][1].ground
    target, measure = open_labels(fed.party("party 0"), ground.labels, ground.rows, fed.rows["party 0"])
    y = joined(fed, fed.columns.training).y
    if task == "number":
        assert abs(np.corrcoef(target[:, 1], y)[0, 1]) > 1 - 1e-9
        assert (measure.offset, measure.scale) == (0.0, 1.0)
    else:
        pairs = set(zip(target.tolist(), y.tolist(), strict=True))
        assert len(pairs) == len(set(y.tolist()))  # one to one
    # sealed: neither code nor label is in what the coordinator forwards
    plain = target[:, 1] if task == "number" else target
    for form in (y, plain):
        for dtype in (np.uint8, np.uint16, np.int32, np.int64, np.float64):
            assert form.astype(dtype).tobytes() not in reply.labels


def test_the_code_is_secret_and_differs():
    codes = set()
    for seed in range(12):
        fed = federate(split(wide("several"), 2), Recorded, random_state=seed)
        sv.VerticalForest(n_estimators=1, max_depth=1).fit(fed)
        ground = asked(fed, FindValues)[0][1].ground
        target, _ = open_labels(fed.party("party 1"), ground.labels, ground.rows, fed.rows["party 0"])
        y = joined(fed, fed.columns.training).y
        codes.add(tuple(int(target[np.flatnonzero(y == c)[0]]) for c in range(4)))
    assert len(codes) > 6  # of 24


def test_the_coordinator_has_no_thresholds():
    fed, model = recorded()
    share = model.shares_["party 1"]
    assert len(share) > 5
    sent = b"".join(fed.transport.data)
    for threshold in share.threshold[~share.categorical]:
        if threshold not in (0.5, 1.5, 2.5, 3.5, 4.5):
            assert np.float32(threshold).tobytes() not in sent
    structure = model.structure_.to_bytes()
    assert share.threshold.tobytes() not in structure


def test_the_whole_forest_needs_all_shares():
    fed = federate(split(wide(), 2))
    model = sv.VerticalForest(**SMALL).fit(fed)
    del model.shares_["party 1"]
    with pytest.raises(sv.InputError, match="the share of party 'party 1' is missing; fit with auditor=True"):
        _ = model.forest_
    audited = sv.VerticalForest(**SMALL, auditor=True).fit(federate(split(wide(), 2), Recorded))
    assert audited.forest_ == sv.PooledForest(**SMALL).fit(fed).forest_


# -- policies


def test_policies_are_enforced():
    tables = split(wide(), 2)
    with pytest.raises(sv.RefusedError, match="leaves of at least 5 rows"):
        sv.VerticalForest(**SMALL).fit(federate(tables, policy=sv.Policy(min_leaf=5)))
    assert sv.VerticalForest(**SMALL, min_samples_leaf=5).fit(federate(tables, policy=sv.Policy(min_leaf=5))).rounds_
    every = [*MATCHING, "EncodeLabels", "FindValues", "SplitNodes", "KeepShare", "ReachLeaves"]
    fed = federate(tables, policy=sv.Policy(messages=every))
    assert len(sv.VerticalForest(**SMALL).fit(fed).predict(fed)) == 240
    with pytest.raises(sv.RefusedError, match="does not allow ShowShare"):
        sv.VerticalForest(**SMALL, auditor=True).fit(fed)
    fed = federate(tables, policy=sv.Policy(messages=[m for m in every if m != "EncodeLabels"]))
    with pytest.raises(sv.RefusedError, match="'party 0' refused EncodeLabels"):
        sv.VerticalForest(**SMALL).fit(fed)


def test_labels_must_be_a_known_way():
    fed = federate(split(wide(), 2))
    with pytest.raises(sv.InputError, match="labels must be"):
        sv.VerticalForest(labels="plain").fit(fed)


# -- parties that reply nonsense

LIES = {
    "too few bits": ("party 1", Sides, {"bits": lambda bits: bits[:-1]}, "a partition with the wrong number of bits"),
    "too many bits": ("party 1", Sides, {"bits": lambda bits: np.append(bits, 0).astype(np.uint8)}, "wrong number of"),
    "bits after the last row": ("party 1", Sides, {"bits": lambda bits: bits | np.uint8(128)}, "a partition"),
    "other rows": ("party 1", Sides, {"bits": lambda bits: ~bits}, "a partition"),
    "no bits": ("party 1", Sides, {"bits": lambda bits: bits[:0]}, "wrong number of bits"),
    "bits of another type": ("party 1", Sides, {"bits": lambda bits: bits.astype(np.int64)}, "do not match the nodes"),
    "more rows than there are": ("party 1", Sides, {"left": lambda left: left + 10**6}, "more rows than the nodes"),
    "fewer than none": ("party 1", Sides, {"left": lambda left: left - 10**6}, "more rows than the nodes"),
    "a side without rows": ("party 1", Sides, {"left": lambda left: left * 0}, "fewer rows than a leaf may have"),
    "other statistics": ("party 1", Sides, {"left": lambda left: left[:, ::-1].copy()}, "not have the promised gain"),
    "sides of fewer nodes": ("party 1", Sides, {"left": lambda left: left[1:]}, "do not match the nodes"),
    "promises": ("party 1", Values, {"values": lambda values: np.abs(values) + 1e6}, "not have the promised gain"),
    "no number": ("party 1", Values, {"values": lambda values: values * np.nan}, "its values are not numbers"),
    "endless": ("party 1", Values, {"values": lambda values: np.full_like(values, np.inf)}, "are not numbers"),
    "values of fewer nodes": ("party 1", Values, {"values": lambda values: values[1:]}, "not as many as the nodes"),
    "roots of no rows": ("party 1", Values, {"totals": lambda totals: totals - 10**6}, "statistics are not possible"),
    "roots of other shape": ("party 1", Values, {"totals": lambda totals: totals[1:]}, "not as many as the nodes"),
    "leaf values of others": (
        "party 1",
        LeafValues,
        {"value": lambda value: np.ones((3, 2))},
        "sent leaf values without being asked",
    ),
    "values of fewer leaves": ("party 0", LeafValues, {"value": lambda value: value[1:]}, "not as many as the leaves"),
    "leaves of no number": (
        "party 0",
        LeafValues,
        {"value": lambda value: value * np.nan},
        "leaf values are not possible",
    ),
    "more than all": ("party 0", LeafValues, {"value": lambda value: value + 2}, "are not possible"),
    "another measure": (
        "party 0",
        LabelsForParties,
        {"labels": lambda data: wire.encode(_measured(wire.decode(data, CodedLabels), n_stats=5))},
        "not those of",
    ),
    "labels that it has not signed": (
        "party 0",
        LabelsForParties,
        {"labels": lambda data: wire.encode(msgspec.structs.replace(wire.decode(data, CodedLabels), sealed=b"others"))},
        "with what it did not sign",
    ),
}


def _measured(labels, **changes):
    return msgspec.structs.replace(labels, measure=msgspec.structs.replace(labels.measure, **changes))


@pytest.mark.parametrize("lie", LIES)
def test_nonsense_replies_of_a_party(lie):
    liar, kind, changes, text = LIES[lie]
    fed = federate(split(wide(n=120), 2), lying(liar, kind, **changes))
    with pytest.raises(sv.SiteError, match=f"'{liar}'.*{text}"):
        sv.VerticalForest(**SMALL).fit(fed)
    assert not [key for name in fed.sites for key in fed.party(name).store._values if key.startswith("share ")] or (
        kind is LeafValues
    )


def test_parties_that_count_different_rows():
    fed = federate(split(wide(), 2), lying("party 1", Values, totals=lambda totals: totals + 1))
    with pytest.raises(sv.FederationError, match="party 'party 1' counts other rows"):
        sv.VerticalForest(**SMALL, max_features=None).fit(fed)


def test_an_auditor_is_not_deceived():
    other = sv.VerticalForest(n_estimators=2, max_depth=2).fit(federate(split(wide(), 2))).shares_["party 1"]
    fed = federate(split(wide(), 2), lying("party 1", ShownShare, share=lambda share: other.to_bytes()))
    with pytest.raises(sv.SiteError, match="not the share of party 'party 1'"):
        sv.VerticalForest(**SMALL, auditor=True).fit(fed)


# -- a coordinator that requests nonsense


def _round(**changes):
    def twist(fed, request):
        if not request.ground.rounds:
            return request
        level = wire.decode(fed.content(request.ground.rounds[0]), Round)
        blob = fed.blob(wire.encode(msgspec.structs.replace(level, **{k: f(level) for k, f in changes.items()})))
        return msgspec.structs.replace(request, ground=msgspec.structs.replace(request.ground, rounds=[blob]))

    return twist


def _ground(**changes):
    def twist(fed, request):
        return msgspec.structs.replace(request, ground=msgspec.structs.replace(request.ground, **changes))

    return twist


NONSENSE = {
    "a node that does not exist": lambda fed, r: msgspec.structs.replace(r, nodes=r.nodes + np.int32(1000)),
    "nodes of another type": lambda fed, r: msgspec.structs.replace(r, nodes=r.nodes.astype(np.int64)),
    "a column that does not exist": lambda fed, r: msgspec.structs.replace(r, features=r.features + np.int32(9)),
    "columns twice": lambda fed, r: msgspec.structs.replace(r, features=np.repeat(r.features[:, :1], 2, axis=1)),
    "roots' statistics of others": lambda fed, r: msgspec.structs.replace(r, totals=True) if r.ground.rounds else r,
    "a partition with other bits": _round(bits=lambda level: level.bits[1:]),
    "a partition of other nodes": _round(nodes=lambda level: level.nodes + np.int32(500)),
    "a partition of a node twice": _round(nodes=lambda level: level.nodes * 0),
    "a partition of another type": _round(nodes=lambda level: level.nodes.astype(np.float64)),
    "a partition of fewer nodes": _round(needed=lambda level: level.needed[1:]),
    "a finer grid than there is": _ground(width=1),
    "columns before the first": _ground(first_column=-1),
}


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_nonsense_requests_of_a_coordinator(nonsense):
    fed = asking(federate(split(wide(), 2)), FindValues, NONSENSE[nonsense])
    with pytest.raises((sv.SiteError, sv.RefusedError), match=r"could not read what it was sent|refused"):
        sv.VerticalForest(**SMALL).fit(fed)


def test_a_split_that_nobody_offered():
    table = wide(n=60)
    tables = {"a": table.select(ID, "label", "age"), "b": table.select(ID).with_columns(constant=1.0)}
    fed = federate(tables)
    sv.VerticalForest(n_estimators=2, max_depth=1, max_features=None).fit(fed)
    [descent] = [v for k, v in fed.party("b").cache.items() if k[0] == "descent"]
    seeds = np.zeros(1, np.uint64)
    assert (descent.find(np.zeros(1, np.int32), np.zeros((1, 1), np.int32), seeds).feature == -1).all()
    recorded = federate(tables, Recorded)
    sv.VerticalForest(n_estimators=2, max_depth=1, max_features=None).fit(recorded)
    ground = next(r.ground for site, r in asked(recorded, FindValues) if site == "b")
    request = SplitNodes(
        ground=ground,
        nodes=np.zeros(1, np.int32),
        features=np.zeros((1, 1), np.int32),
        seeds=seeds,
        deeper=np.ones(1, np.bool_),
    )
    recorded.task, recorded.party("b").outbox = task_of(recorded), None  # which refuses to go back
    with pytest.raises(sv.RefusedError, match="the party has no split for a node"):
        recorded.ask({"b": request})


def test_labels_of_other_rows_are_refused():
    fed, _ = recorded()
    ground, party = asked(fed, FindValues)[0][1].ground, fed.party("party 1")
    with pytest.raises(FormatError, match="not as many as the rows"):
        open_labels(party, ground.labels, ground.rows, 7)
    with pytest.raises(FormatError, match="of other rows"):
        open_labels(party, ground.labels, Blob("0" * 64), fed.rows["party 0"])
    labels = wire.decode(fed.content(ground.labels), CodedLabels)
    one = _measured(labels, n_stats=1, class_weight=(1,))
    few = fed.blob(wire.encode(one))
    party.store.put(f"blob {few.hash}", fed.content(few))
    with pytest.raises(FormatError, match="a label is of no class"):
        open_labels(party, few, ground.rows, fed.rows["party 0"])


# -- restarted parties, stopped coordinators


def test_a_restarted_party_recovers_its_splits():
    fed = federate(split(wide(), 2))
    forgotten = []

    def forget(fed, request):
        for name in fed.sites:
            forgotten.append(len(fed.party(name).cache))
            fed.party(name).cache.clear()
        return request

    again = asking(federate(split(wide(), 2)), KeepShare, forget)
    for parameters in (SMALL, {**SMALL, "max_features": 1, "max_depth": 6}):
        model = sv.VerticalForest(**parameters).fit(again)
        assert model.forest_ == sv.VerticalForest(**parameters).fit(fed).forest_
    assert any(forgotten)


@pytest.mark.parametrize("stop", [1, 4, 9, 14, 20, 21])
def test_a_killed_coordinator_resumes(tmp_path, stop):
    tables, path = split(wide(), 2), str(tmp_path / "journal.db")
    whole = recorded()[1].forest_
    with pytest.raises(Stop):
        sv.VerticalForest(**SMALL).fit(federate(tables, stopping(stop), journal=path))
    seen = []

    class Counting(InProcess):
        def deliver(self, messages, verb, timeout):
            seen.extend(messages)
            return super().deliver(messages, verb, timeout)

    fed = federate(tables, Counting, journal=path)
    model = sv.VerticalForest(**SMALL).fit(fed)
    assert model.forest_ == whole
    assert len(seen) <= 29 - stop
    assert len(model.predict(fed)) == 240


def test_a_share_is_kept_for_good():
    fed = federate(split(wide(), 2), cold=True)
    model = sv.VerticalForest(**SMALL).fit(fed)
    for name in fed.sites:
        assert fed.party(name).store.get(share_key(model.structure_.model)) == model.shares_[name].to_bytes()
    other = sv.VerticalForest(**SMALL, random_state=1).fit(fed)
    assert other.structure_.model != model.structure_.model
    assert model.predict(fed).equals(sv.VerticalForest(**SMALL).fit(fed).predict(fed))


def test_cache_keys_identify_their_content():
    """Two forests on one federation do not share rows."""
    fed = federate(split(wide(), 2))
    first, second = sv.VerticalForest(**SMALL), sv.VerticalForest(**SMALL, bootstrap=False)
    alone = first.fit(fed).forest_
    second.fit(fed)
    assert first.fit(fed).forest_ == alone


def test_a_split_is_cached_for_its_seed_only():
    """Forests differ where columns tie: none uses what another left in a party's memory."""
    frame = wide()
    table = frame.select(ID, "age").with_columns(same=pl.col("age"))
    fed = federate({"a": frame.select(ID, "label"), "b": table})
    hashes = set()
    for seed in range(5):
        parameters = {"n_estimators": 3, "max_depth": 1, "max_features": None, "random_state": seed}
        forest = sv.VerticalForest(**parameters).fit(fed).forest_
        assert forest.hash == sv.PooledForest(**parameters).fit(fed).forest_.hash
        hashes.add(forest.hash)
    assert len(hashes) > 1
