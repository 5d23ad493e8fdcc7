"""What the keys of a study file may hold."""

import inspect
import types
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from silvan.errors import InputError
from silvan.study.toml_lines import Key

if TYPE_CHECKING:
    from silvan.data.schema import Schema
    from silvan.data.sources.query import Query

LEARNERS = (
    "HistogramForest",
    "MergedForest",
    "BOFRF",
    "BOPPID",
    "AdaBoostPL",
    "MultBoost",
    "LocalForest",
    "LocalAdaBoost",
    "PooledForest",
)
COLUMN_LEARNERS = ("VerticalForest", "VerticalLinear")
"""Learners for parties that hold columns."""

SECTIONS = ("sites", "parties", "schema", "learner", "policy")

NONE = "none"
"""TOML has no null; where None has a meaning, this text stands for it."""

_SUFFIXES = (".csv", ".csv.gz", ".parquet")
_MOST = 2**63 - 1


class Problems:
    """All that is wrong with a file, each with its line."""

    def __init__(self, path: Path, lines: dict[Key, int]) -> None:
        self.path, self.lines = path, lines
        self.found: list[tuple[int, str]] = []

    def add(self, key: Key, text: str) -> None:
        """Note one, on the line of a key or of the section it should stand in."""
        line = next((self.lines[key[:n]] for n in range(len(key), 0, -1) if key[:n] in self.lines), 1)
        self.found.append((line, f"{self.path}:{line}: {text}"))

    def unknown(self, key: Key, known: Iterable[str], text: str = "", given: Any = None) -> None:
        """Note a key, or what it was given, that means nothing, and what may have been meant."""
        known = list(known)
        where = f" in [{key[0]}]" if len(key) > 1 else ""
        close = get_close_matches(str(key[-1] if given is None else given), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
        self.add(key, f"{text or f'unknown key {key[-1]!r}{where}'}; {hint}")

    def stop(self) -> None:
        """Raise if there was any."""
        if self.found:
            raise InputError("\n".join(text for _, text in sorted(self.found)))


# -- kinds of values: each says what is wrong, or nothing


def _text(value: Any) -> str:
    return "" if isinstance(value, str) and value.strip() else "must be text that is not empty"


def _texts(value: Any) -> str:
    right = isinstance(value, list) and all(isinstance(v, str) for v in value)
    return "" if right else "must be a list of texts"


def _share(value: Any) -> str:
    right = isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value < 1.0
    return "" if right else "must be a number of at least 0 and below 1"


def _whole(value: Any) -> str:
    right = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST
    return "" if right else "must be a whole number of at least 0"


def _one_of(*choices: str) -> Callable[[Any], str]:
    return lambda value: "" if value in choices else f"must be one of {', '.join(map(repr, choices))}"


def _size(value: Any) -> str:
    from silvan.data.batches import read_size

    try:
        read_size(value)
    except InputError:
        return "must be a number of bytes, or text such as '2GB'"
    return ""


KEYS: dict[str, Callable[[Any], str]] = {
    "name": _text,
    "label": _text,
    "table": _text,
    "site": _text,
    "test": _share,
    "random_state": _whole,
    "task": _one_of("classification", "regression"),
    "sums": _one_of("trusted", "ring", "masked"),
    "id": _text,
    "match": _one_of("keyed", "psi"),
    "exclude": _texts,
    "output": _text,
    "query": _text,
    "memory": _size,
}
"""The keys of the study itself."""


# -- sections


def check_top(values: dict[str, Any], problems: Problems) -> dict[str, Any]:
    """Check the keys before the first section."""
    for key, value in values.items():
        if key not in KEYS:
            problems.unknown((key,), [*KEYS, *SECTIONS])
        elif wrong := KEYS[key](value):
            problems.add((key,), f"{key} {wrong}, got {value!r}")
    if "sums" in values and not KEYS["sums"](values["sums"]):
        from silvan.federate.options import make_sums

        try:
            make_sums(values["sums"])
        except InputError as error:
            problems.add(("sums",), str(error))
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k in KEYS}


