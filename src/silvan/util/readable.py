"""Numbers and lists of names as text for people."""

import math
from collections.abc import Iterable, Sequence
from html import escape

_SMALL = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def printable(text: object, keep: str = "") -> str:
    """Return text with unprintable characters replaced, but for those to ``keep``: they may be made to mislead."""
    whole = str(text)
    if whole.isprintable():
        return whole
    return "".join(c if c.isprintable() or c in keep else "\N{REPLACEMENT CHARACTER}" for c in whole)


def format_count(n: int) -> str:
    """Write small numbers as words."""
    return _SMALL[n] if 0 <= n < len(_SMALL) else f"{n:,}"


def count_of(n: int, noun: str, *, words: bool = False) -> str:
    """Write a count with its noun: ``1 row``, ``2,000 rows``, ``2 parties``; or ``two leaves``, in words."""
    endings = {"y": noun[:-1] + "ies", "s": noun + "es", "f": noun[:-1] + "ves"}
    many = noun if n == 1 else endings.get(noun[-1], noun + "s")
    return f"{format_count(n) if words else f'{n:,}'} {many}"


def is_or_are(n: int) -> str:
    """Return the verb form for a number of things."""
    return "is" if n == 1 else "are"


def list_some(names: Sequence[str], noun: str, most: int) -> str:
    """List the first names, then the number of further ones: ``a, b and 3 more sites``."""
    more = f" and {count_of(len(names) - most, f'more {noun}')}" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def format_names(names: list[str], most: int = 10) -> str:
    """Write names in quotes, cut short if there are more than ``most``."""
    text = ", ".join(map(repr, names[:most]))
    return text if len(names) <= most else f"{text} and {len(names) - most} more"


def format_bytes(n: float) -> str:
    """Write a number of bytes with three digits at most."""
    if n == 1:
        return "1 byte"
    for unit in ("bytes", "KB", "MB", "GB"):
        if n < 999.5 or unit == "GB":
            digits = 0 if unit == "bytes" or n >= 99.95 else 1
            return f"{n:.{digits}f} {unit}"
        n /= 1000
    raise AssertionError


def format_time(seconds: float) -> str:
    """Write a duration in seconds, minutes and seconds, or hours and minutes."""
    if seconds < 60:
        return f"{max(round(seconds), 1)} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60:02d} min"


def format_metric(value: float | None, digits: int, rows: int = 1) -> str:
    """Write a metric: a dash if there are no rows, "undefined" if it cannot be computed from the rows."""
    return f"{value:.{digits}f}" if value is not None else "undefined" if rows else "–"


def format_interval(low: float | None, high: float | None, digits: int) -> str:
    """Write an interval of differences; an empty text if there is none."""
    return "" if low is None or high is None else f"{signed(low, digits)} to {signed(high, digits)}"


def signed(value: float, digits: int) -> str:
    """Write a difference with its sign: a typographic minus, ± for zero."""
    if round(value, digits) == 0:
        return f"±{0:.{digits}f}"
    return f"{'+' if value > 0 else '−'}{abs(value):.{digits}f}"


def format_number(value: float) -> str:
    """Write a number with four digits; a large one whole, with commas between thousands."""
    return f"{value:.4g}" if abs(value) < 1e4 or abs(value) >= 1e15 else f"{value:,.0f}"


def digits_of(largest: float) -> int:
    """Return how many decimals to write, by the largest number: at least three significant digits."""
    if largest >= 1:
        return max(0, 3 - len(str(int(largest))) + 1)
    return 2 - math.floor(math.log10(largest)) if largest >= 1e-300 else 3


def html_table(head: Sequence[str], rows: Iterable[Sequence[object]], title: str = "", note: str = "") -> str:
    """Return a table with a title above and a note below; numbers are right-aligned."""
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
