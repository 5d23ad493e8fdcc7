"""Tables larger than memory: read in batches, kept in files, and the same forest bit for bit."""

import gzip
import os
import sqlite3
import subprocess
import sys

import numpy as np
import polars as pl
import pytest
from helpers.schemas import infer_schema
from helpers.studies import TASKS, parts, table

import silvan as sv
from silvan.data import disk_arrays
from silvan.data.batches import Batched, Whole, read_size
from silvan.data.bins.column_summary import Sizes, summarise
from silvan.data.holdout import hold_out
from silvan.data.table import read_table
from silvan.errors import InputError
from silvan.federation.part import StoredPart
from silvan.tree.out_of_core import RoutedRows

SMALL = 5000
"""Bytes that hold very few rows of the table of these tests."""


def growing(federation):
    return [
        value.rows
        for site in federation.local_sites.values()
        for key, value in site.cache.items()
        if key[0] == "growing"
    ]


# -- the same forest


@pytest.mark.parametrize("task", TASKS)
def test_the_same_forest_whatever_the_memory(task):
    """Binary, several classes and numbers, with categories, missing values and held-out rows."""
    tables = parts(table(task, 300), 2)
    whole = sv.federate_rows(tables, test=0.2, n_jobs=1)
    model = sv.HistogramForest(9, max_depth=5).fit(whole)
    for memory in (SMALL, "1MB"):
        limited = sv.federate_rows(tables, test=0.2, n_jobs=2, memory=memory)
        assert (limited.schema, limited.rows) == (whole.schema, whole.rows)
        assert str(limited.differences) == str(whole.differences)
        assert sv.HistogramForest(9, max_depth=5).fit(limited).forest_.hash == model.forest_.hash
        assert all(isinstance(rows, RoutedRows) == (memory != "1MB") for rows in growing(limited))
        for site in whole.sites:
            assert limited.site(site).fingerprint() == whole.site(site).fingerprint()
            for test in (False, True):
                one, other = (fed.site(site).part(whole.schema, test) for fed in (whole, limited))
                assert isinstance(other, StoredPart)
                assert len(one) == len(other)
                pieces = list(other.pieces())
                assert (memory == "1MB") == (len(pieces) == 1)
                for name in ("X", "y", "row_keys"):
                    np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
                    np.testing.assert_array_equal(
                        getattr(one, name), np.concatenate([getattr(p, name) for p in pieces])
                    )


@pytest.mark.parametrize(
    "settings",
    [{"bootstrap": False}, {"max_depth": None, "min_samples_leaf": 1}, {"max_features": 1}, {"max_samples": 0.3}],
)
def test_the_same_forest_whatever_the_trees(settings):
    tables = parts(table("several", 300), 2)
    made = [
        sv.HistogramForest(**{"n_estimators": 6, "max_depth": 4, **settings})
        .fit(sv.federate_rows(tables, n_jobs=1, memory=memory))
        .forest_.hash
        for memory in (None, SMALL)
    ]
    assert made[0] == made[1]


def test_a_restarted_site_answers_the_same():
    tables = parts(table(n=120), 2)
    warm = sv.HistogramForest(3, max_depth=3).fit(sv.federate_rows(tables, n_jobs=1))
    cold = sv.HistogramForest(3, max_depth=3).fit(sv.federate_rows(tables, n_jobs=1, cold=True, memory=SMALL))
    assert cold.forest_.hash == warm.forest_.hash


def test_masked_sums_and_signed_messages(tmp_path):
    tables = parts(table(n=150), 3)
    warm = sv.HistogramForest(3, max_depth=3).fit(sv.federate_rows(tables, n_jobs=1))
    fed = sv.federate_rows(tables, n_jobs=1, sums="masked", signed=True, memory=SMALL, folder=tmp_path)
    assert sv.HistogramForest(3, max_depth=3).fit(fed).forest_.hash == warm.forest_.hash
    assert not list(tmp_path.iterdir())  # the files have no names


