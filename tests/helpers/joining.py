"""A coordinator that sites can join, in this process: the real service on loopback."""

import threading
from contextlib import contextmanager

import polars as pl

from silvan.deploy.membership.coordinator_folder import CoordinatorFiles
from silvan.deploy.membership.enrol import make_server
from silvan.deploy.service.start_stop import free_port


@contextmanager
def serving(hub):
    server = make_server(hub)
    server.server_bind()
    server.server_activate()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def make_hub(folder, sites=("north", "south"), host="localhost", **settings):
    return CoordinatorFiles.create(folder / "hub", "heart", list(sites), host, free_port(), **settings)


def write_table(folder, name="table.csv"):
    pl.DataFrame({"age": [40, 50, 60, 70], "label": [0, 1, 0, 1]}).write_csv(folder / name)
    return str(folder / name)
