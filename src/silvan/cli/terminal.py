"""Tables and sentences for a terminal.

Names come from files, so they are shown as they are: no markup, no control characters.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from silvan.report.summary import METRICS, OVERALL, SURE, verdict
from silvan.util.readable import format_bytes, format_figure, format_interval, signed

RULES = box.Box("    \n    \n ── \n    \n ── \n ── \n    \n    \n")
"""A rule below the head and between sections, and nothing else."""

if TYPE_CHECKING:
    from silvan.algorithms.bofrf.advice import Advice
    from silvan.study.run_folder import Figures

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
}


def clean(text: Any) -> str:
    """Replace what a terminal would act upon."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text))


def results(summed: dict[str, Any]) -> RenderableType:
    """Show the comparison: a line a site, a column a model, gains against the site alone."""
    metric = summed["metric"]
    table = _table()
    who = "Party" if summed["by"] == "columns" else "Site"
    table.add_column(who, overflow="fold", min_width=8)
    table.add_column("Train", justify="right")
    if metric is not None:
        table.add_column("Test", justify="right")
    positives = any(site["positives"] is not None for site in summed["sites"])
    if positives:
        table.add_column("Pos.", justify="right")
    for model in summed["models"]:
        table.add_column(Text(clean(model).capitalize()), justify="left", no_wrap=True)
    for line in summed["sites"]:
        table.add_row(*_cells(line, summed, positives))
    table.add_section()
    for line in filter(None, [summed["mean"], summed["overall"]]):
        table.add_row(*_cells(line, summed, positives), style="bold" if line is summed["lead"] else None)
    if metric is None:
        return table
    better = "" if metric["higher"] else ", lower is better"
    beside = "beside it" if _narrow(summed) else "beside the federated one"
    where = "on the test rows" if summed["by"] == "columns" else "on each site's own test rows"
    caption = Text(f"{metric['title']} {where}{better}; {beside} the gain against the {who.lower()} alone")
    parts: list[RenderableType] = [table, Text(), _dim(caption)]
    if any(site["use"] for site in summed["sites"]):
        parts += [Text(), _helps(summed)]
    return Group(*parts)


def _helps(summed: dict[str, Any]) -> RenderableType:
    """Show whether joining helps each site, beyond noise."""
    digits = summed["metric"]["digits"]
    table = _table()
    table.add_column("Does joining help?", overflow="fold", min_width=8)
    table.add_column("Should use", overflow="fold")
    table.add_column("Gain", justify="right", no_wrap=True)
    table.add_column("95 % interval", justify="right", no_wrap=True)
    table.add_column("In words", overflow="fold")
    for line in summed["sites"]:
        gain = line["gains"].get("federated")
        table.add_row(
            Text(clean(line["title"])),
            Text(clean(line["use"])),
            Text("undefined" if gain is None else signed(gain, digits), style=GAIN.get(verdict(gain), "")),
            Text(format_interval(line["low"], line["high"], digits)),
            Text("" if gain is None else SURE[line["sure"]], style=GAIN.get(line["sure"], "")),
        )
    return table


def _cells(line: dict[str, Any], summed: dict[str, Any], positives: bool) -> list[Text]:
    cells = [Text(clean(line["title"])), Text("" if line["rows"] is None else f"{line['rows']:,}")]
    if summed["metric"] is not None:
        cells.append(Text(f"{line['test_rows']:,}"))
    if positives:
        cells.append(Text("" if line["positives"] is None else f"{line['positives']:.0%}"))
    return cells + [_cell(line, model, summed) for model in summed["models"]]


def _narrow(summed: dict[str, Any]) -> bool:
    """Whether all models' gains fit beside their figures."""
    return len(summed["models"]) <= _MOST_GAINS


