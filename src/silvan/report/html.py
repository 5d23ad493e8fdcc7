"""Writes the report of a run as one HTML page that loads nothing else."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from silvan.algorithms.evaluation.certainty import CERTAINTY
from silvan.report import plots
from silvan.report.summary import summarise_run
from silvan.study.run_folder import REPORT, Run
from silvan.util.files import write_whole
from silvan.util.readable import format_bytes, format_figure, format_interval, format_time, signed

_HERE = Path(__file__).parent / "page"
STYLE = _HERE / "style.css"
"""The style sheet, of this page and of others that should look the same."""

_MOST_IMPORTANCES = 15


def write_report(run: Run) -> Path:
    """Write a run's page and return its path."""
    page = render(summarise_run(run.folder))
    write_whole(run.file(REPORT), page.encode())
    return run.file(REPORT)


def render(summary: dict[str, Any]) -> str:
    """Return the page of a summary as HTML; every text from outside is escaped."""
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        format_bytes=format_bytes,
        format_time=format_time,
        signed=signed,
        figure=format_figure,
        spaced=_spaced,
        gain=_gain,
    )
    models = summary["models"]
    return environment.get_template("report.html.jinja").render(
        run=summary,
        own=" at this site" if len(summary["among"]) > len(summary["sites"]) else "",
        who="party" if summary["by"] == "columns" else "site",
        linear=any(not forest["trees"] for forest in summary["forests"]),
        kind=dict(summary["settings"]).get("learner.kind", "forest"),
        positives=any(site["positives"] is not None for site in summary["sites"]),
        style=Markup(STYLE.read_text()),  # noqa: S704, our own file
        comparison=None if summary["noisy"] else plots.comparison(summary),
        legend=[(model, plots.swatch(model, models), plots.model_class(model, models)) for model in models],
        panels=plots.roc_panels(summary),
        importances=_importances(summary),
        between=format_interval,
        certainty=CERTAINTY,
        stacks=_stacks(summary),
    )


def _importances(summary: dict[str, Any]) -> list[tuple[str, float, Markup]]:
    listed = summary["importances"][:_MOST_IMPORTANCES]
    most = max((share for _, share in listed), default=0.0) or 1.0
    return [(name, share, plots.bar(max(share, 0.0) / most)) for name, share in listed]


def _stacks(summary: dict[str, Any]) -> list[tuple[dict[str, Any], Markup]]:
    """Return a bar for each site: what it sent, by kind of message."""
    traffic = summary["traffic"]
    kinds = [kind["name"] for kind in traffic["kinds"]]
    most = max((site["sent"] for site in traffic["sites"]), default=0)
    drawn = []
    for site in traffic["sites"]:
        parts = [
            (i, f"{kind}: {format_bytes(site['by_kind'][kind])}", site["by_kind"][kind])
            for i, kind in enumerate(kinds)
            if site["by_kind"].get(kind)
        ]
        drawn.append((site, plots.stack(parts, most)))
    return drawn


def _gain(value: float | None, digits: int, level: str = "") -> str:
    return "" if value is None else level if level and not value else signed(value, digits)


def _spaced(digest: str) -> str:
    """Write a hash in groups of eight, to be compared by eye."""
    return " ".join(digest[i : i + 8] for i in range(0, len(digest), 8))
