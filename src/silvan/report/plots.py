"""Draws charts as inline SVG: no script, nothing to load.

Horizontal positions are per cent, so that a chart is as wide as the page allows while text, marks and lines keep
their size. ``Markup.format`` escapes whatever it puts in. Colours and line widths are in the
page's style sheet, by class, so that they follow the reader's light or dark mode.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from markupsafe import Markup

MARGIN = 3.0
"""Per cent left free at both ends of a track, so that marks are not cut."""

Line = dict[str, Any]


def model_class(model: str, models: Sequence[str]) -> str:
    """Return the style class of a model: three have their own, others take the next free one."""
    if model in ("local", "federated", "pooled"):
        return f"m-{model}"
    others = [m for m in models if m not in ("local", "federated", "pooled")]
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
        if all(abs(round(t, digits) - t) < 1e-9 for t in ticks):
            return [f"{t:.{digits}f}" for t in ticks]
    return [f"{t:g}" for t in ticks]


def _place(value: float, ticks: Sequence[float]) -> float:
    span = ticks[-1] - ticks[0] or 1.0
    return MARGIN + (100 - 2 * MARGIN) * (value - ticks[0]) / span


# -- the comparison: a track for each site


def comparison(summary: Line) -> dict[str, Any] | None:
    """Draw each site's figures on one scale, with a line from the site alone to the federated forest."""
    metric, models = summary["metric"], summary["models"]
    lines = [*summary["sites"], *filter(None, [summary["mean"], summary["overall"]])]
    values = [v for line in lines for v in line["figures"].values() if v is not None]
    if metric is None or not values:
        return None
    bounded = metric["key"] != "rmse"
    ticks = nice_scale(min(values), max(values), 1.0 if bounded else None)
    tracks = [(line, _track(line, models, ticks, metric)) for line in lines]
    return {"axis": _axis(ticks), "tracks": tracks}


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


# -- ROC curves

_SIDE, _LEFT, _TOP = 300.0, 58.0, 10.0


def roc_panels(summary: Line) -> list[dict[str, Any]]:
    """Draw the curves of each class; where all curves are near the corner, also the corner enlarged."""
    classes = list(dict.fromkeys(curve["of"] for curve in summary["curves"]))
    panels = []
    for of in classes:
        curves = [(c["model"], c["points"]) for c in summary["curves"] if c["of"] == of]
        title = f"{summary['label']} = {of}" + (" against the rest" if len(classes) > 1 else "")
        panels.append({"title": title, "svg": roc(curves, summary["models"])})
        if len(classes) == 1 and all(_area(points) > 0.9 for _, points in curves):
            panels.append({"title": "the corner, enlarged", "svg": roc(curves, summary["models"], corner=0.25)})
    return panels


def roc(curves: list[tuple[str, list[tuple[float, float]]]], models: Sequence[str], corner: float = 1.0) -> Markup:
    """Draw ROC curves; ``corner`` is how much of both axes is shown, from the upper left."""

    def x(rate: float) -> float:
        return _LEFT + _SIDE * rate / corner

    def y(rate: float) -> float:
        return _TOP + _SIDE * (1.0 - rate) / corner

    steps = [i / 5 * corner for i in range(6)]
    parts = []
    for t, text in zip(steps, tick_labels(steps), strict=True):
        parts.append(Markup('<path class="grid" d="M{:.1f} {:.1f}v{:.0f}"/>').format(x(t), _TOP, _SIDE))
        parts.append(Markup('<text class="tx" x="{:.1f}" y="{:.1f}">{}</text>').format(x(t), _TOP + _SIDE + 18, text))
    for t, text in zip([1 - s for s in steps], tick_labels([1 - s for s in steps]), strict=True):
        parts.append(Markup('<path class="grid" d="M{:.1f} {:.1f}h{:.0f}"/>').format(_LEFT, y(t), _SIDE))
        parts.append(Markup('<text class="ty" x="{:.1f}" y="{:.1f}">{}</text>').format(_LEFT - 8, y(t) + 4, text))
    if corner == 1.0:
        parts.append(Markup('<path class="chance" d="M{:.1f} {:.1f}L{:.1f} {:.1f}"/>').format(x(0), y(0), x(1), y(1)))
    inner = []
    for model, points in sorted(
        curves, key=lambda c: ("pooled", "local", "", "federated").index(c[0] if c[0] in _SHAPES else "")
    ):
        path = "M" + "L".join(f"{x(px):.1f} {y(py):.1f}" for px, py in points)
        inner.append(Markup('<path class="curve {}" d="{}"/>').format(model_class(model, models), path))
    frame = Markup(
        '<svg x="{x:.0f}" y="{y:.0f}" width="{s:.0f}" height="{s:.0f}" '
        'viewBox="{x:.0f} {y:.0f} {s:.0f} {s:.0f}">{}</svg>'
    )
    parts.append(frame.format(Markup("").join(inner), x=_LEFT - 2, y=_TOP - 2, s=_SIDE + 4))
    parts.append(
        Markup('<text class="tx name" x="{:.0f}" y="{:.0f}">false positive rate</text>').format(
            _LEFT + _SIDE / 2, _TOP + _SIDE + 38
        )
    )
    parts.append(
        Markup('<text class="tx name" transform="translate(12 {:.0f}) rotate(-90)">true positive rate</text>').format(
            _TOP + _SIDE / 2
        )
    )
    width, height = _LEFT + _SIDE + 14, _TOP + _SIDE + 46
    return Markup('<svg class="roc" viewBox="0 0 {:.0f} {:.0f}" role="img" aria-label="ROC curves">{}</svg>').format(
        width, height, Markup("").join(parts)
    )


def _area(points: list[tuple[float, float]]) -> float:
    return sum((bx - ax) * (ay + by) / 2 for (ax, ay), (bx, by) in pairwise(points))


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
                colour % 8, at, width, title
            )
        )
        at += width
    return Markup('<svg class="stack" height="18" aria-hidden="true">{}</svg>').format(Markup("").join(drawn))
