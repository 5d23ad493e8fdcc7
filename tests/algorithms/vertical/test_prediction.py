"""Forests in shares predict like the whole forest; each party's file contains only its share."""

import hashlib
from copy import copy
from dataclasses import replace
from functools import cache

import numpy as np
import polars as pl
import pytest
from experiments.federated_forest.node_by_node import NodeByNode
from helpers.column_studies import ID, SMALL, Recorded, federate, lying, split, wide
from helpers.studies import TASKS

import silvan as sv
from silvan.algorithms.vertical import party_shares
from silvan.algorithms.vertical.party_shares import LeafSets, share_key
from silvan.algorithms.vertical.scores_of_rows import ScoreMetrics
from silvan.forest.forest_shares import Share, Structure
from silvan.learners import in_shares
from silvan.learners.in_one_place import joined, own_schema


@cache
def fitted_once(task, n_parties, parameters):
    return sv.VerticalForest(**{**SMALL, **dict(parameters)}).fit(federate(split(wide(task), n_parties)))


def fitted(task="binary", n_parties=3, **parameters):
    """A model shared by several tests; each works on a copy, whose shares it may delete."""
    model = copy(fitted_once(task, n_parties, tuple(sorted(parameters.items()))))
    model.shares_ = dict(model.shares_)
    return model


def scoring(frame, n_parties=3, **settings):
    """A federation of rows to score, without labels."""
    tables = split(frame.drop("label"), n_parties, holder=-1)
    return federate(tables, label=None, **settings)


@pytest.mark.parametrize(
    ("task", "how"),
    [
        *((task, {}) for task in TASKS),
        *(("several", how) for how in ({"cold": True}, {"random_state": 9}, {"random_state": None})),
    ],
    ids=str,
)
def test_new_rows(task, how):
    model, frame = fitted(task), wide(task, n=100, seed=5)
    fed = scoring(frame, **how)
    before = fed.rounds
    predictions = model.predict(fed)
    assert fed.rounds == before + 1
    assert predictions.columns == [ID, "prediction"]
    whole = dict(zip(frame[ID].to_list(), model.forest_.predict(frame).tolist(), strict=True))
    assert dict(zip(predictions[ID].to_list(), predictions["prediction"].to_list(), strict=True)) == whole
    assert predictions[ID].to_list() == fed.party("party 0").frame[ID].to_list()  # in the order of the first table
    if task != "number":
        shares = model.predict_proba(fed)
        assert shares.columns == [ID, *map(str, model.forest_.classes)]
        expected = model.forest_.predict_proba(frame.sort(ID))
        assert np.array_equal(shares.sort(ID).drop(ID).to_numpy(), expected)  # bit for bit


@pytest.mark.parametrize("task", TASKS)
def test_node_by_node_prediction_takes_more_rounds_and_agrees(task):
    model, fed = fitted(task), scoring(wide(task, n=60, seed=5))
    quick = model.predict(fed)
    before = fed.rounds
    assert NodeByNode.of(model).predict(fed).equals(quick)
    visited = fed.rounds - before
    assert model.structure_.n_leaves / 2 < visited < model.structure_.n_leaves


def test_many_rows_take_several_messages_and_one_round(monkeypatch):
    model, fed = fitted(), scoring(wide(n=90, seed=5), kind=Recorded)
    predictions = model.predict(fed)
    monkeypatch.setattr(party_shares, "_REPLY_BYTES", 200)
    before = fed.rounds
    assert model.predict(fed).equals(predictions)
    assert fed.rounds == before + 1
    assert sum(e.kind == "LeafSets" for _, _, e in fed.transport.record) > 6


def test_the_whole_forest_predicts_a_joined_table():
    model, frame = fitted(), wide(n=50, seed=2)
    assert np.array_equal(model.predict(frame), model.forest_.predict(frame))
    assert np.array_equal(model.predict_proba(frame, site="party 1"), model.forest_.predict_proba(frame))
    assert set(model.forests_) == {"party 0", "party 1", "party 2"}


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda frame: sv.VerticalForest().predict(frame), "not fitted yet"),
        (lambda frame: sv.VerticalForest().predict(scoring(frame)), "not fitted yet"),
        (lambda frame: fitted("number").predict_proba(scoring(frame)), "predict_proba is for classification"),
        (lambda frame: fitted().evaluate(scoring(frame)), "no party holds the label"),
        (lambda frame: fitted().evaluate(federate(split(frame, 2))), "there are no test rows: set test=0.2"),
    ],
)
def test_unsupported_operations(use, said):
    with pytest.raises(sv.InputError, match=said):
        use(wide(n=50, seed=2))


