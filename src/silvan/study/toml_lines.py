"""Finds the line of every key in a TOML file, converts values, and collects errors that point to lines.

tomllib does not report the lines of keys. But consecutive lines that close all brackets and strings are one statement
with exactly one key or header. Texts may be malicious: a site reads the coordinator's text before its owner has
approved anything, so the cost must be linear in its length.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from typing import Any

from silvan.errors import InputError
from silvan.util.declared import convert, may_be_none

Key = tuple[str, ...]

RENAMED = {
    "target": "label",
    "seed": "random_state",
    "test_size": "test",
    "figures": "metrics",
    "learner.n_trees": "n_estimators",
    "learner.recount": "refit_leaves",
    "learner.feature_draw": "feature_sampling",
    "learner.seed": "random_state",
    "learner.monotone_constraints": "monotonic_cst",
}
"""Earlier names of keys, and their names in other programs."""

BEFORE = "before the first [section]"  # where the keys of the study itself belong
_LONGEST = 1 << 24  # maximum length of a text, in characters
_PIECES = re.compile(
    r'"""(?:[^\\]|\\.)*?(?:"{3,5}|\Z)|"(?:[^"\\\n]|\\[^\n])*+"?|'
    r"'''.*?(?:'{3,5}|\Z)|'[^'\n]*+'?|#[^\n]*|[][{}\n]",
    re.DOTALL,
)
"""Strings, comments, brackets and ends of lines."""

_LONG_KEY = re.compile(r"(?<![\w.-])(?:[\w-]++[ \t]*+\.[ \t]*+){32}")
"""A key with very many names, which takes quadratic time and memory."""


def read_toml(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a TOML file and its content; raise ``InputError`` with a line if it cannot be read."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; save it as such") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {(error.strerror or 'no such file').lower()}") from None
    return text, parse_toml(text, path)


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """Return the content of a TOML text; raise ``InputError`` with the line of a syntax error."""
    if len(text) > _LONGEST:
        raise InputError(f"{path}: {len(text):,} characters are too many; at most {_LONGEST:,}")
    if _LONG_KEY.search(_PIECES.sub(_without_text, text)):
        raise InputError(f"{path}: a key has too many names with dots between them")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise InputError(f"{path}: lists or tables inside one another, too many levels deep") from None
    except ValueError as error:
        if not isinstance(error, tomllib.TOMLDecodeError):
            raise InputError(f"{path}: a number has too many digits") from None
        what, _, place = str(error).partition(" (at ")
        line = next((word for word in place.replace(",", " ").split() if word.isdigit()), "")
        where = f"{path}:{line}" if line else f"{path} (at the end)"
        hint = "; write a path with / or in 'single quotes'" if "\\" in what else ""
        raise InputError(f"{where}: not valid TOML: {what[:1].lower()}{what[1:]}{hint}") from None


def key_lines(text: str) -> dict[Key, int]:
    """Return the line of every key and header of a valid TOML text, counted from 1."""
    found: dict[Key, int] = {}
    header: Key = ()
    for start, statement in _statements(text):
        parsed = tomllib.loads(statement)
        if statement.lstrip().startswith("["):
            header = _header_name(parsed)
            found.setdefault(header, start)
        else:
            for path in _paths(parsed):
                found.setdefault(header + path, start)
    return found


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield the statements of a valid TOML text, each with its first line."""
    start, line, depth, begins = 1, 1, 0, 0
    for piece in _PIECES.finditer(f"{text}\n"):
        what = piece[0]
        line += what.count("\n")
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(what, 0)
        if what == "\n" and not depth:
            yield start, text[begins : piece.end()]
            start, begins = line, piece.end()


def _without_text(piece: re.Match[str]) -> str:
    """Return a placeholder for a piece when looking at keys only: a string may be a name in a key."""
    what = piece[0]
    return "s" if what[0] in "\"'" else "\n" if what == "\n" else " " if what[0] == "#" else what


def _header_name(parsed: dict[str, Any]) -> Key:
    """Return the name in a header, which parses as nested empty tables."""
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


def suggest(word: str, known: Iterable[str]) -> str:
    """Return a hint about an unknown word: the most similar known word, or all of them.

    Swapped letters are the likeliest mistake, and the first letter is seldom wrong: lable means label, not table.
    """
    known = list(known)

    def likeness(name: str) -> tuple[bool, float]:
        same = SequenceMatcher(None, word, name).ratio()
        return sorted(name) == sorted(word), same + 0.1 * (name[:1].lower() == word[:1].lower())

    close = max(get_close_matches(word, known, n=len(known) or 1), key=likeness, default="")
    return f"did you mean {close!r}?" if close else f"known are {', '.join(known)}"


class Problems:
    """Collects the errors in a TOML file, each with its line."""

    def __init__(self, path: Path, lines: dict[Key, int], places: Mapping[str, str] | None = None) -> None:
        self.path, self.lines = path, lines
        self.places = places or {}  # the place of keys
        self.found: list[tuple[int, str]] = []
        self.wrong: set[Key] = set()  # the keys with errors

    def add(self, key: Key, text: str) -> None:
        """Add an error, at the line of a key or of its section."""
        line = next((self.lines[key[:n]] for n in range(len(key), 0, -1) if key[:n] in self.lines), 1)
        self.found.append((line, f"{self.path}:{line}: {text}"))
        self.wrong.add(key)

    def unknown(self, key: Key, known: Iterable[str], text: str = "", given: Any = None) -> None:
        """Add an error about an unknown key or value, with a suggestion."""
        where, place = f" in [{key[0]}]" if len(key) > 1 else "", self.places.get(key[-1], "")
        if new := RENAMED.get(".".join(key)):
            hint = f"it is called {new!r}"
        elif given is None and place and (place == BEFORE) == (len(key) > 1):
            hint = f"put it {place}"
        else:
            hint = suggest(str(key[-1] if given is None else given), known)
        self.add(key, f"{text or f'unknown key {key[-1]!r}{where}'}; {hint}")

    def stop(self) -> None:
        """Raise one ``InputError`` with all errors, if there are any."""
        if self.found:
            raise InputError("\n".join(dict.fromkeys(text for _, text in sorted(self.found))))


def convert_entries(
    values: Any,
    known: Mapping[str, Any],
    section: Key,
    problems: Problems,
    *,
    none: bool = False,
    check: Callable[[str, Any], object] | None = None,
    where: str = "",
) -> dict[str, Any]:
    """Convert the entries of a table to their types; report invalid ones as problems, and return the rest.

    With ``none``, a key whose value may be None can be set to "none". ``check`` may raise ``InputError`` for a
    converted value. ``where`` is the place of the keys in errors about unknown ones.
    """
    if not isinstance(values, dict):
        name = section[-1]
        problems.add(section, f"{name} must be a section: [{name}], with {', '.join(known)}")
        return {}
    found = {}
    for name, value in values.items():
        key = (*section, name)
        if name not in known:
            problems.unknown(key, known, where and f"unknown key {name!r} in {where}")
            continue
        try:
            if none and value == "none" and may_be_none(known[name]):  # TOML has no null
                value = None
            value = convert(name, value, known[name], repr("none") if none else "")
            if check is not None:
                check(name, value)
            found[name] = value
        except InputError as error:
            problems.add(key, str(error))
    return found
