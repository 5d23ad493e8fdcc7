"""Trees on a graphics card, which numba simulates here: the same forest, and what happens without a card."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import silvan as sv
from silvan.errors import InputError
from silvan.util.device import why_unusable

SCRIPT = Path(__file__).parents[1] / "helpers" / "device_trees.py"


@pytest.mark.long
@pytest.mark.parametrize("case", ["tables", "weights", "little_room", "small_nodes", "sites", "failures"])
def test_forest_of_a_device_is_that_of_the_processor(case: str) -> None:
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", SCRIPT, case], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(why_unusable() is None, reason="this machine has a graphics card")
def test_without_a_graphics_card_the_processor_grows_the_forest() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)), rng.integers(0, 2, 60)
    with pytest.warns(UserWarning, match=r"there is no graphics card.*; the processor grows the trees instead"):
        forest = sv.ForestClassifier(n_estimators=2, device="cuda").fit(X, y).forest_
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert forest.hash == sv.ForestClassifier(n_estimators=2).fit(X, y).forest_.hash
        assert sv.ForestClassifier(n_estimators=2, device="cpu").fit(X, y).forest_.hash == forest.hash
    assert "numba.cuda" not in describe_without_importing()


def describe_without_importing() -> str:
    """Return what a process that grows a small forest has imported."""
    code = (
        "import sys, numpy as np, silvan as sv; sv.ForestClassifier(n_estimators=1).fit(np.eye(40), [0, 1] * 20);"
        "print([name for name in sys.modules if name.startswith(('numba.cuda', 'numba_cuda', 'cupy'))])"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("device", ["gpu", "", None, 0])
def test_a_device_that_cannot_be(device: object) -> None:
    X, y = np.eye(20), [0, 1] * 10
    with pytest.raises(InputError, match="device must be one of auto, cpu, cuda"):
        sv.ForestClassifier(device=device).fit(X, y)
    with pytest.raises(InputError, match="device"):
        sv.federate_rows({"a": (X, y), "b": (X, y)}, device=device)
