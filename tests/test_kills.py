"""Processes of a real federation are killed at random moments; every study ends by itself, with the same forest.

Here one study loses two processes; `make faults` kills 100, which takes the better part of an hour.
``SILVAN_KILLS=n`` sets how many are killed, ``SILVAN_KILL_SEED=n`` which and when, and ``SILVAN_KILL_RESULTS=FILE``
keeps a line per study, to resume from.
"""

import os
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'silvan[flare]' to test real sites")

from helpers import kills


def test_kills_do_not_change_the_forest(capsys):
    given = os.environ.get("SILVAN_KILL_RESULTS")
    with capsys.disabled():
        lines = kills.run(
            int(os.environ.get("SILVAN_KILLS", "100" if "SILVAN_REAL_FAULTS" in os.environ else "2")),
            int(os.environ.get("SILVAN_KILL_SEED", "0")),
            None if given is None else Path(given),
            lambda line: print(line, flush=True),
        )
        print(kills.summary(lines))
    assert [line for line in lines if not line.same] == []