def _cell(line: dict[str, Any], model: str, summed: dict[str, Any]) -> Text:
    metric = summed["metric"]
    value = line["figures"].get(model)
    gain = line["gains"].get(model) if _narrow(summed) or model == "federated" else None
    cell = Text(format_figure(value, metric["digits"], line["test_rows"]))
    if gain is not None:
        cell.append(f" {signed(gain, metric['digits'])}" if gain else "  =", style=GAIN[verdict(gain)])
    return cell


def on_table(rows: list["Figures"], name: str) -> RenderableType:
    """Show models judged on one table: a line a model, sites' own ones by name."""
    metrics = [key for key in METRICS if rows and key in rows[0].figures]
    table = _table()
    table.add_column("Model", overflow="fold")
    for key in metrics:
        table.add_column(METRICS[key][0], justify="right")
    whole = {row.model for row in rows if row.site == OVERALL}
    for row in sorted(rows, key=lambda row: row.model in whole):
        if row.model in whole and row.site != OVERALL:
            continue
        who = row.model if row.model in whole else f"{row.site}, {row.model}"
        values = (row.figures[key] for key in metrics)
        cells = [Text("undefined" if value is None else f"{value:.4g}") for value in values]
        table.add_row(Text(clean(who)), *cells, style="bold" if row.model == "federated" else None)
    rows_said = f"{rows[0].rows:,} rows of {clean(name)}" if rows else ""
    return Group(table, Text(), _dim(Text(f"on {rows_said}")))


def differences(summed: dict[str, Any]) -> RenderableType:
    """Show how the sites' tables differ, and what was made of it."""
    if not summed["differences"]:
        same = "rows" if summed["by"] == "columns" else "columns, kinds and classes"
        return _dim(Text(f"All tables have the same {same}."))
    table = _table()
    table.add_column("Column", overflow="fold")
    table.add_column("How the sites differ", overflow="fold")
    table.add_column("What was done", overflow="fold")
    for note in summed["differences"]:
        table.add_row(*(Text(clean(cell)) for cell in note))
    warned = [Text(f"! {clean(text)}", style="yellow") for text in summed["warnings"]]
    return Group(table, *([Text(), *warned] if warned else []))


def sentences(summed: dict[str, Any]) -> RenderableType:
    """Show in words what happened."""
    return Group(*(Text(clean(text)) for text in summed["sentences"]))


def files(folder: Path, names: list[str]) -> RenderableType:
    """List the files that are there now, with their sizes."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    for name in names:
        path = folder / name
        if path.is_dir():
            size = sum(file.stat().st_size for file in path.iterdir())
            table.add_row(Text(f"{clean(name)}/"), format_bytes(size), FILES.get(name, "the sites' tables"))
        elif path.exists():
            table.add_row(Text(clean(name)), format_bytes(path.stat().st_size), FILES.get(name, ""))
    return Group(Text(f"Written to {clean(folder)}:"), Padding(table, (0, 0, 0, 2)))


def advice(advised: "Advice", widest: int) -> RenderableType:
    """Show distances between sites, if there are not too many, and in words who is near whom."""
    said = Group(*(Text(clean(text)) for text in advised.sentences()))
    if len(advised.sites) > widest:
        return said
    table = _table()
    table.add_column("", overflow="fold", min_width=8)
    for site in advised.sites:
        table.add_column(Text(clean(site)), justify="right", overflow="fold")
    for i, site in enumerate(advised.sites):
        cells = (Text("–" if i == j else f"{d:.2f}") for j, d in enumerate(advised.distances[i]))
        table.add_row(Text(clean(site)), *cells)
    caption = Text(f"{advised.metric} distances between the sites' means and shares, on scales of 0 to 1")
    return Group(table, Text(), _dim(caption), Text(), said)


def say(console: Console, *parts: RenderableType) -> None:
    """Print parts with an empty line between them."""
    for part in parts:
        console.print(part, markup=False, highlight=False, soft_wrap=False)
        console.print()


def _table() -> Table:
    return Table(box=RULES, pad_edge=False, show_edge=False, header_style="bold", padding=(0, 1, 0, 0))


def _dim(text: Text) -> Text:
    text.stylize("dim")
    return text