def check_sites(data: dict[str, Any], folder: Path, problems: Problems) -> "dict[str, Path | Query]":
    """Check that each table exists; a site's or party's name must be one that can be shown."""
    section, who = ("parties", "party") if "parties" in data else ("sites", "site")
    sites = data.get(section)
    _check_id(data, problems)
    if sites is None:
        if "table" not in data or "site" not in data:
            key = next((k for k in ("table", "site") if k in data), "sites")
            problems.add((key,), 'name the sites: [sites] with name = "path", or both table and site')
            return {}
        query = {"query": data["query"]} if "query" in data else {}
        value = {"table": data["table"], **query} if query else data["table"]
        return _table({"": value}, ("table",), folder, problems)
    for key in ("table", "site", "query"):
        if key in data:
            problems.add((key,), f"{key} is for one table of all sites; leave it out beside [{section}]")
    if not isinstance(sites, dict) or not sites:
        problems.add((section,), f'[{section}] must name at least one {who}, as name = "path"')
        return {}
    tables: dict[str, Path | Query] = {}
    for name, value in sites.items():
        if not name.strip() or not name.isprintable() or name == "all":
            problems.add((section, name), f"a {who} cannot be called {name!r}; give it another name")
        tables |= _table({name: value}, (section, name), folder, problems)
    return tables


def _check_id(data: dict[str, Any], problems: Problems) -> None:
    """Check that parties say how their rows are matched, and nobody else does."""
    if "parties" not in data:
        for key in ("id", "match"):
            if key in data:
                problems.add((key,), f"{key} is for [parties], which hold columns of the same rows; leave it out here")
        return
    if "memory" in data:
        problems.add(("memory",), "memory is for [sites]; [parties] have their columns in memory")
    if "sites" in data:
        problems.add(("sites",), "[sites] hold rows and [parties] columns of the same rows; leave one of them out")
    if "id" not in data:
        problems.add(("parties",), 'name the column that tells rows apart: id = "..." before the first [section]')


def _table(named: dict[str, Any], key: Key, folder: Path, problems: Problems) -> "dict[str, Path | Query]":
    [(name, value)] = named.items()
    who = f"{'party' if key[0] == 'parties' else 'site'} {name!r}: " if name else ""
    if isinstance(value, dict) or (isinstance(value, str) and "://" in value):
        return _database(name, who, value, key, folder, problems)
    if not isinstance(value, str) or not value:
        problems.add(key, f"{who}must be the path of a table, got {value!r}")
        return {}
    path = folder / value
    if not path.is_file():
        kind = "is a folder, not a file" if path.is_dir() else "does not exist"
        problems.add(key, f"{who}{value!r} {kind} (looked for {path.absolute()}){_misplaced(name)}")
    elif not path.name.lower().endswith(_SUFFIXES):
        problems.add(key, f"{who}{value!r} should end in .csv, .csv.gz or .parquet{_misplaced(name)}")
    return {name: path}


def _database(name: str, who: str, value: Any, key: Key, folder: Path, problems: Problems) -> "dict[str, Path | Query]":
    """Check a table in a database: a URL, or a section of its URL and its query."""
    from silvan.data.sources.query import Query

    given = value if isinstance(value, dict) else {"table": value}
    for word, said in given.items():
        if word not in ("table", "query"):
            problems.unknown((*key, word), ["table", "query"])
        elif not isinstance(said, str):
            problems.add(key, f"{who}{word} must be text")
    try:
        return {name: Query(str(given.get("table", "")), str(given.get("query", ""))).beside(folder)}
    except InputError as error:
        problems.add(key, f"{who}{error}")
    return {}


def _misplaced(name: str) -> str:
    return f"; if {name} was meant for the study, put it before the first [section]" if name in KEYS else ""


def check_learner(values: Any, columns: bool, problems: Problems) -> tuple[str, dict[str, Any]]:
    """Check the parameters against the learner's own signature, then by its own rules."""
    from silvan import learners
    from silvan.tree.fit import Settings

    if not isinstance(values, dict):
        problems.add(("learner",), "learner must be a section: [learner]")
        return "", {}
    known = COLUMN_LEARNERS if columns else LEARNERS
    kind = values.get("kind", known[0])
    if kind not in known:
        elsewhere = kind in (*LEARNERS, *COLUMN_LEARNERS)
        said = (
            f"{kind} is not for {'[parties]' if columns else '[sites]'}"
            if elsewhere
            else f"there is no learner {kind!r}"
        )
        problems.unknown(("learner", "kind"), known, said, kind)
        return "", {}
    hints = parameters_of(getattr(learners, kind))
    found = {}
    for key, given in values.items():
        if key == "kind":
            continue
        if key not in hints:
            problems.unknown(("learner", key), ["kind", *hints], f"unknown key {key!r} in [learner], a {kind}")
            continue
        value = None if given == NONE and _fits(None, hints[key]) else given
        if not _fits(value, hints[key]):
            problems.add(("learner", key), f"{key} must be {_said(hints[key])}, got {value!r}")
            continue
        found[key] = value
        if key == "random_state" and (wrong := _whole(value)):
            problems.add(("learner", key), f"{key} {wrong}, got {value!r}")
        if key in Settings.__dataclass_fields__ and value is not None and not isinstance(value, dict):
            try:
                Settings(**{key: value}).n_drawn(1)
            except InputError as error:
                problems.add(("learner", key), str(error))
    return kind, found


