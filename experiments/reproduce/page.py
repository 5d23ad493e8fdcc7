"""The page of a publication, as Markdown and as one HTML file: first the claims, then each table and figure."""

from dataclasses import dataclass
from pathlib import Path

import polars as pl
from experiments.reproduce import charts
from experiments.reproduce.engine import Outcomes
from experiments.reproduce.paper import Item, Paper, Record, line_name
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from silvan.report.html import STYLE
from silvan.report.markdown import escape
from silvan.util.files import write_whole
from silvan.util.readable import count_of, signed

_HERE = Path(__file__).parent
BRACKETS = "In brackets: the published value, and the difference."
HELD, NOT_HELD, OPEN = "held", "did not hold", "inconclusive"


@dataclass(frozen=True)
class Section:
    """A table or figure: its title, the published values, ours, and why they differ."""

    name: str
    title: str
    published: str
    why: str
    head: list[str]
    rows: list[list[str]]  # ours; the published value and the difference in brackets
    claims: list[tuple[str, str, str]]  # the claim, its outcome, the numbers
    svg: Markup | None
    seeds: str  # the number of rows behind each mean

    @property
    def heading(self) -> str:
        """Its name at the beginning of a line."""
        return self.name[0].upper() + self.name[1:]

    @property
    def file(self) -> str:
        """The name of its chart's file."""
        return f"{self.name.replace(' ', '_')}.svg"


def write_pages(paper: Paper, outcomes: Outcomes, quick: bool, folder: Path) -> tuple[Path, list[Section]]:
    """Write the page of a publication and its charts; return the HTML file, and what is in it."""
    frames = {name: kept.frame(quick) for name, kept in outcomes.kept.items()}
    published, notes = paper.published(), paper.notes()
    sections = [_section(item, frames[item.run], published, notes.get(item.name, {})) for item in paper.items]
    (folder / paper.name).mkdir(parents=True, exist_ok=True)
    for section in sections:
        if section.svg is not None:
            write_whole(folder / paper.name / section.file, str(section.svg).encode())
    outcome = outcome_of(sections)
    drawn = [section for section in sections if section.svg is not None]
    shown: Record = {
        "paper": paper,
        "notes": notes,
        "sections": sections,
        "abstract": [*notes.get("abstract", "").strip().splitlines(), _count(outcome)],
        "lead": next((one for one in drawn if one.name == notes.get("chart")), drawn[0] if drawn else None),
        "outcome": outcome,
        "remarks": _remarks(outcomes, quick),
        "absent": [*notes.get("absent", []), *outcomes.absent],
    }
    write_whole(folder / f"{paper.name}.md", _markdown(shown).encode())
    page = folder / paper.name / "page.html"
    write_whole(page, _html(shown).encode())
    return page, sections


def _count(outcome: list[tuple[str, str, str]]) -> str:
    """Return how many claims held, as a sentence."""
    came = [line[0] for line in outcome]
    others = [f"{came.count(one)} {one}" for one in (NOT_HELD, OPEN) if one in came]
    return f"Of {count_of(len(came), 'claim')}, {', '.join([f'{came.count(HELD)} held', *others])}."


