"""The forest plot: the gain of each site from joining, with its confidence interval, and the gain over all sites.

Without a local model to compare with, the plot shows the metric itself. Each line is a chart of its own, as wide as the
page allows, so that the names and numbers beside it are ordinary table cells.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from silvan.algorithms.evaluation.evaluation import CERTAINTY
from silvan.report.charts import MANY, MODELS, axis, model_class, nice_scale, place, svg
from silvan.util.readable import count_of, format_interval, format_metric, signed

Line = dict[str, Any]

_BEYOND = 3.0
"""Intervals are drawn up to this multiple of the median width; longer ones end in an arrow."""

_LEFT_OF_AXIS = ("local", "federated", "pooled")


class PlotLine(NamedTuple):
    """A line of the plot: the site, its rows, the metric of each model, the chart, and the gain as text."""

    title: str
    rows: str
    values: list[str]
    chart: Markup
    text: str
    interval: str
    use: str
    sure: str
    total: bool


class ForestPlot(NamedTuple):
    """Lines of sites and of all sites, with the axis below them."""

    heads: list[str]
    sites: list[PlotLine]
    totals: list[PlotLine]
    axis: Markup
    of_gains: bool
    others: list[str]

    def table(self) -> list[list[str]]:
        """Return the content of the plot as rows of a spreadsheet."""
        what = ["gain", "95% CI"] if self.of_gains else ["95% CI"]
        rows = [["site", "rows", *self.heads, *what, "should use"]]
        for line in (*self.sites, *self.totals):
            numbers = [line.text, line.interval] if self.of_gains else [line.interval]
            rows.append([line.title, line.rows, *line.values, *numbers, line.use])
        return rows


def forest_plot(summary: Line) -> ForestPlot | None:
    """Draw each site's gain, or the model's metric at each site; None without a metric."""
    metric = summary["metric"]
    if metric is None or summary["noisy"] or not summary["sites"]:
        return None
    totals = [line for line in (summary["mean"], summary["overall"]) if line is not None]
    lines = [*summary["sites"], *totals]
    of_gains = any(gain is not None for line in lines for gain in line["gains"].values())
    shown = [m for m in _LEFT_OF_AXIS if m in summary["models"]] or summary["models"][:3]
    others = [m for m in summary["models"] if m not in MODELS] if of_gains else []
    points = [_point(line, summary, of_gains) for line in lines]
    ticks = _ticks(points, metric, of_gains)
    if ticks is None:
        return None
    most = max((line["test_rows"] or 0 for line in summary["sites"]), default=0) or 1
    drawn = []
    for line, point in zip(lines, points, strict=True):
        rows = 0 if line in totals else line["test_rows"]  # a missing total is unknown, not undefined
        values = [format_metric(line["metrics"].get(m), metric["digits"], rows) for m in shown]
        share = math.sqrt((line["test_rows"] or 0) / most)
        chart = _chart(line, point, ticks, share, summary, others, line in totals)
        drawn.append(
            PlotLine(
                line["title"],
                _rows(line, summary),
                values,
                chart,
                "" if point.value is None or not of_gains else signed(point.value, metric["digits"]),
                point.text,
                line["use"],
                point.sure,
                line in totals,
            )
        )
    n = len(summary["sites"])
    return ForestPlot(shown, drawn[:n], drawn[n:], axis(ticks), of_gains, others)


class _Point(NamedTuple):
    """The content of a line's chart: a value, its interval, its certainty, and the interval as text."""

    value: float | None
    low: float | None
    high: float | None
    sure: str
    text: str


def _point(line: Line, summary: Line, of_gains: bool) -> _Point:
    digits = summary["metric"]["digits"]
    if of_gains:
        value, sure = line["gains"].get("federated"), line["sure"].get("federated", "unknown")
        low, high = line["intervals"].get("federated", (None, None))
        if value is None:
            return _Point(None, None, None, "unknown", "")
        why = "no interval" if sure == "few" and not line["use"] else CERTAINTY[sure]  # sites never share scores
        return _Point(value, low, high, sure, format_interval(low, high, digits) or f"({why})")
    value, (low, high) = line["metrics"].get(summary["leading"]), _between(line, summary)
    return _Point(value, low, high, "level", "" if low is None else f"{low:.{digits}f} to {high:.{digits}f}")