@pytest.mark.parametrize("task", TASKS)
def test_evaluation_in_batches_gives_the_same_metrics(task):
    """Also thresholds for two classes, which are chosen on training rows."""
    tables = parts(table(task, 300), 2)
    rows = {}
    for memory in (None, SMALL):
        fed = sv.federate_rows(tables, test=0.3, n_jobs=1, memory=memory)
        frame = sv.HistogramForest(5, max_depth=4).fit(fed).evaluate(fed).filter(pl.col("model") == "federated")
        rows[memory] = frame.select(pl.exclude("gain", "gain_low", "gain_high", "use"))
        assert fed.limited == (memory is not None)
    assert rows[None].equals(rows[SMALL])


def test_no_test_rows():
    fed = sv.federate_rows(parts(table(n=120), 2), n_jobs=1, memory=SMALL)
    with pytest.raises(InputError, match="no site has test rows"):
        sv.HistogramForest(2, max_depth=2).fit(fed).evaluate(fed)


def test_other_learners_train_from_files_too():
    tables = parts(table(n=150), 2)
    for make in (lambda: sv.MergedForest(4), lambda: sv.BOFRF(4, max_depth=3)):
        made = [make().fit(sv.federate_rows(tables, n_jobs=1, memory=memory)).forest_.hash for memory in (None, SMALL)]
        assert made[0] == made[1]


# -- every kind of source


@pytest.fixture(params=["parquet", "csv", "csv.gz", "sqlite", "frame", "lazy"])
def source(request, tmp_path):
    frame = table("several", 100)
    path = tmp_path / f"table.{request.param}"
    if request.param == "parquet":
        frame.write_parquet(path, row_group_size=30)
    elif request.param.startswith("csv"):
        text = frame.write_csv().encode()
        path.write_bytes(gzip.compress(text) if request.param.endswith("gz") else text)
    elif request.param == "sqlite":
        with sqlite3.connect(path) as database:
            database.execute(f"CREATE TABLE visits ({', '.join(frame.columns)})")
            places = ", ".join("?" * frame.width)
            database.executemany(f"INSERT INTO visits VALUES ({places})", frame.rows())  # noqa: S608
        database.close()
        return f"sqlite:///{path}?table=visits"
    else:
        return frame if request.param == "frame" else frame.lazy()
    return path


def test_batches_are_the_table(source):
    whole = read_table(source).to_native()
    for room in (1, 4000, 10**6):
        batched = Batched(source, "label", room, exclude=("noise", "nothing"))
        assert batched.excluded == ["noise"]
        assert len(batched) == len(whole)
        together = pl.concat([batch.to_native() for batch in batched.batches()])
        assert together.equals(whole.drop("noise"))
        assert together.schema == whole.drop("noise").schema
        some = [batch.to_native() for batch in batched.batches(["label", "age"])]
        assert pl.concat(some).equals(whole.select("label", "age"))
        assert room > 1 or len(some) == len(whole)


def test_the_forest_of_a_source(source):
    made = []
    for memory in (None, 12_000):
        fed = sv.federate_rows({"a": source}, n_jobs=1, memory=memory)
        made.append(sv.HistogramForest(3, max_depth=3).fit(fed).forest_.hash)
    assert made[0] == made[1]


def test_csv_columns_have_the_type_that_all_cells_fit(tmp_path):
    path = tmp_path / "odd.csv"
    head = 'whole,late,truth,text,void,"quo""ted"\n'
    path.write_text(head + '1,2,true,"a\nb",,x\n 3 ,4,False,"c,""d""",,\n\n-5,6.5,,"",, y \n7,1e3,TRUE,e,,z')
    whole = read_table(path).to_native()
    for room in (2, 60, 10**5):
        batched = Batched(path, "text", room)
        assert pl.concat([batch.to_native() for batch in batched.batches()]).equals(whole)


