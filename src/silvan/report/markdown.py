"""Writes the report of a run as Markdown: sentences, tables and model card, without charts."""

import re
from typing import Any

from silvan.report import site_tables
from silvan.report.html import without_controls
from silvan.report.site_tables import ReportTable
from silvan.util.readable import count_of

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~$&])")


def markdown(summary: dict[str, Any]) -> str:
    """Return the report, with names and texts from outside escaped."""
    lines = [f"# {escape(summary['name'])}", ""]
    if summary["status"] != "done":
        lines += [f"This run is not finished ({escape(summary['status'])}).", ""]
    for text in (*summary["complaints"], *summary["sentences"]):
        lines += [escape(text), ""]
    lines += _section("Site by site", site_tables.comparison_table(summary) if summary["metric"] else None)
    lines += _section("Does joining help?", site_tables.joining_table(summary))
    lines += _section(f"Metrics of the {summary['leading']} model", site_tables.threshold_table(summary))
    lines += _section("Subgroups", site_tables.subgroup_table(summary))
    lines += _section("With noise", site_tables.noisy_table(summary))
    lines += _section("What the model looks at", site_tables.importance_table(summary))
    if not summary["importances"] and summary["importance_note"]:
        lines += ["## What the model looks at", "", escape(summary["importance_note"]), ""]
    for column, table in site_tables.dependence_tables(summary):
        lines += _section(f"Mean prediction by {escape(column)}", table)
    lines += _tree(summary)
    lines += _section("What each site uses", site_tables.choice_table(summary))
    lines += _section("Tree weights by site", site_tables.weight_table(summary))
    lines += _section("Distances between sites", site_tables.distance_table(summary))
    lines += _section("Table 1", site_tables.table_one(summary))
    lines += _section("The sites' tables", site_tables.column_table(summary))
    lines += _section("How the tables differ", site_tables.difference_table(summary))
    lines += _section("What left each site", site_tables.message_table(summary))
    lines += ["## Model card", ""]
    for title, texts in summary["card"]:
        lines += [f"### {title}", "", *(f"- {escape(text)}" for text in texts), ""]
    lines += _section("Settings", ReportTable(["Key", "Value"], [list(pair) for pair in summary["settings"]]))
    lines += _section("Hashes", ReportTable(["What", "SHA-256"], [[*pair] for pair in summary["hashes"] if pair[1]]))
    return without_controls("\n".join(lines).rstrip() + "\n")


def escape(text: object) -> str:
    """Return a text in one line that Markdown shows literally."""
    return _SPECIAL.sub(r"\\\1", " ".join(str(text).split()))


def _section(title: str, table: ReportTable | None) -> list[str]:
    if table is None:
        return []
    body = []
    for place, row in enumerate(table.rows):
        cells = (f"{cell} {table.gains.get((place, i), ('',))[0]}" for i, cell in enumerate(row))
        body.append(f"| {' | '.join(map(escape, cells))} |")
    heads = [
        f"## {escape(title)}",
        "",
        f"| {' | '.join(map(escape, table.heads))} |",
        "| --- " * len(table.heads) + "|",
    ]
    return [*heads, *body, "", *([escape(table.note), ""] if table.note else [])]


def _tree(summary: dict[str, Any]) -> list[str]:
    if summary["tree"] is None:
        return []
    lines = ["## One of its trees", ""]
    for line in summary["tree"]["lines"]:
        answer = f"{count_of(line['cut'], 'leaf')}, {line['answer']}" if line["cut"] else line["answer"]
        lines.append(f"{'  ' * line['level']}- {escape(line['text'])}" + (f": {escape(answer)}" if answer else ""))
    return [*lines, ""]