def outcome_of(sections: list[Section]) -> list[tuple[str, str, str]]:
    """Return claims with their outcome and place, one line each: failed ones first."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for section in sections:
        for text, came, told in section.claims:
            found.setdefault((came, text), []).append((section.name, told))
    lines = []
    for (came, text), places in sorted(found.items(), key=lambda line: (NOT_HELD, OPEN, HELD).index(line[0][0])):
        names = ", ".join(name for name, _ in places)
        one = len(places) == 1
        told = "; ".join(told if one else f"{name}: {told}" for name, told in places if told)
        lines.append((came, names, f"{text} {told[0].upper()}{told[1:]}." if told else text))
    return lines


def _remarks(outcomes: Outcomes, quick: bool) -> list[str]:
    remarks = ["A quick run: few seeds and small samples, so figures are rough."] if quick else []
    if outcomes.done < outcomes.total:
        remarks.append(f"{outcomes.done} of {count_of(outcomes.total, 'case')} are finished.")
    return remarks + outcomes.remarks


def _section(item: Item, frame: pl.DataFrame, published: dict[tuple[str, str, str], float], notes: Record) -> Section:
    rows = item.select(frame) if len(frame) else frame
    figures = {c: title for c, title in item.figures.items() if c in rows.columns}
    lines = _lines(item, rows, list(figures))
    # counts, and values equal in all rows, have no decimals
    whole = {c for c in figures if all((line[c][0] or 0.0).is_integer() and not line[c][1] for line in lines.values())}
    table = []
    for name, line in lines.items():
        cells = [name]
        for column in figures:
            mean, spread, n = line[column]
            value = published.get((item.name, name, column))
            digits = 0 if column in whole else item.digits
            cells.append(_shown(mean, spread, n, digits))
            if value is not None:
                ours = "" if mean is None else f", {signed(mean - value, digits) if mean != value else '0'}"
                cells[-1] = f"{cells[-1]} ({value:,.{digits}f}{ours})".strip()
        table.append(cells)
    head = [", ".join(item.by), *figures.values()]
    claims = []
    for claim in item.claims:
        held, told = (claim.check(rows) if len(rows) else None) or (None, "")
        claims.append((claim.text, OPEN if held is None else HELD if held else NOT_HELD, told))
    svg = _chart(item, rows, published) if item.drawing is not None and len(rows) else None
    texts = notes.get("published", ""), notes.get("why", "")
    return Section(item.name, item.title, *texts, head, table, claims, svg, _seeds(item, rows))


def _seeds(item: Item, rows: pl.DataFrame) -> str:
    """Return how many seeds the lines of a table have; empty if it does not depend on any."""
    if "seed" not in rows.columns or not len(rows):
        return ""
    counts = rows.group_by(item.by).agg(pl.col("seed").n_unique())["seed"]
    low, high = int(counts.min() or 0), int(counts.max() or 0)
    return f"{low} to {high} seeds" if low < high else count_of(high, "seed")


Line = dict[str, tuple[float | None, float, int]]
"""Mean, standard deviation and number of rows of each figure."""


def _lines(item: Item, rows: pl.DataFrame, columns: list[str]) -> dict[str, Line]:
    """Return the lines of a table by name."""
    lines: dict[str, Line] = {}
    if not len(rows):
        return lines
    for _, part in rows.group_by(item.by, maintain_order=True):
        name = line_name(part.row(0, named=True), item.by)
        lines[name] = {c: _mean(part[c]) for c in columns}
    return lines


def _mean(values: pl.Series) -> tuple[float | None, float, int]:
    values = values.drop_nulls().cast(pl.Float64)
    if not len(values):
        return None, 0.0, 0
    return float(values.mean()), float(values.std() or 0.0) if len(values) > 1 else 0.0, len(values)


def _shown(mean: float | None, spread: float, n: int, digits: int) -> str:
    if mean is None:
        return ""
    return f"{mean:,.{digits}f} ± {spread:.{digits}f}" if n > 1 and digits else f"{mean:,.{digits}f}"


def _chart(item: Item, rows: pl.DataFrame, published: dict[tuple[str, str, str], float]) -> Markup | None:
    drawing = item.drawing
    drawn = drawing.figures or tuple(item.figures)
    lines: charts.Lines = {}
    for _, part in rows.group_by(item.by, maintain_order=True):
        first = part.row(0, named=True)
        panel = lines.setdefault(str(first[drawing.panels]) if drawing.panels else "", {})
        others = [c for c in item.by if c not in (drawing.x, drawing.panels)]
        for column in drawn:
            if column not in part.columns:
                continue
            mean, spread, _ = _mean(part[column])
            if mean is not None:
                names = [str(first[c]) for c in others]
                title = ", ".join(names if names and len(drawn) == 1 else [item.figures[column], *names])
                told = published.get((item.name, line_name(first, item.by), column))
                panel.setdefault(title, []).append(charts.Point(first[drawing.x], mean, spread, told))
    lines = {name: panel for name, panel in lines.items() if panel}
    return charts.draw(item, lines) if lines else None


def _markdown(shown: Record) -> str:
    paper, notes = shown["paper"], shown["notes"]
    lines = [f"# {paper.title}", "", *shown["abstract"], ""]
    lines += [f"> **Method.** {notes['about'].strip()}".replace("\n", "\n> "), ""] if "about" in notes else []
    lines += [f"![{one.title}]({paper.name}/{one.file})\n" for one in shown["sections"] if one is shown["lead"]]
    lines += [f"{text}\n" for text in shown["remarks"]]
    lines += ["To run it again:", "", f"    silvan reproduce {paper.name}", "", "## Claims", ""]
    lines += [*(f"- **{came}** ({where}): {text}" for came, where, text in shown["outcome"]), ""]
    if shown["absent"]:
        lines += ["Not run, because data or packages are missing:", "", *(f"- {text}" for text in shown["absent"]), ""]
    for section in shown["sections"]:
        lines += [f"## {section.heading}: {section.title}", ""]
        lines += [f"Published: {section.published}\n"] if section.published else []
        if section.rows:
            lines += [f"Mean of {section.seeds}.\n"] if section.seeds else []
            lines += [f"{BRACKETS}\n"] if any("(" in cell for row in section.rows for cell in row[1:]) else []
            lines += [_row(section.head), "| --- " * len(section.head) + "|", *map(_row, section.rows), ""]
        else:
            lines += ["Not run.", ""]
        if section.svg is not None and section is not shown["lead"]:
            lines += [f"![{section.title}]({paper.name}/{section.file})", ""]
        lines += [f"Why they differ: {section.why}\n"] if section.why else []
    return "\n".join(lines).rstrip() + "\n"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(escape(cell) for cell in cells)} |"


def _html(shown: Record) -> str:
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    style = Markup(STYLE.read_text())  # noqa: S704, our own file
    return environment.get_template("page.html.jinja").render(style=style, brackets=BRACKETS, **shown)
