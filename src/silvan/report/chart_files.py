"""Charts as files of their own, SVG and CSV, as links that hold them: the page needs no script and no second file."""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from silvan.report.charts import svg
from silvan.util.csv_text import csv_text
from silvan.util.readable import printable

STYLE = Path(__file__).parent / "page" / "style.css"

_CHARTS = re.compile(r"/\* charts \*/(.*?)/\* end of charts \*/", re.DOTALL)
_NAME, _WIDTH, _NUMBERS, _TOP = 190, 420, 150, 8


@cache
def _style() -> str:
    """Return the styles of charts in the light colours, with every variable replaced: not all programs know them."""
    text = STYLE.read_text()
    colours = dict(re.findall(r"(--[\w-]+):\s*([^;]+);", text[: text.index("}")]))
    rules = "".join(_CHARTS.findall(text))
    rules = re.sub(r"var\((--[\w-]+)\)", lambda found: colours[found[1]], rules)
    return re.sub(r"\s+", " ", f"text {{ font-family: sans-serif; fill: {colours['--soft']}; }} {rules}").strip()


def svg_link(chart: str, width: float = 0, height: float = 0) -> str:
    """Return a link that holds a chart as an SVG file."""
    size = f' width="{width:g}" height="{height:g}"' if width else ""
    opened = chart.replace("<svg", f'<svg xmlns="http://www.w3.org/2000/svg"{size}', 1)
    whole = opened.replace(">", f"><style>{_style()}</style>", 1)
    return "data:image/svg+xml," + quote(printable(whole, keep="\n"), safe=" ()=:;,/'!*@$+-._~")


def csv_link(rows: Iterable[Sequence[Any]]) -> str:
    """Return a link that holds numbers as a CSV file."""
    return "data:text/csv;charset=utf-8," + quote(csv_text(rows))


def rows_as_svg(
    rows: Sequence[tuple[str, Markup, str]], height: int, axis: Markup | None = None
) -> tuple[str, int, int]:
    """Put charts of single lines below each other, with names and numbers beside them; return it with its size."""
    parts, y = [], _TOP
    for name, chart, text in rows:
        middle = y + height / 2 + 4
        short = name if len(name) <= 26 else f"{name[:25]}…"
        parts.append(svg("text", short, x=0, y=middle, style="font-size:13px"))
        parts.append(svg("svg", chart, x=_NAME, y=y, width=_WIDTH, height=height))
        parts.append(svg("text", text, x=_NAME + _WIDTH + 10, y=middle, style="font-size:13px"))
        y += height + 4
    if axis is not None:
        parts.append(svg("svg", axis, x=_NAME, y=y, width=_WIDTH, height=20))
        y += 24
    size = _NAME + _WIDTH + _NUMBERS + 10, y + _TOP
    return str(svg("svg", *parts, viewBox=f"0 0 {size[0]} {size[1]}")), *size
