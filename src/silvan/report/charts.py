"""Draws charts as inline SVG: no script, nothing to load.

Tracks and bars use percentages for horizontal positions, so that a chart is as wide as the page allows while text,
marks and lines keep their size. Curves of scores (ROC, calibration, decision, predicted against actual numbers) are
squares with ticks. The page's style sheet sets colours and line widths by class, for light and dark mode.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from markupsafe import Markup

from silvan.util.readable import count_of, format_number

MARGIN = 3.0
"""Percentage left free at both ends of a track, so that marks are not cut off."""

MANY = 12
"""With more sites than this, long lists of sites are folded."""

MODELS = ("local", "federated", "pooled")
"""Models with their own mark and colour."""

Line = dict[str, Any]


def svg(name: str, *inner: str, **attributes: str | float) -> Markup:
    """Return an element with escaped texts, and numbers of at most two decimals."""
    written = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    numbers = {key: f"{round(value, 2):g}" for key, value in written.items() if not isinstance(value, str)}
    parts = (Markup(' {}="{}"').format(key, value) for key, value in {**written, **numbers}.items())
    return Markup("<{0}{1}>{2}</{0}>").format(name, Markup("").join(parts), Markup("").join(inner))


def model_class(model: str, models: Sequence[str]) -> str:
    """Return the style class of a model: three have a fixed one, others take the next free one."""
    if model in MODELS:
        return f"m-{model}"
    others = [m for m in models if m not in MODELS]
    return f"m-other{others.index(model) % 4}"


def class_style(number: int) -> str:
    """Return the style classes of a class by its number: eight colours, then the same with dashed lines."""
    return f"c{number % 8}{' again' if number >= 8 else ''}"


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
    """Return tick labels with as many digits as needed."""
    for digits in range(7):
        if all(abs(round(t, digits) - t) < 1e-9 * max(map(abs, ticks)) for t in ticks if t):
            return [f"{t:.{digits}f}" for t in ticks]
    return [f"{t:g}" for t in ticks]


def place(value: float, ticks: Sequence[float]) -> float:
    """Return the horizontal position of a value, as a percentage of the track."""
    span = ticks[-1] - ticks[0] or 1.0
    return MARGIN + (100 - 2 * MARGIN) * (value - ticks[0]) / span


def axis(ticks: Sequence[float]) -> Markup:
    """Draw the numbers below a track, only every second one if there are many."""
    step = 1 if len(ticks) <= 5 else 2
    labels = list(zip(ticks, tick_labels(ticks), strict=True))[::step]
    texts = (svg("text", text.replace("-", "\N{MINUS SIGN}"), x=f"{place(t, ticks):.2f}%", y=14) for t, text in labels)
    return svg("svg", *texts, class_="axis", height=20, aria_hidden="true")


# -- a tree


def tree(lines: list[Line]) -> Markup:
    """Draw the outline of a tree as nested lists, which wrap on narrow pages; the style sheet draws the branches."""
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
    """Draw one bar that takes this share of the track."""
    drawn = svg("rect", width=f"{100 * share:.2f}%", height=14, rx=2)
    return svg("svg", drawn, class_="bar", height=14, aria_hidden="true")


def stack(parts: list[tuple[int, str, int]], most: int) -> Markup:
    """Draw a stacked bar of parts (number of the colour, title, size); a total of ``most`` fills the track."""
    drawn, at = [], 0.0
    for colour, title, size in parts:
        width = 100 * size / max(most, 1)
        x, wide = f"{at:.3f}%", f"{width:.3f}%"
        drawn.append(svg("rect", svg("title", title), class_=f"k{colour}", x=x, width=wide, height=18))
        at += width
    return svg("svg", *drawn, class_="stack", height=18, aria_hidden="true")


# -- squares with ticks, in which curves and dots are drawn

Points = list[tuple[float, float]]
Groups = Sequence[tuple[float, float, float]]

_SIDE, _LEFT, _TOP, _BELOW = 220.0, 56.0, 8.0, 40.0
_BANDS = 10
"""Dots of a calibration curve."""

_UNSEEN = 0.1
"""Pixels by which a drawn line may differ from its points."""

_ORDER = ("pooled", "local", "", "federated")
"""Models from back to front; the empty name stands for all others."""


SIZE = _LEFT + _SIDE + 14, _TOP + _SIDE + _BELOW
"""Width and height of a square with its ticks."""


class Axis(NamedTuple):
    """Rising ticks of an axis, its name, and labels of the ticks if these are not their numbers."""

    ticks: Sequence[float]
    name: str
    labels: Sequence[str] = ()

    @property
    def texts(self) -> Sequence[str]:
        """The label of each tick."""
        return self.labels or tick_labels(self.ticks)

    def place(self, value: float) -> float:
        """Return the position of a value, from 0 to 1 between the outer ticks."""
        return (value - self.ticks[0]) / (self.ticks[-1] - self.ticks[0])


SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


class Drawing(Markup):
    """A chart together with its numbers: a heading, then rows."""

    numbers: list[list[Any]]


class Chart:
    """A square with ticks; drawings beyond its edges are clipped."""

    def __init__(self, label: str, x: Axis, y: Axis) -> None:
        self.label, self.x, self.y = label, x, y
        self.parts: list[Markup] = []
        self.numbers: list[list[Any]] = [["series", x.name, y.name]]

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the position of a point."""
        return _LEFT + _SIDE * self.x.place(x), _TOP + _SIDE * (1.0 - self.y.place(y))

    def line(self, points: Points, style: str, name: str = "") -> None:
        """Draw a line through points, without those that make no visible difference; a named line is in ``numbers``."""
        places = [self.at(*point) for point in points]
        kept = _visible(places)
        self.numbers += [[name, *points[i]] for i in kept if name]
        path = "M" + "L".join("{:g} {:g}".format(*(round(x, 1) for x in places[i])) for i in kept)
        self.parts.append(svg("path", class_=style, d=path))

    def dots(self, points: list[tuple[float, float, float, str]], style: str, name: str = "") -> None:
        """Draw dots, each with position, radius and title; named dots are in ``numbers``."""
        self.numbers += [[name, x, y] for x, y, *_ in points if name]
        for x, y, radius, title in points:
            left, top = self.at(x, y)
            self.parts.append(svg("circle", svg("title", title), class_=style, cx=left, cy=top, r=radius))

    def draw(self) -> Drawing:
        """Return the chart."""
        grid, texts, bottom = "", list[Markup](), _TOP + _SIDE
        for t, text in zip(self.x.ticks, self.x.texts, strict=True):
            left, _ = self.at(t, self.y.ticks[0])
            grid += f"M{left:.1f} {_TOP:.0f}v{_SIDE:.0f}"
            texts.append(svg("text", text, class_="tx", x=left, y=bottom + 16))
        for t, text in zip(self.y.ticks, self.y.texts, strict=True):
            _, top = self.at(self.x.ticks[0], t)
            grid += f"M{_LEFT:.0f} {top:.1f}h{_SIDE:.0f}"
            texts.append(svg("text", text, class_="ty", x=_LEFT - 6, y=top + 4))
        texts.append(svg("text", self.x.name, class_="tx name", x=_LEFT + _SIDE / 2, y=bottom + 34))
        turned = f"translate(11 {_TOP + _SIDE / 2:.0f}) rotate(-90)"
        texts.append(svg("text", self.y.name, class_="tx name", transform=turned))
        x, y, side = _LEFT - 4, _TOP - 4, _SIDE + 8
        inside = svg("svg", *self.parts, x=x, y=y, width=side, height=side, viewBox=f"{x:g} {y:g} {side:g} {side:g}")
        view = f"0 0 {SIZE[0]:g} {SIZE[1]:g}"
        inner = [svg("path", class_="grid", d=grid), *texts, inside]
        drawn = Drawing(svg("svg", *inner, class_="roc", viewBox=view, role="img", aria_label=self.label))
        drawn.numbers = self.numbers
        return drawn


