"""Charts of items: means over seeds with their spread, published values as rings; one SVG file per item."""

from dataclasses import dataclass

from experiments.reproduce.paper import Item
from markupsafe import Markup

from silvan.report.charts import Axis, Chart, nice_scale

WIDTH, HEIGHT, LEGEND = 290, 268, 22

STYLE = """
svg { --soft: #5c6661; --rule: #dde1de; --k0: #7f8c8d; --k1: #0072b2; --k2: #d55e00; --k3: #009e73; --k4: #cc79a7;
  --k5: #8a6d00; --k6: #56b4e9; --k7: #4b3f9e; }
@media (prefers-color-scheme: dark) { svg { --soft: #9faaa4; --rule: #323a36; } }
text { fill: var(--soft); font: 13px system-ui, "Liberation Sans", Arial, sans-serif; }
.tx { text-anchor: middle; } .ty { text-anchor: end; } .grid { stroke: var(--rule); fill: none; }
.line { fill: none; stroke-width: 2; } .spread { fill: none; stroke-width: 1; opacity: .6; }
.told { fill: none; stroke-width: 1.5; stroke-dasharray: 2 2; }
""" + "\n".join(f".s{i} {{ stroke: var(--k{i}); }} .d{i} {{ fill: var(--k{i}); }}" for i in range(8))


@dataclass(frozen=True)
class Point:
    """A mean with its spread at a position of the horizontal axis, and the published value if there is one."""

    x: object
    mean: float
    spread: float
    published: float | None


Lines = dict[str, dict[str, list[Point]]]
"""Points by panel and by title of the figure."""


def draw(item: Item, lines: Lines) -> Markup:
    """Return an item's chart as an SVG document with its style; panels are side by side, with the legend below."""
    titles = list(dict.fromkeys(title for panel in lines.values() for title in panel))
    styles = {title: i % 8 for i, title in enumerate(titles)}
    across = min(len(lines), 3)
    down = -(-len(lines) // across)
    panels = Markup("").join(
        Markup('<svg x="{}" y="{}" width="{}" height="{}">{}</svg><text class="tx" x="{}" y="{}">{}</text>').format(
            WIDTH * (i % across),
            (HEIGHT + LEGEND) * (i // across) + LEGEND,
            WIDTH,
            HEIGHT,
            _panel(item, name, panel, styles),
            WIDTH * (i % across) + WIDTH / 2 + 20,
            (HEIGHT + LEGEND) * (i // across) + 14,
            name,
        )
        for i, (name, panel) in enumerate(lines.items())
    )
    top = down * (HEIGHT + LEGEND)
    width, columns = WIDTH * across, max(across, 1)
    legend = Markup("").join(
        Markup('<circle class="d{}" cx="{}" cy="{}" r="5"/><text x="{}" y="{}">{}</text>').format(
            styles[title],
            WIDTH * (i % columns) + 20,
            top + LEGEND * (i // columns) + 10,
            WIDTH * (i % columns) + 30,
            top + LEGEND * (i // columns) + 14,
            title,
        )
        for i, title in enumerate(titles)
    )
    height = top + LEGEND * -(-len(titles) // columns) + 4
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" '
        'aria-label="{label}"><style>{style}</style>{panels}{legend}</svg>\n'
    ).format(
        w=width,
        h=height,
        label=f"{item.name}: {item.title}",
        style=Markup(STYLE),  # noqa: S704, our own text
        panels=panels,
        legend=legend,
    )


def _panel(item: Item, name: str, panel: dict[str, list[Point]], styles: dict[str, int]) -> Markup:
    """Draw one panel: positions on the horizontal axis are equidistant, as in the publications."""
    places = list(dict.fromkeys(point.x for points in panel.values() for point in points))
    ordered = all(isinstance(place, int | float) for place in places)
    if ordered:
        places.sort(key=float)
    at = {place: float(i) for i, place in enumerate(places)}
    values = [v for points in panel.values() for p in points for v in (p.mean - p.spread, p.mean + p.spread)]
    told = [p.published for points in panel.values() for p in points if p.published is not None]
    drawing = item.drawing
    labels = [f"{place:g}" if ordered else str(place) for place in places]
    step = 1 + (max(map(len, labels)) + 1) * len(labels) // 40  # as many as fit
    labels = [label if i % step == 0 else "" for i, label in enumerate(labels)]
    x = Axis([*range(max(len(places), 2))], drawing.x, (*labels, "")[: max(len(places), 2)])
    chart = Chart(f"{item.title}, {name}", x, Axis(nice_scale(min(values + told), max(values + told)), drawing.y))
    for title, points in panel.items():
        style = styles[title]
        for p in points:
            if p.spread > 0:
                ends = [(at[p.x], p.mean - p.spread), (at[p.x], p.mean + p.spread)]
                chart.line(ends, f"spread s{style}")
        if ordered:
            chart.line([(at[p.x], p.mean) for p in sorted(points, key=lambda p: at[p.x])], f"line s{style}")
        chart.dots([(at[p.x], p.mean, 3.0, f"{title}: {p.mean:.3f} ± {p.spread:.3f}") for p in points], f"d{style}")
        rings = [(at[p.x], p.published, 6.0, f"published: {p.published:g}") for p in points if p.published is not None]
        chart.dots(rings, f"told s{style}")
    return chart.draw()
