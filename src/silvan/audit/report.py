"""An audit's findings together: as data, and as one page."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from silvan.audit.finding import Finding
from silvan.files import write_whole

FORMAT = "silvan audit"
VERSION = 1
JSON, PAGE = "audit.json", "audit.html"


@dataclass(frozen=True)
class Report:
    """What an audit found of one release."""

    name: str
    hash: str
    trees: int
    members: int
    outsiders: int
    findings: list[Finding]
    seed: int = 0

    @property
    def exceeded(self) -> list[Finding]:
        """The findings above their limits."""
        return [finding for finding in self.findings if finding.verdict == "exceeded"]

    @property
    def passed(self) -> bool:
        """Whether no limit is exceeded."""
        return not self.exceeded

    def __getitem__(self, attack: str) -> Finding:
        """Give the finding of an attack."""
        return next(finding for finding in self.findings if finding.attack == attack)

    def as_dict(self) -> dict[str, Any]:
        """Give all as plain data."""
        findings = [{**asdict(f), "verdict": f.verdict} for f in self.findings]
        return {**asdict(self), "findings": findings, "passed": self.passed}


def write(reports: list[Report], folder: Path) -> list[Path]:
    """Write the findings as JSON and as a page."""
    from silvan.audit.page import render

    data = {"format": FORMAT, "version": VERSION, "reports": [report.as_dict() for report in reports]}
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / JSON, msgspec.json.format(msgspec.json.encode(data), indent=1))
    write_whole(folder / PAGE, render(data).encode())
    return [folder / JSON, folder / PAGE]
