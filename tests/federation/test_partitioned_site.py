"""Sites whose rows are partitions on a Dask cluster: the same forest bit for bit, one site to everybody else."""

import logging
import os
import signal
import sys
from concurrent.futures import CancelledError
from operator import attrgetter
from unittest import mock

import msgspec
import numpy as np
import pandas as pd
import polars as pl
import pytest
from helpers.runs import silvan
from helpers.studies import TASKS, Recorded, envelopes, federate, parts, table

import silvan as sv
from silvan.algorithms.evaluation.evaluate import evaluate
from silvan.data import dask_cluster
from silvan.data.bins.column_summary import summarise
from silvan.data.dask_cluster import Cluster, on_worker
from silvan.data.worker_frames import look_at, read_frame_of
from silvan.deploy.jobs.site_job import make_site
from silvan.deploy.membership.site_files import SiteFiles, check_table, source_of
from silvan.deploy.studies.study_table import check_study_table, freeze
from silvan.federation.partition_worker import Encoding, encode_partition, of_part
from silvan.federation.partitioned_site import PartitionedSite, Spread
from silvan.federation.site import Site
from silvan.study.parse import parse_remote_study

dd = pytest.importorskip("dask.dataframe")
distributed = pytest.importorskip("distributed")

CUTS = (0, 40, 40, 95, 120)
"""Where partitions end; the second is empty."""


@pytest.fixture(scope="module")
def client():
    """Two workers, each in its own process."""
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def write_parts(frame, folder, cuts=CUTS):
    """Writes a table as Parquet files."""
    folder.mkdir(exist_ok=True)
    for i, (start, stop) in enumerate(zip(cuts, [*cuts[1:], len(frame)], strict=True)):
        frame[start:stop].write_parquet(folder / f"{i:03}.parquet")
    return folder


def model(**settings):
    return sv.HistogramForest(**{"n_estimators": 9, "max_depth": 5, **settings})


def judged(learner, fed):
    """Metrics of the federated forest, without the columns of local models."""
    return learner.evaluate(fed).filter(pl.col("model") == "federated").drop("gain", "gain_low", "gain_high", "use")


# -- the same as in one process


@pytest.mark.parametrize("task", TASKS)
def test_the_same_forest_and_metrics_as_in_one_process(task, client, tmp_path):
    """Categories, missing values, test rows and an empty partition; files, and a data frame of unknown divisions."""
    tables = parts(table(task, 400), 2)
    settings = {"test": 0.25, "n_jobs": 1}
    one = sv.federate_rows(tables, **settings)
    learnt = model(threshold="youden" if task == "binary" else None).fit(one)
    files = sv.Partitions(write_parts(tables["site 0"], tmp_path / "site 0"))
    frame = dd.from_map(pl.DataFrame.to_pandas, [tables["site 0"][a:b] for a, b in ((0, 70), (70, 71), (71, None))])
    assert not frame.known_divisions
    for source in (files, frame):
        spread = sv.federate_rows({**tables, "site 0": source}, **settings)
        assert (spread.schema, spread.rows) == (one.schema, one.rows)
        assert str(spread.differences) == str(one.differences)
        again = model(threshold=learnt.threshold).fit(spread)
        assert again.forest_.hash == learnt.forest_.hash
        assert again.threshold_ == learnt.threshold_
        assert judged(again, spread).equals(judged(learnt, one), null_equal=True)
    by = ["sex"]
    assert again.permutation_importance(spread, by=by) == learnt.permutation_importance(one, by=by)
    assert again.partial_dependence(spread, "age").equals(learnt.partial_dependence(one, "age"))


def test_columns_of_numbers_are_described_where_they_lie(client, tmp_path):
    """Their sizes equal those of one pass over all rows, also for a column that is empty in some partitions."""
    frame = table("binary", 200).with_columns(
        rare=pl.when(pl.int_range(200) > 150).then(pl.int_range(200) * 3.5), none=pl.lit(None, pl.Float64)
    )
    spread = PartitionedSite("a", sv.Partitions(write_parts(frame, tmp_path / "a")), label="label")
    apart = spread.sizes_apart()
    assert {"rare", "none"} < set(apart) < set(frame.columns) - {"label"}
    one = summarise(Site("a", frame, label="label").table, "label")
    there = summarise(spread.table, "label", apart=apart)
    assert (there.kinds, there.label) == (one.kinds, one.label)
    for name, sizes in one.sizes.items():
        found = there.sizes[name]
        assert (sizes is None) == (found is None)
        assert sizes is None or all(np.array_equal(vars(sizes)[key], vars(found)[key]) for key in vars(sizes))


