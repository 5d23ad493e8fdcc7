"""Format options of a file to evaluate or predict: those of the study, and those of the command."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from silvan.data.readers.query import is_url
from silvan.data.readers.table_file import Table
from silvan.data.stored_table import open_cells, read_arrow
from silvan.errors import InputError
from silvan.study.parse import READING
from silvan.study.toml_lines import suggest

_OF_TEXT = ("separator", "decimal", "encoding")
_TAB = {"tab": "\t", "\\t": "\t"}


class ReadAs(NamedTuple):
    """The source of a table, and a note on the study's format options; empty if there are none."""

    source: Any
    note: str = ""


def parse_reading(words: Sequence[str]) -> dict[str, Any]:
    """Parse format options, each given as KEY=VALUE or as a line of TOML; raise ``InputError`` for invalid ones.

    An option without a value is None: its value will be inferred.
    """
    found: dict[str, Any] = {}
    for word in words:
        for key, value in _parsed(word).items():
            if key not in READING:
                raise InputError(f"--reading: unknown key {key!r}; {suggest(key, READING)}")
            if key == "missing" and isinstance(value, str):
                value = [value]
            if isinstance(value, dict) and isinstance(found.get(key), dict):
                found[key] |= value
            elif key == "missing" and isinstance(value, list) and isinstance(found.get(key), list):
                found[key] += value
            elif key in found:
                raise InputError(f"--reading names {key} twice; name it once")
            else:
                found[key] = value
    _table(".", found)
    return found


def parse_readings(words: Sequence[str], tables: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Parse format options of the parties' tables: ``PARTY:KEY=VALUE`` for one party, ``KEY=VALUE`` for all.

    A new column name for all parties applies to the tables that have the column.
    """
    own: dict[str, list[str]] = {party: [] for party in tables}
    common = []
    for word in words:
        party = max((name for name in tables if word.startswith(f"{name}:")), key=len, default=None)
        if party is None:
            common.append(word)
        else:
            own[party].append(word[len(party) + 1 :])
    shared, found = parse_reading(common), {party: parse_reading(given) for party, given in own.items()}
    renamed: dict[str, str] = shared.get("rename") or {}
    known = set()
    for party, table in tables.items():
        said = {**shared, **found[party]}
        if renamed and not is_url(table):
            here = {*_header(table, {**said, "rename": None, "missing": None})} & {*renamed}
            known |= here
            names = {name: renamed[name] for name in renamed if name in here} | (found[party].get("rename") or {})
            said = {**said, "rename": names} if names else {key: said[key] for key in said if key != "rename"}
        found[party] = said
    if lost := [name for name in renamed if name not in known]:
        raise InputError(f"--reading: rename names {lost[0]!r}, a column that no party's table has; check the name")
    return found


def _parsed(word: str) -> dict[str, Any]:
    """Return the value of an option: a line of TOML, or KEY=VALUE with literal text."""
    key, sign, text = word.partition("=")
    key, text = key.strip(), text.strip() or text
    if not sign or not key:
        raise InputError(f"--reading takes KEY=VALUE, as in --reading 'decimal=,'; got {word!r}")
    try:
        said = tomllib.loads(word)
    except tomllib.TOMLDecodeError:
        if text[:1] in ("[", "{", '"', "'") and len(text) > 1:
            raise InputError(f"--reading: the value of {key} is not valid TOML; got {word!r}") from None
        said = {}
    if said and all(isinstance(value, str | list | dict) for value in said.values()):
        return said
    if not text:
        return {key: None}
    key, _, column = key.partition(".") if key.startswith(("rename.", "missing.")) else (key, "", "")
    if key == "rename" and column:
        return {key: {column: text}}
    if key == "missing":
        markers = [marker.strip() for marker in text.split(",")]
        return {key: {column: markers} if column else markers}
    return {key: _TAB.get(text, text) if key == "separator" else text}


def _table(path: str, options: Mapping[str, Any], whose: str = "--reading") -> Table:
    try:
        return Table(path, **{key: value for key, value in options.items() if value is not None})
    except InputError as error:
        raise InputError(f"{whose}: {error}") from None


def reading_lines(options: Mapping[str, Any]) -> str:
    """Return options as lines below ``[reading]`` in a settings file."""
    lines = []
    for key, value in options.items():
        if isinstance(value, dict):
            names = ", ".join(f"{_quoted(column)} = {_quoted(said)}" for column, said in value.items())
            lines.append(f"{key} = {{ {names} }}")
        elif value is not None:
            lines.append(f"{key} = {_quoted(value)}")
    return "\n".join(lines)


def _quoted(value: Any) -> str:
    """Return a text, or a list of texts and numbers, as TOML, which looks the same in JSON."""
    return json.dumps(value, ensure_ascii=False)


def as_written(path: str | Path, study: Mapping[str, Any], asked: Mapping[str, Any]) -> ReadAs:
    """Return the source of a table, from the settings of a run's study and the options of a command.

    The command's options take precedence. Of the study's options only those apply that fit the type of file, and new
    names for columns that it has: a table to predict may lack the label.
    """
    kept, place = study.get("reading"), str(path)
    if is_url(place):
        if asked:
            raise InputError("--reading is for files; a query says what columns are called: select alter as age")
        return ReadAs(path)
    own = _own(place, kept, asked) if isinstance(kept, dict) else {}
    said = {**own, **asked}
    if own.get("rename"):
        said["rename"] = {**own["rename"], **(asked.get("rename") or {})}
    table = _table(place, said)
    told = ", ".join(f"{key} {_told(value)}" for key, value in own.items())
    note = f"{place} is read as the study says of its own files: {told} (--reading sets it otherwise)" if told else ""
    return ReadAs(table if table.options else path, note)


def _own(path: str, kept: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the study's options that apply to a file and that the command does not override."""
    over = {key for key, value in asked.items() if key != "rename" or value is None}
    said = _table(path, {key: kept.get(key) for key in READING}, "[reading] of the run's study").options
    own = {key: value for key, value in said.items() if key not in over}
    if not own:
        return own
    kind = Table(path).kind()
    foreign = {*(() if kind == "csv" else _OF_TEXT), *(() if kind == "excel" else ("sheet",))}
    own = {key: value for key, value in own.items() if key not in foreign}
    by_column = own.get("missing") if isinstance(own.get("missing"), Mapping) else None
    if "rename" in own or by_column:
        names = _header(path, {**own, **asked, "rename": None, "missing": None})
        own["rename"] = _renamed(names, own.get("rename", {}), asked.get("rename") or {})
        if by_column:
            called = {**own["rename"], **(asked.get("rename") or {})}
            known = {called.get(name, name) for name in names}
            own["missing"] = {name: texts for name, texts in by_column.items() if name in known}
    return {key: value for key, value in own.items() if value}


def _header(path: str, options: Mapping[str, Any]) -> list[str]:
    table = _table(path, options)
    return read_arrow(table).columns if table.kind() in ("parquet", "feather") else open_cells(table).header()


def _renamed(names: Sequence[str], kept: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
    """Return the study's new names for columns of a file that the command does not rename."""
    taken = {*asked, *(old for old, new in kept.items() if new in asked.values())}
    return {old: new for old, new in kept.items() if old in names and old not in taken}


def _told(value: Any) -> str:
    """Return the value of an option in words."""
    if isinstance(value, Mapping):
        pairs = [(f"{old!r}", f"to {new!r}" if isinstance(new, str) else _told(new)) for old, new in value.items()]
        return " and ".join(map(" ".join, pairs))
    return repr(value) if isinstance(value, str) else ", ".join(map(repr, value))