def test_a_changed_file_is_refused(tmp_path):
    path = tmp_path / "table.parquet"
    table(n=60).write_parquet(path)
    fed = sv.federate_rows({"a": path}, n_jobs=1, memory=SMALL)
    table(n=60, seed=1).write_parquet(path)
    os.utime(path, (1, 1))
    with pytest.raises(sv.SiteError) as caught:
        sv.HistogramForest(2).fit(fed)
    assert "was changed or moved while in use" in str(caught.value.__cause__)


def test_mistakes_are_reported_with_their_rows(tmp_path):
    frame = table(n=60).with_columns(label=pl.when(pl.int_range(60) == 41).then(None).otherwise("label"))
    with pytest.raises(sv.SiteError) as caught:
        sv.federate_rows({"a": frame}, n_jobs=1, memory=4000)
    assert "in rows 36 to 42: the label 'label' is missing in 1 of 7 rows" in str(caught.value.__cause__)


def test_no_room_for_files(tmp_path):
    with pytest.raises(InputError, match=r"cannot create a file in .*nowhere.*; name another folder"):
        disk_arrays.Stored(tmp_path / "nowhere", np.uint8)


def test_no_rows_and_no_columns(tmp_path):
    pl.DataFrame({"a": [], "label": []}).write_parquet(tmp_path / "empty.parquet")
    with pytest.raises(InputError, match="has columns but no rows"):
        Batched(tmp_path / "empty.parquet", "label", 100)
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        Batched(tmp_path / "cut.parquet", "label", 100)


@pytest.mark.parametrize(("value", "size"), [("2GB", 2 * 10**9), ("1.5 MiB", 1572864), ("500m", 500 * 10**6), (77, 77)])
def test_sizes(value, size):
    assert read_size(value) == size


@pytest.mark.parametrize("value", ["", "much", "-1GB", "2 TX", 0, -5, 1.5, True, None])
def test_malformed_sizes_are_refused(value):
    with pytest.raises(InputError, match="memory must be a number of bytes, or text such as '2GB'"):
        read_size(value)


# -- parts with a naive version


def plain_hold_out(label, share, seed):
    """Samples the rows with all of them in memory."""
    n = len(label)
    held = np.zeros(n, np.bool_)
    _, groups = np.unique(label.astype(str), return_inverse=True)
    if groups.max() + 1 > max(2, n // 5):
        groups = np.zeros(n, np.int64)
    rng, carry = np.random.default_rng(seed), 0.5
    for group in range(groups.max() + 1):
        rows = rng.permutation(np.flatnonzero(groups == group))
        part = share * len(rows) + carry
        held[rows[: int(part)]] = True
        carry = part - int(part)
    return held & ~held.all()


@pytest.mark.parametrize("share", [0.05, 0.3, 0.99])
def test_rows_kept_for_evaluation(share):
    rng = np.random.default_rng(1)
    labels = {
        "words": rng.choice(["a", "b", "ccc"], 333, p=[0.7, 0.2, 0.1]),
        "whole": rng.integers(0, 12, 333),
        "truth": rng.random(333) < 0.1,
        "zeros": np.array([0.0, -0.0, 1.5])[rng.integers(0, 3, 333)],
        "number": rng.normal(size=333),
        "one": np.zeros(333),
    }
    for values in labels.values():
        expected = plain_hold_out(values, share, [3, 4])
        frame = pl.DataFrame({"label": values})
        for tables in (Whole(frame), Batched(frame, "label", 1600)):
            held = hold_out(tables, "label", share, [3, 4])
            np.testing.assert_array_equal(held.between(0, 333), expected)
            np.testing.assert_array_equal(held.between(13, 99), expected[13:99])
            assert held.kept == expected.sum()


def test_sizes_know_where_the_median_is():
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 10, 101, 1000):
        for column in (rng.normal(size=n), 2.0 ** rng.integers(-3, 3, n), rng.choice([1e-44, 1e30, 7.0], n)):
            sizes = Sizes()
            for part in np.array_split(np.concatenate([column, [0.0, np.nan, np.inf]]), 3):
                sizes.add(read_table(pl.DataFrame({"x": part}) if len(part) else pl.DataFrame({"x": [0.0]}))["x"])
            middle = float(np.median(np.abs(column).astype(np.float32)))
            assert sizes.rows == n
            assert 2.0 ** (sizes.median_cell() - 128) < middle <= 2.0 ** (sizes.median_cell() - 127) or middle < 1e-38


