"""Characteristic vectors: what a site discloses, on which scale, and what it refuses."""

import math

import numpy as np
import polars as pl
import pytest
from helpers.asking import send, trouble
from helpers.studies import Recorded, disturbed, federate, parts, table

import silvan as sv
from silvan.algorithms.bofrf.clusters import (
    DIGITS,
    METRICS,
    SCALES,
    Characterise,
    Characteristics,
    characterise,
    cluster_sites,
    entry_names,
    find_bounds,
    find_clusters,
    find_distances,
    grid_bounds,
)
from silvan.data.bins import grid
from silvan.data.bins.grid import Grid
from silvan.data.schema import Feature, Label, Schema
from silvan.errors import AgreementError, InputError, RefusedError, SiteError
from silvan.federation import wire
from silvan.federation.describe import FLOOR
from silvan.federation.message import Blob, Envelope
from silvan.federation.site import Site
from silvan.federation.store import digest

pytestmark = pytest.mark.filterwarnings("ignore:'height' is absent at young 3")  # see the docstring of ``unlike``


def unlike(n=80, seed=0):
    """Five sites: two old, three young; one of the young ones has no heights, and wards differ."""
    rng = np.random.default_rng(seed)
    tables = {}
    for name, age in {"old 1": 70, "young 1": 20, "old 2": 72, "young 2": 30, "young 3": 36}.items():
        ward = rng.choice(["a", "b", "c"], n, p=[0.6, 0.3, 0.1] if age > 50 else [0.2, 0.3, 0.5])
        columns = {
            "age": rng.normal(age, 5, n),
            "ward": ward,
            "height": rng.normal(170, 9, n),
            "smokes": rng.integers(0, 2, n),
            "label": rng.choice(["no", "yes"], n),
        }
        if name == "young 3":
            del columns["height"]
        tables[name] = pl.DataFrame(columns)
    return tables


TOGETHER = [["old 1", "old 2"], ["young 1", "young 2", "young 3"]]


@pytest.fixture(scope="module")
def five():
    return federate(unlike())


# -- the scale


def test_bounds_leave_enough_rows_outside():
    table_grid = Grid.for_columns(3)
    values = np.arange(1, 101, dtype=np.float32)
    values[[0, -1]] = -5000.0, 86753.0625  # outliers, which must not be disclosed
    counts = grid.coarse_counts(grid.images(values), table_grid.coarse, table_grid.n_cells)
    low, high = grid_bounds(counts, table_grid)
    tenth, ninetieth = np.sort(values)[[FLOOR - 1, -FLOOR]]
    assert low < tenth <= low * 33 / 32 * 1.001
    assert high * 31 / 32 <= ninetieth <= high
    assert low not in values
    few = grid.coarse_counts(grid.images(values[: FLOOR - 1]), table_grid.coarse, table_grid.n_cells)
    assert np.isnan(grid_bounds(few, table_grid)).all()


@pytest.mark.parametrize("n", [FLOOR, FLOOR + 1, 2 * FLOOR - 2, 2 * FLOOR - 1, 2 * FLOOR, 500])
def test_bounds_are_increasing(n):
    table_grid = Grid.for_columns(1)
    for seed, scale in enumerate([1e-30, 1.0, 1e30]):
        values = np.random.default_rng(seed).normal(0, scale, n).astype(np.float32)
        for column in (values, np.zeros(n, np.float32), np.full(n, 3.4e38, np.float32), np.full(n, -7.0, np.float32)):
            low, high = grid_bounds(
                grid.coarse_counts(grid.images(column), table_grid.coarse, table_grid.n_cells), table_grid
            )
            assert low < high
            assert low <= np.median(column.astype(np.float64)) <= high


def test_zeros_and_ones_keep_their_mean():
    rng = np.random.default_rng(0)
    tables = {
        name: pl.DataFrame({"x": (rng.random(200) < share).astype(int), "label": rng.integers(0, 2, 200)})
        for name, share in {"a": 0.2, "b": 0.7}.items()
    }
    fed = federate(tables)
    vectors = characterise(fed, fed.schema)
    for name, frame in tables.items():
        assert vectors[name][0] == pytest.approx(frame["x"].mean(), abs=0.6 * 10**-DIGITS)


