"""Bins from sums equal the bins of all rows in one place."""

import numpy as np
import pytest
from helpers.asking import send, trouble
from helpers.examples import examples
from helpers.studies import TASKS, Recorded, federate, parts, table
from hypothesis import given
from hypothesis import strategies as st

from silvan.algorithms.shared_bins import (
    CountFine,
    CountGrid,
    CutPoints,
    bins_of,
    coarse_table,
    find_shared_bins,
    label_counts,
    pooled_bins,
)
from silvan.data.bins import grid
from silvan.data.bins.bins import find_bins
from silvan.data.bins.cut_points import staggered_bins
from silvan.data.bins.grid import Grid
from silvan.data.schema import Feature, Label, Schema
from silvan.errors import FormatError
from silvan.federation import wire
from silvan.federation.describe import FLOOR
from silvan.federation.message import Blob, Envelope
from silvan.federation.part import Part
from silvan.federation.site import Site
from silvan.federation.store import digest


def same_cuts(a, b):
    assert len(a.cuts) == len(b.cuts)
    for one, other in zip(a.cuts, b.cuts, strict=True):
        assert one.dtype == other.dtype == np.float32
        assert np.array_equal(one, other)
    assert np.array_equal(a.n_bins, b.n_bins)
    assert np.array_equal(a.shift, b.shift)


def gathered(fed):
    members = [fed.site(name).part(fed.schema) for name in fed.sites]
    return Part(*(np.concatenate([getattr(m, field) for m in members]) for field in ("X", "y", "row_keys")))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("n_sites", "max_bins"), [(1, 16), (3, 2), (3, 16), (3, 255), (40, 16)])
def test_bins_of_a_federation(task, max_bins, n_sites):
    fed = federate(parts(table(task), n_sites))
    bins, blob, label, _ = find_shared_bins(fed, fed.schema, max_bins)
    rows = gathered(fed)
    same_cuts(bins, pooled_bins(rows, fed.schema, max_bins))
    same_cuts(bins, find_bins(rows.X, fed.schema, max_bins, floor=FLOOR, staggered=True)[0])
    assert np.array_equal(label, label_counts(rows.y, fed.schema))
    if max_bins <= 16:
        assert len(bins.cuts[0]) == 4 * (max_bins - 1) - 1
        assert bins.n_bins[0] == max_bins + 1
    # what travels to the sites equals what the coordinator has
    site = fed.site(fed.sites[0])
    site.store.put(f"blob {blob.hash}", fed.content(blob))
    same_cuts(bins, bins_of(site, blob, fed.schema))


columns = st.sampled_from(["ties", "wide", "narrow", "negative", "tiny", "constant", "missing", "codes"])


@given(
    st.lists(columns, min_size=1, max_size=4),
    st.integers(0, 2**32 - 1),
    st.integers(1, 400),
    st.integers(1, 6),
    st.sampled_from([2, 3, 10, 64, 255]),
)
@examples(40)
def test_bins_for_any_rows(kinds, seed, n, n_sites, max_bins):
    rng = np.random.default_rng(seed)
    make = {
        "ties": lambda: rng.integers(0, 6, n) / 3,
        "wide": lambda: 10.0 ** rng.uniform(-30, 30, n),
        "narrow": lambda: 1000 + rng.normal(size=n) * 1e-3,
        "negative": lambda: rng.normal(size=n),
        "tiny": lambda: rng.normal(size=n) * 1e-42,
        "constant": lambda: np.full(n, 7.5),
        "missing": lambda: np.where(rng.random(n) < 0.7, np.nan, rng.normal(size=n)),
        "codes": lambda: rng.integers(0, 3, n),
    }
    X = np.stack([make[kind]() for kind in kinds], axis=1).astype(np.float32)
    features = [
        Feature(f"x{i}", "categorical", categories=("a", "b", "c")) if kind == "codes" else Feature(f"x{i}")
        for i, kind in enumerate(kinds)
    ]
    schema = Schema.of(features, Label("y", (0, 1)))
    y = rng.integers(0, 2, n).astype(np.int32)
    keys = np.arange(n, dtype=np.uint64)
    site, whole = rng.integers(0, n_sites, n), Part(X, y, keys)
    split = [Part(X[site == i], y[site == i], keys[site == i]) for i in range(n_sites)]
    assert np.array_equal(sum(coarse_table(part, schema) for part in split), coarse_table(whole, schema))
    bins = pooled_bins(whole, schema, max_bins)
    found, codes = find_bins(X, schema, max_bins, floor=FLOOR, staggered=True)
    same_cuts(bins, found)
    assert np.array_equal(bins.apply(X), codes)


@pytest.mark.parametrize("n_columns", [1, 100, 1000])
def test_wide_tables_get_a_coarser_grid(n_columns):
    rng = np.random.default_rng(0)
    X = np.tile(rng.normal(size=(300, 1)).astype(np.float32), (1, n_columns))
    schema = Schema.of([f"x{i}" for i in range(n_columns)], Label("label", (0, 1)))
    fed = federate({"a": (X[:100], [0, 1] * 50), "b": (X[100:], [0, 1] * 100)}, Recorded, schema=schema)
    bins = find_shared_bins(fed, schema, 32).bins
    assert all(np.array_equal(c, bins.cuts[0]) for c in bins.cuts)
    same_cuts(bins, find_bins(X, schema, 32, floor=FLOOR, staggered=True)[0])


