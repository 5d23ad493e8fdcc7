"""The installed package: a complete wheel, in an environment without this clone."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*words, **options):
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.skipif("SILVAN_WHEEL" not in os.environ, reason="to build and run the wheel: SILVAN_WHEEL=1 make test")
def test_the_wheel_runs_the_demo(tmp_path):
    """Builds, installs and runs it; dependencies come from the tests' environment, without a package index."""
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", tmp_path, cwd=ROOT)
    (wheel,) = tmp_path.glob("silvan-*.whl")
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
    assert not any(name.startswith(("tests/", "docs/", "benchmarks/")) for name in names)
    assert any(name.endswith("income.csv.gz") for name in names)  # the demo's data

    place = tmp_path / "environment"
    venv.create(place, with_pip=False, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(place)}))
    with zipfile.ZipFile(wheel) as content:
        content.extractall(packages)
    # after the wheel's own folder, so that silvan is the wheel's and everything else the tests'
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = place / "bin" / "python"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    options = {"cwd": tmp_path, "env": environment}
    assert str(packages) in run(python, "-c", "import silvan; print(silvan.__file__)", **options)
    small = ("--data", "diabetes", "--sites", "3", "--repeats", "1", "--output", "demo")
    said = run(python, "-m", "silvan.cli.main", "demo", *small, **options)
    assert "clinic" in said.lower()
    assert (tmp_path / "demo").is_dir()
