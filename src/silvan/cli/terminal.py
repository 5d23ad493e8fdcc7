"""Tables and sentences for a terminal.

Names come from files, so they are printed as plain text, without markup and control characters.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from silvan.cli.plain_text import clean
from silvan.cli.whole_table import make_table
from silvan.federation.members import OVERALL
from silvan.metrics import METRICS
from silvan.report import site_tables
from silvan.report.summary import summarise
from silvan.util.readable import count_of, format_bytes, format_number

if TYPE_CHECKING:
    from silvan.algorithms.bofrf.advice import Advice
    from silvan.study.run_folder import MetricsRow, Model, Record

GAIN = {"gained": "green", "lost": "red", "level": "dim"}
VERDICT = {"held": "green", "close": "yellow", "exceeded": "red", "not run": "dim"}

_STYLES = GAIN | VERDICT

_SHORT = {"Positive": "Pos.", "Test rows": "Rows", "Sensitivity": "Sens.", "Specificity": "Spec.", "Threshold": "At"}
"""Shorter heads for the report's tables, because a terminal has little space."""

_MOST_COLUMNS = 5
"""Number of most important columns shown."""

_WORDS = ("In words", "Note", "Verdict")
"""Text columns to the right of numbers."""

FILES = {
    "model.silvan": "the forest: silvan predict, or sv.Forest.load",
    "evaluation.csv": "every metric at every site",
    "run.json": "all of the above as data",
    "report.html": "the report, one page to read and share",
    "study.toml": "the study file: silvan fit runs it again",
    "model": "the structure, and each party's share in its own file",
    "journal.sqlite": "every reply, so that an interrupted fit can resume",
    "learnt_rows.private": "to recognise training rows later; keep it private",
}


def results(summary: dict[str, Any]) -> RenderableType:
    """Return how models compare at each site, and whether joining helps."""
    noisy, compared = site_tables.noisy_table(summary), site_tables.comparison_table(summary)
    if noisy is not None or compared is None:
        return Group() if noisy is None else shown(noisy, narrow=["Meaning"])
    joining = site_tables.joining_table(summary)
    more = [] if joining is None else [Text(), shown(joining, "Does joining help?")]
    return Group(shown(compared), *more)


def shown(table: site_tables.ReportTable, first: str = "", narrow: Sequence[str] = ()) -> RenderableType:
    """Return a table of the report; ``first`` replaces its first head, and columns named in ``narrow`` are dropped."""
    drawn = make_table()
    kept = [i for i, head in enumerate(table.heads) if head not in narrow]
    beside = {column for _, column in table.gains}
    for i in kept:
        number = i >= table.texts and table.heads[i] not in _WORDS
        head = first if i == 0 and first else clean(table.heads[i])
        drawn.add_column(
            Text(_SHORT.get(head, head)),
            justify="right" if number and i not in beside else "left",
            overflow="fold",
            no_wrap=number,
            min_width=8 if i == 0 else None,
        )
    for place, line in enumerate(table.rows):
        if place == table.rule:
            drawn.add_section()
        cells = [Text(clean(line[i]), style=_STYLES.get(table.tone(place, i), "")) for i in kept]
        for cell, i in zip(cells, kept, strict=True):
            if (place, i) in table.gains:
                text, tone = table.gains[place, i]
                cell.append(f" {text}", style=GAIN.get(tone, ""))
        drawn.add_row(*cells, style="bold" if place == table.strong else None)
    return Group(drawn, Text(), dim(Text(clean(table.note)))) if table.note else drawn


def print_results(record: "Record", *, everything: bool = False, few: bool = False) -> None:
    """Print the comparison of models, further metrics (some, all, or none if ``few``), and sentences."""
    summary = summarise(record)
    more = [] if few else further(summary)
    if everything:
        more = [all_metrics([*record.evaluation, *record.subgroups])]
    print_parts(results(summary), *more, sentences(summary))


def further(summary: dict[str, Any]) -> list[RenderableType]:
    """Return what follows the comparison of models: a few metrics, the sites' choices, subgroups, importances."""
    model = f"{summary['leading'] or ''} model".capitalize()
    parts = [
        (site_tables.threshold_table(summary), model, ["Intercept", "Slope"]),
        (site_tables.choice_table(summary), "What each site uses", []),
        (site_tables.subgroup_table(summary), "", ["Note"]),
    ]
    important = site_tables.importance_table(summary)
    if important is not None and summary["shuffled"]:
        parts.append((important.first(_MOST_COLUMNS), "Most important columns", []))
    return [shown(table, first, narrow) for table, first, narrow in parts if table is not None]


