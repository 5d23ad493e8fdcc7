"""Results as lines of a file: existing lines are not run again."""

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

EPSILONS = (0.05, 0.1, 0.5, 1.0, 3.0, 10.0)
TUNED_ON = (100, 101)
"""Splits that parameters are chosen on; the splits that are reported count from 0."""

FIELDS = ("table", "form", "epsilon", "split", "auc", "chosen")


@dataclass
class Line:
    """One result; ``chosen`` has the tuned parameters, if any."""

    auc: float = 0.0
    chosen: str = ""


class Lines:
    """A file of results, to which lines are added one by one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[tuple[str, str, float, int], Line] = {}
        if path.exists():
            with path.open(newline="") as file:
                for row in csv.DictReader(file):
                    key = row["table"], row["form"], float(row["epsilon"]), int(row["split"])
                    self.found[key] = Line(float(row["auc"]), row["chosen"])
        else:
            with path.open("w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerow(FIELDS)

    @contextmanager
    def new(self, table: str, form: str, epsilon: float, split: int) -> Iterator[Line | None]:
        """Return a line to fill in, or None if it exists already."""
        key = table, form, epsilon, split
        if key in self.found:
            yield None
            return
        line = Line()
        yield line
        self.found[key] = line
        with self.path.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([table, form, f"{epsilon:g}", split, f"{line.auc:.4f}", line.chosen])

    def mean(self, table: str, form: str, epsilon: float, splits: Sequence[int]) -> float:
        """Return the mean over some splits."""
        return sum(self.found[table, form, epsilon, split].auc for split in splits) / len(splits)
