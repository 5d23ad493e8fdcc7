"""One table lists all messages of the package; importing one algorithm loads only what it needs."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from silvan.federation.handlers import HANDLERS, KINDS

FRESH = """
import os, sys
import cryptography, msgspec, narwhals, numba, numpy  # once for all of them, what takes longest to import
for code in sys.argv[1:]:
    assert not any(name.startswith("silvan") for name in sys.modules)
    child = os.fork()
    if not child:
        exec(code, {})
        print(*sys.modules)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, code
"""
ALL = """
import importlib, pkgutil, silvan
from silvan.federation import handlers
register = handlers.Handlers.register
def note(self, request, function):
    print(f"{request.kind()}={function.__module__}", end=" ")
    register(self, request, function)
handlers.Handlers.register = note
for module in pkgutil.walk_packages(silvan.__path__, "silvan."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:  # what an extra would install
        assert not (error.name or "").startswith("silvan"), error
"""
TABLE = "from silvan.federation.handlers import HANDLERS"
SITE_JOB = "from silvan.deploy.jobs import SiteExecutor"
FAMILIES = {  # maximum number of algorithms loaded by some code
    f"{TABLE}; assert 'GrowLevel' in HANDLERS and len(sorted(HANDLERS)) > 50": set(),
    f"{TABLE}; HANDLERS['GrowLevel']": {"horizontal"},
    "import silvan.algorithms.horizontal.histogram_forest": {"horizontal"},
    "import silvan.algorithms.vertical.linear_fit": {"vertical"},
    "import silvan.federation.site": set(),
    "import silvan.privacy.gate": set(),
    "import silvan; silvan.ForestClassifier": set(),
    "import silvan.cli.main": set(),
}
TREES = ["silvan.tree.fit", "silvan.forest.forest"]
READERS = ("silvan.data.readers", "silvan.data.table", "silvan.data.batches", "silvan.data.partitioned_table", "polars")
FORMATS = tuple(f"silvan.forest.{name}" for name in ("onnx_file", "treelite_model", "sklearn_trees"))


@pytest.fixture(scope="module")
def loaded():
    """What code prints and the modules it loads, in an interpreter where silvan was not imported before."""
    codes = [ALL, *FAMILIES, *(f"import {module}" for module in TREES), *([SITE_JOB] if find_spec("nvflare") else [])]
    done = subprocess.run([sys.executable, "-c", FRESH, *codes], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(codes, map(str.split, done.stdout.splitlines()), strict=True))


def test_the_table_lists_all_decorated_handlers(loaded):
    assert len(KINDS) > 50
    assert dict(word.split("=") for word in loaded[ALL] if "=" in word) == KINDS


@pytest.mark.parametrize("kind", ["", "os:system", "silvan.cli.main:main", "Nothing"])
def test_only_the_table_is_looked_up(kind):
    assert kind not in HANDLERS
    with pytest.raises(KeyError):
        HANDLERS[kind]


@pytest.mark.parametrize("code", FAMILIES)
def test_only_needed_algorithms_are_loaded(code, loaded):
    assert "silvan" in loaded[code]
    folders = {
        name.split(".")[2] for name in loaded[code] if name.startswith("silvan.algorithms.") and name.count(".") > 2
    }
    assert folders <= FAMILIES[code]


@pytest.mark.parametrize("module", TREES)
def test_importing_trees_loads_no_readers_or_formats(module, loaded):
    names = loaded[f"import {module}"]
    assert module in names
    assert not [name for name in names if name.startswith((*READERS, *FORMATS, "onnx", "sklearn", "silvan.federation"))]


@pytest.mark.skipif(find_spec("nvflare") is None, reason="needs nvflare")
def test_a_sites_job_loads_no_learner(loaded):
    """Every site starts a process for every study, and scikit-learn takes longer to import than everything else."""
    assert "silvan.deploy.jobs.site_job" in loaded[SITE_JOB]
    assert not {"sklearn", "silvan.learners.base", "silvan.deploy.jobs.coordinator_job"} & set(loaded[SITE_JOB])
