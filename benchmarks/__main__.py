"""Run every benchmark and write docs/benchmarks.md."""

import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.common import Goal, Report, machine

ALL = ("forest", "horizontal", "startup", "accuracy")


def main() -> None:
    """Run each in a process of its own and collect the reports."""
    parts = []
    for name in sys.argv[1:] or ALL:
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "report.json"
            environment = {**os.environ, "SILVAN_BENCH_OUT": str(target)}
            print(f"== {name}", file=sys.stderr, flush=True)
            code = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], env=environment).returncode
            if code or not target.exists():
                parts.append(f"## {name}\n\nNot run (exit code {code}).\n")
                continue
            found = json.loads(target.read_text())
        parts.append(Report(**{**found, "goals": [Goal(**g) for g in found["goals"]]}).markdown())
    head = (
        "# Benchmarks\n\nWritten by `make bench`; every figure was measured in one run, peers interleaved. "
        f"{datetime.now(UTC):%Y-%m-%d}.\n\n{machine()}.\n"
    )
    page = Path(__file__).parent.parent / "docs" / "benchmarks.md"
    page.write_text("\n".join([head, *parts]).rstrip() + "\n")
    print(f"wrote {page.relative_to(Path.cwd()) if page.is_relative_to(Path.cwd()) else page.name}")


if __name__ == "__main__":
    main()
