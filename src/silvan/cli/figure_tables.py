"""What a terminal shows below the comparison of models: the few metrics that people need, or all of them."""

from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from silvan.cli.terminal import shown
from silvan.report.judged import leading_model
from silvan.report.site_tables import choice_table, importance_table, subgroup_table, threshold_table

if TYPE_CHECKING:
    from silvan.study.run_folder import Figures, Record

_MOST_COLUMNS = 5


def further(record: "Record", summary: dict[str, Any], *, everything: bool = False) -> list[RenderableType]:
    """Return what follows the comparison of models: few metrics, what sites chose, subgroups, columns that matter."""
    if everything:
        return [all_figures([*record.evaluation, *record.subgroups])]
    model = f"{leading_model(summary['models']) or ''} model".capitalize()
    parts = [
        (threshold_table(summary), model, ["Intercept", "Slope"]),
        (choice_table(summary), "What each site uses", []),
        (subgroup_table(summary), "", ["Note"]),
    ]
    matter = importance_table(summary)
    if matter is not None and summary["shuffled"]:
        parts.append((matter.first(_MOST_COLUMNS), "Columns that matter most", []))
    return [shown(table, first, narrow) for table, first, narrow in parts if table is not None]


def all_figures(rows: list["Figures"]) -> RenderableType:
    """Return all figures of all models, in as many tables as it takes."""
    from silvan.learners.evaluation_frame import whole_frame

    grouped = any(row.group for row in rows)
    listed = []
    for row in rows:
        group = {"group": row.group} if grouped else {}
        named = {"site": row.site, **group, "model": row.model, "rows": row.rows}
        listed.append({**named, **row.figures, **row.more, "note": row.note})
    return Text(str(whole_frame(listed, infer_schema_length=None)))
