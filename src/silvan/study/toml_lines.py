"""Which line of a TOML file a key stands on, so that an error can point there.

tomllib does not tell. But the smallest run of lines that it accepts by itself is one statement, and there is
exactly one key or header in it.
"""

import tomllib
from typing import Any

Key = tuple[str, ...]


def key_lines(text: str) -> dict[Key, int]:
    """Give the line of every key and header of a valid TOML text, counted from 1."""
    found: dict[Key, int] = {}
    header: Key = ()
    start, statement = 1, ""
    for number, line in enumerate(text.split("\n"), 1):
        start, statement = (start, statement + "\n" + line) if statement else (number, line)
        try:
            parsed = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue  # an open bracket or an open string: the next line belongs to it
        if statement.lstrip().startswith("["):
            header = _first(parsed)
            found.setdefault(header, start)
        else:
            for path in _paths(parsed):
                found.setdefault(header + path, start)
        statement = ""
    return found


def _first(parsed: dict[str, Any]) -> Key:
    """Read the name in a header, which parses as empty tables inside one another."""
    path: list[str] = []
    value: Any = parsed
    while isinstance(value, dict) and value:
        name, value = next(iter(value.items()))
        path.append(name)
        value = value[0] if isinstance(value, list) else value
    return tuple(path)


def _paths(parsed: dict[str, Any]) -> list[Key]:
    """List all keys, those of inline tables included."""
    paths: list[Key] = []
    for name, value in parsed.items():
        paths.append((name,))
        if isinstance(value, dict):
            paths += [(name, *rest) for rest in _paths(value)]
    return paths
