"""The coordinator of ``flare.py``: runs a study as usual, then measures the wire between the same processes."""

import time
from concurrent.futures import ThreadPoolExecutor

import msgspec

from silvan.deploy.jobs.coordinator_job import Coordinator
from silvan.deploy.membership.coordinator_folder import CoordinatorFiles
from silvan.federation import wire
from silvan.federation.chunks import MOST, Chunk, ping
from silvan.federation.flare import WAIT, JobFolders
from silvan.study.parse import parse_remote_study
from silvan.util.files import write_whole

MEASURED = "measured.json"


class MeasuringCoordinator(Coordinator):
    """Measures the wire after the study, and writes the results to the run folder."""

    def work(self, folders: JobFolders) -> None:
        """Run the study, then measure; the job lasts until both are done."""
        super().work(folders)
        folder = CoordinatorFiles(folders.root.parent).path / "runs" / parse_remote_study(self.study).folder
        write_whole(folder / MEASURED, msgspec.json.encode(self._measure()))

    def _measure(self, rounds: int = 100) -> dict[str, float]:
        """Return the median seconds of a round without work, and the bytes per second to one site."""

        def ping_site(site: str) -> None:
            ping(lambda piece: self.carry(site, piece, WAIT))

        times = []
        with ThreadPoolExecutor(len(self.sites)) as pool:
            for _ in range(rounds):
                start = time.perf_counter()
                list(pool.map(ping_site, self.sites))
                times.append(time.perf_counter() - start)
        # the first half of a message, which the site keeps until another message arrives
        load = wire.encode(Chunk("load", 0, 2 * MOST, "ask", bytes(MOST)))
        start = time.perf_counter()
        for _ in range(8):
            self.carry(self.sites[0], load, WAIT)
        seconds = time.perf_counter() - start
        return {"round": sorted(times)[rounds // 2], "bytes a second": 8 * MOST / seconds}
