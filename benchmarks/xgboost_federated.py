"""XGBoost's own federated mode, as a peer: a server and one process per worker, on loopback."""

import multiprocessing
import socket
import sys
import time
from typing import Any

import numpy as np

from benchmarks.common import synthetic

TREES, DEPTH, FEATURES, BINS = 100, 8, 5, 64


def run(rows: int, workers: int, by_columns: bool = False) -> float:
    """Train the benchmark's forest over worker processes; seconds from binning to the last tree.

    Each worker has some of the rows, or some of the columns; the first one has the label.
    """
    context = multiprocessing.get_context("spawn")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = context.Process(target=_serve, args=(workers, port))
    server.start()
    results: Any = context.Queue()
    replies = [(rank, workers, port, rows, by_columns, results) for rank in range(workers)]
    parts = [context.Process(target=_work, args=one) for one in replies]
    try:
        time.sleep(1.0)
        for part in parts:
            part.start()
        return max(results.get(timeout=600) for _ in parts)
    finally:
        for process in (*parts, server):
            process.terminate()
            process.join()


def _serve(workers: int, port: int) -> None:
    from xgboost.federated import run_federated_server

    run_federated_server(workers, port)


def _work(rank: int, workers: int, port: int, rows: int, by_columns: bool, results: Any) -> None:
    import xgboost

    X, y = synthetic(rows)
    n_columns = X.shape[1]
    if by_columns:
        X = np.ascontiguousarray(X[:, rank::workers])
    else:
        X, y = X[rank::workers], y[rank::workers]
    with xgboost.collective.CommunicatorContext(
        dmlc_communicator="federated",
        federated_server_address=f"localhost:{port}",
        federated_world_size=workers,
        federated_rank=rank,
    ):
        xgboost.collective.allreduce(np.zeros(1), xgboost.collective.Op.SUM)  # wait until all are there
        start = time.perf_counter()
        split = xgboost.core.DataSplitMode.COL if by_columns else xgboost.core.DataSplitMode.ROW
        table = xgboost.QuantileDMatrix(X, y, max_bin=BINS, nthread=1, data_split_mode=split)
        parameters = {
            "objective": "binary:logistic",
            "num_parallel_tree": TREES,
            "max_depth": DEPTH,
            "subsample": 0.632,
            "colsample_bynode": FEATURES / n_columns,
            "learning_rate": 1.0,
            "reg_lambda": 0,
            "base_score": 0.5,
            "max_bin": BINS,
            "nthread": 1,
            "tree_method": "hist",
        }
        xgboost.train(parameters, table, num_boost_round=1)
        results.put(time.perf_counter() - start)


if __name__ == "__main__":
    print(run(int(sys.argv[1]), int(sys.argv[2]), "columns" in sys.argv))