def all_metrics(rows: list["MetricsRow"]) -> RenderableType:
    """Return all metrics of all models, in as many tables as necessary."""
    from silvan.learners.evaluation_frame import whole_frame

    names = ["site", *["group"] * any(row.group for row in rows), "model", "rows"]
    last = [*["positive"] * any(row.positive is not None for row in rows), "note"]
    listed = [
        {
            **{name: getattr(row, name) for name in names},
            **row.metrics,
            **row.more,
            **{name: getattr(row, name) for name in last},
        }
        for row in rows
    ]
    return Text(str(whole_frame(listed, infer_schema_length=None)))


def on_table(rows: list["MetricsRow"], name: str) -> RenderableType:
    """Return the metrics of models on one table, one line per model; local models are listed with their site."""
    metrics = [metric for metric in METRICS if rows and metric.key in rows[0].metrics]
    whole = {row.model for row in rows if row.site == OVERALL}
    listed = [row for row in rows if row.model not in whole or row.site == OVERALL]
    listed.sort(key=lambda row: row.model in whole)
    lines = []
    for row in listed:
        values = (row.metrics[metric.key] for metric in metrics)
        who = row.model if row.model in whole else f"{row.site}, {row.model}"
        lines.append([who, *("undefined" if value is None else format_number(value) for value in values)])
    strong = next((place for place, row in enumerate(listed) if row.model == "federated"), -1)
    counted = f"{count_of(rows[0].rows, 'row')} of {name}" if rows else ""
    named = f"; positive class: {rows[0].positive}" if rows and rows[0].positive is not None else ""
    heads = ["Model", *(metric.title for metric in metrics)]
    return shown(site_tables.ReportTable(heads, lines, strong=strong, note=f"on {counted}{named}"))


def differences(summary: dict[str, Any]) -> RenderableType:
    """Return a table of how the sites' tables differ, and how each difference was handled."""
    table = site_tables.difference_table(summary)
    alike = dim(Text(clean(summary["alike"])))
    warned = [Text(f"! {clean(text)}", style="yellow") for text in summary["warnings"]]
    return Group(alike if table is None else shown(table), *([Text(), *warned] if warned else []))


def sentences(summary: dict[str, Any]) -> RenderableType:
    """Return the sentences of a summary."""
    return Group(*(Text(clean(text)) for text in summary["sentences"]))


def files(folder: Path, names: Sequence[str], models: "Sequence[Model]" = ()) -> RenderableType:
    """Return a list of the files that exist, with sizes and descriptions; ``models`` are those of single sites."""
    contents = FILES | {model.file: f"the forest for {clean(model.site)}" for model in models if model.site}
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    for name in names:
        path = folder / name
        if path.is_dir():
            size = sum(file.stat().st_size for file in path.iterdir())
            table.add_row(Text(f"{clean(name)}/"), format_bytes(size), contents.get(name, "the sites' tables"))
        elif path.exists():
            table.add_row(Text(clean(name)), format_bytes(path.stat().st_size), Text(contents.get(name, "")))
    return Group(Text(f"Written to {clean(folder)}:"), Padding(table, (0, 0, 0, 2)))


def advice(advised: "Advice", widest: int) -> RenderableType:
    """Return sentences about similar sites, and a table of distances unless there are too many sites."""
    sentences = Group(*(Text(clean(text)) for text in advised.sentences()))
    if len(advised.sites) > widest:
        return sentences
    distances = zip(advised.sites, advised.distances, strict=True)
    rows = [
        [a, *("–" if a == b else f"{d:.2f}" for b, d in zip(advised.sites, far, strict=True))] for a, far in distances
    ]
    caption = f"{advised.metric} distances between the sites' means and shares, on scales of 0 to 1"
    return Group(shown(site_tables.ReportTable(["", *advised.sites], rows, note=caption)), Text(), sentences)


def print_parts(*parts: RenderableType, console: Console | None = None) -> None:
    """Print parts, each followed by an empty line."""
    console = console or Console()
    for part in parts:
        console.print(part, markup=False, highlight=False, soft_wrap=False)
        console.print()


def dim(text: Text) -> Text:
    """Return a text in a faint colour."""
    text.stylize("dim")
    return text
