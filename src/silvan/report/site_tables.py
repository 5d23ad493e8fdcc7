"""Tables by site: what was told of columns, weights of trees, distances; as texts, for the page and for Markdown."""

from collections import Counter
from typing import Any

from silvan.util.readable import count_of, format_number

_WIDE = 6
"""Most sites that have a column each; of more, the table says at how many something is the case."""

MOST_DISTANCES = 12
"""Most sites whose distances are shown as a square."""

_LEFT_OUT = ("log_loss", "precision")
"""Figures that are shown among all figures only."""

Table = tuple[list[str], list[list[str]]]
"""The heads of a table, and its lines."""


def column_table(summary: dict[str, Any]) -> Table | None:
    """Return columns by site, with no more than what sites told when they agreed on columns."""
    if not summary["columns"]:
        return None
    sites = [line["title"] for line in summary["sites"]]
    listed = [(column, {site: _told(column, site) for site in sites}) for column in summary["columns"]]
    kinds = {"numeric": "number", "categorical": "categories", "date": "date"}
    if len(sites) <= _WIDE:
        rows = [["rows to learn from", "", *(f"{line['rows']:,}" for line in summary["sites"])]]
        rows += [["rows to judge by", "", *(f"{line['test_rows']:,}" for line in summary["sites"])]]
        if all(line["positives"] is not None for line in summary["sites"]):
            title = f"{summary['label']} = {summary['classes'][1]}"
            rows += [[title, "label", *(f"{line['positives']:.0%}" for line in summary["sites"])]]
        rows += [[c["name"], kinds.get(c["kind"], c["kind"]), *told.values()] for c, told in listed]
        return ["Column", "Kind", *sites], rows
    rows = [["rows to learn from", "", _range([line["rows"] for line in summary["sites"]])]]
    for column, told in listed:
        found = [f"{text} at {n}" for text, n in Counter(told.values()).most_common()]
        rows.append([column["name"], kinds.get(column["kind"], column["kind"]), "; ".join(found)])
    return ["Column", "Kind", f"What is told, at how many of {count_of(len(sites), 'site')}"], rows


def _range(numbers: list[int]) -> str:
    return f"{min(numbers):,} to {max(numbers):,} a site"


def _told(column: dict[str, Any], site: str) -> str:
    """Return what a site told of a column."""
    if site not in column["sites"]:
        return "absent"
    if site in column["sizes"]:
        low, high = column["sizes"][site]
        return f"{format_number(low)} to {format_number(high)}"
    if site in column["categories"]:
        n = column["categories"][site]
        return "one category" if n == 1 else f"{n} categories"
    return "dates" if column["kind"] == "date" else "none told" if column["kind"] == "categorical" else "too few values"


def weight_table(summary: dict[str, Any]) -> Table | None:
    """Return whose trees count, and how much."""
    if not summary["weights"]:
        return None
    cluster = {site: list(members) for members in summary["clusters"].values() for site in members}
    sites = [one["site"] for one in summary["weights"]]
    rows = []
    for one in summary["weights"]:
        scorers = cluster.get(one["site"], sites)
        by = "itself" if scorers == [one["site"]] else f"all {len(scorers)} of its cluster" if cluster else "all sites"
        between = f"{_figure(one['least'], 2)} to {_figure(one['most'], 2)}"
        counts = [f"{one['trees']:,}", f"{one['used']:,}"]
        numbers = [*counts, _figure(one["median"], 2), between, f"{one['share']:.1%}"]
        rows.append([one["site"], by, *numbers])
    return ["Trees of", "Scored by", "Trees", "Used", "Median weight", "From to", "Share of votes"], rows


def choice_table(summary: dict[str, Any]) -> Table | None:
    """Return what each site uses, and by which figures it chose that."""
    return (["Site", "Uses"], [[*line] for line in summary["choices"].items()]) if summary["choices"] else None


