"""A site that was started in any way knows all messages of the package, and importing a tree loads no algorithm."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

ALL = """
import importlib, pkgutil, silvan
for module in pkgutil.walk_packages(silvan.__path__, "silvan."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:  # what an extra would install
        assert not (error.name or "").startswith("silvan"), error
"""
KINDS = "from silvan.federation.site import HANDLERS; print(*sorted(HANDLERS))"
FRESH = """
import os, sys
import cryptography, msgspec, narwhals, numba, numpy, polars  # once for all of them, what takes longest to import
for code in sys.argv[1:]:
    assert not any(name.startswith("silvan") for name in sys.modules)
    child = os.fork()
    if not child:
        exec(code, {})
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, code
"""


def printed(code):
    """What code prints in a fresh interpreter, as words."""
    return run_python(code).split()


def run_python(*words):
    done = subprocess.run([sys.executable, "-c", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


MODULES = ["silvan.algorithms", "silvan.deploy.jobs.site_job", "silvan.federate.by_columns", "silvan.federate.by_rows"]


@pytest.fixture(scope="module")
def kinds():
    """The kinds of messages that are known when one module was imported, in an interpreter where silvan was not."""
    there = [module for module in MODULES if "deploy" not in module or find_spec("nvflare")]
    lines = run_python(FRESH, *(f"{code}\n{KINDS}" for code in (ALL, *(f"import {module}" for module in there))))
    return dict(zip(("all", *there), lines.splitlines(), strict=True))


@pytest.mark.parametrize("module", MODULES)
def test_all_messages_are_known(module, kinds):
    if module not in kinds:
        pytest.skip("needs nvflare")
    assert len(kinds["all"].split()) > 50
    assert kinds[module] == kinds["all"]


@pytest.mark.skipif(find_spec("nvflare") is None, reason="needs nvflare")
def test_a_sites_job_loads_no_learner():
    """Every site starts a process for every study, and scikit-learn takes longer to import than all the rest."""
    loaded = "import sys; print(*sys.modules)"
    names = printed(f"from silvan.deploy.jobs import SiteExecutor\n{loaded}")
    assert "silvan.deploy.jobs.site_job" in names
    assert not {"sklearn", "silvan.learners", "silvan.deploy.jobs.coordinator_job"} & set(names)


def test_estimators_and_the_command_line_load_no_algorithms():
    loaded = "import sys; print(*(name for name in sys.modules if name.startswith('silvan')))"
    for code in ("import silvan; silvan.ForestClassifier", "import silvan.cli.main"):
        names = printed(f"{code}\n{loaded}")
        assert "silvan" in names
        assert not [name for name in names if name.startswith("silvan.algorithms")]
