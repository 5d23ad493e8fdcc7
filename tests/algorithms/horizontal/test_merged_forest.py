"""Merged forests: whose trees, how many, with which weight; and invalid trees."""

from dataclasses import replace

import msgspec
import numpy as np
import polars as pl
import pytest
from helpers.studies import TASKS, Recorded, disturbed, envelopes, federate, parts, table
from hypothesis import given
from hypothesis import strategies as st

import silvan as sv
from silvan.algorithms.horizontal.merged_forest import GrowTrees, Trees, share_out
from silvan.algorithms.requests import read_trees
from silvan.errors import FederationError, InputError, RefusedError, SiteError
from silvan.federation import wire
from silvan.federation.message import Envelope
from silvan.forest.forest import Forest
from silvan.tree.fit import Settings

PARAMETERS = {"max_depth": 4, "random_state": 3}


def uneven():
    frame = table(n=200)
    return {"large": frame[:120], "middle": frame[120:180], "small": frame[180:]}


def local(fed, **parameters):
    return sv.LocalForest(**{**PARAMETERS, **parameters}).fit(fed).forests_


def merged(fed, **parameters):
    return sv.MergedForest(**{**PARAMETERS, **parameters}).fit(fed).forest_


# -- weightings


@pytest.mark.parametrize("task", TASKS)
def test_equal_numbers_of_trees_per_site(task):
    fed = federate(parts(table(task), 3))
    forest, own = merged(fed, n_estimators=9), local(fed, n_estimators=3)
    assert len(forest) == 9
    for i, site in enumerate(fed.sites):
        assert forest.take(slice(3 * i, 3 * i + 3)) == own[site].bare()


def test_sites_sample_different_columns():
    """With the same rows in every tree, only the sampled columns make trees differ."""
    same = table(n=100)
    fed = federate({"north": same, "south": same})
    own = local(fed, n_estimators=4, max_features=1, bootstrap=False)
    assert all(own["north"].take([i]) != own["south"].take([i]) for i in range(4))
    alike = local(fed, n_estimators=4, max_features=None, bootstrap=False, max_depth=1)
    assert alike["north"] == alike["south"]


def test_trees_by_share_of_rows():
    """Each site contributes the first of its trees, in proportion to its rows."""
    fed = federate(uneven())
    forest = merged(fed, n_estimators=10, weights="trees")
    own = local(fed, n_estimators=10)
    assert forest.take(slice(0, 6)) == own["large"].take(slice(0, 6))
    assert forest.take(slice(6, 9)) == own["middle"].take(slice(0, 3))
    assert forest.take([9]) == own["small"].take([0])
    assert (forest.weights == 1).all()


def test_votes_by_share_of_rows():
    fed = federate(uneven())
    forest, plain = merged(fed, n_estimators=6, weights="votes"), merged(fed, n_estimators=6)
    assert np.array_equal(forest.weights, np.repeat([0.6, 0.3, 0.1], 2))
    assert forest.feature.tolist() == plain.feature.tolist()
    X = table(seed=9).drop("label")
    own = local(fed, n_estimators=2)
    mean = 0.6 * own["large"].scores(X) + 0.3 * own["middle"].scores(X) + 0.1 * own["small"].scores(X)
    assert np.allclose(forest.scores(X), mean, atol=1e-12)


def test_test_rows_do_not_count_towards_shares():
    fed = federate(uneven(), test=0.5)
    assert np.array_equal(merged(fed, n_estimators=3, weights="votes").weights, np.array([60, 30, 10]) / 100)


def test_the_requested_number_of_trees():
    fed = federate(uneven())
    with pytest.raises(InputError, match="weights must be 'trees', 'votes' or None, got 'rows'"):
        merged(fed, weights="rows")
    assert len(merged(fed, n_estimators=2)) == 2  # fewer trees than sites
    assert sv.MergedForest(n_estimators=1).fit(federate({"only": table()})).rounds_ == 1


def test_a_site_learns_nothing_about_the_others():
    """The number of trees of another site would reveal its number of rows."""
    fed = federate(uneven(), Recorded)
    merged(fed, n_estimators=10, weights="trees")
    for site in fed.sites:
        envelope = envelopes(fed, "received", site)[-1]
        others = [name for name in fed.sites if name != site]
        assert envelope.kind == "GrowTrees"
        assert not any(name.encode() in envelope.body for name in others)


@given(st.integers(1, 200), st.lists(st.integers(1, 10**6), min_size=1, max_size=50))
def test_shares_are_integers_and_fair(n, rows):
    shares = {f"s{i}": r for i, r in enumerate(rows)}
    whole = share_out(n, shares)
    assert list(whole) == list(shares)
    assert sum(whole.values()) == n
    assert min(whole.values()) >= (1 if n >= len(rows) else 0)
    for name, r in shares.items():
        exact = n * r / sum(rows)
        assert whole[name] <= max(np.ceil(exact), 1)  # nobody has more than its share, rounded up
    assert share_out(10, {"a": 6, "b": 3, "c": 1}) == {"a": 6, "b": 3, "c": 1}
    assert share_out(4, {"a": 1000, "b": 1, "c": 1}) == {"a": 2, "b": 1, "c": 1}


