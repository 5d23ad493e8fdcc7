"""Tables of a report as typed data, which the page, Markdown and the terminal render."""

import math
from collections import Counter
from typing import Any

import msgspec

from silvan.algorithms.evaluation.evaluation import CERTAINTY
from silvan.algorithms.table_one import TableOne
from silvan.metrics import BY_KEY
from silvan.util.readable import count_of, format_bytes, format_interval, format_metric, format_number, signed

_WIDE = 6
"""Up to this many sites have a column each; with more, tables count sites instead."""

MOST_DISTANCES = 12
"""Up to this many sites, distances are shown as a square."""

_LEFT_OUT = ("log_loss", "precision")
"""Metrics shown only in the table of all metrics."""


class ReportTable(msgspec.Struct, frozen=True):
    """A table of final texts, so that renderers compute nothing.

    The first ``texts`` columns hold text, the others numbers. Cells of the columns ``toned`` take the tone of their
    line, a key of ``CERTAINTY``. ``gains`` maps (line, column) to a text after the number and its tone. A rule is
    drawn above the line ``rule``; the line ``strong`` is emphasised.
    """

    heads: list[str]
    rows: list[list[str]]
    texts: int = 1
    tones: list[str] = []
    toned: tuple[int, ...] = ()
    note: str = ""
    gains: dict[tuple[int, int], tuple[str, str]] = {}
    rule: int = -1
    strong: int = -1

    def first(self, n: int) -> "ReportTable":
        """Return only the first lines."""
        return msgspec.structs.replace(self, rows=self.rows[:n])

    def tone(self, line: int, column: int) -> str:
        """Return the tone of a cell."""
        return self.tones[line] if column in self.toned else ""


def comparison_table(summary: dict[str, Any]) -> ReportTable | None:
    """Return the leading metric of every model at every site, with its gain over the local model."""
    metric, models, on_splits = summary["metric"], summary["models"], summary["on_splits"]
    if summary["noisy"]:
        return None
    sums = [line for line in (summary["mean"], summary["overall"]) if line is not None]
    lines = [*summary["sites"], *sums]
    counts = [("Rows" if on_splits else "Train", "rows")] + [("Test", "test_rows")] * (
        metric is not None and not on_splits
    )
    positives = any(line["positives"] is not None for line in summary["sites"])
    who = "Party" if summary["by"] == "columns" else "Site"
    heads = [who, *(head for head, _ in counts), *["Positive"] * positives, *(model.capitalize() for model in models)]
    table = ReportTable(heads, [], rule=len(summary["sites"]) if sums else -1)
    for place, line in enumerate(lines):
        row = [line["title"], *("" if line[key] is None else f"{line[key]:,}" for _, key in counts)]
        row += ["" if line["positives"] is None else f"{line['positives']:.0%}"] * positives
        for model in models if metric else ():
            gain = line["gains"].get(model)
            if gain is not None:
                text = signed(gain, metric["digits"]) if gain else "="
                table.gains[place, len(row)] = text, line["sure"].get(model, "")
            row.append(format_metric(line["metrics"].get(model), metric["digits"], line["test_rows"]))
        table.rows.append(row)
    lead = next((place for place, line in enumerate(lines) if line is summary["lead"]), -1)
    return msgspec.structs.replace(table, strong=lead, note=_compared_on(summary, who.lower()))


def _compared_on(summary: dict[str, Any], who: str) -> str:
    """Describe which rows models were compared on, and by which metric."""
    metric = summary["metric"]
    if metric is None:
        return ""
    where = "on the test rows" if summary["by"] == "columns" else "on each site's test rows"
    if summary["left_out"]:
        better = "" if metric["higher"] else "; lower is better"
        return f"{metric['title']} on all rows of each site, with a model trained at the other sites{better}"
    if summary["repeats"]:
        where = f"on each site's rows, mean of {count_of(summary['splits'], 'split')}"
    better = "" if metric["higher"] else ", lower is better"
    return f"{metric['title']} {where}{better}; after it the gain over the {who}'s local model{positive_note(summary)}"


def positive_note(summary: dict[str, Any]) -> str:
    """Return the end of a note that names the positive class; empty unless there are two classes."""
    return "" if summary["positive"] is None else f"; positive class: {summary['label']} = {summary['positive']}"


