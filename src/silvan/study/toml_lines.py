"""Finds the line of every key in a TOML file, and collects errors that point to lines.

tomllib does not tell lines of keys. But the smallest run of lines that it accepts by itself is one statement, and
there is exactly one key or header in it.
"""

import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from silvan.errors import InputError

Key = tuple[str, ...]


def read_toml(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a TOML file and what it says; raise ``InputError`` with a line if it cannot be read."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; save it as such") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {(error.strerror or 'no such file').lower()}") from None
    return text, parse_toml(text, path)


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """Return what a TOML text says; raise ``InputError`` with the line where an editor looks for it."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, _, place = str(error).partition(" (at ")
        line = next((word for word in place.replace(",", " ").split() if word.isdigit()), "")
        where = f"{path}:{line}" if line else f"{path} (at the end)"
        hint = "; write a path with / or in 'single quotes'" if "\\" in what else ""
        raise InputError(f"{where}: not valid TOML: {what[:1].lower()}{what[1:]}{hint}") from None


def key_lines(text: str) -> dict[Key, int]:
    """Return the line of every key and header of a valid TOML text, counted from 1."""
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
            header = _header_name(parsed)
            found.setdefault(header, start)
        else:
            for path in _paths(parsed):
                found.setdefault(header + path, start)
        statement = ""
    return found


def _header_name(parsed: dict[str, Any]) -> Key:
    """Return the name in a header, which parses as empty tables inside one another."""
    path: list[str] = []
    value: Any = parsed
    while isinstance(value, dict) and value:
        name, value = next(iter(value.items()))
        path.append(name)
        value = value[0] if isinstance(value, list) else value
    return tuple(path)


def _paths(parsed: dict[str, Any]) -> list[Key]:
    """Return all keys, those of inline tables included."""
    paths: list[Key] = []
    for name, value in parsed.items():
        paths.append((name,))
        if isinstance(value, dict):
            paths += [(name, *rest) for rest in _paths(value)]
    return paths


class Problems:
    """Collects the errors in a TOML file, each with its line."""

    def __init__(self, path: Path, lines: dict[Key, int]) -> None:
        self.path, self.lines = path, lines
        self.found: list[tuple[int, str]] = []

    def add(self, key: Key, text: str) -> None:
        """Add an error, on the line of a key or of the section that it should be in."""
        line = next((self.lines[key[:n]] for n in range(len(key), 0, -1) if key[:n] in self.lines), 1)
        self.found.append((line, f"{self.path}:{line}: {text}"))

    def unknown(self, key: Key, known: Iterable[str], text: str = "", given: Any = None) -> None:
        """Add an error about an unknown key or value, with the most similar known one."""
        known = list(known)
        where = f" in [{key[0]}]" if len(key) > 1 else ""
        close = get_close_matches(str(key[-1] if given is None else given), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
        self.add(key, f"{text or f'unknown key {key[-1]!r}{where}'}; {hint}")

    def stop(self) -> None:
        """Raise one ``InputError`` with all errors, if there are any."""
        if self.found:
            raise InputError("\n".join(text for _, text in sorted(self.found)))
