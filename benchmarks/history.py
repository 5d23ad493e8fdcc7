"""The history of measurements: one line per goal and run in history.csv, so that regressions are visible."""

import csv
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.common import Goal

FILE = Path(__file__).parent / "history.csv"
WORSE = 1.15
"""A figure so many times worse than the one before is pointed out."""


@dataclass(frozen=True)
class Line:
    """A measured goal: its section of the page, name, bounds, value, date and commit."""

    section: str
    goal: str
    most: str
    least: str
    value: str
    date: str
    state: str

    @property
    def as_goal(self) -> Goal:
        most, least = (float(x) if x else None for x in (self.most, self.least))
        return Goal(self.goal, float(self.value), most, least)


def note(section: str, goals: list[Goal]) -> None:
    """Add the goals of a run to the file."""
    new = not FILE.exists()
    with FILE.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(Line.__dataclass_fields__)
        for goal in goals:
            bounds = ["" if bound is None else f"{bound:g}" for bound in (goal.most, goal.least)]
            writer.writerow(
                [section, goal.text, *bounds, f"{goal.value:.4g}", f"{datetime.now(UTC):%Y-%m-%d}", state()]
            )


def state() -> str:
    """Return the measured commit, with a + if files were changed since."""
    called = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    found = subprocess.run(called, cwd=FILE.parent, capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


def lines() -> list[Line]:
    """Read the file, oldest first."""
    if not FILE.exists():
        return []
    with FILE.open(newline="") as file:
        return [Line(**row) for row in csv.DictReader(file)]


def table(sections: list[str]) -> str:
    """Return the last and previous measurements of some sections' goals, as a table in Markdown."""
    by_goal: dict[tuple[str, str], list[Line]] = {}
    for line in lines():
        by_goal.setdefault((line.section, line.goal), []).append(line)
    last_run = {line.section: (line.date, line.state) for line in lines()}
    rows = []
    for section in sections:
        for (where, _), found in by_goal.items():
            if where != section or (found[-1].date, found[-1].state) != last_run[section]:
                continue
            goal, before = found[-1].as_goal, found[-2].value if len(found) > 1 else ""
            link = "".join(c for c in section.lower().replace(" ", "-") if c.isalnum() or c == "-")
            rows.append(f"| [{section}](#{link}) {goal.row()} {before}{_worse(goal, before)} | {found[-1].state} |")
    reached = sum("| yes |" in row for row in rows)
    head = (
        "| section | goal | bound | measured | reached | before | state |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    return "\n".join([f"{reached} of {len(rows)} goals are reached.", "", head, *rows])


def _worse(goal: Goal, before: str) -> str:
    """Return a mark if a value is clearly worse than the previous one."""
    if not before or not float(before) or not goal.value:
        return ""
    ratio = goal.value / float(before) if goal.most is not None else float(before) / goal.value
    return " **worse**" if ratio > WORSE else ""