def difference_table(summary: dict[str, Any]) -> ReportTable | None:
    """Return how the sites' tables differ, and how each difference was handled."""
    rows = [list(one) for one in summary["differences"]]
    return ReportTable(["Column", "How the sites differ", "How it was handled"], rows, texts=3) if rows else None


def message_table(summary: dict[str, Any]) -> ReportTable | None:
    """Return which messages left the sites, what the coordinator saw of them, and their bytes."""
    shown = ("name", "asks", "answers", "seen")
    rows = [[*(kind[one] for one in shown), format_bytes(kind["sent"])] for kind in summary["traffic"]["kinds"]]
    sent = "Sent" if summary["copy_for"] else "Sent by all"
    heads = ["Message", "Request", "Reply", "The coordinator sees", sent]
    return ReportTable(heads, rows, texts=4) if rows else None


def importance_table(summary: dict[str, Any]) -> ReportTable | None:
    """Return the importance of each column: its share of the gain, or the increase of the error without it."""
    listed = summary["importances"]
    if not listed:
        return None
    if not summary["shuffled"]:
        return ReportTable(["Feature", "Share"], [[name, f"{share:.1%}"] for name, share in listed])
    largest = max(abs(growth) for _, growth in listed) or 1.0
    digits = min(max(2 - math.floor(math.log10(largest)), 0), 6)
    what = "Brier score" if len(summary["classes"] or ()) == 2 else "mean squared error"
    note = f"{what} on all sites' test rows, after shuffling the column at each site"
    rows = [[name, _number(growth, digits)] for name, growth in listed]
    return ReportTable(["Feature", "Increase of error"], rows, note=note)


def table_one(summary: dict[str, Any]) -> ReportTable | None:
    """Return Table 1, if the study asked for it."""
    table: TableOne | None = summary["table_one"]
    return None if table is None else ReportTable(table.heads, table.texts(), note=table.note)


def column_table(summary: dict[str, Any]) -> ReportTable | None:
    """Return columns by site, showing only what sites disclosed when they agreed on columns."""
    if not summary["columns"]:
        return None
    sites = [line["title"] for line in summary["sites"]]
    listed = [(column, {site: _disclosed(column, site) for site in sites}) for column in summary["columns"]]
    kinds = {"numeric": "number", "categorical": "categories", "date": "date"}
    if len(sites) <= _WIDE:
        rows = [["training rows", "", *(f"{line['rows']:,}" for line in summary["sites"])]]
        rows += [["test rows", "", *(f"{line['test_rows']:,}" for line in summary["sites"])]]
        if summary["positive"] is not None and all(line["positives"] is not None for line in summary["sites"]):
            title = f"{summary['label']} = {summary['positive']}"
            rows += [[title, "label", *(f"{line['positives']:.0%}" for line in summary["sites"])]]
        rows += [[c["name"], kinds.get(c["kind"], c["kind"]), *texts.values()] for c, texts in listed]
        return ReportTable(["Column", "Kind", *sites], rows, texts=2)
    sizes = [line["rows"] for line in summary["sites"]]
    rows = [["training rows", "", f"{min(sizes):,} to {max(sizes):,} per site"]]
    for column, texts in listed:
        counted = [f"{text} at {n}" for text, n in Counter(texts.values()).most_common()]
        rows.append([column["name"], kinds.get(column["kind"], column["kind"]), "; ".join(counted)])
    return ReportTable(["Column", "Kind", f"Reported by how many of {count_of(len(sites), 'site')}"], rows, texts=2)


def _disclosed(column: dict[str, Any], site: str) -> str:
    """Return what a site disclosed about a column."""
    if site not in column["sites"]:
        return "absent"
    if site in column["sizes"]:
        low, high = column["sizes"][site]
        return f"{format_number(low)} to {format_number(high)}"
    if site in column["categories"]:
        n = column["categories"][site]
        return "one category" if n == 1 else f"{n} categories"
    return (
        "dates"
        if column["kind"] == "date"
        else "not disclosed"
        if column["kind"] == "categorical"
        else "too few values"
    )