def test_bounds_in_the_schema_save_a_round():
    schema = Schema.of(
        [
            Feature("age", bounds=(0, 120)),
            Feature("height", edges=(150.0, 160.0, 190.0)),
            Feature("smokes", edges=(0.5,)),
        ],
        Label("label", ("no", "yes")),
    )
    fed = federate(unlike(), schema=schema)
    before = fed.rounds
    bounds = find_bounds(fed, schema)
    assert fed.rounds == before
    assert bounds[:2].tolist() == [[0, 120], [150, 190]]
    vectors = characterise(fed, schema)
    assert fed.rounds == before + 1
    for name, frame in unlike().items():
        age, height, smokes = vectors[name]
        assert age == pytest.approx(frame["age"].mean() / 120, abs=1e-3)
        assert smokes == pytest.approx(frame["smokes"].mean(), abs=1e-3)
        if "height" in frame.columns:
            assert height == pytest.approx(((frame["height"].clip(150, 190) - 150) / 40).mean(), abs=1e-3)
        else:
            assert math.isnan(height)


# -- the vectors


def test_vectors_equal_plain_arithmetic(five):
    bounds = dict(zip(five.schema.names, find_bounds(five, five.schema).tolist(), strict=True))
    names, vectors = entry_names(five.schema), characterise(five, five.schema)
    assert names == ["age", "ward = a", "ward = b", "ward = c", "height", "smokes"]
    for site, frame in unlike().items():
        vector = dict(zip(names, vectors[site].tolist(), strict=True))
        for name in ("age", "height", "smokes"):
            if name in frame.columns:
                low, high = bounds[name]
                scaled = ((frame[name].cast(pl.Float64) - low) / (high - low)).clip(0, 1)
                assert vector[name] == pytest.approx(scaled.mean(), abs=0.6 * 10**-DIGITS)
            else:
                assert math.isnan(vector[name])
        for ward in "abc":
            assert vector[f"ward = {ward}"] == pytest.approx((frame["ward"] == ward).mean(), abs=0.6 * 10**-DIGITS)


def test_missing_values_and_other_categories():
    fed = federate(parts(table("binary", n=400), 2))
    names = entry_names(fed.schema)
    assert "ward = other" in names
    vectors = characterise(fed, fed.schema)
    for site, frame in parts(table("binary", n=400), 2).items():
        vector, wards = dict(zip(names, vectors[site].tolist(), strict=True)), frame["ward"].drop_nulls()
        assert vector["ward = a"] == pytest.approx((wards == "a").mean(), abs=0.6 * 10**-DIGITS)
        named = [name.removeprefix("ward = ") for name in names if name.startswith("ward = ")]
        assert vector["ward = other"] == pytest.approx((~wards.is_in(named)).mean(), abs=0.6 * 10**-DIGITS)


def test_only_training_rows_are_described():
    """Test rows are not used, so clustering does not leak the test set into training."""
    frame = unlike()["old 1"]
    schema = Schema.of([Feature("age", bounds=(0, 120))], Label("label", ("no", "yes")))
    fed = federate({"a": frame, "b": frame}, schema=schema, test=0.4)
    for name, vector in characterise(fed, schema).items():
        train = fed.site(name).part(schema).X[:, 0]
        assert vector[0] == pytest.approx(train.mean() / 120, abs=1e-3)
        assert vector[0] != pytest.approx(frame["age"].mean() / 120, abs=1e-5)


def test_a_few_values_are_not_disclosed():
    """A mean of nine rows is withheld; nine values count as none."""
    rng = np.random.default_rng(0)
    x = np.full(50, None)
    x[: FLOOR - 1] = rng.normal(size=FLOOR - 1)
    sparse = pl.DataFrame({"x": x.tolist(), "z": rng.normal(size=50), "label": rng.integers(0, 2, 50)})
    full = sparse.with_columns(pl.Series("x", rng.normal(size=50)))
    fed = federate({"sparse": sparse, "full": full})
    vectors = characterise(fed, fed.schema)
    assert np.isnan(vectors["sparse"]).tolist() == [True, False]
    assert not np.isnan(vectors["full"]).any()


