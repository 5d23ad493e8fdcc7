"""Writes the report of a run as one self-contained HTML page."""

import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from silvan.metrics import BY_KEY
from silvan.report import chart_files, charts, forest_plot, site_tables
from silvan.report.summary import summarise_run
from silvan.study.run_folder import REPORT, Run
from silvan.util.files import write_whole
from silvan.util.readable import count_of, format_bytes, format_interval, format_metric, format_time, signed

_HERE = Path(__file__).parent / "page"
STYLE = _HERE / "style.css"
"""The style sheet that all pages share."""

_TABLES = (
    *(site_tables.column_table, site_tables.subgroup_table, site_tables.choice_table, site_tables.weight_table),
    *(site_tables.distance_table, site_tables.noisy_table, site_tables.message_table, site_tables.difference_table),
    site_tables.table_one,
)
"""Tables that the template knows by the names of these functions."""

_MOST_IMPORTANCES = 15

_OPEN = 4
"""With more sites than this, the curves of each site are folded."""

_COLOURS = 7
"""Kinds of messages with their own colour."""

_OTHER_KINDS = "other kinds"

_CONTROLS = {
    **dict.fromkeys([*range(9), 11, 12, *range(14, 32), 127], "\N{REPLACEMENT CHARACTER}"),
    **dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\N{REPLACEMENT CHARACTER}"),
}
"""Characters that affect others: control characters, and those that change the direction of text."""


def write_report(run: Run) -> Path:
    """Write a run's page and return its path."""
    page = render(summarise_run(run.folder))
    write_whole(run.file(REPORT), page.encode(errors="replace"))
    return run.file(REPORT)


def without_controls(text: str) -> str:
    """Return a text without characters that affect others."""
    return text.translate(_CONTROLS)


def page_environment(folder: Path, **filters: Callable[..., str]) -> Environment:
    """Return the templates of a folder, which escape all text from outside."""
    made = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(filters)
    return made


def page_template(path: Path, **filters: Callable[..., str]) -> Template:
    """Return the template of a page that is written to a file."""
    return page_environment(path.parent, **filters).get_template(path.name)


@cache
def _template() -> Template:
    """Return the page's template; parsing it takes longer than filling it."""
    return page_template(
        _HERE / "report.html.jinja",
        format_bytes=format_bytes,
        format_time=format_time,
        signed=signed,
        number=format_metric,
        spaced=_spaced,
        gain=_gain,
        count=count_of,
    )


def render(summary: dict[str, Any]) -> str:
    """Return the page of a summary as HTML."""
    models, model = summary["models"], summary["leading"]
    many = forest_plot.is_long(summary)
    plot = forest_plot.forest_plot(summary)
    sites = _evaluated(summary, model) if model is not None else []
    threshold_table = site_tables.threshold_table(summary)
    page = _template().render(
        run=summary,
        own=" at this site" if len(summary["among"]) > len(summary["sites"]) else "",
        who="party" if summary["by"] == "columns" else "site",
        linear=any(not forest["trees"] for forest in summary["forests"]),
        kind=dict(summary["settings"]).get("learner.kind", "forest"),
        distance=dict(summary["settings"]).get("learner.metric", "manhattan"),
        style=Markup(STYLE.read_text()),  # noqa: S704, our own file
        plot=plot,
        uses=plot is not None and any(line.use for line in plot.sites),
        plot_links=[] if plot is None else _plot_links(plot, summary),
        legend=[(m, charts.model_class(m, models)) for m in models],
        model_class=charts.model_class,
        overall_panels=_overall_panels(summary, sites),
        site_panels=[site for site in sites if not site["overall"]],
        links=_links(summary, len(sites)),
        open=len(summary["sites"]) <= _OPEN,
        many=many,
        model=model,
        classes=_classes(summary),
        positive=site_tables.positive_note(summary),
        metrics_digest=_metrics_digest(summary),
        differences_digest=_differences_digest(summary),
        audit_digest=_audit_digest(summary),
        threshold_table=threshold_table,
        comparison_rows=summary["all_metrics"]["rows"],
        **{make.__name__: make(summary) for make in _TABLES},
        meanings=[(BY_KEY[key].title, BY_KEY[key].meaning) for key in summary["further"]],
        tree=None if summary["tree"] is None else charts.tree(summary["tree"]["lines"]),
        importances=_importances(summary),
        importance_links=_importance_links(summary),
        dependence=_dependence(summary),
        between=format_interval,
        stacks=_stacks(summary),
        message_legend=_message_legend(summary),
        byte_links=_byte_links(summary),
    )
    return without_controls(page)


def plot_html(summary: dict[str, Any]) -> Markup:
    """Return only the forest plot, for pages that summarise a result."""
    plot = forest_plot.forest_plot(summary)
    if plot is None:
        return Markup("")
    lines = ([], plot.totals) if forest_plot.is_long(summary) else (plot.sites, plot.totals)
    who = "party" if summary["by"] == "columns" else "site"
    module: Any = page_template(_HERE / "plot.html.jinja").module
    legend = module.plot_legend(plot, summary, charts.model_class) if plot.of_gains else ""
    drawn = module.plot_table(plot, summary, who, *lines, any(line.use for line in plot.sites))
    return Markup(without_controls(legend + drawn))  # noqa: S704  its templates escape


