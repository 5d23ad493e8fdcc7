"""Tables and sentences for a terminal.

Names come from files, so they are shown as plain text: no markup, no control characters.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from silvan.algorithms.evaluation.certainty import CERTAINTY
from silvan.cli.plain_text import clean
from silvan.cli.tables.whole_table import make_table
from silvan.federation.federation import OVERALL
from silvan.report.summary import METRICS
from silvan.util.readable import count_of, format_bytes, format_figure, format_interval, format_number, signed

if TYPE_CHECKING:
    from silvan.algorithms.bofrf.advice import Advice
    from silvan.study.run_folder import Figures, Model

_MOST_GAINS = 4

GAIN = {"gained": "green", "lost": "red", "level": "dim"}

FILES = {
    "model.silvan": "the forest: silvan predict, or sv.Forest.load",
    "evaluation.csv": "every figure at every site",
    "run.json": "all of the above as data",
    "report.html": "one page to read and to pass on",
    "study.toml": "what was done: silvan fit runs it again",
    "model": "the structure, and each party's share in a file of its own",
    "journal.sqlite": "every reply, so that an interrupted fit goes on",
    "learnt_rows.private": "to recognise training rows later; keep it to yourself",
}


def results(summary: dict[str, Any]) -> RenderableType:
    """Return the comparison as a table: a line for each site, a column for each model, gains against the site alone."""
    metric = summary["metric"]
    if summary["noisy"] is not None:
        return _with_noise(summary)
    table = make_table()
    who = "Party" if summary["by"] == "columns" else "Site"
    table.add_column(who, overflow="fold", min_width=8)
    table.add_column("Rows" if summary["repeats"] else "Train", justify="right")
    if metric is not None and not summary["repeats"]:
        table.add_column("Test", justify="right")
    positives = any(site["positives"] is not None for site in summary["sites"])
    if positives:
        table.add_column("Pos.", justify="right")
    for model in summary["models"]:
        table.add_column(Text(clean(model).capitalize()), justify="left", no_wrap=True)
    for line in summary["sites"]:
        table.add_row(*_cells(line, summary, positives))
    table.add_section()
    for line in filter(None, [summary["mean"], summary["overall"]]):
        table.add_row(*_cells(line, summary, positives), style="bold" if line is summary["lead"] else None)
    if metric is None:
        return table
    better = "" if metric["higher"] else ", lower is better"
    beside = "beside it" if _narrow(summary) else "beside the federated one"
    where = "on the test rows" if summary["by"] == "columns" else "on each site's own test rows"
    if summary["repeats"]:
        where = f"on each site's own rows, mean of {count_of(summary['splits'], 'split')}"
    caption = Text(f"{metric['title']} {where}{better}; {beside} the gain against the {who.lower()} alone")
    parts: list[RenderableType] = [table, Text(), dim(caption)]
    if any(site["use"] for site in summary["sites"]):
        parts += [Text(), _does_joining_help(summary)]
    return Group(*parts)


def _with_noise(summary: dict[str, Any]) -> RenderableType:
    """Return a table of figures over all sites that were asked with noise, with their intervals."""
    noisy, digits = summary["noisy"], summary["metric"]["digits"]
    table = make_table()
    table.add_column("Figure", overflow="fold", min_width=8)
    table.add_column("Value", justify="right", no_wrap=True)
    table.add_column("95 % interval", justify="right", no_wrap=True)
    for title, _, value, low, high in noisy["figures"]:
        between = "" if low is None else f"{low:.{digits}f} to {high:.{digits}f}"
        table.add_row(title, format_figure(value, digits), between)
    caption = Text(
        f"on the test rows of all sites, some {noisy['rows']:,}, with noise for epsilon {noisy['epsilon']:g}"
    )
    return Group(table, Text(), dim(caption))


def _does_joining_help(summary: dict[str, Any]) -> RenderableType:
    """Return a table of each site's gain by joining, with its interval."""
    digits = summary["metric"]["digits"]
    table = make_table()
    table.add_column("Does joining help?", overflow="fold", min_width=8)
    table.add_column("Should use", overflow="fold")
    table.add_column("Gain", justify="right", no_wrap=True)
    table.add_column("95 % interval", justify="right", no_wrap=True)
    table.add_column("In words", overflow="fold")
    for line in summary["sites"]:
        gain = line["gains"].get("federated")
        table.add_row(
            Text(clean(line["title"])),
            Text(clean(line["use"])),
            Text("undefined" if gain is None else signed(gain, digits), style=GAIN.get(line["certainty"], "")),
            Text(format_interval(line["low"], line["high"], digits)),
            Text("" if gain is None else CERTAINTY[line["certainty"]], style=GAIN.get(line["certainty"], "")),
        )
    return table


