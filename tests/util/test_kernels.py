"""Compiled kernels are reused while all files with kernels are unchanged, and no longer."""

import os
import subprocess
import sys
from pathlib import Path

from silvan.util import kernel_texts

SOURCES = Path(kernel_texts.__file__).parent.parent

KERNEL = """
import sys
from silvan.util import kernels
kernels._STATE = sys.argv[1]
from {module} import Pair

@kernels.njit(nogil=True, cache=True)
def add(pair):
    return pair.a + pair.b

print(add(Pair(1.0, 2.0)), sum(add.stats.cache_hits.values()))
"""


PAIR = "from typing import NamedTuple\n\nclass Pair(NamedTuple):\n    a: float\n    b: float\n"


def run(folder, state, module, **more):
    """Adds two numbers of a class from a module by a kernel; says whether it was compiled before."""
    (folder / "kernel.py").write_text(KERNEL.format(module=module))
    command = [sys.executable, "kernel.py", state]
    environment = {"NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(SOURCES.parent), **more}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_kernels_of_an_earlier_version_are_not_used(tmp_path):
    """The class of an argument has moved to another module: numba cannot read a cache that names the old one."""
    (tmp_path / "first.py").write_text(PAIR)
    assert run(tmp_path, "before", "first").stdout == "3.0 0\n"
    assert run(tmp_path, "before", "first").stdout == "3.0 1\n"
    (tmp_path / "first.py").rename(tmp_path / "other.py")
    assert "No module named 'first'" in run(tmp_path, "before", "other").stderr
    assert run(tmp_path, "after", "other").stdout == "3.0 0\n"
    assert run(tmp_path, "after", "other").stdout == "3.0 1\n"


def test_without_a_writable_folder_kernels_are_compiled_in_memory(tmp_path):
    """A service with a read-only system and a closed home: neither the package's folder nor the user's can be used."""
    (tmp_path / "pairs.py").write_text(PAIR)
    nowhere = {"NUMBA_CACHE_DIR": "/dev/null/cache", "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator"}
    done = run(tmp_path, "now", "pairs", **nowhere)
    assert done.stdout == "3.0 0\n"
    assert done.stderr.count("set NUMBA_CACHE_DIR") == 1


def test_on_a_full_disk_kernels_are_compiled_in_memory(tmp_path):
    (tmp_path / "pairs.py").write_text(PAIR)
    full = "import tempfile, os\ndef no_space(*a, **k): raise OSError(28, 'No space left on device')\n"
    (tmp_path / "sitecustomize.py").write_text(full + "os.replace = no_space\n")
    done = run(tmp_path, "now", "pairs", PYTHONPATH=os.pathsep.join([str(tmp_path), str(SOURCES.parent)]))
    assert done.stdout == "3.0 0\n"
    assert done.stderr.count("set NUMBA_CACHE_DIR") == 1


def test_changing_a_kernel_file_invalidates_the_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_texts, "PACKAGE", tmp_path)
    (tmp_path / "tree").mkdir()
    files = {"kernels.py": "@njit()", "tree/constants.py": "BINS = 64", "words.py": "HELLO = 1"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    before = kernel_texts.digest_of_kernels()
    for name, matters in (("kernels.py", True), ("tree/constants.py", True), ("words.py", False)):
        (tmp_path / name).write_text(files[name] + "  # changed")
        assert (kernel_texts.digest_of_kernels() != before) == matters
        (tmp_path / name).write_text(files[name])
    (tmp_path / "tree" / "constants.py").rename(tmp_path / "tree" / "numbers.py")
    assert kernel_texts.digest_of_kernels() != before


def test_no_file_uses_numbas_decorator_directly():
    ours = "from silvan.util.kernels import njit"
    assert [p for p in SOURCES.rglob("*.py") if "import njit" in p.read_text().replace(ours, "")] == []
