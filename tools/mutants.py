"""Breaks protections and rules one at a time, and checks that a test fails.

    python tools/mutants.py                 # all mutants; resumes an interrupted run
    python tools/mutants.py --only NAME     # one of them
    python tools/mutants.py --sample 10     # ten, chosen at random
    python tools/mutants.py --afresh        # forget earlier results
    python tools/mutants.py --list

A mutant (``mutants.toml``) is a text that occurs exactly once in ``src``, its replacement, and tests of which at
least one must fail. Files are found by that text, and tests by the names of file and function, so both may move.

Mutants live in a copy of ``src`` that comes first on PYTHONPATH; the work tree stays as it is. The named tests must
first pass with the unchanged copy, so that a broken test does not count as a detection. Tests run in forks of this
process, which has done the slow imports; compiled kernels are kept, and only a mutant of a kernel file compiles its
own.
"""

import argparse
import hashlib
import importlib
import json
import os
import random
import re
import runpy
import shutil
import signal
import sys
import time
import tomllib
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCES, TESTS = ROOT / "src", ROOT / "tests"
FOLDER = ROOT / ".mutants"
TIMEOUT = 300.0
"""Seconds until the tests of a mutant are stopped, which says nothing about it: the machine may be busy."""
WARM = ("pytest", "numpy", "polars", "pandas", "scipy.stats", "sklearn.ensemble", "msgspec")
"""What nearly all tests import. Not numba, which reads where compiled kernels are when it is imported; nor a plugin."""


class Mutant(NamedTuple):
    """One change to the sources: a text that occurs once, its replacement, and the tests that detect it."""

    name: str
    find: str
    replace: str
    tests: list[str]


def read_mutants(path: Path) -> list[Mutant]:
    """Read a list of mutants."""
    return [Mutant(**entry) for entry in tomllib.loads(path.read_text())["mutant"]]


LIST = Path(__file__).with_suffix(".toml")


class LookupFailedError(Exception):
    """A text or a test is missing, or occurs more than once."""


def only_one(found: list[Path], what: str) -> Path:
    """Return the only match; raise an error for none or several."""
    if len(found) != 1:
        names = ", ".join(str(path) for path in found) or "nowhere"
        raise LookupFailedError(f"{what} must occur exactly once, and occurs {len(found)} times: {names}")
    return found[0]


def file_of(mutant: Mutant, sources: Path = SOURCES) -> Path:
    """Find the file that a mutant changes."""
    found = []
    for path in sorted(sources.rglob("*.py")):
        found += [path.relative_to(sources)] * path.read_text().count(mutant.find)
    return sources / only_one(found, f"mutant {mutant.name!r}: the text {mutant.find!r}")


def test_ids(tests: Iterable[str]) -> list[str]:
    """Find tests, given as ``test_file.py::test_function``, in whichever folder they are."""
    ids = []
    for test in tests:
        name, _, function = test.partition("::")
        path = only_one(sorted(TESTS.rglob(name)), f"the test file {name}")
        if function and f"def {function.partition('[')[0]}(" not in path.read_text():
            raise LookupFailedError(f"{path.relative_to(ROOT)}: there is no {function}")
        ids.append(str(path.relative_to(ROOT)) + test[len(name) :])
    return ids


class Outcome(NamedTuple):
    """The outcome of a mutant: "killed", "survived", "stopped" or "broken", and why."""

    what: str
    why: str = ""