# -- charts as files


def _links(summary: dict[str, Any], n_charts: int) -> Callable[[charts.Drawing, str], list[tuple[str, str, str]]]:
    """Return a function that makes links for saving charts; with very many sites, single sites' charts have none."""

    def links(drawn: charts.Drawing, name: str) -> list[tuple[str, str, str]]:
        if n_charts > charts.MANY + 1 and not name.startswith("all"):
            return []
        return _saved(name, chart_files.svg_link(drawn, *charts.SIZE), drawn.numbers)

    return links


def _saved(name: str, svg: str, numbers: Sequence[Sequence[Any]]) -> list[tuple[str, str, str]]:
    """Return links to an SVG and a CSV file: title, content and file name of each."""
    stem = re.sub(r"[^\w-]+", "-", name).strip("-").lower()[:60] or "chart"
    return [("SVG", svg, f"{stem}.svg"), ("CSV", chart_files.csv_link(numbers), f"{stem}.csv")]


def _plot_links(plot: forest_plot.ForestPlot, summary: dict[str, Any]) -> list[tuple[str, str, str]]:
    rows = [(line.title, line.chart, f"{line.text} {line.interval}") for line in (*plot.sites, *plot.totals)]
    drawn = chart_files.rows_as_svg(rows, 34, plot.axis)
    return _saved("gains", chart_files.svg_link(*drawn), plot.table())


def _importance_links(summary: dict[str, Any]) -> list[tuple[str, str, str]]:
    rows = [(name, drawn, text) for name, text, drawn in _importances(summary)]
    if not rows:
        return []
    numbers = [["column", "importance"], *([name, value] for name, value in summary["importances"])]
    return _saved("importance", chart_files.svg_link(*chart_files.rows_as_svg(rows, 16)), numbers)


def _byte_links(summary: dict[str, Any]) -> list[tuple[str, str, str]]:
    rows = [(site["name"], drawn, format_bytes(site["sent"])) for site, drawn in _stacks(summary)]
    if not rows:
        return []
    kinds = [kind["name"] for kind in summary["traffic"]["kinds"]]
    sites = summary["traffic"]["sites"]
    numbers = [["site", *kinds], *([site["name"], *(site["by_kind"].get(k, 0) for k in kinds)] for site in sites)]
    return _saved("bytes", chart_files.svg_link(*chart_files.rows_as_svg(rows, 20)), numbers)


# -- summaries of folded sections


def _metrics_digest(summary: dict[str, Any]) -> str:
    titles = [BY_KEY[key].title.lower() for key in summary["further"] if key not in ("log_loss", "precision")]
    return ", ".join(titles[:4])


def _differences_digest(summary: dict[str, Any]) -> str:
    n = len(summary["differences"])
    parts = [count_of(n, "difference")] if n else ["no known differences"]
    parts += [count_of(len(summary["warnings"]), "warning")] if summary["warnings"] else []
    return ", ".join(parts)


def _audit_digest(summary: dict[str, Any]) -> str:
    reports = summary["audit"]["reports"] if summary["audit"] else []
    over = sum(f["verdict"] == "exceeded" for report in reports for f in report["findings"])
    return f"{count_of(over, 'attack')} above {'its limit' if over == 1 else 'their limits'}" if over else "all held"


# -- curves


def _overall_panels(summary: dict[str, Any], sites: list[dict[str, Any]]) -> list[tuple[str, charts.Drawing]]:
    """Return the curves over all rows, from counts summed over the sites."""
    roc = [(panel["title"], panel["svg"]) for panel in charts.roc_panels(summary)]
    overall = next((site for site in sites if site["overall"]), None)
    others = overall["panels"] if overall is not None else []
    drawn = [*roc, *(one for one in others if not (roc and one[0].startswith("ROC")))]
    return [(f"all rows: {title}", one) for title, one in drawn]


def _evaluated(summary: dict[str, Any], model: str) -> list[dict[str, Any]]:
    """Draw the curves over all rows, then those of each site."""
    drawn = []
    for site in summary["evaluated"]:
        if model in site["models"]:
            one = site["models"][model]
            drawn.append(site | {"panels": _panels(summary, site, model), "rows": one["rows"], "metrics": one})
    return drawn if any(site["panels"] for site in drawn) else []


def _panels(summary: dict[str, Any], site: dict[str, Any], model: str) -> list[tuple[str, charts.Drawing]]:
    """Draw the curves available for a site: ROC, calibration and decision curves, or predicted against actual."""
    where = f", {site['title']}"
    known = {of: groups for of, groups in site["models"][model]["groups"].items() if len(groups) > 1}
    if not known:
        return []
    if summary["classes"] is None:
        groups = next(iter(known.values()))
        styles = {model: charts.model_class(model, summary["models"])}
        return [("predicted against actual", charts.predicted_against_actual(model, groups, styles, where))]
    if len(summary["classes"]) > 2:
        styles = {of: charts.class_style(i) for i, of in enumerate(summary["classes"])}
        rocs = [(of, points) for of, groups in known.items() if of in styles and (points := charts.roc_points(groups))]
        lines = [(of, groups) for of, groups in known.items() if of in styles]
        drawn = [("ROC, each class against the rest", charts.roc(rocs, styles, where))] if rocs else []
        return [*drawn, ("calibration", charts.calibration(lines, styles, where=where))]
    return _panels_of_two(summary, site, model, next(iter(known)), where)


