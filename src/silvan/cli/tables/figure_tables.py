"""Tables of further figures for a terminal of 80 columns: the few that people need, subgroups, columns that matter."""

from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from silvan.algorithms.evaluation.figures import FEDERATED
from silvan.cli.plain_text import clean
from silvan.cli.tables.whole_table import make_table
from silvan.cli.terminal import dim
from silvan.federation.federation import OVERALL
from silvan.util.readable import digits_of, format_figure

if TYPE_CHECKING:
    from silvan.study.run_folder import Figures, Record

_FEW = {
    "brier": "Brier",
    "sensitivity": "Sens.",
    "specificity": "Spec.",
    "threshold": "At",
    "log_loss": "Log loss",
    "r2": "R2",
    "mae": "MAE",
}
_SHOWN = {"two": ("brier", "sensitivity", "specificity", "threshold"), "several": ("brier", "log_loss")}
"""Figures that are shown beside the first, by what is predicted."""


def _first(row: "Figures") -> str:
    return next(iter(row.figures), "")


def _value(row: "Figures", name: str) -> float | None:
    return row.figures.get(name, row.more.get(name))


def _text(row: "Figures", name: str, digits: int) -> Text:
    value = _value(row, name)
    return Text("–" if value is None else f"{value:.{digits}f}")


def key_figures(record: "Record") -> RenderableType | None:
    """Return the few figures of the federated model that people need, a line a site; None where there are none."""
    rows = [row for row in record.evaluation if row.model == FEDERATED and row.more]
    if not rows:
        return None
    first = _first(rows[0])
    n_classes = len(record.classes or ())
    wanted = ("r2", "mae") if not n_classes else _SHOWN["two" if n_classes == 2 else "several"]
    names = [name for name in wanted if any(_value(row, name) is not None for row in rows)]
    digits = 3 if n_classes else digits_of(max((abs(_value(row, first) or 0.0) for row in rows), default=0.0))
    table = make_table()
    table.add_column("Federated model", overflow="fold", min_width=8)
    table.add_column("Rows", justify="right")
    table.add_column(first.upper(), justify="right", no_wrap=True)
    if n_classes == 2:
        table.add_column("95 % interval", justify="right", no_wrap=True)
    for name in names:
        table.add_column(_FEW[name], justify="right", no_wrap=True)
    for row in rows:
        if row.site == OVERALL:
            table.add_section()
        low, high = row.more.get("auc_low"), row.more.get("auc_high")
        between = [Text("" if low is None or high is None else f"{low:.3f} to {high:.3f}")] if n_classes == 2 else []
        cells = [_text(row, name, 3 if name == "r2" else digits) for name in names]
        leading = Text(format_figure(_value(row, first), digits, row.rows))
        table.add_row(Text(clean(row.site)), f"{row.rows:,}", leading, *between, *cells)
    if "sensitivity" not in names:
        return table
    partly = next((f"; all: {row.note}" for row in rows if row.site == OVERALL and row.note), "")
    at = "the score that each site chose on training rows" if record.threshold is None else "the study's threshold"
    caption = Text(f"sensitivity and specificity at {at}{partly}")
    return Group(table, Text(), dim(caption))


def further(record: "Record", summary: dict[str, Any], *, everything: bool = False) -> list[RenderableType]:
    """Return what follows the comparison of models: few figures, what sites chose, subgroups, columns that matter."""
    if everything:
        return [all_figures([*record.evaluation, *record.subgroups])]
    parts = [key_figures(record)]
    parts += [choices(record)] if record.choices else []
    parts += [subgroups(record)] if record.subgroups else []
    parts += [columns_that_matter(summary)] if record.permutation else []
    return [part for part in parts if part is not None]


def choices(record: "Record") -> RenderableType:
    """Return what each site uses, and by which figures it chose that."""
    table = make_table()
    for head in ("What each site uses", "Chosen on its training rows"):
        table.add_column(head, overflow="fold")
    for site, text in record.choices.items():
        table.add_row(Text(clean(site)), Text(clean(text)))
    return Group(table, Text(), dim(Text(clean(record.shared_forest)))) if record.shared_forest else table


def all_figures(rows: list["Figures"]) -> RenderableType:
    """Return all figures of all models, in as many tables as it takes."""
    from silvan.learners.evaluation import evaluation

    grouped = any(row.group for row in rows)
    listed = []
    for row in rows:
        group = {"group": row.group} if grouped else {}
        named = {"site": row.site, **group, "model": row.model, "rows": row.rows}
        listed.append({**named, **row.figures, **row.more, "note": row.note})
    return Text(str(evaluation(listed, infer_schema_length=None)))


def subgroups(record: "Record") -> RenderableType:
    """Return figures of subgroups: a line a site and subgroup, a column a model."""
    rows = record.subgroups
    first, models = _first(rows[0]), list(dict.fromkeys(row.model for row in rows))
    largest = max((abs(_value(row, first) or 0.0) for row in rows), default=0.0)
    digits = 3 if record.classes else digits_of(largest)
    table = make_table()
    for title in ("Subgroup", "Site"):
        table.add_column(title, overflow="fold", min_width=6)
    table.add_column("Rows", justify="right")
    for model in models:
        table.add_column(Text(clean(model).capitalize()), justify="right", no_wrap=True)
    found: dict[tuple[str, str], dict[str, Figures]] = {}
    for row in rows:
        found.setdefault((row.group, row.site), {})[row.model] = row
    before = ""
    for (group, site), by_model in found.items():
        n = next(iter(by_model.values())).rows
        cells = [_text(by_model[model], first, digits) if model in by_model else Text("") for model in models]
        style = "bold" if site == OVERALL else None
        table.add_row(Text("" if group == before else clean(group)), Text(clean(site)), f"{n:,}", *cells, style=style)
        before = group
    caption = Text(f"{first.upper()} on test rows; subgroups that are too small are not shown")
    return Group(table, Text(), dim(caption))


def columns_that_matter(summary: dict[str, Any], most: int = 5) -> RenderableType:
    """Return the columns that matter most, by how much the error grows when they are shuffled."""
    table = make_table()
    table.add_column("Columns that matter most", overflow="fold")
    table.add_column("Error grows by", justify="right", no_wrap=True)
    listed = summary["importances"][:most]
    digits = 4 if summary["classes"] else digits_of(max((growth for _, growth in listed), default=0.0))
    for name, growth in listed:
        table.add_row(Text(clean(name)), f"{growth:.{digits}f}")
    what = "Brier score" if len(summary["classes"] or ()) == 2 else "mean squared error"
    caption = Text(f"{what} on all sites' test rows, with the column shuffled at each site")
    return Group(table, Text(), dim(caption))