@pytest.mark.parametrize("task", TASKS)
def test_a_summary_equals_that_of_the_whole_table(task):
    frame = table(task, 100)
    schema = infer_schema(read_table(frame))
    for room in (1, 5000):
        replies = summarise(Batched(frame, "label", room), "label")
        assert replies.label == schema.label
        assert [name for name, sizes in replies.sizes.items() if sizes is None] == [
            feature.name for feature in schema.features if feature.categorical
        ]


def test_classes_that_look_different_in_batches():
    for values, classes in (([1.0, 2.0, 2.5, 3.0], (1.0, 2.0, 2.5, 3.0)), ([1.0, 2.0, 3.0, 1.0], (1, 2, 3))):
        frame = pl.DataFrame({"x": [1, 2, 3, 4], "label": values})
        replies = summarise(Batched(frame, "label", 1), "label", "classification").label
        assert replies.classes == classes
        assert [type(c) for c in replies.classes] == [type(c) for c in classes]
        assert replies == infer_schema(read_table(frame), task="classification").label
    many = pl.DataFrame({"x": range(300), "label": range(300)})
    with pytest.raises(InputError, match="has 300 different values"):
        summarise(Batched(many, "label", 1000), "label")


# -- within the memory

CHILD = """
import gc, sys
from pathlib import Path
import silvan as sv

def status(key):
    return next(1024 * int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key))

def fit(path, memory):
    fed = sv.federate_rows({"a": path}, test=0.1, n_jobs=1, memory=memory)
    return sv.HistogramForest(2, max_depth=3).fit(fed).forest_.hash

fit(sys.argv[1], 20_000)  # all code is loaded
gc.collect()
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = status("VmRSS")
made = fit(sys.argv[2], int(sys.argv[3]))
print(made, status("VmHWM") - before)
"""


@pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="no peak of memory can be measured here: it needs Linux"
)
def test_a_table_ten_times_the_memory(tmp_path):
    n, columns, allowed = 1_600_000, 25, 32_000_000
    rng = np.random.default_rng(0)
    values = rng.normal(size=256)
    whole = {f"x{i}": values[rng.integers(0, 256, n, np.uint8)] for i in range(columns)}
    frame = pl.DataFrame(whole).with_columns(label=(pl.col("x0") + pl.col("x1") > 0.3).cast(pl.Int64))
    assert frame.estimated_size() > 10 * allowed
    frame.write_parquet(tmp_path / "large.parquet", row_group_size=10_000)
    frame[:2000].write_parquet(tmp_path / "small.parquet")
    child = [sys.executable, "-c", CHILD, tmp_path / "small.parquet", tmp_path / "large.parquet", str(allowed // 2)]
    made, peak = subprocess.run(child, check=True, capture_output=True, text=True).stdout.split()
    fed = sv.federate_rows({"a": frame}, test=0.1, n_jobs=1)
    assert made == sv.HistogramForest(2, max_depth=3).fit(fed).forest_.hash
    assert int(peak) < allowed, int(peak)


def test_a_full_disk_is_reported_and_retried(tmp_path, monkeypatch):
    """If files cannot grow, the table is not at fault: the site says that its disk is full."""
    fed = sv.federate_rows({"a": table(n=80)}, n_jobs=1, memory=SMALL)
    real, full = disk_arrays._write, [True]

    def write(file, data):
        if full:
            raise OSError(28, "No space left on device")
        real(file, data)

    monkeypatch.setattr(disk_arrays, "_write", write)
    site = fed.site("a")
    with pytest.raises(OSError, match="No space left"):
        site.part(fed.schema)
    full.clear()
    assert len(site.part(fed.schema)) == 80