def _visible(places: Points) -> list[int]:
    """Return the places that a line needs: all others lie within ``_UNSEEN`` pixels of it (Douglas and Peucker)."""
    kept, open_ = [], [(0, len(places) - 1)]
    while open_:
        first, last = open_.pop()
        (ax, ay), (bx, by) = places[first], places[last]
        length = math.hypot(bx - ax, by - ay) or 1.0
        off = [abs((bx - ax) * (y - ay) - (by - ay) * (x - ax)) / length for x, y in places[first + 1 : last]]
        if off and max(off) > _UNSEEN:
            middle = first + 1 + off.index(max(off))
            open_ += [(middle, last), (first, middle)]
        else:
            kept.append(first)
    return [*kept, len(places) - 1] if len(places) > 1 else kept


def back_to_front(models: Sequence[str]) -> list[str]:
    """Return models in the order in which they are drawn."""
    return sorted(models, key=lambda m: _ORDER.index(m if m in _ORDER else ""))


# -- ROC curves


def roc_points(groups: Groups) -> Points:
    """Return the ROC curve of groups of rising score: false and true positive rates; empty without both classes."""
    negatives, positives = (sum(group[i] for group in groups) for i in (1, 2))
    if not negatives > 0 or not positives > 0:
        return []
    points, x, y = [(0.0, 0.0)], 0.0, 0.0
    for _, misses, hits in sorted(groups, reverse=True):
        x, y = x + misses / negatives, y + hits / positives
        points.append((min(x, 1.0), min(y, 1.0)))
    return points