def test_partitions_appear_as_one_site(client, tmp_path):
    """With masked sums: the same messages, and the same lines of the ledger."""
    tables = parts(table("binary", 300), 3)
    files = sv.Partitions(write_parts(tables["site 1"], tmp_path / "rows", (0, 31, 62)))
    settings = {"sums": "masked", "test": 0.2, "policy": sv.Policy(min_leaf=3)}
    fed = {
        where: federate({**tables, "site 1": source}, Recorded, **settings)
        for where, source in {"one": tables["site 1"], "cluster": files}.items()
    }
    hashes, kinds, ledgers = set(), [], []
    for one in fed.values():
        learnt = model(min_samples_leaf=3).fit(one)
        hashes.add(learnt.forest_.hash)
        kinds.append([envelope.kind for envelope in envelopes(one, "sent", "site 1")])
        ledgers.append([(line.kind, line.what) for line in one.site("site 1").outbox.ledger.lines()])
    assert len(hashes) == 1
    assert kinds[0] == kinds[1]
    assert ledgers[0] == ledgers[1]


def test_a_site_without_caches(client, tmp_path):
    tables = parts(table("number", 120), 2)
    warm = sv.federate_rows(tables)
    files = sv.Partitions(write_parts(tables["site 0"], tmp_path / "rows", (0, 20)))
    cold = sv.federate_rows({**tables, "site 0": files}, cold=True)
    assert model(n_estimators=3, max_depth=2).fit(cold).forest_ == model(n_estimators=3, max_depth=2).fit(warm).forest_


def test_many_partitions(client, tmp_path):
    tables = parts(table("several", 200), 2)
    files = sv.Partitions(write_parts(tables["site 1"], tmp_path / "rows", range(0, 90, 5)))
    spread = sv.federate_rows({**tables, "site 1": files})
    learnt = model(max_depth=3, class_weight="balanced").fit(spread)
    assert learnt.forest_ == model(max_depth=3, class_weight="balanced").fit(sv.federate_rows(tables)).forest_


def test_few_rows_of_a_partition_are_not_few_rows_of_a_site(client, tmp_path):
    """Trees may sample a small share of the rows of a large table, however it is partitioned."""
    tables = parts(table("binary", 400), 2)
    files = sv.Partitions(write_parts(tables["site 0"], tmp_path / "rows", (0, 30, 60)))
    small = {"max_samples": 0.08, "max_depth": 2}
    learnt = model(**small).fit(sv.federate_rows(tables))
    assert model(**small).fit(sv.federate_rows({**tables, "site 0": files})).forest_ == learnt.forest_


def test_studies_name_a_cluster(client, tmp_path):
    tables = parts(table("binary", 200), 2)
    write_parts(tables["site 0"], tmp_path / "rows", (0, 20, 70))
    tables["site 1"].write_parquet(tmp_path / "other.parquet")
    tables["site 0"].write_parquet(tmp_path / "one.parquet")
    study = "test = 0.2\n[learner]\nn_estimators = 5\nmax_depth = 3\n[sites]\nother = 'other.parquet'\n"
    address = client.scheduler.address
    hashes = set()
    for name, bank in {"one": "'one.parquet'", "spread": f"{{ table = 'rows', cluster = '{address}' }}"}.items():
        (tmp_path / f"{name}.toml").write_text(f"{study}bank = {bank}\n")
        silvan("fit", tmp_path / f"{name}.toml", "--output", tmp_path / name)
        hashes.add(sv.Forest.load(tmp_path / name / "model.silvan").hash)
    assert len(hashes) == 1


def test_a_site_between_machines_names_a_cluster(client, tmp_path):
    rows = table("binary", 120)
    write_parts(rows, tmp_path / "rows")
    address = client.scheduler.address
    lines = f"table = '{tmp_path / 'rows'}'\ncluster = '{address}'\n[policy]\napprove = false\n"
    (tmp_path / "site.toml").write_text(lines)
    files = SiteFiles(tmp_path, tmp_path / "site.toml", "bank")
    study = parse_remote_study('name = "any"\ntest = 0.2\n[learner]\nkind = "HistogramForest"\n')
    site = make_site(files, study)
    check_study_table(files, study, site)
    check_study_table(files, study, make_site(files, study))
    assert isinstance(site, PartitionedSite)
    assert site.n_train == sv.federate_rows({"bank": rows}, test=0.2).rows["bank"]
    assert check_table(source_of(str(tmp_path / "rows"), None, cluster=address), ["age"])[1] == "120 rows"
    with pytest.raises(sv.InputError, match="not copied"):
        freeze(files, study)
    with pytest.raises(sv.InputError, match="cluster is for a table in Parquet files"):
        source_of("sqlite:///rows.db", "select 1", cluster=address)


