"""Writes the report of a run as Markdown: the sentences, tables and model card of the page, without its charts."""

import re
from typing import Any

from silvan.algorithms.evaluation.certainty import CERTAINTY
from silvan.report import site_tables
from silvan.report.html import without_controls
from silvan.report.judged import leading_model, threshold_titles
from silvan.util.readable import count_of, format_bytes, format_figure, format_interval, format_number, signed

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~$&])")


def markdown(summary: dict[str, Any]) -> str:
    """Return the report; names and texts from outside are escaped."""
    lines = [f"# {escape(summary['name'])}", ""]
    if summary["status"] != "done":
        lines += [f"This run is not finished ({escape(summary['status'])}).", ""]
    for text in (*summary["complaints"], *summary["sentences"]):
        lines += [escape(text), ""]
    lines += _section("Site by site", _figures(summary))
    lines += _section("Does joining help?", _joining(summary))
    model = leading_model(summary["models"])
    if model is not None:
        table = site_tables.threshold_table(summary, model, threshold_titles(summary["judged"]))
        lines += _section(f"In numbers, the {model} model", table)
    lines += _section("Subgroups", site_tables.subgroup_table(summary, model))
    lines += _section("With noise", _noisy(summary))
    shuffled = summary["shuffled"]
    shares = [[name, format_number(share) if shuffled else f"{share:.1%}"] for name, share in summary["importances"]]
    heads = ["Feature", "Growth of the error when it is shuffled" if shuffled else "Share"]
    lines += _section("What the model looks at", (heads, shares) if shares else None)
    if not shares and summary["importance_note"]:
        lines += ["## What the model looks at", "", escape(summary["importance_note"]), ""]
    for column, table in site_tables.dependence_tables(summary):
        lines += _section(f"Mean prediction by {escape(column)}", table)
    lines += _tree(summary)
    lines += _section("What each site uses", site_tables.choice_table(summary))
    lines += [escape(summary["shared_forest"]), ""] if summary["shared_forest"] else []
    lines += _section("Whose trees count", site_tables.weight_table(summary))
    lines += _section("Who is near whom", site_tables.distance_table(summary))
    lines += _section("The sites' tables", site_tables.column_table(summary))
    kinds = [
        [kind["name"], kind["asks"], kind["seen"], format_bytes(kind["sent"])] for kind in summary["traffic"]["kinds"]
    ]
    heads = ["Message", "Asked for", "The coordinator sees", "Sent"]
    lines += _section("What left each site", (heads, kinds) if kinds else None)
    lines += ["## Model card", ""]
    for title, texts in summary["card"]:
        lines += [f"### {title}", "", *(f"- {escape(text)}" for text in texts), ""]
    lines += _section("Settings", (["Key", "Value"], [list(pair) for pair in summary["settings"]]))
    lines += _section("Hashes", (["What", "SHA-256"], [[what, digest] for what, digest in summary["hashes"] if digest]))
    return without_controls("\n".join(lines).rstrip() + "\n")


def escape(text: object) -> str:
    """Return a text that Markdown shows as it is, in one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(str(text).split()))


def _section(title: str, table: site_tables.Table | None) -> list[str]:
    if table is None:
        return []
    heads, rows = table
    body = [f"| {' | '.join(escape(cell) for cell in row)} |" for row in rows]
    return [f"## {escape(title)}", "", f"| {' | '.join(map(escape, heads))} |", "| --- " * len(heads) + "|", *body, ""]


def _figures(summary: dict[str, Any]) -> site_tables.Table | None:
    metric = summary["metric"]
    if metric is None or summary["noisy"]:
        return None
    lines = [*summary["sites"], *(line for line in (summary["mean"], summary["overall"]) if line is not None)]
    rows = [
        [
            line["title"],
            f"{line['test_rows']:,}",
            *(format_figure(line["figures"].get(m), metric["digits"], line["test_rows"]) for m in summary["models"]),
        ]
        for line in lines
    ]
    return ["Site", "Test rows", *(f"{metric['title']}, {m}" for m in summary["models"])], rows


def _joining(summary: dict[str, Any]) -> site_tables.Table | None:
    metric, lines = summary["metric"], [line for line in summary["sites"] if line["use"]]
    if metric is None or not lines:
        return None
    rows = []
    for line in lines:
        gain = line["gains"].get("federated")
        shown = "undefined" if gain is None else signed(gain, metric["digits"])
        between = format_interval(line["low"], line["high"], metric["digits"])
        rows.append([line["title"], line["use"], shown, between, CERTAINTY[line["certainty"]]])
    return ["Site", "Should use", "Gain", "95 % interval", "In words"], rows


def _noisy(summary: dict[str, Any]) -> site_tables.Table | None:
    if not summary["noisy"]:
        return None
    rows = []
    for title, _, value, low, high in summary["noisy"]["figures"]:
        rows.append([title, format_figure(value, 3), "" if low is None else f"{low:.3f} to {high:.3f}"])
    return ["Figure", "Value", "95 % interval"], rows


def _tree(summary: dict[str, Any]) -> list[str]:
    if summary["tree"] is None:
        return []
    lines = ["## One of its trees", ""]
    for line in summary["tree"]["lines"]:
        answer = f"{count_of(line['cut'], 'leaf')}, {line['answer']}" if line["cut"] else line["answer"]
        lines.append(f"{'  ' * line['level']}- {escape(line['text'])}" + (f": {escape(answer)}" if answer else ""))
    return [*lines, ""]