def roc(curves: list[tuple[str, Points]], styles: dict[str, str], where: str = "", corner: float = 1.0) -> Drawing:
    """Draw ROC curves by name; ``corner`` is how much of both axes is shown, from the upper left."""
    ticks = [t * corner for t in SHARES]
    rising = [round(1.0 - t, 10) for t in reversed(ticks)]
    chart = Chart(f"ROC curves{where}", Axis(ticks, "false positive rate"), Axis(rising, "true positive rate"))
    if corner == 1.0:
        chart.line([(0, 0), (1, 1)], "chance")
    for name, points in curves:
        chart.line(points, f"curve {styles[name]}", name)
    return chart.draw()


def roc_panels(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Draw the curves of each class over all rows; if all are near the upper left corner, also enlarge the corner."""
    classes = list(dict.fromkeys(curve["of"] for curve in summary["curves"]))
    styles = {model: model_class(model, summary["models"]) for model in summary["models"]}
    panels = []
    for of in classes:
        of_class = {c["model"]: c["points"] for c in summary["curves"] if c["of"] == of and len(c["points"]) > 1}
        curves = [(model, of_class[model]) for model in back_to_front([m for m in of_class if m in styles])]
        if not curves:
            continue
        title = f"{summary['label']} = {of}" + (" against the rest" if len(classes) > 1 else "")
        panels.append({"title": f"ROC, {title}", "svg": roc(curves, styles, f" of {title}, all rows together")})
        if len(classes) == 1 and all(_area(points) > 0.9 for _, points in curves):
            panels.append({"title": "ROC, upper left corner", "svg": roc(curves, styles, ", the corner", corner=0.25)})
    return panels


def _area(points: Points) -> float:
    return sum((bx - ax) * (ay + by) / 2 for (ax, ay), (bx, by) in pairwise(points))


# -- calibration, decisions, numbers


def calibration(curves: list[tuple[str, Groups]], styles: dict[str, str], dotted: str = "", where: str = "") -> Drawing:
    """Draw the share of the class in each group of rows against the group's mean score, with dots on one curve."""
    chart = Chart(f"Calibration{where}", Axis(SHARES, "score"), Axis(SHARES, "share of the class"))
    chart.line([(0, 0), (1, 1)], "chance")
    for name, groups in curves:
        bands = [(score, hits / (misses + hits), misses + hits) for score, misses, hits in _joined(groups)]
        chart.line([(score, share) for score, share, _ in bands], f"curve {styles[name]}", name)
        if name == dotted:
            title = "{:.0%} of {} with a mean score of {:.2f}"
            dots = [(x, y, n, title.format(y, count_of(round(n), "row"), x)) for x, y, n in bands]
            chart.dots(_sized(dots), f"dot {styles[name]}")
    return chart.draw()


def _joined(groups: Groups) -> list[tuple[float, float, float]]:
    """Join groups of rising score to a few of similar size: mean score, other rows, rows of the class."""
    total = sum(misses + hits for _, misses, hits in groups)
    joined, seen, mass, misses, hits = list[tuple[float, float, float]](), 0.0, 0.0, 0.0, 0.0
    for score, more_misses, more_hits in groups:
        mass, misses, hits = mass + score * (more_misses + more_hits), misses + more_misses, hits + more_hits
        seen += more_misses + more_hits
        if misses + hits > 0 and seen >= total * (len(joined) + 1) / _BANDS - 1e-9:
            joined.append((mass / (misses + hits), misses, hits))
            mass, misses, hits = 0.0, 0.0, 0.0
    return joined


def decision(curves: list[tuple[str, Points]], everybody: Points, styles: dict[str, str], where: str = "") -> Drawing:
    """Draw net benefit by threshold, next to that of acting on everybody and on nobody."""
    highest = max(y for _, points in [*curves, ("", everybody)] for _, y in points)
    ticks = nice_scale(-0.15 * max(highest, 0.02), max(highest, 0.02), wanted=4)
    chart = Chart(f"Decision curve{where}", Axis(SHARES, "threshold"), Axis(ticks, "net benefit"))
    chart.line([(0, 0), (1, 0)], "nobody")
    low = ticks[0] - 0.1 * (ticks[-1] - ticks[0])  # lines leave the chart but not by much
    chart.line([(x, max(y, low)) for x, y in everybody], "chance", "everybody")
    for name, points in curves:
        chart.line([(x, max(y, low)) for x, y in points], f"curve {styles[name]}", name)
    return chart.draw()


def predicted_against_actual(name: str, groups: Groups, styles: dict[str, str], where: str = "") -> Drawing:
    """Draw the mean outcome against the mean prediction of each group of rows."""
    values = [value for group in groups for value in group[:2]]
    ticks = nice_scale(min(values), max(values), wanted=4)
    chart = Chart(f"Predicted against actual{where}", Axis(ticks, "predicted"), Axis(ticks, "actual"))
    chart.line([(ticks[0], ticks[0]), (ticks[-1], ticks[-1])], "chance")
    dots = [
        (p, y, n, f"{count_of(round(n), 'row')}: predicted {format_number(p)}, actual {format_number(y)}")
        for p, y, n in groups
    ]
    chart.dots(_sized(dots), f"dot {styles[name]}", name)
    return chart.draw()


def _sized(dots: list[tuple[float, float, float, str]]) -> list[tuple[float, float, float, str]]:
    """Return dots with areas in proportion to their rows."""
    most = max((n for *_, n, _ in dots), default=1.0) or 1.0
    return [(x, y, 1.5 + 3.5 * math.sqrt(max(n, 0.0) / most), title) for x, y, n, title in dots]


# -- partial dependence


def dependence(
    column: str, values: Sequence[float], means: dict[str, list[float]], styles: dict[str, str], predicted: str
) -> Drawing:
    """Draw mean predictions, by class, with one column set to each of some values."""
    every = [mean for line in means.values() for mean in line]
    x, y = (nice_scale(min(numbers), max(numbers), wanted=4) for numbers in (values, every))
    chart = Chart(f"Mean prediction by {column}", Axis(x, column), Axis(y, predicted))
    for name, line in means.items():
        points = list(zip(values, line, strict=True))
        chart.line(points, f"curve {styles[name]}", name)
        dots = [(a, b, 3.0, f"{column} = {format_number(a)}: {format_number(b)}") for a, b in points]
        chart.dots(dots, f"dot {styles[name]}")
    return chart.draw()
