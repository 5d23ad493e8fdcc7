"""Run every benchmark and write docs/benchmarks.md."""

import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import history
from benchmarks.common import Goal, Report, machine

ALL = (
    "forest",
    "limits",
    "horizontal",
    "bofrf",
    "vertical",
    "matching",
    "paillier",
    "privacy",
    "flare",
    "large",
    "dask_site",
    "sites",
    "startup",
    "accuracy",
)

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"


def main() -> None:
    """Run each in a separate process; sections of other benchmarks stay as they are."""
    sections = earlier()
    for name in sys.argv[1:] or ALL:
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "report.json"
            environment = {**os.environ, "SILVAN_BENCH_OUT": str(target)}
            print(f"== {name}", file=sys.stderr, flush=True)
            code = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], env=environment).returncode
            if code or not target.exists():
                print(f"{name} did not run (exit code {code})", file=sys.stderr, flush=True)
                continue
            found = json.loads(target.read_text())
        report = Report(**{**found, "goals": [Goal(**g) for g in found["goals"]]})
        report.about += f" Measured {datetime.now(UTC):%Y-%m-%d}."
        sections[report.title] = report.markdown()
        history.note(report.title, report.goals)
        write(sections)
    print(f"wrote {PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE.name}")


def earlier() -> dict[str, str]:
    """Read the page's sections by title."""
    text = PAGE.read_text() if PAGE.exists() else ""
    found = {part.split("\n", 1)[0]: f"## {part.rstrip()}\n" for part in text.split("\n## ")[1:]}
    found.pop("All goals", None)
    return found


def write(sections: dict[str, str]) -> None:
    """Write the page."""
    head = (
        "# Benchmarks\n\nWritten by `make bench`; the figures of a section were measured in one run, peers interleaved."
        f"\n\n{machine()}.\n\n## All goals\n\n"
        "As measured last, and the time before (`benchmarks/history.csv` has all); what became worse by more than "
        f"{history.WORSE - 1:.0%} is marked.\n\n{history.table(list(sections))}\n"
    )
    PAGE.write_text("\n".join([head, *sections.values()]).rstrip() + "\n")


if __name__ == "__main__":
    main()