def check_schema(values: Any, label: str, problems: Problems) -> "Schema | None":
    """Check what is said of columns before anybody looks at them; None if nothing is."""
    from silvan.data.schema import Feature, Label, Schema

    if values is None:
        return None
    if not isinstance(values, dict) or not all(isinstance(entry, dict) for entry in values.values()):
        problems.add(("schema",), "[schema] has a line a column, as age = { bounds = [0, 120] }")
        return None
    features, found = [], None
    for name, entry in values.items():
        try:
            if name == label:
                found = msgspec.convert({"name": name, **entry}, Label)
            else:
                kind = "categorical" if "categories" in entry else "numeric"
                features.append(msgspec.convert({"name": name, "kind": kind, **entry}, Feature))
        except (msgspec.ValidationError, InputError) as error:
            problems.add(("schema", name), f"{name}: {error}")
    if found is None:
        problems.add(("schema",), f"[schema] lacks the label: {label} = {{ classes = [...] }} or {{ bounds = [...] }}")
        return None
    return None if problems.found else Schema.of(features, found)


def check_policy(values: Any, problems: Problems) -> dict[str, Any]:
    """Check what every site lets out."""
    from silvan.privacy.gate.gate import Policy

    if not isinstance(values, dict):
        problems.add(("policy",), "policy must be a section: [policy]")
        return {}
    hints = parameters_of(Policy)
    found = {}
    for key, value in values.items():
        if key not in hints:
            problems.unknown(("policy", key), hints)
        elif not _fits(value, hints[key]):
            problems.add(("policy", key), f"{key} must be {_said(hints[key])}, got {value!r}")
        else:
            found[key] = value
            kinds = _message_kinds()
            for name in value if key == "messages" else ():
                if name not in kinds:
                    problems.unknown(("policy", key), kinds, f"there is no message {name!r}", name)
            try:
                Policy(**{key: value})
            except InputError as error:
                problems.add(("policy", key), str(error))
    return found


def _message_kinds() -> list[str]:
    """List the kinds of messages that a policy may name."""
    from silvan import learners  # noqa: F401, importing the algorithms makes their messages known
    from silvan.federation.message import Request

    def below(kind: type[Request]) -> list[str]:
        return [name for one in kind.__subclasses__() for name in (one.kind(), *below(one))]

    return sorted(below(Request))


def parameters_of(kind: type) -> dict[str, Any]:
    """Give the parameters of a class with their types."""
    hints = get_type_hints(getattr(kind, "__init__"))  # noqa: B009, mypy wants a name that may be overridden
    return {name: hints.get(name, Any) for name in inspect.signature(kind).parameters}


def _members(hint: Any) -> list[Any]:
    return list(get_args(hint)) if get_origin(hint) in (Union, types.UnionType) else [hint]


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value from a TOML file is of a type; whole numbers are numbers, lists are tuples."""
    for member in _members(hint):
        kind = get_origin(member) or member
        if kind is Literal and value in get_args(member):
            return True
        if kind is Any or (kind is type(None) and value is None):
            return True
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return True
        if kind is tuple and isinstance(value, list) and all(isinstance(v, str) for v in value):
            return True
        if kind in (int, str, bool) and type(value) is kind:
            return True
    return False


def _said(hint: Any) -> str:
    words = {
        int: "a whole number",
        float: "a number",
        str: "text",
        bool: "true or false",
        tuple: "a list of texts",
    }
    said: list[str] = []
    for member in _members(hint):
        kind = get_origin(member) or member
        said += map(repr, get_args(member)) if kind is Literal else [words.get(kind, repr(NONE))]
    return " or ".join(said)
