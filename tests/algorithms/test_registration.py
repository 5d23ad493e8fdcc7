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


def printed(code):
    """What code prints in a fresh interpreter, as words."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def every_kind():
    return printed(f"{ALL}\n{KINDS}")


@pytest.mark.parametrize(
    "module",
    ["silvan.algorithms", "silvan.deploy.jobs.site_job", "silvan.federate.by_columns", "silvan.federate.by_rows"],
)
def test_all_messages_are_known(module, every_kind):
    if module == "silvan.deploy.jobs.site_job" and find_spec("nvflare") is None:
        pytest.skip("needs nvflare")
    assert len(every_kind) > 50
    assert printed(f"import {module}\n{KINDS}") == every_kind


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