def _between(line: Line, summary: Line) -> tuple[float | None, float | None]:
    """Return the interval of the leading model's AUC at a site, if the plot shows the AUC."""
    site = next((site for site in summary["evaluated"] if site["title"] == line["title"]), None)
    if site is None or summary["metric"]["key"] != "auc":
        return None, None
    low, high = site["models"].get(summary["leading"], {}).get("between", (None, None))
    return (None, None) if low is None or high is None else (low, high)


def _ticks(points: Sequence[_Point], metric: Line, of_gains: bool) -> list[float] | None:
    """Return axis ticks that cover all values and all intervals of ordinary width."""
    values = [point.value for point in points if point.value is not None]
    if not values:
        return None
    known = [
        (p.value, p.low, p.high) for p in points if p.value is not None and p.low is not None and p.high is not None
    ]
    reach = sorted(max(high - value, value - low) for value, low, high in known)
    usual = _BEYOND * reach[len(reach) // 2] if reach else 0.0
    ends = [end for value, low, high in known for end in (max(low, value - usual), min(high, value + usual))]
    low, high = min([*values, *ends, *[0.0] * of_gains]), max([*values, *ends, *[0.0] * of_gains])
    top = None if of_gains or metric["key"] == "rmse" else 1.0
    return nice_scale(low, high, top)


def _chart(
    line: Line, point: _Point, ticks: list[float], share: float, summary: Line, others: list[str], total: bool
) -> Markup:
    """Draw one line: an interval, a square whose size grows with the number of rows, and marks of other models."""
    digits, models = summary["metric"]["digits"], summary["models"]
    parts = [
        svg("line", class_="zero" if abs(t) < 1e-9 else "grid", x1=x, x2=x, y1=0, y2="100%")
        for t, x in ((t, f"{place(t, ticks):.2f}%") for t in ticks)
    ]
    if point.value is None:
        why = "undefined: no test rows, or only one class" if not line["use"] and not total else ""
        parts.append(svg("text", why, class_="none", x="50%", y="50%", dy=4))
        return svg("svg", *parts, class_="track", height=34, role="img", aria_label=f"{line['title']}: undefined")
    at = f"{place(point.value, ticks):.2f}%"
    label = f"{line['title']}: {signed(point.value, digits) if summary['metric'] and line['gains'] else point.value}"
    if point.low is not None and point.high is not None:
        low, high = max(point.low, ticks[0]), min(point.high, ticks[-1])
        ends = [f"{place(end, ticks):.2f}%" for end in (low, high)]
        parts.append(svg("line", class_=f"ci {point.sure}", x1=ends[0], x2=ends[1], y1="50%", y2="50%"))
        for end, true, x, way in (
            (low, point.low, ends[0], "M6-5 0 0 6 5"),
            (high, point.high, ends[1], "M-6-5 0 0-6 5"),
        ):
            tip = way if end != true else "M0-5V5"
            parts.append(svg("svg", svg("path", d=tip), class_=f"tip {point.sure}", x=x, y="50%"))
        label += f", 95% CI {point.text}"
    for model in [*(["pooled"] if line["gains"].get("pooled") is not None else []), *others]:
        gain = line["gains"].get(model)
        if gain is not None and ticks[0] <= gain <= ticks[-1]:
            title, x = svg("title", f"{model}: {signed(gain, digits)}"), f"{place(gain, ticks):.2f}%"
            shape = svg("path", d="M0-13V13" if model == "pooled" else "M0 7 5 14h-10Z")
            parts.append(svg("svg", title, shape, class_=f"mark {model_class(model, models)}", x=x, y="50%"))
    half = 6.5 if total else 3.5 + 3.5 * share
    path = (
        f"M0-{half:g} {half:g} 0 0 {half:g}-{half:g} 0Z"
        if total
        else f"M-{half:g}-{half:g}H{half:g}V{half:g}H-{half:g}Z"
    )
    title = svg("title", f"{label}; {count_of(line['test_rows'] or 0, 'row')}")
    parts.append(svg("svg", title, svg("path", d=path), class_=f"point {point.sure}", x=at, y="50%"))
    return svg("svg", *parts, class_="track", height=34, role="img", aria_label=label)


def _rows(line: Line, summary: Line) -> str:
    """Return the number of rows behind a line, and the share of the positive class."""
    if line["test_rows"] is None:
        return ""
    text = f"{line['test_rows']:,} {'rows' if summary['on_splits'] else 'test rows'}"
    return (
        text
        if line["positives"] is None or summary["positive"] is None
        else f"{text}, {line['positives']:.0%} positive"
    )


def is_long(summary: Line) -> bool:
    """Whether lines of sites are folded."""
    return len(summary["sites"]) > MANY