def test_only_rounded_values_leave():
    fed = federate(unlike(), Recorded)
    characterise(fed, fed.schema)
    bodies = [wire.decode(data, Envelope) for _, way, data in fed.transport.record if way == "sent"]
    vectors = [wire.decode(e.body, Characteristics).vector for e in bodies if e.kind == "Characteristics"]
    assert len(vectors) == 5
    assert all(np.array_equal(v, np.round(v, DIGITS), equal_nan=True) for v in vectors)


# -- clusters


@pytest.mark.parametrize("metric", METRICS)
def test_similar_sites_share_a_cluster(metric, five):
    before = five.rounds
    assert list(find_clusters(five, five.schema, 2, metric, first="old 2").members.values()) == TOGETHER
    assert five.rounds == before + 2


def test_clusters_follow_from_the_vectors():
    tables = unlike()
    del tables["young 3"]
    fed = federate(tables)
    vectors = characterise(fed, fed.schema)
    for k in (1, 2, 3, 4):
        for seed in range(3):
            mine = find_clusters(fed, fed.schema, k, random_state=seed)
            assert mine.members == cluster_sites(vectors, k, random_state=seed)


@pytest.mark.parametrize("kind", ["cold", "resumed"])
def test_the_result_does_not_depend_on_the_backend(kind, tmp_path, five):
    settings = {"cold": True} if kind == "cold" else {"journal": str(tmp_path / "journal")}
    for _ in range(2):
        fed = federate(unlike(), **settings)
        vectors = characterise(fed, fed.schema)
        assert all(np.array_equal(vectors[s], v, equal_nan=True) for s, v in characterise(five, five.schema).items())
        assert list(find_clusters(fed, fed.schema, 2, first="old 2").members.values()) == TOGETHER
        fed.close()


def test_a_numeric_label_changes_nothing():
    fed = federate({name: t.with_columns(pl.col("age").alias("label")) for name, t in unlike().items()})
    assert list(find_clusters(fed, fed.schema, 2, first="old 2").members.values()) == TOGETHER


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"k": 6}, "from 1 to the 5 sites"),
        ({"metric": "cosine"}, "metric must be"),
        ({"first": "nowhere"}, "first must be one of the sites"),
        ({"random_state": 0.5}, "random_state must be"),
    ],
)
def test_useless_requests_are_not_sent(change, said, five):
    before = five.rounds
    with pytest.raises(InputError, match=said):
        find_clusters(five, five.schema, **{"k": 2, **change})
    assert five.rounds == before


@pytest.mark.filterwarnings("ignore:'[xz]' is absent at [ab]")
def test_sites_without_a_common_column_cannot_be_compared():
    y = np.random.default_rng(0).integers(0, 2, 30)
    x = np.arange(30.0)
    fed = federate({"a": pl.DataFrame({"x": x, "label": y}), "b": pl.DataFrame({"z": x, "label": y})})
    with pytest.raises(AgreementError, match="'a' and 'b' cannot be compared"):
        find_clusters(fed, fed.schema, 2)
    tiny = {**unlike(), "tiny": unlike()["old 1"].head(FLOOR - 1)}
    fed = federate(tiny)
    with pytest.raises(AgreementError, match=r"^site 'tiny' cannot be compared: .* leave the site out"):
        find_clusters(fed, fed.schema, 2)


def test_a_lost_site_is_left_out():
    def lose(site, data):
        kind = wire.decode(data, Envelope).kind
        return (
            [(site, TimeoutError("within 1 s"))] if (site, kind) == ("young 1", "Characteristics") else [(site, data)]
        )

    fed = federate(unlike(), disturbed(lose), quorum=3)
    found = find_clusters(fed, fed.schema, 2, first="old 2")
    assert list(found.members.values()) == [["old 1", "old 2"], ["young 2", "young 3"]]
    fed = federate(unlike(), disturbed(lose), quorum=3)
    with pytest.raises(InputError, match="first must be one of the sites"):
        find_clusters(fed, fed.schema, 2, first="young 1")


# -- what sites and coordinator refuse