def subgroup_table(summary: dict[str, Any], model: str | None) -> Table | None:
    """Return how the model does for subgroups of test rows, where the study asked for them."""
    lines, metric = [one for one in summary["subgroups"] if one["model"] == model], summary["metric"]
    if not lines or metric is None:
        return None
    rows = []
    for one in sorted(lines, key=lambda one: (one["site"] != "all", one["group"])):
        value = one["figures"].get(metric["key"])
        told = [_figure(value, metric["digits"]), one["note"]]
        rows.append([one["group"], "all sites" if one["site"] == "all" else one["site"], f"{one['rows']:,}", *told])
    return ["Subgroup", "Site", "Test rows", metric["title"], "Note"], rows


def dependence_tables(summary: dict[str, Any]) -> list[tuple[str, Table]]:
    """Return the mean predictions with a column set to each of some values: a table for each column."""
    return [
        (
            one["column"],
            (
                [one["column"], *(one["means"] if len(one["means"]) > 1 else ["Mean prediction"])],
                [
                    [format_number(value) if isinstance(value, float | int) else str(value), *map(format_number, means)]
                    for value, *means in zip(one["values"], *one["means"].values(), strict=True)
                ],
            ),
        )
        for one in summary["dependence"]
    ]


def distance_table(summary: dict[str, Any]) -> Table | None:
    """Return distances between sites: of all pairs, or from the nearest and the farthest where there are many."""
    apart = summary["distances"]
    if not apart:
        return None
    sites = list(apart)
    if len(sites) <= MOST_DISTANCES:
        rows = [[a, *("–" if a == b else f"{d:.2f}" for b, d in zip(sites, apart[a], strict=True))] for a in sites]
        return ["", *sites], rows
    rows = []
    for i, site in enumerate(sites):
        others = sorted((d, other) for j, (d, other) in enumerate(zip(apart[site], sites, strict=True)) if j != i)
        (near, nearest), (far, farthest) = others[0], others[-1]
        rows.append([site, f"{nearest} ({near:.2f})", f"{farthest} ({far:.2f})"])
    return ["Site", "Nearest", "Farthest"], rows


def threshold_table(summary: dict[str, Any], model: str, titles: list[tuple[str, str, str]]) -> Table | None:
    """Return how the model does at each site: AUC with its interval, calibration, and what a threshold gives."""
    known = [site for site in summary["judged"] if model in site["models"]]
    titles = [one for one in titles if one[0] not in _LEFT_OUT]
    if not titles or not known or summary["noisy"]:
        return None
    auc = any(site["models"][model]["auc"] is not None for site in known)
    digits = summary["metric"]["digits"]
    between = any(site["models"][model]["between"][0] is not None for site in known)
    decides = [s["models"][model]["more"].get("threshold") is not None for s in known if not s["overall"]]
    rows = []
    for site in [*(s for s in known if not s["overall"]), *(s for s in known if s["overall"])]:
        one = site["models"][model]
        low, high = one["between"]
        figures = [_figure(one["auc"], 3)] * auc
        figures += ["" if low is None or high is None else f"{low:.3f} to {high:.3f}"] * between
        figures += [_figure(value, 3 if key == "r2" else digits) for key, value in one["numbers"].items()]
        more = one["more"]
        if site["overall"] and not all(decides):  # these would be of some sites only
            more = {key: value for key, value in more.items() if key not in ("sensitivity", "specificity")}
        figures += [_figure(more.get(key), digits if key == "mae" else 3) for key, *_ in titles]
        rows.append([site["title"], f"{one['rows']:,}", *figures])
    numbers = [{"rmse": "RMSE", "r2": "R²"}[key] for key in known[0]["models"][model]["numbers"]]
    heads = ["Site", "Test rows", *["AUC"] * auc, *["95 % interval"] * between, *numbers]
    heads += [title for _, title, _ in titles]
    return heads, rows


def _figure(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}".replace("-", "\N{MINUS SIGN}")
