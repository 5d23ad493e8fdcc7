"""Charts as SVG and CSV files inside links, so that the page needs neither a script nor a second file."""

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
def _rules() -> list[tuple[str, list[set[str]]]]:
    """Return the style rules of charts, each with the classes that its selectors need.

    Colours are those of the light mode, and variables are replaced by their values, which not all programs know.
    """
    text = STYLE.read_text()
    colours = dict(re.findall(r"(--[\w-]+):\s*([^;]+);", text[: text.index("}")]))
    listed = [("text { font-family: sans-serif; fill: var(--soft); }", [set[str]()])]
    for selectors, rest in re.findall(r"([^{}]+)(\{[^{}]*\})", "".join(_CHARTS.findall(text))):
        listed.append((selectors + rest, [set(re.findall(r"\.([\w-]+)", one)) for one in selectors.split(",")]))
    plain = re.compile(r"var\((--[\w-]+)\)")
    return [(" ".join(plain.sub(lambda name: colours[name[1]], rule).split()), needs) for rule, needs in listed]


def svg_link(chart: str, width: float = 0, height: float = 0) -> Markup:
    """Return a link that holds a chart as an SVG file, with the styles that it uses."""
    used = {name for names in re.findall(r'class="([^"]*)"', chart) for name in names.split()}
    style = " ".join(rule for rule, needs in _rules() if any(classes <= used for classes in needs))
    size = f' width="{width:g}" height="{height:g}"' if width else ""
    opened = str(chart).replace("<svg", f'<svg xmlns="http://www.w3.org/2000/svg"{size}', 1)
    whole = opened.replace(">", f"><style>{style}</style>", 1)
    text = printable(whole, keep="\n").replace('"', "'")  # a quotation mark takes three characters in a link
    return _link("image/svg+xml", text)


def csv_link(rows: Iterable[Sequence[Any]]) -> Markup:
    """Return a link that holds numbers, to five digits, as a CSV file."""
    short = ([f"{cell:.5g}" if isinstance(cell, float) else cell for cell in row] for row in rows)
    return _link("text/csv;charset=utf-8", csv_text(short))


def _link(kind: str, text: str) -> Markup:
    return Markup(f"data:{kind},") + Markup(quote(text, safe=" ()=:;,/'!*@$+-._~"))  # noqa: S704  quoted


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