def _cells(line: dict[str, Any], summary: dict[str, Any], positives: bool) -> list[Text]:
    cells = [Text(clean(line["title"])), Text("" if line["rows"] is None else f"{line['rows']:,}")]
    if summary["metric"] is not None and not summary["repeats"]:
        cells.append(Text(f"{line['test_rows']:,}"))
    if positives:
        cells.append(Text("" if line["positives"] is None else f"{line['positives']:.0%}"))
    return cells + [_cell(line, model, summary) for model in summary["models"]]


def _narrow(summary: dict[str, Any]) -> bool:
    """Whether all models' gains fit beside their figures."""
    return len(summary["models"]) <= _MOST_GAINS


def _cell(line: dict[str, Any], model: str, summary: dict[str, Any]) -> Text:
    metric = summary["metric"]
    value = line["figures"].get(model)
    gain = line["gains"].get(model) if _narrow(summary) or model == "federated" else None
    cell = Text(format_figure(value, metric["digits"], line["test_rows"]))
    if gain is not None:
        sure = line["sure"].get(model, "")  # a colour only where the difference is more than noise
        cell.append(f" {signed(gain, metric['digits'])}" if gain else "  =", style=GAIN.get(sure, ""))
    return cell


def on_table(rows: list["Figures"], name: str) -> RenderableType:
    """Return the figures of models on one table: a line for each model, sites' own ones by name."""
    metrics = [key for key in METRICS if rows and key in rows[0].figures]
    table = make_table()
    table.add_column("Model", overflow="fold")
    for key in metrics:
        table.add_column(METRICS[key][0], justify="right")
    whole = {row.model for row in rows if row.site == OVERALL}
    for row in sorted(rows, key=lambda row: row.model in whole):
        if row.model in whole and row.site != OVERALL:
            continue
        who = row.model if row.model in whole else f"{row.site}, {row.model}"
        values = (row.figures[key] for key in metrics)
        cells = [Text("undefined" if value is None else format_number(value)) for value in values]
        table.add_row(Text(clean(who)), *cells, style="bold" if row.model == "federated" else None)
    counted = f"{count_of(rows[0].rows, 'row')} of {clean(name)}" if rows else ""
    return Group(table, Text(), dim(Text(f"on {counted}")))


def differences(summary: dict[str, Any]) -> RenderableType:
    """Return a table of how the sites' tables differ, and what was done about it."""
    if not summary["differences"]:
        same = "rows" if summary["by"] == "columns" else "columns, kinds and classes"
        return dim(Text(f"All tables have the same {same}."))
    table = make_table()
    table.add_column("Column", overflow="fold")
    table.add_column("How the sites differ", overflow="fold")
    table.add_column("What was done", overflow="fold")
    for note in summary["differences"]:
        table.add_row(*(Text(clean(cell)) for cell in note))
    warned = [Text(f"! {clean(text)}", style="yellow") for text in summary["warnings"]]
    return Group(table, *([Text(), *warned] if warned else []))


def sentences(summary: dict[str, Any]) -> RenderableType:
    """Return the sentences of a summary."""
    return Group(*(Text(clean(text)) for text in summary["sentences"]))


def files(folder: Path, names: Sequence[str], models: "Sequence[Model]" = ()) -> RenderableType:
    """Return a list of those files that exist, with their sizes; ``models`` say which sites their files are for."""
    holds = FILES | {model.file: f"the forest for {clean(model.site)}" for model in models if model.site}
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    for name in names:
        path = folder / name
        if path.is_dir():
            size = sum(file.stat().st_size for file in path.iterdir())
            table.add_row(Text(f"{clean(name)}/"), format_bytes(size), holds.get(name, "the sites' tables"))
        elif path.exists():
            table.add_row(Text(clean(name)), format_bytes(path.stat().st_size), Text(holds.get(name, "")))
    return Group(Text(f"Written to {clean(folder)}:"), Padding(table, (0, 0, 0, 2)))


def advice(advised: "Advice", widest: int) -> RenderableType:
    """Return sentences on which sites are alike, with a table of distances unless there are too many sites."""
    sentences = Group(*(Text(clean(text)) for text in advised.sentences()))
    if len(advised.sites) > widest:
        return sentences
    table = make_table()
    table.add_column("", overflow="fold", min_width=8)
    for site in advised.sites:
        table.add_column(Text(clean(site)), justify="right", overflow="fold")
    for i, site in enumerate(advised.sites):
        cells = (Text("–" if i == j else f"{d:.2f}") for j, d in enumerate(advised.distances[i]))
        table.add_row(Text(clean(site)), *cells)
    caption = Text(f"{advised.metric} distances between the sites' means and shares, on scales of 0 to 1")
    return Group(table, Text(), dim(caption), Text(), sentences)


def print_parts(console: Console, *parts: RenderableType) -> None:
    """Print parts with an empty line between them."""
    for part in parts:
        console.print(part, markup=False, highlight=False, soft_wrap=False)
        console.print()


def dim(text: Text) -> Text:
    """Return a text in a faint colour."""
    text.stylize("dim")
    return text
