"""Small HTML for notebooks: tables and captions, everything in them escaped."""

from collections.abc import Iterable, Sequence
from html import escape


def html_table(head: Sequence[str], rows: Iterable[Sequence[object]], title: str = "", note: str = "") -> str:
    """Return a table with a title above and a note below; cells that are numbers stand at the right."""
    lines = [f"<caption style='text-align:left'><strong>{escape(title)}</strong></caption>"] if title else []
    lines.append(f"<thead><tr>{''.join(_cell('th', name) for name in head)}</tr></thead>")
    body = "".join(f"<tr>{''.join(_cell('td', cell) for cell in row)}</tr>" for row in rows)
    lines.append(f"<tbody>{body}</tbody>")
    below = f"<p>{escape(note)}</p>" if note else ""
    return f"<table>{''.join(lines)}</table>{below}"


def _cell(tag: str, content: object) -> str:
    number = isinstance(content, int | float) and not isinstance(content, bool)
    shown = f"{content:,}" if isinstance(content, int) and number else str(content)
    side = "right" if number else "left"
    return f"<{tag} style='text-align:{side}'>{escape(shown)}</{tag}>"
