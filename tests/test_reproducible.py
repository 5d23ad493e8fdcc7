"""Building a release twice from the same sources gives the same bytes."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "src", "examples")


def copy_of_the_sources(folder, *, late, private):
    """Copies the files of a build, with other times and permissions."""
    folder.mkdir()
    for name in SOURCES:
        source, ignore = ROOT / name, shutil.ignore_patterns("__pycache__")
        (shutil.copytree(source, folder / name, ignore=ignore) if source.is_dir() else shutil.copy(source, folder))
    for path in folder.rglob("*"):
        os.utime(path, (1_600_000_000 + late, 1_600_000_000 + late))
        if private and path.is_file():
            path.chmod(path.stat().st_mode & 0o700)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_two_builds_of_the_same_sources_are_the_same_bytes(tmp_path, kind):
    digests = []
    for turn in (0, 1):
        sources = copy_of_the_sources(tmp_path / f"sources-{turn}", late=86400 * turn, private=turn == 1)
        command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(tmp_path / f"built-{turn}")]
        done = subprocess.run(command, cwd=sources, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        (built,) = (tmp_path / f"built-{turn}").iterdir()
        digests.append((built.name, hashlib.sha256(built.read_bytes()).hexdigest()))
    assert digests[0] == digests[1]