# -- small sites


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_sites_with_few_rows(task, n):
    """A tree may sample none of three rows; a site where all trees do so grows them on all of its rows."""
    frame = table(task, n=90)
    tables = {"big": frame[:60]} | {f"s{i}": frame[60 + n * i : 60 + n * i + n] for i in range(10)}
    fed = federate(tables)
    forest = merged(fed, n_estimators=11)
    assert len(forest) == 11
    assert forest.weights.sum() >= 11 - 10
    assert np.isfinite(forest.scores(frame.drop("label"))).all()


@pytest.mark.filterwarnings("ignore:.* absent at")
def test_sites_that_lack_a_class_or_a_column():
    frame = table()
    fed = federate({"yes": frame.filter(pl.col("label") == "yes").drop("age"), "both": table(seed=1)})
    forest = merged(fed, n_estimators=4)
    assert forest.classes.tolist() == ["no", "yes"]
    assert not (forest.take([0, 1]).feature == forest.schema.names.index("age")).any()


# -- what leaves a site


def test_released_trees_have_no_counts():
    fed = federate(uneven(), Recorded)
    sv.MergedForest(n_estimators=3).fit(fed)
    sent = [envelope for envelope in envelopes(fed, "sent") if envelope.kind == "Trees"]
    assert len(sent) == len(fed.sites)
    for envelope in sent:
        forest = Forest.from_bytes(wire.decode(envelope.body, Trees).forest)
        assert forest.gain is None
        with pytest.raises(InputError, match="no gains"):
            forest.importances()


def test_small_leaves_are_refused():
    with pytest.raises(RefusedError, match=r"site 'large' refused GrowTrees.*leaves of at least 2 rows"):
        merged(federate(uneven()), min_samples_leaf=1)
    policy = sv.Policy(min_leaf=1)
    assert merged(federate(uneven(), policy=policy), min_samples_leaf=1)


# -- invalid trees


def spoil(change):
    def twist(site, data):
        envelope = wire.decode(data, Envelope)
        if envelope.kind == "Trees" and site == "middle":
            trees = wire.decode(envelope.body, Trees)
            body = wire.encode(msgspec.structs.replace(trees, forest=change(trees.forest)))
            data = wire.encode(msgspec.structs.replace(envelope, body=body))
        return [(site, data)]

    return disturbed(twist)


def remade(**changes):
    return lambda data: replace(Forest.from_bytes(data), **changes).to_bytes()


SPOILT = {
    "nothing": lambda data: b"",
    "cut short": lambda data: data[:-1],
    "damaged": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "more trees": lambda data: Forest.from_bytes(data).take([0, 1, 2, 2]).to_bytes(),
    "fewer trees": lambda data: Forest.from_bytes(data).take([0]).to_bytes(),
    "too much say": remade(weights=np.array([1.0, 1.0, 1e9])),
    "another schema": lambda data: replace(
        Forest.from_bytes(data), schema=replace_label(Forest.from_bytes(data).schema)
    ).to_bytes(),
}


def replace_label(schema):
    return msgspec.structs.replace(schema, label=msgspec.structs.replace(schema.label, classes=("no", "YES")))


@pytest.mark.parametrize("how", SPOILT)
def test_unusable_trees_are_refused(how):
    with pytest.raises(SiteError, match="site 'middle': answered GrowTrees with something unusable") as caught:
        merged(federate(uneven(), spoil(SPOILT[how])), n_estimators=9)
    assert caught.value.site == "middle"
    fed = federate(uneven(), spoil(SPOILT[how]), quorum=2)
    assert len(merged(fed, n_estimators=9)) == 6
    assert list(fed.lost) == ["middle"]


def test_no_site_sends_trees():
    """The sites that were asked failed; the remaining ones are enough for the quorum."""
    fed = federate(uneven(), disturbed(lambda site, data: [] if b"Trees" in data else [(site, data)]), quorum=1)
    with pytest.raises(FederationError, match="no site answered GrowTrees"):
        merged(fed, n_estimators=2)
    assert fed.active == ["small"]


def test_gains_are_not_copied():
    fed = federate(uneven())
    forest = local(fed, n_estimators=2)["large"]
    assert forest.gain is not None
    assert read_trees(forest.to_bytes(), fed.schema).gain is None


@pytest.mark.parametrize("weights", [[], [1.0], [1.0, 2.0, 3.0]])
def test_weights_of_unknown_classes_are_refused(weights):
    """A coordinator that sends nonsense receives an error, and the site keeps working."""
    fed = federate(parts(table(), 2))
    settings = replace(Settings(n_estimators=2), class_weight=weights)
    request = GrowTrees(
        schema=fed.blob(fed.schema.to_json().encode()),
        settings=settings,
        n_trees=2,
        feature_key=np.zeros(2, np.uint64),
    )
    with pytest.raises(SiteError, match="cannot answer this"):
        fed.ask(request)
    assert "class_weight must have a weight for each of 2 classes" in str(fed.site("site 0").last_error)