@pytest.mark.parametrize("task", TASKS)
def test_local_models_are_not_evaluated_there(task, client, tmp_path):
    """Between machines a coordinator requests it, because it does not know how a site stores its rows."""
    tables = parts(table(task, 200), 2)
    files = sv.Partitions(write_parts(tables["site 0"], tmp_path / "rows", (0, 30)))
    fed = sv.federate_rows({**tables, "site 0": files}, test=0.3)
    learnt = model().fit(fed)
    rows = evaluate(fed, fed.schema, learnt.site_candidates(), learnt.feature_key()).rows
    known = {(row.site, row.model): not np.isnan(row.leading) for row in rows}
    assert {key for key, value in known.items() if not value} == {("site 0", "local")}


# -- what is refused


def test_learners_that_need_all_rows_in_one_place_are_refused(client, tmp_path):
    tables = parts(table("binary", 120), 2)
    files = sv.Partitions(write_parts(tables["site 0"], tmp_path / "rows", (0, 20)))
    policy = sv.Policy(messages=["*", "AdaptiveLevel"])
    spread = sv.federate_rows({**tables, "site 0": files}, policy=policy)
    learners = sv.MergedForest(4), sv.BOFRF(4), sv.AdaBoostPL(4), sv.PooledForest(4), sv.LocalForest(4)
    for learner in (*learners, model(bins="adaptive")):
        with pytest.raises(sv.RefusedError, match="use them for HistogramForest"):
            learner.fit(spread)


def test_a_private_forest_is_refused_before_charging(client, tmp_path):
    rng = np.random.default_rng(0)
    frame = pl.DataFrame({"x": rng.random(60), "label": rng.integers(0, 2, 60)})
    schema = sv.Schema.of([sv.Feature("x", bounds=(0.0, 1.0))], sv.Label("label", (0, 1)))
    files = sv.Partitions(write_parts(frame, tmp_path / "rows", (0, 20)))
    fed = sv.federate_rows({"a": files, "b": frame}, schema=schema, policy=sv.Policy(epsilon=2.0))
    with pytest.raises(sv.SilvanError, match="use them for HistogramForest"):
        model(epsilon=1.0).fit(fed)
    assert [fed.site(name).outbox.budget.spent for name in fed.sites] == [0.0, 0.0]


def test_impossible_settings_give_one_line(client, tmp_path):
    tables = parts(table("binary", 120), 2)
    good = tables["site 0"]

    def complaint(*frames):
        folder = tmp_path / "rows"
        for old in folder.glob("*"):
            old.unlink()
        folder.mkdir(exist_ok=True)
        for i, frame in enumerate(frames):
            frame.write_parquet(folder / f"{i}.parquet")
        with pytest.raises(sv.SilvanError) as caught:
            sv.federate_rows({**tables, "site 0": sv.Partitions(folder)})
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "partition 2" in complaint(good, good.drop("age"))
    assert "lacks 'age'" in complaint(good, good.drop("age"))
    texts = good.with_columns(pl.col("age").cast(pl.String).fill_null("missing"))
    assert "column 'age' holds" in complaint(good, texts)
    assert "no rows" in complaint(good[:0], good[:0])
    (tmp_path / "rows" / "0.parquet").write_bytes(b"nothing")
    with pytest.raises(sv.SilvanError, match="cannot be read by a worker"):
        sv.federate_rows({**tables, "site 0": sv.Partitions(tmp_path / "rows")})
    ages = pd.Series([*range(1, 26), "old"], dtype=object)
    mixed = pd.DataFrame({"age": ages, "label": ["a", "b"] * 13})
    with pytest.raises(sv.SilvanError, match=r"column 'age' mixes numbers and text: 2 of its 52 cells \(rows 26, 52\)"):
        sv.federate_rows({**tables, "site 0": dd.from_map(lambda _: mixed, [0, 1], meta=mixed[:0])})
    with pytest.raises(sv.SilvanError, match="column 'age' mixes types"):
        look_at(mixed)