def test_rows_that_a_party_lacks():
    model, frame = fitted(), wide(n=80, seed=3)
    tables = split(frame.drop("label"), 3, holder=-1)
    tables["party 1"] = tables["party 1"].filter(pl.col(ID).is_in(frame[ID].to_list()[10:]))
    tables["party 2"] = tables["party 2"].filter(pl.col(ID).is_in(frame[ID].to_list()[:60]))
    fed = federate(tables, label=None, match="keyed")
    assert len(model.predict(fed)) == 50
    predictions = model.predict(fed, incomplete=True)
    assert model.lacking_ == {"party 0": 0, "party 1": 10, "party 2": 20}
    assert predictions.columns == [ID, "prediction", "lacking"]
    assert predictions["lacking"].value_counts().sort("lacking").rows() == [("", 50), ("party 1", 10), ("party 2", 20)]
    own = {name: [c for c in table.columns if c != ID] for name, table in tables.items()}
    first, last = frame[ID].to_list()[:10], frame[ID].to_list()[60:]
    blanked = frame.with_columns(
        *(pl.when(~pl.col(ID).is_in(first)).then(pl.col(c)).alias(c) for c in own["party 1"]),
        *(pl.when(~pl.col(ID).is_in(last)).then(pl.col(c)).alias(c) for c in own["party 2"]),
    )
    whole = dict(zip(frame[ID].to_list(), model.forest_.predict(blanked).tolist(), strict=True))
    assert dict(zip(predictions[ID].to_list(), predictions["prediction"].to_list(), strict=True)) == whole
    assert NodeByNode.of(model).predict(fed, incomplete=True).equals(predictions)


def test_unseen_categories():
    model, frame = fitted(), wide(n=40, seed=4).with_columns(colour=pl.lit("violet"))
    predictions = model.predict(scoring(frame)).sort(ID)["prediction"].to_list()
    assert predictions == model.forest_.predict(frame.sort(ID)).tolist()


def test_an_id_column_named_like_an_output_column():
    frame = wide(n=40).rename({ID: "prediction"})
    tables = {"a": frame.select("prediction", "age", "label"), "b": frame.select("prediction", "dose")}
    fed = sv.federate_columns(tables, id="prediction", label="label", n_jobs=1)
    with pytest.raises(sv.InputError, match="the id column has the name of a result column, 'prediction'"):
        sv.VerticalForest(n_estimators=2).fit(fed).predict(fed)


# -- parties that leave, lie or lack something


def test_a_party_that_left():
    model, frame = fitted(), wide(n=40, seed=1)
    tables = split(frame.drop("label"), 3, holder=-1)
    del tables["party 1"]
    with pytest.raises(sv.InputError, match="party 'party 1' has a share of this model and is not in the federat"):
        model.predict(federate(tables, label=None))


def test_a_party_that_deleted_its_share():
    model, fed = fitted(), scoring(wide(n=40, seed=1))
    del model.shares_["party 2"]
    with pytest.raises(sv.RefusedError, match=r"'party 2' refused .*: the party has no share of this model"):
        model.predict(fed)


def test_a_table_without_a_column_of_the_model():
    model, frame = fitted(), wide(n=40, seed=1)
    with pytest.raises(sv.SiteError, match="does not fit the study"):
        model.predict(scoring(frame.drop("age", "dose", "sex"), 3))


LIES = {
    "fewer bits": (LeafSets, {"bits": lambda bits: bits[:, 1:].copy()}, sv.SiteError, "wrong number of bits"),
    "fewer rows": (LeafSets, {"bits": lambda bits: bits[1:].copy()}, sv.SiteError, "wrong number of bits"),
    "bits of no leaf": (LeafSets, {"bits": lambda bits: bits | np.uint8(128)}, sv.SiteError, "wrong number of bits"),
    "no leaf": (LeafSets, {"bits": lambda bits: bits * np.uint8(0)}, sv.FederationError, "do not meet in one leaf"),
}