def _panels_of_two(
    summary: dict[str, Any], site: dict[str, Any], model: str, of: str, where: str
) -> list[tuple[str, charts.Drawing]]:
    """Draw the curves available for a site with two classes; each chart names the positive one."""
    positive = f"{summary['label']} = {of}"
    where = f" of {positive}{where}"
    styles = {m: charts.model_class(m, summary["models"]) for m in summary["models"]}
    shown = list(dict.fromkeys(charts.back_to_front([m for m in (*charts.MODELS, model) if m in site["models"]])))
    groups = {m: site["models"][m]["groups"].get(of, []) for m in shown}
    rocs = [(m, points) for m in shown if (points := charts.roc_points(groups[m]))]
    panels = [(f"ROC, {positive}", charts.roc(rocs, styles, where))] if rocs else []
    lines = [(m, groups[m]) for m in shown if m != "pooled" and len(groups[m]) > 1]
    slope = site["models"][model]["more"].get("calibration_slope")
    title = f"calibration, {positive}" + ("" if slope is None else f", slope {slope:.2f}")
    panels.append((title, charts.calibration(lines, styles, model, where)))
    benefit = {m: site["models"][m]["net_benefit"] for m in shown if m != "pooled"}
    decided = [(m, [(x, y) for x, y, _ in points]) for m, points in benefit.items() if points]
    if decided:
        everybody = [(x, y) for x, _, y in next(points for points in benefit.values() if points)]
        panels.append((f"decision curve, {positive}", charts.decision(decided, everybody, styles, where)))
    return panels


def _classes(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the style of each class, if curves are drawn by class."""
    names = summary["classes"] or []
    return [(name, charts.class_style(i)) for i, name in enumerate(names[:12])] if len(names) > 2 else []


def _importances(summary: dict[str, Any]) -> list[tuple[str, str, Markup]]:
    """Return the most important columns, each with a bar."""
    table = site_tables.importance_table(summary)
    if table is None:
        return []
    shares = [share for _, share in summary["importances"][:_MOST_IMPORTANCES]]
    bars = [charts.bar(max(share, 0.0) / (max(shares) or 1.0)) for share in shares]
    return [(name, text, drawn) for (name, text), drawn in zip(table.rows, bars, strict=False)]


def _dependence(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Draw how predictions depend on columns: a curve for numbers, a table for categories."""
    names = list(dict.fromkeys(name for one in summary["dependence"] for name in one["means"]))
    styles = {name: "m-federated" if len(names) == 1 else charts.class_style(i) for i, name in enumerate(names)}
    drawn = []
    for one, (column, table) in zip(summary["dependence"], site_tables.dependence_tables(summary), strict=True):
        numbers = len(one["values"]) > 1 and not any(isinstance(value, str) for value in one["values"])
        curve = None
        if numbers:
            curve = charts.dependence(column, one["values"], one["means"], styles, site_tables.predicted(summary))
        drawn.append({"column": column, "curve": curve, "table": table})
    return drawn


def _stacks(summary: dict[str, Any]) -> list[tuple[dict[str, Any], Markup]]:
    """Return a bar for each site: the bytes sent by kind of message; kinds without a colour are combined."""
    traffic = summary["traffic"]
    kinds = [kind["name"] for kind in traffic["kinds"]]
    most = max((site["sent"] for site in traffic["sites"]), default=0)
    drawn = []
    for site in traffic["sites"]:
        sizes = [(i, kind, site["by_kind"].get(kind, 0)) for i, kind in enumerate(kinds[:_COLOURS])]
        sizes.append((_COLOURS, _OTHER_KINDS, sum(site["by_kind"].get(kind, 0) for kind in kinds[_COLOURS:])))
        parts = [(i, f"{kind}: {format_bytes(size)}", size) for i, kind, size in sizes if size]
        drawn.append((site, charts.stack(parts, most)))
    return drawn


def _message_legend(summary: dict[str, Any]) -> list[tuple[int, str]]:
    """Return the colour and name of each kind of message in the bars."""
    kinds = [kind["name"] for kind in summary["traffic"]["kinds"]]
    rest = len(kinds) - _COLOURS
    named = list(enumerate(kinds[:_COLOURS]))
    return [*named, (_COLOURS, f"{count_of(rest, 'other kind')}")] if rest > 0 else named


def _gain(value: float | None, digits: int) -> str:
    return "" if value is None else signed(value, digits)


def _spaced(digest: str) -> str:
    """Write a hash in groups of eight, for comparison by eye."""
    return " ".join(digest[i : i + 8] for i in range(0, len(digest), 8))
