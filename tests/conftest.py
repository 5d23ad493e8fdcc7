"""What all tests share: compiled kernels, hypothesis, and the order of tests.

numba keeps a compiled kernel while its own file is unchanged, whatever happens to the kernels it calls in other files.
So compiled kernels are kept in a folder that is named by the text of all files with kernels.
"""

import hashlib
import os
import shutil
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import settings

settings.register_profile("silvan", deadline=None)  # nothing is timed in a test, and kernels compile when called
settings.load_profile("silvan")

pytest_plugins = ["helpers.postgres"]  # the fixture of that name

ROOT = Path(__file__).parent.parent
COMPILED = ROOT / ".numba_cache"
_KEPT = 4  # folders of compiled kernels


def _use_compiled_kernels() -> None:
    """Have numba keep compiled kernels in a folder of their own for this state of the sources."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src" / "silvan").rglob("*.py")):
        text = path.read_bytes()
        if b"njit" in text or path.parent.name in ("data", "tree", "forest"):  # kernels, and where their constants are
            digest.update(str(path).encode() + b"\0" + text)
    folder = COMPILED / digest.hexdigest()[:16]
    os.environ["NUMBA_CACHE_DIR"] = str(folder)
    folder.mkdir(parents=True, exist_ok=True)
    folder.touch()
    for old in sorted(COMPILED.iterdir(), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
        shutil.rmtree(old, ignore_errors=True)


if "PYTEST_XDIST_WORKER" not in os.environ:  # workers have it from the process that started them
    _use_compiled_kernels()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that share a federation of processes: so one worker of pytest-xdist gets them all."""
    items.sort(key=lambda item: item.path.name != "test_flare.py")


BY_CHANCE = ("algorithms/private/", "privacy/noise/", "auditing/test_measured_epsilon.py")
"""Where tests draw noise from the operating system and so may fail by chance, though rarely."""


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Believe a failure that chance may have caused when it comes three times running."""
    if not item.path.relative_to(ROOT / "tests").as_posix().startswith(BY_CHANCE):
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