def weight_table(summary: dict[str, Any]) -> ReportTable | None:
    """Return the weights of each site's trees."""
    if not summary["weights"]:
        return None
    cluster = {site: list(members) for members in summary["clusters"].values() for site in members}
    sites = [one["site"] for one in summary["weights"]]
    rows = []
    for one in summary["weights"]:
        scorers = cluster.get(one["site"], sites)
        by = "itself" if scorers == [one["site"]] else f"all {len(scorers)} of its cluster" if cluster else "all sites"
        between = f"{_number(one['least'], 2)} to {_number(one['most'], 2)}"
        counts = [f"{one['trees']:,}", f"{one['used']:,}"]
        numbers = [*counts, _number(one["median"], 2), between, f"{one['share']:.1%}"]
        rows.append([one["site"], by, *numbers])
    heads = ["Trees of", "Scored by", "Trees", "Used", "Median weight", "Range", "Share of votes"]
    return ReportTable(heads, rows, texts=2)


def choice_table(summary: dict[str, Any]) -> ReportTable | None:
    """Return which model each site uses, and why."""
    lines = [[*line] for line in summary["choices"].items()]
    return ReportTable(["Site", "Uses"], lines, texts=2, note=summary["shared_forest"]) if lines else None


def subgroup_table(summary: dict[str, Any]) -> ReportTable | None:
    """Return the metrics of models for subgroups of test rows, if the study asked for them."""
    metric, groups = summary["metric"], dict[tuple[str, str], dict[str, dict[str, Any]]]()
    for one in sorted(summary["subgroups"], key=lambda one: (one["site"] != "all", one["group"])):
        groups.setdefault((one["group"], one["site"]), {})[one["model"]] = one
    if not groups or metric is None:
        return None
    models = [model for model in summary["models"] if any(model in by_model for by_model in groups.values())]
    rows = []
    for (group, site), by_model in groups.items():
        values = [by_model.get(model, {"metrics": {}})["metrics"].get(metric["key"]) for model in models]
        one = next(iter(by_model.values()))
        shown = [_number(value, metric["digits"]) for value in values]
        rows.append([group, "all sites" if site == "all" else site, f"{one['rows']:,}", *shown, one["note"]])
    heads = ["Subgroup", "Site", "Test rows", *(model.capitalize() for model in models), "Note"]
    note = f"{metric['title']} on test rows; subgroups that are too small are not shown{positive_note(summary)}"
    return ReportTable(heads, rows, texts=2, note=note)


def predicted(summary: dict[str, Any]) -> str:
    """Name the quantity that shows predictions: the mean probability of a class, or the mean number."""
    if summary["positive"] is None:
        return "mean prediction" if summary["classes"] is None else "mean probability"
    return f"mean probability of {summary['label']} = {summary['positive']}"


def dependence_tables(summary: dict[str, Any]) -> list[tuple[str, ReportTable]]:
    """Return one table per column: the mean prediction with the column set to each of some values."""
    tables = []
    for one in summary["dependence"]:
        heads = one["means"] if len(one["means"]) > 1 else [predicted(summary).capitalize()]
        values = [format_number(value) if isinstance(value, float | int) else str(value) for value in one["values"]]
        means = [list(map(format_number, line)) for line in one["means"].values()]
        rows = [list(row) for row in zip(values, *means, strict=True)]
        tables.append((one["column"], ReportTable([one["column"], *heads], rows)))
    return tables


def distance_table(summary: dict[str, Any]) -> ReportTable | None:
    """Return distances between sites: of all pairs, or only to the nearest and farthest if there are many."""
    apart = summary["distances"]
    if not apart:
        return None
    sites = list(apart)
    if len(sites) <= MOST_DISTANCES:
        rows = [[a, *("–" if a == b else f"{d:.2f}" for b, d in zip(sites, apart[a], strict=True))] for a in sites]
        return ReportTable(["", *sites], rows)
    rows = []
    for i, site in enumerate(sites):
        others = sorted((d, other) for j, (d, other) in enumerate(zip(apart[site], sites, strict=True)) if j != i)
        (near, nearest), (far, farthest) = others[0], others[-1]
        rows.append([site, f"{nearest} ({near:.2f})", f"{farthest} ({far:.2f})"])
    return ReportTable(["Site", "Nearest", "Farthest"], rows)