class Workshop:
    """A copy of the sources to break, and the kernels that its tests compile."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.sources = folder, folder / "src"
        shutil.rmtree(self.sources, ignore_errors=True)
        shutil.copytree(SOURCES, self.sources)  # with its bytecode, and with file times that keep it valid
        for name in WARM:
            importlib.import_module(name)

    def test(
        self, tests: Iterable[str], *options: str, kernels: str = "unchanged", limit: float = TIMEOUT
    ) -> tuple[int | None, str]:
        """Run tests against the copy; return pytest's exit code, None after a timeout, and the output."""
        given = [*options, "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *test_ids(tests)]
        printed = self.folder / "printed.txt"
        sys.stdout.flush()
        child = os.fork()
        if not child:
            os.setsid()
            self._run(given, printed, self.folder / "kernels" / kernels)
        code = _wait(child, time.monotonic() + limit)
        return code, printed.read_text()

    def _run(self, given: list[str], printed: Path, kernels: Path) -> None:
        """Run tests in the forked process."""
        code = 70
        try:
            output = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(output, stream)
            os.chdir(ROOT)
            found = [str(self.sources), str(TESTS)]
            os.environ.update(PYTHONPATH=os.pathsep.join(found), SILVAN_COMPILED=str(kernels))
            for name in ("PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST", "PYTHONDONTWRITEBYTECODE"):
                os.environ.pop(name, None)
            sys.dont_write_bytecode = False
            sys.path[:1] = [str(ROOT), *found]  # as `python -m pytest` would
            sys.argv[:] = ["pytest"]
            import pytest

            code = int(pytest.main(given))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def state_of_kernels(self) -> str:
        """Return the key of silvan's compiled kernels; this process does not import silvan itself."""
        path = only_one(sorted(self.sources.rglob("kernel_texts.py")), "kernel_texts.py")
        return str(runpy.run_path(str(path))["digest_of_kernels"]())

    def run(self, mutant: Mutant) -> Outcome:
        """Apply a mutant and run its tests."""
        path = file_of(mutant, self.sources)
        before = self.state_of_kernels()
        path.write_text(path.read_text().replace(mutant.find, mutant.replace))
        try:
            own = self.state_of_kernels() != before
            code, printed = self.test(mutant.tests, "-x", kernels=mutant.name if own else "unchanged")
        finally:
            shutil.copy2(SOURCES / path.relative_to(self.sources), path)
            shutil.rmtree(self.folder / "kernels" / mutant.name, ignore_errors=True)
        if code is None:
            return Outcome("stopped", f"no end within {TIMEOUT:g} s")
        if code == 1 and "\nFAILED " in printed:
            return Outcome("killed", failures(printed)[0])
        return Outcome("survived") if code == 0 else Outcome("broken", printed[-2000:])


def _wait(child: int, until: float) -> int | None:
    """Return a process's exit code; None if it had to be stopped, with its children."""
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def failures(printed: str) -> list[str]:
    """Return the names of failed tests, from pytest's output."""
    return re.findall(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", printed, re.MULTILINE)


class Record:
    """Results of earlier runs, valid while sources, tests and mutant are the same."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, list[str]] = json.loads(path.read_text()) if path.exists() else {}
        self.sources = _digest(sorted(SOURCES.rglob("*.py")))

    def key(self, mutant: Mutant) -> str:
        """Return the key of an outcome."""
        files = sorted({TESTS.parent / test.partition("::")[0] for test in test_ids(mutant.tests)})
        return hashlib.sha256(repr((mutant, self.sources, _digest(files))).encode()).hexdigest()

    def find(self, mutant: Mutant) -> Outcome | None:
        """Return the stored outcome of a mutant, if any."""
        found = self.known.get(self.key(mutant))
        return None if found is None else Outcome(*found)

    def keep(self, mutant: Mutant, outcome: Outcome) -> None:
        """Store the outcome of a mutant, unless another attempt may differ."""
        if outcome.what in ("killed", "survived"):
            self.known[self.key(mutant)] = list(outcome)
            self.path.write_text(json.dumps(self.known))


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(str(path).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def chosen(mutants: Sequence[Mutant], only: Sequence[str], sample: int | None) -> list[Mutant]:
    """Return the mutants to run."""
    unknown = set(only) - {mutant.name for mutant in mutants}
    if unknown:
        raise LookupFailedError(f"there is no mutant {', '.join(sorted(unknown))}; --list shows all")
    found = [mutant for mutant in mutants if not only or mutant.name in only]
    if sample is not None and sample < len(found):
        found = random.sample(found, sample)
    return found


def fail_unchanged(workshop: Workshop, mutants: Sequence[Mutant]) -> list[str]:
    """Return the tests named by mutants that fail with the unchanged sources."""
    tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    if not tests:
        return []
    print(f"first the {len(tests)} tests that are named, with unchanged sources", flush=True)
    code, printed = workshop.test(tests, "--continue-on-collection-errors", limit=TIMEOUT * len(tests))
    found = failures(printed)
    if code != 0:
        print(printed[-5000:], flush=True)
    return found if code in (0, 1) else test_ids(tests)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run mutants; return 0 if all were killed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this mutant; may be repeated")
    parser.add_argument("--sample", type=int, metavar="N", help="so many mutants, chosen at random")
    parser.add_argument("--list", action="store_true", help="show all mutants and where they apply")
    parser.add_argument("--afresh", action="store_true", help="run them all, whatever earlier runs found")
    parser.add_argument("--mutants", type=Path, default=LIST, metavar="FILE", help="another list of mutants")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where copy, kernels and outcomes are kept")
    given = parser.parse_args(arguments)
    mutants = chosen(read_mutants(given.mutants), given.only, given.sample)
    if given.list:
        for mutant in mutants:
            print(f"{mutant.name:42} {file_of(mutant).relative_to(ROOT)}")
        return 0
    given.folder.mkdir(exist_ok=True)
    record = Record(given.folder / "outcomes.json")
    if given.afresh:
        record.known.clear()
    workshop, outcomes = Workshop(given.folder), {}
    failing = fail_unchanged(workshop, [mutant for mutant in mutants if record.find(mutant) is None])
    for mutant in mutants:
        start, outcome = time.perf_counter(), record.find(mutant)
        if outcome is None:
            named = tuple(test_ids(mutant.tests))
            broken = [one for one in failing if one.startswith(named) or any(test.startswith(one) for test in named)]
            outcome = Outcome("broken", f"fails without it, too: {broken[0]}") if broken else workshop.run(mutant)
            record.keep(mutant, outcome)
        outcomes[mutant.name] = outcome
        print(f"{outcome.what:9} {mutant.name:42} {time.perf_counter() - start:5.1f} s  {outcome.why}", flush=True)
    alive = [name for name, outcome in outcomes.items() if outcome.what != "killed"]
    print("alive: " + (", ".join(alive) or "none"))
    print(f"{len(outcomes) - len(alive)} killed, {len(alive)} survive")
    return int(bool(alive))


if __name__ == "__main__":
    sys.exit(main())
