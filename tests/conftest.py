"""Shared by all tests: compiled kernels, randomness, the order of tests, and which tests take long.

The folder of compiled kernels is named by a hash of all kernel files, so that several versions can coexist.
"""

import gc
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import typer.testing
from helpers import needs, randomness
from hypothesis import settings

from silvan.util.kernel_texts import digest_of_kernels

pytest_plugins = ["helpers.postgres", "helpers.mariadb"]  # the fixtures of these names

TESTS = Path(__file__).parent
COMPILED = TESTS.parent / ".numba_cache"
_KEPT = 4  # folders of compiled kernels
_COMPLETE = "complete"

LONG = (
    "test_flare.py",
    "test_faults.py",
    "test_flare_columns.py",
    "web/test_browser.py",
    "test_large.py",
    "federation/test_partitioned_site.py",
    "auditing/test_measured_epsilon.py",
    "privacy/aggregation/test_masked_sums.py",
    "test_backends.py",
    "algorithms/vertical/test_linear_fit.py",
    "test_lossless.py",
    "federation/test_resume.py",
    "test_vertical_lossless.py",
    "algorithms/vertical/test_encrypted.py",
    "study/test_column_steps.py",
    "algorithms/boosting/test_adaboost.py",
    "algorithms/boosting/test_multboost.py",
    "auditing/test_run_audit.py",
    "algorithms/private/test_tables.py",
    "algorithms/bofrf/test_choose.py",
    "federation/test_signed.py",
    "algorithms/test_registration.py",
    "cli/test_fit_command.py",
    "privacy/aggregation/test_hidden_sums.py",
    "test_random_tables.py",
    "algorithms/test_shared_bins.py",
    "tree/test_fit.py",
    "tree/test_grow.py",
    "federation/test_lies.py",
    "algorithms/bofrf/test_weigh.py",
    "cli/test_demo_command.py",
    "deploy/test_joining.py",
    "algorithms/test_equal_say.py",
    "algorithms/test_refit_leaves.py",
    "algorithms/bofrf/test_hostile_scores.py",
    "test_mutants.py",
    "learners/test_forest_estimators.py",
)
"""Files that take long, the longest first: so they begin, while files that take a moment are left to fill gaps.

They have the mark ``long``, and ``make check`` leaves them out.
"""


# -- hypothesis: the same examples in every run, or new ones each time (`make explore`)

settings.register_profile("silvan", deadline=None, derandomize=True, database=None)  # kernels compile when called
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.register_profile("few", settings.get_profile("silvan"), max_examples=3)  # where kernels are not compiled
settings.load_profile("silvan")
randomness.install()


def _exploring(config: pytest.Config) -> bool:
    return config.getoption("--hypothesis-profile") == "explore"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Starts each test with the same random bytes; fixtures of a file get the same bytes whichever test runs first."""
    for mark in item.iter_markers("needs"):
        needs.skip_without(*mark.args)
    _seed(item, item.path.name)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Continues with the random bytes of the test itself."""
    _seed(item, item.nodeid)


def _seed(item: pytest.Item, name: str) -> None:
    system = _exploring(item.config) or item.get_closest_marker("system_randomness") is not None
    randomness.begin(None if system else name)


# -- the command line, whose commands are built once and not for each run

typer.testing._get_command = cache(typer.testing._get_command)


# -- compiled kernels


def _use_compiled_kernels() -> None:
    """Makes numba keep compiled kernels in a folder for this state of the sources.

    SILVAN_COMPILED overrides this: whoever sets it knows when sources are the same (``tools/mutants.py``).
    """
    given = os.environ.get("SILVAN_COMPILED")
    folder = COMPILED / digest_of_kernels() if given is None else Path(given)
    os.environ["NUMBA_CACHE_DIR"] = str(folder)
    folder.mkdir(parents=True, exist_ok=True)
    folder.touch()
    if given is not None:
        return
    for old in sorted(COMPILED.iterdir(), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
        shutil.rmtree(old, ignore_errors=True)


os.environ.setdefault("SILVAN_READY_PROCESS", "off")  # federations of tests run one or two studies and are gone

if "PYTEST_XDIST_WORKER" not in os.environ:  # workers inherit it from the process that started them
    _use_compiled_kernels()


def pytest_configure(config: pytest.Config) -> None:
    """Prepares for several processes, which would otherwise all compile the same kernels at the start."""
    config.addinivalue_line("markers", "needs(name): is skipped where that is missing, see helpers/needs.py")
    config.addinivalue_line("markers", "long: takes long; `make check` leaves it out")
    config.addinivalue_line("markers", "system_randomness: draws from the operating system, and may fail by chance")
    if not config.getoption("numprocesses", None):
        return
    for pool in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"):
        os.environ.setdefault(pool, "1")  # there are as many processes as cores
    complete = Path(os.environ["NUMBA_CACHE_DIR"]) / _COMPLETE
    if complete.exists() or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    print("compiling kernels, which takes half a minute when they have changed", flush=True)
    command = [sys.executable, "-m", "helpers.compile_kernels"]
    started = [subprocess.Popen([*command, group], cwd=TESTS) for group in ("rows", "others")]
    for process in started:
        process.wait()
    complete.touch()


# -- order


def _places() -> dict[Path, int]:
    return {TESTS / name: place for place, name in enumerate(LONG)}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Does not even read files that `make check` leaves out."""
    return (config.option.markexpr == "not long" and collection_path in _places()) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs the files that take long first."""
    places = _places()
    unknown = [str(path) for path in places if not path.exists()]
    if unknown:
        raise pytest.UsageError(f"{__file__}: LONG names files that are not there: {', '.join(unknown)}")
    for item in items:
        if item.path in places:
            item.add_marker("long")
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_collection_finish() -> None:
    """Makes the garbage collector ignore what exists before the first test: millions of objects that stay."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Gives all tests of a file to one process, so that shared fixtures are made once; files in the order above."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if "::test_schedules" in nodeid else super()._split_scope(nodeid)  # of faults, and many

    config.option.loadscopereorder = False
    return Scheduling(config, log)
