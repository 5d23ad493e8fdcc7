"""What all tests share.

numba keeps a compiled kernel while its own file is unchanged, whatever happens to the kernels it calls in
other files. So when any file with kernels has changed since the last run, all compiled ones are thrown away.
"""

import hashlib
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import settings

settings.register_profile("silvan", deadline=None)  # nothing is timed in a test, and kernels compile when called
settings.load_profile("silvan")

pytest_plugins = ["helpers.postgres"]  # the fixture of that name

SOURCES = Path(__file__).parent.parent / "src" / "silvan"
KEY = "silvan/sources"


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist; the process that started it has been here
        return
    digest = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*.py")):
        text = path.read_bytes()
        if b"njit" in text or path.parent.name in ("data", "tree"):  # kernels, and where their constants are
            digest.update(str(path.relative_to(SOURCES)).encode() + b"\0" + text)
    cache = getattr(config, "cache", None)  # none with -p no:cacheprovider
    if cache is None or cache.get(KEY, None) != digest.hexdigest():
        for path in SOURCES.rglob("*.nb[ic]"):
            path.unlink(missing_ok=True)
    if cache is not None:
        cache.set(KEY, digest.hexdigest())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that share a federation of processes: so one worker of pytest-xdist gets them all."""
    items.sort(key=lambda item: item.path.name != "test_flare.py")


BY_CHANCE = ("test_private_", "test_noise", "test_epsilon", "test_budget")
"""Files whose tests draw noise from the operating system and so may fail by chance, though rarely."""


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Believe a failure that chance may have caused when it comes three times running."""
    if not item.path.name.startswith(BY_CHANCE):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for _ in range(3):
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if not any(report.failed for report in reports):
            break
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
