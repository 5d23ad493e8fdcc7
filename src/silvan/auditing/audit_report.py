"""The report of an audit: its findings as data, as a JSON file and as an HTML page."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
from markupsafe import Markup

from silvan.auditing.findings import Finding, what_helps
from silvan.report.html import STYLE, page_template
from silvan.study.run_folder import AUDIT
from silvan.util.files import write_whole

FORMAT = "silvan audit"
VERSION = 1
JSON, PAGE = AUDIT

_TEMPLATE = Path(__file__).parent / "page" / "audit.html.jinja"
_CLASS = {"held": "gained", "close": "level", "exceeded": "lost", "not run": "level"}


@dataclass(frozen=True)
class Report:
    """The findings of an audit of one release."""

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
        """Return the finding of an attack."""
        return next(finding for finding in self.findings if finding.attack == attack)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        findings = [{**asdict(f), "verdict": f.verdict} for f in self.findings]
        return {**asdict(self), "findings": findings, "passed": self.passed}


def write(reports: list[Report], folder: Path) -> list[Path]:
    """Write reports as a JSON file and as a page."""
    data = {"format": FORMAT, "version": VERSION, "reports": [report.as_dict() for report in reports]}
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / JSON, msgspec.json.format(msgspec.json.encode(data), indent=1))
    write_whole(folder / PAGE, render(data).encode())
    return [folder / JSON, folder / PAGE]


def render(data: dict[str, Any]) -> str:
    """Render the page."""
    style = Markup(STYLE.read_text())  # noqa: S704, our own file
    return page_template(_TEMPLATE, number=format_number).render(
        reports=data["reports"], style=style, colour=_CLASS, what_helps=what_helps
    )


def format_number(value: float | None) -> str:
    """Format a value, or a dash for None."""
    return "–" if value is None else f"{value:.3f}".replace("-", "\N{MINUS SIGN}")
