"""Studies over poor links between real processes end with the same forest: slow links, and links that cut idle ones.

They take a quarter of an hour: `make faults` runs them.
"""

import contextlib
import json
import os
import threading
import time

import numpy as np
import polars as pl
import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'silvan[flare]' to test real sites")

from helpers.slow_link import IdleLink, SlowLink

import silvan as sv
from silvan.deploy.membership.joined_site import JoinedSite
from silvan.deploy.service import start_stop
from silvan.deploy.service.start_stop import process_of, processes_of, start_site, stop_all
from silvan.deploy.service.supervise import Supervisor
from silvan.deploy.studies.explain import approve_study
from silvan.study.parse import parse_remote_study

SITES = ("north", "south", "west")
FOREST = {"n_estimators": 60, "max_depth": 12, "max_features": 8}
SPEED, DELAY = float(os.environ.get("SILVAN_LINK", "1")) * 1e6 / 8, 0.1

pytestmark = pytest.mark.skipif(
    "SILVAN_REAL_FAULTS" not in os.environ, reason="takes a quarter of an hour: make faults"
)


def test_a_study_ends_over_slow_links(tmp_path, capsys):
    everything = wide_table(3000)
    sources = {}
    for i, site in enumerate(SITES):
        sources[site] = str(tmp_path / f"{site}.parquet")
        everything[i::3].write_parquet(sources[site])
    hub, members = start_stop.make_local(tmp_path, sources)
    said = []
    try:
        with contextlib.ExitStack() as stack:
            links = [stack.enter_context(SlowLink(hub.read().port, SPEED, DELAY)) for _ in members]
            for member, link in zip(members, links, strict=True):
                process_of(member).stop()
                send_through(link.port, member)
                start_site(member)
            plan = parse_remote_study(
                'name = "slow"\nsampling = "published"\nsums = "masked"\ntest = 0.25\n[learner]\n'
                'kind = "HistogramForest"\n' + "".join(f"{key} = {value}\n" for key, value in FOREST.items())
            )
            begun = time.monotonic()
            run = Supervisor(hub, plan, said.append).run_to_end()
            seconds = time.monotonic() - begun
            up, down = (max(link.bytes[way] for link in links) for way in (0, 1))
            with capsys.disabled():
                print(
                    f"\n{up:,} bytes from a site, {down:,} to it: {(up + down) / SPEED:.0f} of {seconds:.0f} s "
                    f"if one after the other; {run.read().rounds} rounds"
                )
    finally:
        stop_all([*map(process_of, members), *processes_of(hub)])
    fed = sv.federate_rows(sources, test=0.25, sums="masked")
    assert next(m.hash for m in run.read().models if not m.site) == sv.HistogramForest(**FOREST).fit(fed).forest_.hash
    assert sum("handed in" in line for line in said) == 1
    assert up > 1e7, "a study this small says nothing of slow links"


@pytest.mark.parametrize("idle", [60.0, 4.0])
def test_a_proxy_that_cuts_idle_connections(tmp_path, capsys, idle):
    """Sites wait for an owner longer than the proxy does: no connection is idle for a minute; cut ones return."""
    everything = wide_table(300)
    sources = {site: everything[i::3] for i, site in enumerate(SITES)}
    for site, rows in sources.items():
        rows.write_parquet(tmp_path / f"{site}.parquet")
    paths = {site: str(tmp_path / f"{site}.parquet") for site in SITES}
    hub, members = start_stop.make_local(tmp_path, paths)
    plan = parse_remote_study(
        'name = "idle"\nsampling = "published"\ntest = 0.25\n[learner]\nkind = "HistogramForest"\nn_estimators = 3\n'
    )
    said = []
    try:
        with IdleLink(hub.read().port, idle) as link:
            for member in members:
                process_of(member).stop()
                send_through(link.port, member)
                if member.name == "west":
                    settings = member.path / "site.toml"
                    settings.write_text(f"{settings.read_text().rstrip()}\napprove = true\n")
                start_site(member)

            def approve_late():
                time.sleep(idle + 30)
                approve_study(JoinedSite(members[-1].path), plan)

            owner = threading.Thread(target=approve_late)
            owner.start()
            run = Supervisor(hub, plan, said.append).run_to_end()
            owner.join()
            with capsys.disabled():
                print(f"\n{link.cut} connections cut after {idle:g} s; idle for {link.longest:.1f} s at most")
    finally:
        stop_all([*map(process_of, members), *processes_of(hub)])
    fed = sv.federate_rows(paths, test=0.25)
    assert next(m.hash for m in run.read().models if not m.site) == sv.HistogramForest(3).fit(fed).forest_.hash
    assert (link.cut == 0) == (idle == 60.0)
    assert any("has not approved the study" in line for line in said)


def wide_table(n):
    """A table of 40 columns that takes many splits."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 40))
    label = (X[:, :5].sum(axis=1) + np.sin(3 * X[:, 5]) + rng.normal(size=n) > 0).astype(int)
    return pl.DataFrame({**{f"x{j}": X[:, j] for j in range(40)}, "label": label})


def send_through(port, member):
    """Makes a site reach the coordinator through another port."""
    path = member.path / "kit" / "startup" / "fed_client.json"
    settings = json.loads(path.read_text())
    settings["servers"][0]["service"]["target"] = f"localhost:{port}"
    path.write_text(json.dumps(settings))
