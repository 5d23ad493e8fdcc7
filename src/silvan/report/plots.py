"""Draws charts as inline SVG: no script, nothing to load.

Horizontal positions are per cent, so that a chart is as wide as the page allows while text, marks and lines keep
their size. Colours and line widths are in the page's style sheet, by class, so that they follow the reader's light or
dark mode.
"""

import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from silvan.util.readable import count_of

MARGIN = 3.0
"""Per cent left free at both ends of a track, so that marks are not cut."""

MANY = 12
"""From more sites on, what is over all of them comes first, and long tables are folded."""

MODELS = ("local", "federated", "pooled")
"""Models that have a mark and a colour of their own."""

Line = dict[str, Any]


def svg(name: str, *inner: str, **attributes: str | float) -> Markup:
    """Return an element; texts are escaped, and numbers have two decimals at most."""
    written = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    numbers = {key: f"{round(value, 2):g}" for key, value in written.items() if not isinstance(value, str)}
    parts = (Markup(' {}="{}"').format(key, value) for key, value in {**written, **numbers}.items())
    return Markup("<{0}{1}>{2}</{0}>").format(name, Markup("").join(parts), Markup("").join(inner))


def model_class(model: str, models: Sequence[str]) -> str:
    """Return the style class of a model: three have their own, others take the next free one."""
    if model in MODELS:
        return f"m-{model}"
    others = [m for m in models if m not in MODELS]
    return f"m-other{others.index(model) % 4}"


# -- scales


def nice_scale(low: float, high: float, top: float | None = None, wanted: int = 5) -> list[float]:
    """Return round ticks that enclose both ends; no tick is above ``top``."""
    if high - low < 1e-9:
        low, high = low - 0.05, high + 0.05
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [round(i * step, 10) for i in range(first, last + 1)]
    return ticks if top is None else [t for t in ticks if t <= top + 1e-9]


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Return labels of ticks, with as many digits as they need."""
    for digits in range(7):
        if all(abs(round(t, digits) - t) < 1e-9 * max(map(abs, ticks)) for t in ticks if t):
            return [f"{t:.{digits}f}" for t in ticks]
    return [f"{t:g}" for t in ticks]


def _place(value: float, ticks: Sequence[float]) -> float:
    span = ticks[-1] - ticks[0] or 1.0
    return MARGIN + (100 - 2 * MARGIN) * (value - ticks[0]) / span


# -- the comparison: a track for each site


def comparison(summary: Line) -> dict[str, Any] | None:
    """Draw each site's figures on one scale, with a line from the site alone to the federated forest."""
    metric, models = summary["metric"], summary["models"]
    sums = [line for line in (summary["mean"], summary["overall"]) if line is not None]
    lines = [*sums, *summary["sites"]] if len(summary["sites"]) > MANY else [*summary["sites"], *sums]
    values = [v for line in lines for v in line["figures"].values() if v is not None]
    if metric is None or not values:
        return None
    ticks = nice_scale(min(values), max(values), None if metric["key"] == "rmse" else 1.0)
    tracks = [(line, _track(line, models, ticks, metric)) for line in lines]
    rule = len(sums) if lines[0] in sums else len(summary["sites"])  # where a line is drawn between sites and sums
    return {"axis": _axis(ticks), "tracks": tracks, "rule": rule if sums and summary["sites"] else -1}


def _axis(ticks: Sequence[float]) -> Markup:
    labels = zip(ticks, tick_labels(ticks), strict=True)
    texts = (svg("text", text, x=f"{_place(t, ticks):.2f}%", y=14) for t, text in labels)
    return svg("svg", *texts, class_="axis", height=20, aria_hidden="true")


def _track(line: Line, models: Sequence[str], ticks: Sequence[float], metric: Line) -> Markup:
    grid = (f"{_place(t, ticks):.2f}%" for t in ticks)
    parts = [svg("line", class_="grid", x1=x, x2=x, y1=0, y2="100%") for x in grid]
    at = {m: f"{_place(v, ticks):.2f}%" for m, v in line["figures"].items() if v is not None}
    if not at:
        parts.append(svg("text", "no test rows here, or one class only", class_="none", x="50%", y="50%", dy=4))
    if "local" in at and "federated" in at:
        way = f"way {line['sure'].get('federated', '')}"
        parts.append(svg("line", class_=way, x1=at["local"], x2=at["federated"], y1="50%", y2="50%"))
    texts = {m: f"{m} {line['figures'][m]:.{metric['digits']}f}" for m in at}
    for model in sorted(at, key=lambda m: ("pooled", "local", "federated").index(m) if m in _SHAPES else 1.5):
        title, shape = svg("title", texts[model]), _SHAPES.get(model, _OTHER)
        parts.append(svg("svg", title, shape, class_=f"mark {model_class(model, models)}", x=at[model], y="50%"))
    said = f"{metric['title']} at {line['title']}: {', '.join(texts.values()) or 'not defined'}"
    return svg("svg", *parts, class_="track", role="img", aria_label=said)


_SHAPES = {
    "local": Markup('<circle r="7.5"/>'),
    "federated": Markup('<circle r="4.5"/>'),
    "pooled": Markup('<path d="M0-15V10"/>'),
}
_OTHER = Markup('<path d="M0 11 5 19h-10Z"/>')
"""Marks that can be told apart where they meet: a ring around a dot, a bar that sticks out, a wedge below."""


def swatch(model: str, models: Sequence[str]) -> Markup:
    """Draw a model's mark for the legend."""
    y, style = 12 if model in _SHAPES else 0, f"mark {model_class(model, models)}"
    mark = svg("svg", _SHAPES.get(model, _OTHER), class_=style, x=10, y=y)
    return svg("svg", mark, class_="swatch", width=20, height=24, aria_hidden="true")


# -- a tree


def tree(lines: list[Line]) -> Markup:
    """Draw the outline of a tree as lists in lists, which wrap where a page is narrow; the style draws its branches."""
    parts, level = [Markup("")], -1
    for line in lines:
        parts.append(Markup("<ul><li>") if line["level"] > level else Markup("</li><li>"))
        if line["level"] < level:
            parts[-1] = Markup("</li></ul>") * (level - line["level"]) + parts[-1]
        level = line["level"]
        text = f"… {count_of(line['cut'], 'leaf')}, {line['answer']}" if line["cut"] else f"→ {line['answer']}"
        answer = Markup(' <b class="{}">{}</b>').format("cut" if line["cut"] else "answer", text)
        parts.append(Markup("<bdi>{}</bdi>{}").format(line["text"], answer if line["answer"] else ""))
    return Markup("").join([*parts, Markup("</li></ul>") * (level + 1)])


# -- bars


def bar(share: float) -> Markup:
    """Draw one bar, as long as a share of the track."""
    drawn = svg("rect", width=f"{100 * share:.2f}%", height=14, rx=2)
    return svg("svg", drawn, class_="bar", height=14, aria_hidden="true")


def stack(parts: list[tuple[int, str, int]], most: int) -> Markup:
    """Draw a bar of parts: (number of the colour, title, size) each; ``most`` fills the track."""
    drawn, at = [], 0.0
    for colour, title, size in parts:
        width = 100 * size / max(most, 1)
        x, wide = f"{at:.3f}%", f"{width:.3f}%"
        drawn.append(svg("rect", svg("title", title), class_=f"k{colour % 10}", x=x, width=wide, height=18))
        at += width
    return svg("svg", *drawn, class_="stack", height=18, aria_hidden="true")
