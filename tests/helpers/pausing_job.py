"""A coordinator's job that waits before a chosen request, so that a test can act at that moment."""

from pathlib import Path

from silvan.deploy.jobs.coordinator_job import Coordinator

PARTY, QUESTION = "shop", b"SplitNodes"
"""Whose question it waits before, and which: the first one about splits that this party has chosen."""

PAUSED, GO_ON = "paused", "go on"
"""Files in the coordinator's folder: it waits, and it may go on."""


class PausingCoordinator(Coordinator):
    """Waits before a request until it is released; a resubmitted job does not wait any more."""

    def work(self, folders):
        """Runs the study."""
        self.folder = Path(folders.root.parent)
        super().work(folders)

    def carry(self, site, data, wait):
        """Delivers bytes to a site, after a pause if they are the chosen request."""
        if site == PARTY and QUESTION in data and not (self.folder / GO_ON).exists():
            (self.folder / PAUSED).touch()
            while not (self.folder / GO_ON).exists():
                self.pause(0.05)
        return super().carry(site, data, wait)