def lied(change):
    """A federation in which one site's vector is replaced."""

    def lie(site, data):
        envelope = wire.decode(data, Envelope)
        if site != "old 2" or envelope.kind != "Characteristics":
            return [(site, data)]
        vector = change(wire.decode(envelope.body, Characteristics).vector)
        body = wire.encode(Characteristics(vector=vector))
        return [(site, wire.encode(Envelope(envelope.study, envelope.question, site, envelope.kind, body)))]

    return federate(unlike(), disturbed(lie))


def put(vector, at, value):
    vector[at] = value
    return vector


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda v: v[:-1], "another size"),
        (lambda v: v.astype(np.float32), "another size"),
        (lambda v: put(v, 0, 1.01), "between 0 and 1"),
        (lambda v: put(v, 0, -0.01), "between 0 and 1"),
        (lambda v: put(v, 0, math.inf), "between 0 and 1"),
        (lambda v: put(v, 2, math.nan), "between 0 and 1"),  # a single share out of three
        (lambda v: put(v, slice(1, 4), [0.9, 0.9, 0.9]), "do not add up"),
    ],
)
def test_an_impossible_vector_is_refused(change, said):
    fed = lied(change)
    with pytest.raises(SiteError, match=f"'old 2'.*{said}"):
        characterise(fed, fed.schema)


def test_an_honest_vector_passes():
    """Shows that the test above can fail."""
    fed = lied(lambda v: v)
    assert list(find_clusters(fed, fed.schema, 2, first="old 2").members.values()) == TOGETHER
    fed = lied(lambda v: put(v, slice(1, 4), math.nan))
    assert np.isnan(find_distances(characterise(fed, fed.schema), fed.schema)).sum() == 0


SCHEMA = Schema.of(["age", Feature("ward", "categorical", categories=("a", "b", "c"))], Label("label", ("no", "yes")))


def asked(site, bounds, schema=SCHEMA):
    data = schema.to_json().encode()
    return send(site, Characterise(schema=Blob(digest(data)), bounds=np.asarray(bounds)), blobs=[data])


NAN = [math.nan, math.nan]


@pytest.mark.parametrize(
    "bounds",
    [
        [[0.0, 100.0]],
        [0.0, 100.0],
        np.array([[0.0, 100.0], NAN], np.float32),
        [[0.0, 100.0], [0.0, 3.0]],  # of a categorical feature
        [[100.0, 0.0], NAN],
        [[50.0, 50.0], NAN],
        [[0.0, math.inf], NAN],
        [[math.nan, 100.0], NAN],
        [[-1.7e308, 1.7e308], NAN],
    ],
)
def test_a_site_refuses_malformed_bounds(bounds):
    site = Site("here", unlike()["old 1"], n_jobs=1)
    assert trouble(asked(site, bounds)).code == "format"
    assert asked(site, [[0.0, 100.0], NAN]).kind == "Characteristics"


def test_the_number_of_scales_is_limited():
    """Shares above a moving threshold would locate each row."""
    site = Site("here", unlike()["old 1"], n_jobs=1)
    scales = [[[t, t + 1e-6], NAN] for t in np.linspace(60, 80, SCALES + 1)]
    first = [asked(site, scale).body for scale in scales[:SCALES]]
    refused = trouble(asked(site, scales[SCALES]))
    assert refused.code == "refused"
    assert f"at most {SCALES} scales" in refused.text
    again = site.rebuilt()
    assert [asked(again, scale).body for scale in scales[:SCALES]] == first  # it repeats what it disclosed before
    assert trouble(asked(again, scales[SCALES])).code == "refused"


def test_the_number_of_category_sets_is_limited():
    site = Site("here", unlike()["old 1"], n_jobs=1)
    codes = []
    for i in range(SCALES + 1):
        guess = Feature("ward", "categorical", categories=(f"guess {i}",), other=True)
        envelope = asked(site, [[0.0, 100.0], NAN], Schema.of(["age", guess], Label("label", ("no", "yes"))))
        codes.append(envelope.kind)
    assert codes == ["Characteristics"] * SCALES + ["Trouble"]


def test_a_policy_can_forbid_it():
    fed = federate(unlike(), policy=sv.Policy(messages=("Describe", "CountCategories", "NameCategories", "CountGrid")))
    with pytest.raises(RefusedError, match="policy does not allow Characterise"):
        find_clusters(fed, fed.schema, 2)