@pytest.mark.parametrize("lie", LIES)
def test_malformed_leaf_sets_are_refused(lie):
    kind, changes, error, text = LIES[lie]
    model = next(m for m in (fitted(random_state=s) for s in range(9)) if m.structure_.n_leaves % 8)
    fed = scoring(wide(n=40, seed=1), kind=lying("party 1", kind, **changes))
    with pytest.raises(error, match=text):
        model.predict(fed)


# -- files


@pytest.mark.parametrize("task", TASKS)
def test_files(task, tmp_path):
    model, frame = fitted(task, class_weight=None if task == "number" else "balanced"), wide(task, n=30, seed=1)
    model.save(tmp_path / "model")
    names = sorted(path.name for path in (tmp_path / "model").iterdir())
    assert names == ["parameters.json", *(f"party {k}.share.silvan" for k in range(3)), "structure.silvan"]
    again = sv.VerticalForest.load(tmp_path / "model")
    assert again.forest_ == model.forest_
    assert again.get_params() == model.get_params()
    assert again.predict(scoring(frame)).equals(model.predict(scoring(frame)))
    assert again.forest_.importances() == model.forest_.importances()
    model.save(tmp_path / "again")
    for name in names:
        assert (tmp_path / "model" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_a_party_that_deletes_its_file(tmp_path):
    model = fitted()
    model.save(tmp_path)
    share = model.shares_["party 1"]
    (tmp_path / "party 1.share.silvan").unlink()
    rest = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert share.feature.tobytes() not in rest
    for threshold in share.threshold[~share.categorical]:
        if threshold not in (0.5, 1.5, 2.5, 3.5, 4.5):
            assert np.float32(threshold).tobytes() not in rest
    again = sv.VerticalForest.load(tmp_path)
    with pytest.raises(sv.InputError, match="the share of party 'party 1' is missing"):
        _ = again.forest_
    with pytest.raises(sv.RefusedError, match="'party 1' refused"):
        again.predict(scoring(wide(n=20)))
    fed = scoring(wide(n=20))
    fed.party("party 1").store.put(share_key(share.model), share.to_bytes())  # it has a copy after all
    assert again.predict(fed).equals(model.predict(scoring(wide(n=20))))


def test_an_incomplete_folder_has_no_model(tmp_path, monkeypatch):
    model, other = fitted(), fitted(random_state=1)
    write = in_shares.write_whole

    def full(path, data):
        if path.name == "structure.silvan":
            raise OSError("no space left")
        write(path, data)

    monkeypatch.setattr(in_shares, "write_whole", full)
    with pytest.raises(OSError, match="no space"):
        model.save(tmp_path / "new")
    with pytest.raises(sv.InputError, match="there is no file"):
        sv.VerticalForest.load(tmp_path / "new")
    monkeypatch.setattr(in_shares, "write_whole", write)
    other.save(tmp_path / "old")
    monkeypatch.setattr(in_shares, "write_whole", full)
    with pytest.raises(OSError, match="no space"):
        model.save(tmp_path / "old")
    with pytest.raises(sv.FormatError, match="not the share of party"):
        sv.VerticalForest.load(tmp_path / "old")


def test_changed_files(tmp_path):
    model = fitted()
    model.save(tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.iterdir() if path.suffix == ".silvan"}
    for path, data in files.items():
        damaged = [data[:cut] for cut in (0, 7, 40, len(data) - 1)]
        for place in np.random.default_rng(0).integers(8, len(data), 12).tolist():
            changed = bytearray(data)
            changed[place] ^= 4
            damaged.append(bytes(changed))
        for some in damaged:
            path.write_bytes(some)
            with pytest.raises(sv.FormatError, match=path.name):
                sv.VerticalForest.load(tmp_path)
        path.write_bytes(data)
    fitted(random_state=1).save(tmp_path / "other")
    (tmp_path / "other" / "party 0.share.silvan").rename(tmp_path / "party 0.share.silvan")
    with pytest.raises(sv.FormatError, match="not the share of party 'party 0'"):
        sv.VerticalForest.load(tmp_path)
    with pytest.raises(sv.InputError, match=r"is .* a saved model"):
        sv.VerticalForest.load(tmp_path / "nowhere")


def doctored(data, kind, **changes):
    """Changes arrays of a file and makes its digest valid again."""
    return replace(kind.from_bytes(data), **changes).to_bytes()


def test_malicious_files_are_refused():
    model = fitted()
    share, structure = model.shares_["party 0"], model.structure_
    assert len(share) > 3
    for changes in (
        {"first": share.first - 1000},
        {"last": share.last + 10**9},
        {"middle": share.first},
        {"feature": share.feature + 100},
        {"feature": share.feature - 100},
        {"threshold": share.threshold * np.float32(np.inf)},
        {"node": share.node * 0},
        {"n_leaves": 1},
        {"words": share.words[:1]},
        {"first": share.first[::-1].copy(), "middle": share.middle[::-1].copy(), "last": share.last[::-1].copy()},
    ):
        with pytest.raises(sv.FormatError), np.errstate(all="ignore"):
            Share.from_bytes(doctored(share.to_bytes(), Share, **changes))
    for changes in (
        {"owner": structure.owner + 7},
        {"owner": np.zeros_like(structure.owner)},
        {"owner": structure.owner[::-1].copy()},
        {"offsets": structure.offsets[:-1]},
        {"offsets": structure.offsets * 0},
        {"weights": structure.weights * 2},
        {"value": structure.value[:-1]},
        {"value": structure.value[:, :1]},
        {"label_holder": "nobody"},
        {"columns": (1, 2, 3)},
    ):
        with pytest.raises(sv.FormatError):
            Structure.from_bytes(doctored(structure.to_bytes(), Structure, **changes))
    assert (
        hashlib.sha256(share.to_bytes()).digest()
        == hashlib.sha256(Share.from_bytes(share.to_bytes()).to_bytes()).digest()
    )


def test_party_names_need_not_be_file_names(tmp_path):
    frame = wide(n=60)
    tables = {"a/b": frame.select(ID, "age", "label"), "..": frame.select(ID, "dose", "sex")}
    model = sv.VerticalForest(n_estimators=2, max_depth=2).fit(federate(tables))
    model.save(tmp_path / "here")
    assert [p.name for p in tmp_path.iterdir()] == ["here"]
    assert sv.VerticalForest.load(tmp_path / "here").forest_ == model.forest_


# -- evaluating


@pytest.mark.parametrize("task", TASKS)
def test_evaluate(task):
    fed = federate(split(wide(task, n=500), 2), test=0.4)
    model = sv.VerticalForest(n_estimators=10, max_depth=5).fit(fed)
    rounds = fed.rounds
    table = model.evaluate(fed)
    assert fed.rounds == rounds  # counted apart
    lines = list(zip(table["site"].to_list(), table["model"].to_list(), strict=True))
    names = ["local", "federated", "pooled"]
    assert lines == [
        *(("party 0", name) for name in names),
        *(("party 1", name) for name in names),
        ("all", "federated"),
        ("all", "pooled"),
    ]
    first = table.columns[3]
    figures = dict(zip(lines, table[first].to_list(), strict=True))
    assert figures["all", "federated"] == pytest.approx(figures["all", "pooled"], rel=1e-12)
    assert figures["party 0", "local"] != figures["party 1", "local"]
    assert set(table["rows"].to_list()) == {len(fed.columns.test)}
    part = joined(fed, fed.columns.test)
    if task == "number":
        errors = model.forest_.predict(part.X) - part.y
        assert figures["all", "federated"] == pytest.approx(np.sqrt((errors**2).mean()))
    else:
        [accuracy] = table.filter(site="all", model="federated")["accuracy"].to_list()
        assert accuracy == pytest.approx((model.forest_.scores(part.X).argmax(axis=1) == part.y).mean())
    local = sv.LocalForest(n_estimators=10, max_depth=5).fit(fed)
    same = local.evaluate(fed).filter(model="local")[first].to_list()
    assert same == [figures["party 0", "local"], figures["party 1", "local"]]
    assert local.forests_["party 1"].schema.names == own_schema(fed, "party 1").names
    fresh = wide(task, n=100, seed=8)
    assert set(model.evaluate(fed, fresh)["rows"].to_list()) == {100}
    assert set(sv.PooledForest(**SMALL).fit(fed).evaluate(fed)["model"].to_list()) == set(names)


def test_malformed_metrics_are_refused():
    fed = federate(split(wide(), 2), lying("party 0", ScoreMetrics, metrics=lambda f: f[1:]), test=0.3)
    model = sv.VerticalForest(**SMALL).fit(fed)
    with pytest.raises(sv.SiteError, match="its metrics are not the ones requested"):
        model.evaluate(fed)
