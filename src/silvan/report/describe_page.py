"""Writes Table 1 as a self-contained page."""

from markupsafe import Markup

from silvan.algorithms.table_one import TableOne
from silvan.report.html import STYLE, page_template, without_controls


def describe_page(name: str, table: TableOne) -> str:
    """Return the page; names from outside are escaped."""
    template = page_template(STYLE.parent / "describe.html.jinja")
    style = Markup(STYLE.read_text())  # noqa: S704, our own file
    page = template.render(name=name, style=style, heads=table.heads, rows=table.texts(), note=table.note)
    return without_controls(page)
