"""The page of an audit: what was tried, what came of it, and what the limits say."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import silvan.report

_HERE = Path(__file__).parent / "page"
_STYLE = Path(silvan.report.__file__).parent / "page" / "style.css"

CLASS = {"held": "gained", "close": "level", "exceeded": "lost", "not run": "level"}


def render(data: dict[str, Any]) -> str:
    """Make the page; every text is escaped."""
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["figure"] = figure
    style = Markup(_STYLE.read_text())  # noqa: S704, our own file
    return environment.get_template("audit.html.jinja").render(reports=data["reports"], style=style, colour=CLASS)


def figure(value: float | None) -> str:
    """Write a figure; a dash for none."""
    return "–" if value is None else f"{value:.3f}".replace("-", "\N{MINUS SIGN}")
