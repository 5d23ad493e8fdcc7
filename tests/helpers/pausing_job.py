"""The coordinator of a job that waits before a question of its choice, so that a test can do something just then."""

from pathlib import Path

from silvan.deploy.jobs.coordinator_job import Coordinator

PARTY, QUESTION = "shop", b"SplitNodes"
"""Whose question it waits before, and which: the first one about splits that this party has chosen."""

PAUSED, GO_ON = "paused", "go on"
"""Files in the coordinator's folder: it waits, and it may go on."""


class PausingCoordinator(Coordinator):
    """Waits before a question until it is told to go on; a job that is handed in again does not wait any more."""

    def work(self, folders):
        """Run the study."""
        self.folder = Path(folders.root.parent)
        super().work(folders)

    def carry(self, site, data, wait):
        """Bring bytes to a site, after a pause if they are the question."""
        if site == PARTY and QUESTION in data and not (self.folder / GO_ON).exists():
            (self.folder / PAUSED).touch()
            while not (self.folder / GO_ON).exists():
                self.pause(0.05)
        return super().carry(site, data, wait)
