"""Run the attacks on documented claims; print what each could learn before it was closed and what it learns now.

    python -m experiments.attacks [NAME ...] [--small]

Each other module of this folder is one attack, or a few of a kind: ``run(small)`` returns its outcomes.
"""

import argparse
import importlib
import pkgutil
import sys

import experiments.attacks
from experiments.attacks.outcome import Outcome

_NO_ATTACKS = {"__main__", "bait", "outcome"}


def names() -> list[str]:
    """Return the names of the attacks."""
    return sorted(m.name for m in pkgutil.iter_modules(experiments.attacks.__path__) if m.name not in _NO_ATTACKS)


def run(name: str, small: bool) -> list[Outcome]:
    """Run an attack."""
    outcomes: list[Outcome] = importlib.import_module(f"experiments.attacks.{name}").run(small)
    return outcomes


def main() -> int:
    """Run the attacks that the command line names, or all, and print a table of them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names()))
    parser.add_argument("--small", action="store_true", help="as in the tests: fewer draws, smaller tables")
    given = parser.parse_args()
    print("| attack | what it is after | before | now | at most |\n| --- | --- | --- | --- | --- |")
    held = True
    for name in given.names or names():
        for outcome in run(name, given.small):
            print(outcome.line(name), flush=True)
            held &= outcome.held
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
