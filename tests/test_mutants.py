"""Mutants: each still applies, and tests detect a few of them; ``python tools/mutants.py`` runs all."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "tools" / "mutants.py"
FAST = ("size of arrays", "array matches its shape")
"""Mutants whose tests are in one file, take a moment and compile no kernels."""


@pytest.fixture(scope="module")
def mutants():
    spec = importlib.util.spec_from_file_location("mutants", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mutants"]


def test_every_mutant_applies_exactly_once(mutants):
    every = mutants.read_mutants(mutants.LIST)
    assert len(every) >= 90
    assert len({mutant.name for mutant in every}) == len(every)
    texts = [path.read_text() for path in sorted(mutants.SOURCES.rglob("*.py"))]
    wrong = {mutant.name: n for mutant in every if (n := sum(text.count(mutant.find) for text in texts)) != 1}
    assert wrong == {}
    for mutant in every:
        assert mutant.find != mutant.replace, mutant.name
        assert mutants.test_ids(mutant.tests), mutant.name


def test_mutants_that_do_not_apply_are_reported(mutants):
    mutant = mutants.read_mutants(mutants.LIST)[0]
    for text in ("no such text", "import "):
        with pytest.raises(mutants.LookupFailedError):
            mutants.file_of(mutant._replace(find=text))
    for test in ("test_nowhere.py", f"{Path(__file__).name}::test_nothing"):
        with pytest.raises(mutants.LookupFailedError):
            mutants.test_ids([test])


def test_tests_detect_some_mutants(mutants, tmp_path):
    """And a harmless change survives: tests do not fail for every change of the sources."""
    some = mutants.chosen(mutants.read_mutants(mutants.LIST), FAST, None)
    listed = [*some, some[0]._replace(name="harmless", replace=some[0].find)]
    entries = [
        "\n".join(["[[mutant]]", *(f"{key} = {json.dumps(value)}" for key, value in mutant._asdict().items())])
        for mutant in listed
    ]
    (tmp_path / "few.toml").write_text("\n".join(entries))
    command = [sys.executable, str(SCRIPT), "--mutants", str(tmp_path / "few.toml"), "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert lines[-2:] == ["alive: harmless", "2 killed, 1 survive"], done.stdout + done.stderr
    assert done.returncode == 1