@given(st.integers(0, 2**32), st.integers(2, 300), st.sampled_from([2, 5, 16, 64, 200]))
@examples(25)
def test_the_bound_on_rows_per_bin_holds(seed, n, max_bins):
    """Masked sums are packed by this bound: it holds for any cut points of a tree, and some tree reaches it."""
    rng = np.random.default_rng(seed)
    X = np.stack([rng.normal(size=n), rng.integers(0, 7, n), rng.integers(-3, 90, n), rng.normal(size=n)], axis=1)
    X[rng.random(n) < 0.4, 0] = np.nan
    X[:, 2] = np.where(X[:, 2] > 80, -1e30, X[:, 2] * 10.0 ** (X[:, 2] % 9))
    X, y = X.astype(np.float32), [i // 2 % 2 for i in range(n)]
    features = Feature("x0"), Feature("x1"), Feature("x2"), Feature("x3", edges=(-1.0, 0.5))
    schema = Schema(features, Label("label", (0, 1)))
    fed = federate({"a": (X[::2], y[::2]), "b": (X[1::2], y[1::2])}, schema=schema)
    bins, _, _, most = find_shared_bins(fed, fed.schema, max_bins)
    codes = bins.apply(X).astype(np.int64)
    for f in range(4):
        shift = int(bins.shift[f])
        held = [np.bincount((codes[:, f] + offset) >> shift).max() for offset in range(1 << shift)]
        assert most[f] == (n if f == 3 else max(held))


def test_cuts_are_never_values_of_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(50, 10, (500, 3)).astype(np.float32)
    fed = federate({"a": (X[:250], [0, 1] * 125), "b": (X[250:], [0, 1] * 125)})
    bins = find_shared_bins(fed, fed.schema, 64).bins
    for f in range(3):
        assert len(bins.cuts[f]) == 251
        assert not np.isin(bins.cuts[f], X[:, f]).any()


def test_only_cells_with_enough_rows_are_refined():
    """Nine rows in a cell, over two sites together, stay nine rows in a cell."""
    x = np.concatenate([np.linspace(1.001, 1.029, FLOOR - 1), np.linspace(100.1, 100.9, FLOOR)])
    fed = federate({"a": (x[::2, None], [0, 1] * 5), "b": (x[1::2, None], [0, 1] * 4 + [0])}, Recorded)
    find_shared_bins(fed, fed.schema, 64)
    asked = [wire.decode(d, Envelope) for _, way, d in fed.transport.record if way == "received"]
    [fine] = {e.body for e in asked if e.kind == "CountFine"}
    cells = wire.decode(fine, CountFine).cells
    middle = Grid.for_columns(1).middle
    assert len(cells) == 1
    assert cells[0] > middle + int(np.float32(64).view(np.int32) >> Grid.for_columns(1).coarse)


# -- requests that a site must refuse

SCHEMA = Schema.of(["age", "dose"], Label("label", ("no", "yes")))
SCHEMA_DATA = SCHEMA.to_json().encode()


def fine(columns=(0, 0, 1), cells=(5, 9, 2), shifts=(10, 10, 10), dtype=np.int32, max_bins=64):
    arrays = (np.array(a, dtype) for a in (columns, cells, shifts))
    names = ("columns", "cells", "shifts")
    return CountFine(schema=Blob(digest(SCHEMA_DATA)), max_bins=max_bins, **dict(zip(names, arrays, strict=True)))


def one_site():
    return Site("here", table(), n_jobs=1)


def test_a_consistent_request():
    assert send(one_site(), fine(), blobs=[SCHEMA_DATA]).kind == "FineCounts"
    assert send(one_site(), fine((), (), ()), blobs=[SCHEMA_DATA]).kind == "FineCounts"


@pytest.mark.parametrize(
    "request_",
    [
        fine(cells=(5, 9, 16321)),
        fine(cells=(5, 9, -1)),
        fine(cells=(2**31 - 1, 9, 2)),
        fine(cells=(9, 5, 2)),
        fine(cells=(5, 5, 2)),
        fine(columns=(0, 0, 2)),
        fine(columns=(-1, 0, 1)),
        fine(columns=(1, 0, 1)),
        fine(columns=(0, 0)),
        fine(shifts=(10, 10, -1)),
        fine(shifts=(10, 10, 30)),
        fine(shifts=(0, 0, 0)),
        fine(dtype=np.int64),
        fine(dtype=np.float32),
        fine(columns=((0, 0, 1),), cells=((5, 9, 2),), shifts=((10, 10, 10),)),
        fine((0, 0, 0), (1, 2, 3), (6, 6, 6)),  # few cells hold enough rows to be refined as far as possible
        fine(np.repeat(0, 2000), np.arange(2000), np.repeat(17, 2000), max_bins=4),  # nor do many hold much
        fine(max_bins=1),
        fine(max_bins=256),
    ],
)
def test_cells_that_do_not_exist(request_):
    assert trouble(send(one_site(), request_, blobs=[SCHEMA_DATA])).code == "format"


@pytest.mark.parametrize(
    ("sizes", "values"),
    [
        ([2], [1.0, 2.0]),
        ([2, 0, 0], [1.0, 2.0]),
        ([2, -2], []),
        ([1, 2], [1.0, 2.0]),
        ([0, 255], np.arange(255)),
        ([2, 0], [2.0, 1.0]),
        ([2, 0], [1.0, 1.0]),
        ([1, 0], [np.nan]),
        ([1, 0], [np.inf]),
        ([1, 0], [np.float32(30.000002)]),  # not on the public grid
    ],
)
def test_malformed_bins_are_refused(sizes, values):
    refused(CutPoints(np.array(sizes, np.int64), np.array(values, np.float32)))


@pytest.mark.parametrize(
    ("n", "steps", "max_bins"),
    [
        (1, None, 1),
        (1, None, 256),
        (1, None, -(2**40)),
        (3, [1, 1], 2),
        (3, [1, 1, 2], 2),  # codes beyond those of two bins
        (3, [0, 1, 1], 2),
        (3, [1, 1, 5], 2),
        (2, [1, 200], 2),
        (252, [1] * 252, 64),  # and beyond a byte
        (100, [2] * 100, 100),
        (200, [1] * 200, 200),
    ],
)
def test_malformed_steps_between_codes_are_refused(n, steps, max_bins):
    given = None if steps is None else np.array(steps, np.uint8)
    refused(CutPoints(np.array([n, 0]), np.arange(n, dtype=np.float32), given, max_bins))
    if given is not None:
        refused(CutPoints(np.array([n, 0]), np.arange(n, dtype=np.float32), given.astype(np.int64), max_bins))


def refused(points):
    points = wire.encode(points)
    site = one_site()
    site.store.put(f"blob {digest(points)}", points)
    with pytest.raises(FormatError):
        bins_of(site, Blob(digest(points)), SCHEMA)


def test_the_same_cuts_for_another_schema_are_other_bins():
    """Categories are not part of the cuts, so cached values must not be mixed up."""
    points = wire.encode(CutPoints(np.array([1, 0]), np.array([1.0], np.float32)))
    site = one_site()
    site.store.put(f"blob {digest(points)}", points)
    sizes = []
    for categories in (("a",), ("a", "b", "c")):
        schema = Schema.of(["age", Feature("ward", "categorical", categories=categories)], SCHEMA.label)
        sizes.append(bins_of(site, Blob(digest(points)), schema).n_bins.tolist())
    assert sizes == [[3, 2], [3, 4]]


def test_counts_are_of_training_rows_only():
    fed = federate(parts(table(), 2), test=0.5)
    named = fed.blob(fed.schema.to_json().encode())
    reply = fed.total(CountGrid(schema=named))
    assert reply.label.sum() == sum(fed.rows.values())
    assert abs(reply.label.sum() - 120) <= 2


def test_the_number_of_refined_cells_is_bounded():
    """A site refuses requests above the bound, so honest requests stay below it for any counts."""
    rng = np.random.default_rng(0)
    for max_bins in (2, 16, 64, 255):
        table_grid, most = Grid.for_columns(3), staggered_bins(max_bins)
        for share in (0.0, 0.9, 0.999):
            counts = np.zeros(table_grid.n_cells, np.int32)
            cells = rng.choice(table_grid.n_cells, 4 * most, replace=False)
            counts[cells] = 10 + rng.integers(0, 3, len(cells))
            counts[cells[0]] += int(share * 1e6)
            heavy = grid.heavy_cells(counts, table_grid, most)
            assert heavy.starts(table_grid.coarse)[-1] <= grid.most_fine_cells(table_grid, most)


def test_a_tree_has_no_more_bins_than_the_request_says():
    points = wire.encode(CutPoints(np.array([20, 0]), np.arange(20, dtype=np.float32), max_bins=21))
    site = one_site()
    site.store.put(f"blob {digest(points)}", points)
    blob = Blob(digest(points))
    assert bins_of(site, blob, SCHEMA, 21).n_bins[0] == 22
    with pytest.raises(FormatError, match="more bins than the request says"):
        bins_of(site, blob, SCHEMA, 20)


def test_given_edges_are_those_of_the_schema():
    schema = Schema.of([Feature("age", edges=(40.0, 60.0)), "dose"], SCHEMA.label)
    site = one_site()
    for values, right in (([40.0, 60.0], True), ([40.0, 61.0], False)):
        points = wire.encode(CutPoints(np.array([2, 0]), np.array(values, np.float32)))
        site.store.put(f"blob {digest(points)}", points)
        if right:
            bins_of(site, Blob(digest(points)), schema)
        else:
            with pytest.raises(FormatError, match="edges of the schema"):
                bins_of(site, Blob(digest(points)), schema)
