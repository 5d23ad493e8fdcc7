"""When a site of a FLARE job counts as gone: one that was there, and one whose process is still starting."""

import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'silvan[flare]' to test real sites")

from silvan.federation.flare import GONE, STARTING, AbortedError, FlareTransport
from silvan.federation.outgoing import UnreachedError


class Alone(FlareTransport):
    """A coordinator whose clock stands still, with sites that do not respond."""

    time = 1000.0

    def __init__(self):
        super().__init__(self, ["north"], {})

    def now(self):
        return self.time

    def pause(self, seconds):
        pass

    def carry(self, site, piece, wait):
        raise UnreachedError("it cannot be reached")


def test_a_site_that_is_slow_to_start_has_not_left():
    """On a busy machine its process loads for longer than a site may be silent; a new job would have to load again."""
    transport = Alone()
    for seconds in (0.0, GONE + 1, STARTING - 1, STARTING):
        transport.time = Alone.time + seconds
        transport._look_after({"north"})
    transport.time += 1
    with pytest.raises(AbortedError, match="site 'north' has left the job"):
        transport._look_after({"north"})


def test_a_site_that_was_there_leaves_sooner():
    transport = Alone()
    transport._look_after({"north"})
    transport._last_seen["north"] = transport.time
    for seconds in (1.0, GONE):
        transport.time = Alone.time + seconds
        transport._look_after({"north"})
    transport.time += 1
    with pytest.raises(AbortedError, match="site 'north' has left the job"):
        transport._look_after({"north"})
