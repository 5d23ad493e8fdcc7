"""The coordinator sees numbers for columns, categories and classes; parties keep their names."""

import msgspec
import polars as pl
import pytest
from helpers.column_studies import ID, SMALL, Recorded, asking, federate, split, wide

import silvan as sv
from silvan.algorithms.vertical.columns import ColumnKinds
from silvan.algorithms.vertical.encoded import FindValues
from silvan.algorithms.vertical.encoded_labels import EncodeLabels
from silvan.algorithms.vertical.party_shares import ShownShare
from silvan.federation import wire
from silvan.forest.forest_shares import Share
from silvan.learners.in_one_place import list_rows

NAMES = ("colour", "height", "pounds", "storey", "green")


def told(fed, kind):
    """Messages of one kind that parties sent."""
    return [
        wire.decode(e.body, kind) for _, way, e in fed.transport.record if way == "sent" and e.kind == kind.__name__
    ]


def test_columns_are_numbers_to_the_coordinator_and_names_to_the_caller():
    fed = federate(split(wide("several"), 2), Recorded)
    coded, named = fed.columns.schema, fed.schema
    assert set(named.names) >= {"age", "colour"}
    assert named.label == sv.Label("label", ("high", "low", "middle", "top"))
    assert coded.label.classes == (0, 1, 2, 3)
    for k, (hidden, feature) in enumerate(zip(coded.features, named.features, strict=True)):
        party = next(party for party, own in fed.owners.items() if k in own)
        assert hidden.name.startswith(f"{party}: column {k - fed.owners[party].start + 1} (")
        assert (hidden.kind, hidden.n_codes, hidden.other) == (feature.kind, feature.n_codes, feature.other)
        assert hidden.categories == (
            None if feature.categories is None else tuple(str(i + 1) for i in range(len(feature.categories)))
        )
    assert not any(name.encode() in data for name in NAMES for data in fed.transport.data)
    # the digits after a number are keyed: another federation of the same tables has others
    assert not set(federate(split(wide("several"), 2)).columns.schema.names) & set(coded.names)


def test_models_have_names_where_shares_are_known():
    fed = federate(split(wide(), 2), Recorded, test=0.25)
    model = sv.VerticalForest(**SMALL, auditor=True).fit(fed)
    assert model.schema_ == model.forest_.schema == fed.schema
    assert model.structure_.schema == fed.columns.schema
    assert set(model.predict(fed)["prediction"]) <= {"no", "yes"}
    assert model.shares_["party 0"].schema.label == fed.schema.label
    del model.shares_["party 1"]
    model.keep(model.structure_, model.shares_)
    assert model.schema_.label == fed.schema.label
    assert all(name.startswith("party 1: column ") for name in model.schema_.names[fed.owners["party 1"].start :])
    # an auditor sees numbers, too
    shown = [Share.from_bytes(reply.share).schema for reply in told(fed, ShownShare)]
    assert len(shown) == 2
    assert all(": column " in name for schema in shown for name in schema.names)
    assert shown[0].label.classes == (0, 1)
    linear = sv.VerticalLinear(tol=0.1).fit(fed)
    assert linear.schema_ == fed.schema
    assert "colour = green" in linear.coefficients()["column"].to_list()
    assert not any(name.encode() in data for name in NAMES for data in fed.transport.data)


def test_a_study_may_disclose_names():
    tables = split(wide(), 2)
    fed = federate(tables, Recorded, names="shown", test=0.25)
    assert fed.columns.schema == fed.schema
    assert "colour" in [feature.name for reply in told(fed, ColumnKinds) for feature in reply.features]
    model = sv.VerticalForest(**SMALL).fit(fed)
    assert model.forest_ == sv.VerticalForest(**SMALL).fit(federate(tables, test=0.25)).forest_
    assert model.structure_.schema == fed.schema
    assert model.evaluate(fed)["auc"].null_count() == 0


def test_a_party_accepts_its_numbers_and_no_names():
    """Otherwise a coordinator could guess names."""

    def guessed(fed, request):
        schema = sv.Schema.from_json(fed.content(request.ground.columns))
        named = sv.Schema((sv.Feature("age"), *schema.features[1:]), schema.label)
        ground = msgspec.structs.replace(request.ground, columns=fed.blob(named.to_json().encode()))
        return msgspec.structs.replace(request, ground=ground)

    fed = asking(federate(split(wide(), 2)), FindValues, guessed)
    with pytest.raises(sv.RefusedError, match="columns go by number here, not by name"):
        sv.VerticalForest(**SMALL).fit(fed)
    for label in (sv.Label("label", ("no", "yes")), sv.Label("label", (0, 1))):
        fed = asking(
            federate(split(wide(), 2)), EncodeLabels, lambda _, r, given=label: msgspec.structs.replace(r, label=given)
        )
        with pytest.raises(sv.RefusedError, match="columns go by number here, not by name"):
            sv.VerticalForest(**SMALL).fit(fed)

    def of_another_kind(fed, request):
        schema = sv.Schema.from_json(fed.content(request.ground.columns))
        turned = [sv.Feature(f.name, "numeric" if f.categorical else "categorical") for f in schema.features]
        blob = fed.blob(sv.Schema(tuple(turned), schema.label).to_json().encode())
        return msgspec.structs.replace(request, ground=msgspec.structs.replace(request.ground, columns=blob))

    fed = asking(federate(split(wide(), 2)), FindValues, of_another_kind)
    with pytest.raises(sv.SiteError, match="could not read what it was sent"):
        sv.VerticalForest(**SMALL).fit(fed)


@pytest.mark.parametrize("settings", [{}, {"random_state": None}], ids=str)
def test_numbers_and_keys_outlive_the_process_with_a_journal(tmp_path, settings):
    tables, path = split(wide(n=90), 2), str(tmp_path / "journal.db")
    first = federate(tables, journal=path, **settings)
    forest = sv.VerticalForest(**SMALL).fit(first).forest_
    keys = [(first.party(name).key, first.party(name).secret) for name in first.sites]
    first.close()
    again = federate(tables, Recorded, journal=path, **settings)
    assert not again.transport.data  # all is in the journal
    assert [(again.party(name).key, again.party(name).secret) for name in again.sites] == keys
    assert again.columns.schema == first.columns.schema
    assert sv.VerticalForest(**SMALL).fit(again).forest_ == forest
    assert sv.VerticalForest(**{**SMALL, "n_estimators": 2}).fit(again).forest_.schema == first.schema


def test_classes_of_a_model_are_its_own():
    """Test rows may have other classes; the label holder uses those of the model."""
    frame = wide("several", n=300)
    model = sv.VerticalForest(**SMALL).fit(federate(split(frame, 2)))
    fewer = frame.filter(frame["label"] != "low")
    judged = federate(split(fewer, 2), test=0.4)
    assert judged.columns.schema.label.classes == (0, 1, 2)
    figures = model.evaluation(judged, candidates=[("federated", model.forest_)]).rows
    kept = pl.DataFrame({ID: list_rows(judged, judged.columns.test)[1]})
    rows = kept.join(model.predict(judged), on=ID).join(fewer.select(ID, "label"), on=ID)
    assert figures[-1].metrics["accuracy"] == pytest.approx((rows["prediction"] == rows["label"]).mean())
