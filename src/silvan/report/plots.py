"""Draws charts as inline SVG: no script, nothing to load.

Horizontal positions are per cent, so that a chart is as wide as the page allows while text, marks and lines keep
their size. ``Markup.format`` escapes whatever it puts in. Colours and line widths are in the
page's style sheet, by class, so that they follow the reader's light or dark mode.
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
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    ticks = [round(i * step, 10) for i in range(first, last + 1)]
    if top is not None:
        ticks = [t for t in ticks if t <= top + 1e-9]
    return ticks


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
    bounded = metric["key"] != "rmse"
    ticks = nice_scale(min(values), max(values), 1.0 if bounded else None)
    tracks = [(line, _track(line, models, ticks, metric)) for line in lines]
    rule = len(sums) if lines[0] in sums else len(summary["sites"])  # where a line is drawn between sites and sums
    return {"axis": _axis(ticks), "tracks": tracks, "rule": rule if sums and summary["sites"] else -1}


def _axis(ticks: Sequence[float]) -> Markup:
    labels = Markup("").join(
        Markup('<text x="{:.2f}%" y="14">{}</text>').format(_place(t, ticks), text)
        for t, text in zip(ticks, tick_labels(ticks), strict=True)
    )
    return Markup('<svg class="axis" height="20" aria-hidden="true">{}</svg>').format(labels)


def _track(line: Line, models: Sequence[str], ticks: Sequence[float], metric: Line) -> Markup:
    parts = [
        Markup('<line class="grid" x1="{0:.2f}%" x2="{0:.2f}%" y1="0" y2="100%"/>').format(_place(t, ticks))
        for t in ticks
    ]
    at = {m: _place(v, ticks) for m, v in line["figures"].items() if v is not None}
    if not at:
        parts.append(Markup('<text class="none" x="50%" y="50%" dy="4">no test rows here, or one class only</text>'))
    if "local" in at and "federated" in at:
        parts.append(
            Markup('<line class="way {}" x1="{:.2f}%" x2="{:.2f}%" y1="50%" y2="50%"/>').format(
                line["sure"].get("federated", ""), at["local"], at["federated"]
            )
        )
    for model in sorted(at, key=lambda m: ("pooled", "local", "federated").index(m) if m in _SHAPES else 1.5):
        title = f"{model}: {line['figures'][model]:.{metric['digits']}f}"
        parts.append(
            Markup('<svg class="mark {}" x="{:.2f}%" y="50%"><title>{}</title>{}</svg>').format(
                model_class(model, models), at[model], title, _SHAPES.get(model, _OTHER)
            )
        )
    return Markup('<svg class="track" role="img" aria-label="{}">{}</svg>').format(
        _alternative_text(line, metric), Markup("").join(parts)
    )


_SHAPES = {
    "local": Markup('<circle r="7.5"/>'),
    "federated": Markup('<circle r="4.5"/>'),
    "pooled": Markup('<path d="M0-15V10"/>'),
}
_OTHER = Markup('<path d="M0 11 5 19h-10Z"/>')
"""Marks that can be told apart where they meet: a ring around a dot, a bar that sticks out, a wedge below."""


def _alternative_text(line: Line, metric: Line) -> str:
    figures = [f"{m} {v:.{metric['digits']}f}" for m, v in line["figures"].items() if v is not None]
    return f"{metric['title']} at {line['title']}: {', '.join(figures) or 'not defined'}"


def swatch(model: str, models: Sequence[str]) -> Markup:
    """Draw a model's mark for the legend."""
    return Markup(
        '<svg class="swatch" width="20" height="24" aria-hidden="true">'
        '<svg class="mark {}" x="10" y="{}">{}</svg></svg>'
    ).format(model_class(model, models), 12 if model in _SHAPES else 0, _SHAPES.get(model, _OTHER))


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
    return Markup(
        '<svg class="bar" height="14" aria-hidden="true"><rect width="{:.2f}%" height="14" rx="2"/></svg>'
    ).format(100 * share)


def stack(parts: list[tuple[int, str, int]], most: int) -> Markup:
    """Draw a bar of parts: (number of the colour, title, size) each; ``most`` fills the track."""
    drawn, at = [], 0.0
    for colour, title, size in parts:
        width = 100 * size / max(most, 1)
        drawn.append(
            Markup('<rect class="k{}" x="{:.3f}%" width="{:.3f}%" height="18"><title>{}</title></rect>').format(
                colour % 10, at, width, title
            )
        )
        at += width
    return Markup('<svg class="stack" height="18" aria-hidden="true">{}</svg>').format(Markup("").join(drawn))