def threshold_table(summary: dict[str, Any]) -> ReportTable | None:
    """Return the leading model's metrics at each site: AUC with its interval, calibration, metrics at a threshold."""
    model = summary["leading"]
    known = [site for site in summary["evaluated"] if model in site["models"]]
    further = [BY_KEY[key] for key in summary["further"] if key not in _LEFT_OUT]
    if not further or not known or summary["noisy"]:
        return None
    auc = any(site["models"][model]["auc"] is not None for site in known)
    digits = summary["metric"]["digits"]
    between = any(site["models"][model]["between"][0] is not None for site in known)
    decides = [s["models"][model]["more"].get("threshold") is not None for s in known if not s["overall"]]
    rows = []
    for site in [*(s for s in known if not s["overall"]), *(s for s in known if s["overall"])]:
        one = site["models"][model]
        low, high = one["between"]
        values = [format_metric(one["auc"], 3, one["rows"])] * auc
        values += ["" if low is None or high is None else f"{low:.3f} to {high:.3f}"] * between
        values += [_number(value, digits if BY_KEY[key].in_units else 3) for key, value in one["numbers"].items()]
        more = one["more"]
        if site["overall"] and not all(decides):  # these would cover only some sites
            more = {key: value for key, value in more.items() if key not in ("sensitivity", "specificity")}
        values += [_number(more.get(m.key), digits if m.in_units else 3) for m in further]
        rows.append([site["title"], f"{one['rows']:,}", *values])
    numbers = [BY_KEY[key].title for key in known[0]["models"][model]["numbers"]]
    heads = ["Site", "Test rows", *["AUC"] * auc, *["95% CI"] * between, *numbers]
    heads += [metric.title for metric in further]
    rule = len(rows) - 1 if known[0]["overall"] else -1  # they are listed with all rows first
    note = _decided_by(summary, known) if "Sensitivity" in heads else ""
    return ReportTable(heads, rows, rule=rule, note=(note + positive_note(summary)).removeprefix("; "))


def _decided_by(summary: dict[str, Any], known: list[dict[str, Any]]) -> str:
    """Describe which decision threshold was used."""
    by_site = summary["threshold"] is None
    at = "the threshold that each site chose on its training rows" if by_site else "the study's threshold"
    partly = next((f"; all rows: {site['note']}" for site in known if site["overall"] and site["note"]), "")
    return f"sensitivity and specificity at {at}{partly}"


def joining_table(summary: dict[str, Any]) -> ReportTable | None:
    """Return whether joining helps each site: the recommended model, its gain, and the interval of the gain."""
    metric, lines = summary["metric"], summary["sites"]
    if metric is None or summary["noisy"] or not any(line["use"] for line in lines):
        return None
    rows = []
    for line in lines:
        gain = line["gains"].get("federated")
        shown = "undefined" if gain is None else signed(gain, metric["digits"])
        between = format_interval(line["low"], line["high"], metric["digits"])
        rows.append([line["title"], line["use"], shown, between, "" if gain is None else CERTAINTY[line["certainty"]]])
    who = "Party" if summary["by"] == "columns" else "Site"
    tones = [line["certainty"] for line in lines]
    return ReportTable([who, "Should use", "Gain", "95% CI", "In words"], rows, texts=2, tones=tones, toned=(2, 4))


def noisy_table(summary: dict[str, Any]) -> ReportTable | None:
    """Return metrics over all sites with noise, and their intervals."""
    noisy = summary["noisy"]
    if noisy is None:
        return None
    rows = []
    for (title, meaning, value, low, high), digits in zip(
        noisy["metrics"], summary["all_metrics"]["digits"], strict=False
    ):
        between = "" if low is None else f"{low:.{digits}f} to {high:.{digits}f}"
        rows.append([title, meaning, format_metric(value, digits), between])
    note = f"on the test rows of all sites (about {noisy['rows']:,}), with noise for epsilon {noisy['epsilon']:g}"
    note += positive_note(summary)
    return ReportTable(["Metric", "Meaning", "Value", "95% CI"], rows, texts=2, note=note)


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}".replace("-", "\N{MINUS SIGN}")