def test_no_cluster(client, tmp_path, monkeypatch):
    tables = parts(table("binary", 120), 2)
    folder = write_parts(tables["site 0"], tmp_path / "rows")
    monkeypatch.setattr(dask_cluster, "_CONNECT_SECONDS", 0.3)
    with pytest.raises(sv.SilvanError, match="no Dask cluster answers at 'tcp://127"):
        sv.federate_rows({**tables, "site 0": sv.Partitions(folder, "tcp://127.0.0.1:1")})
    for name, failing, text in (
        ("wait_for_workers", mock.Mock(side_effect=TimeoutError), "has no workers"),
        ("run", mock.Mock(side_effect=ModuleNotFoundError), "lack silvan"),
        ("run", mock.Mock(return_value={"one": "0.0.1"}), "have silvan 0.0.1"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(client, name, failing)
            with pytest.raises(sv.SilvanError, match=text):
                sv.federate_rows({**tables, "site 0": sv.Partitions(folder)})
    with monkeypatch.context() as patched:
        patched.setattr(distributed, "get_client", mock.Mock(side_effect=ValueError))
        with pytest.raises(sv.SilvanError, match="create a distributed"):
            sv.federate_rows({**tables, "site 0": sv.Partitions(folder)})
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "distributed", None)
        with pytest.raises(sv.SilvanError, match="pip install"):
            sv.federate_rows({**tables, "site 0": sv.Partitions(folder)})


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (CancelledError(), "its scheduler may have stopped"),
        (OSError(), "its scheduler may have stopped"),
        (distributed.KilledWorker("task", None, 4), "give them more memory"),
    ],
)
def test_a_cluster_that_fails(error, text):
    cluster = object.__new__(Cluster)
    cluster.client = mock.Mock(gather=mock.Mock(side_effect=error))
    with pytest.raises(sv.FederationError, match=text):
        cluster.collect([])


def test_a_worker_that_cannot_do_its_work():
    """Every failure is returned as a value, and later steps pass it on."""
    failed = on_worker(int, "a cell")
    assert on_worker(len, [1, failed]) == on_worker(len, failed) == failed
    assert isinstance(failed.raised(), RuntimeError)
    assert type(on_worker(look_at, "nowhere.parquet").raised()) is sv.InputError


def test_nondeterministic_rows_are_noticed():
    """Dask recomputes what a lost worker had; a table that depends on chance would change."""
    frame = table("binary", 40)
    schema = sv.federate_rows({"a": frame}).schema
    names = [*schema.columns, "label"]
    how = Encoding("a", schema.to_json(), True, names, {}, 0, "partition 1", 40, 40, bytes(5), (0, 0, 0))
    first, same, other = (
        of_part(encode_partition(rows.to_pandas(), msgspec.msgpack.encode(how)), False, attrgetter("y"))
        for rows in (frame, frame.clone(), frame.with_columns(pl.col("noise") + 1.0))
    )
    spread = Spread(mock.Mock(threads=1), [None], ["partition 1"], np.array([[40, 0]]))
    assert len(spread.same_rows(first)) == len(spread.same_rows(same)) == 40
    with pytest.raises(sv.InputError, match="partition 1 was computed again"):
        spread.same_rows(other)


def test_no_cell_is_in_the_logs_of_workers(client, tmp_path):
    """Dask would log a function that raises together with its arguments."""
    frame = pd.DataFrame({"age": np.arange(40.0), "label": ["a", "b"] * 20})
    broken = frame.assign(label=["a secret class"] + [None] * 39)
    schema = sv.federate_rows({"x": frame}).schema
    spread = sv.federate_rows({"x": dd.from_map(lambda one: one, [frame, broken], meta=frame[:0])}, schema=schema)
    with pytest.raises(sv.SilvanError, match="partition 2"):
        model().fit(spread)
    assert not any("secret" in line for lines in client.get_worker_logs().values() for _, line in lines)


def test_errors_that_quote_cells_are_in_no_log_of_a_worker(tmp_path, caplog):
    path = tmp_path / "rows.parquet"
    pl.DataFrame({"age": ["a secret cell"]}).write_parquet(path)  # it held numbers when the table was opened
    failure = on_worker(read_frame_of, str(path), ["age"], {"age": "numbers"})
    assert failure.kind == "InputError"
    assert "secret" not in failure.text
    with caplog.at_level(logging.DEBUG):
        on_worker(int, "a secret cell")
    assert "failed on a partition: ValueError" in caplog.text
    assert "secret" not in caplog.text


# -- workers that die; last, because the next worker imports everything again


def test_a_worker_that_is_killed_is_replaced(client, tmp_path, monkeypatch):
    """While a request is handled: rows are encoded again and sent down the trees again."""
    tables = parts(table("binary", 400), 2)
    learnt = model().fit(sv.federate_rows(tables))
    files = sv.Partitions(write_parts(tables["site 0"], tmp_path / "rows"))
    spread = sv.federate_rows({**tables, "site 0": files})
    killed, collect, calls = [], Cluster.collect, []

    def collect_and_kill(self, futures):
        calls.append(len(futures))
        if len(calls) == 6:  # after the bins and three levels; the tasks are with the workers
            killed.append(sorted(client.run(os.getpid).values())[0])
            os.kill(killed[0], signal.SIGKILL)
        return collect(self, futures)

    monkeypatch.setattr(Cluster, "collect", collect_and_kill)
    assert model().fit(spread).forest_.hash == learnt.forest_.hash
    assert len(killed) == 1
