"""Checks what a TOML file says against declared types, entry by entry, so that one error lists all that is wrong.

msgspec converts and checks the values, but stops at the first error and speaks of types; so each entry is converted by
itself, and what was expected is said in the words of a study file.
"""

from collections.abc import Callable, Mapping
from datetime import date, time
from functools import cache
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec import Meta, inspect

from silvan.errors import InputError
from silvan.study.toml_lines import Key, Problems

NONE = "none"
"""TOML has no null; where None has a meaning, this text stands for it."""

NOT_EMPTY = r"\S"
"""The pattern of a text that is not empty."""

_PLURALS = {inspect.StrType: "texts", inspect.IntType: "whole numbers", inspect.FloatType: "numbers"}


NOT_A_KEY = Meta(extra={"key": False})
"""Marks the field of a struct that is not in the file."""


def about(**more: Any) -> Meta:
    """Return what is said of a key beside its type.

    ``expected`` says in words what a value must be, where the type does not tell; ``check`` raises ``InputError`` for a
    value of the right type that is wrong all the same. What else is given is for whoever reads the file.
    """
    return Meta(extra=more)


@cache
def typed_keys(struct: type) -> Mapping[str, Any]:
    """Return the types of the fields of a struct or dataclass that are in a file, by name."""
    hints = get_type_hints(struct, include_extras=True)
    return {name: hint for name, hint in hints.items() if extras(hint).get("key", True)}


def extras(hint: Any) -> dict[str, Any]:
    """Return what ``about`` was given."""
    found: dict[str, Any] = {}
    for meta in get_args(hint)[1:]:
        found |= (meta.extra or {}) if isinstance(meta, Meta) else {}
    return found


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
    """Convert the entries of a table to their types; note all that is wrong, and return the rest.

    With ``none`` a key whose value may be None can be set to "none". ``check`` raises ``InputError`` for a value that
    is wrong all the same. ``where`` is the place of the keys in an error about an unknown one.
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
            converted = _converted(name, value, known[name], none)
            if check is not None:
                check(name, converted)
            found[name] = converted
        except InputError as error:
            problems.add(key, str(error))
    return found


def _converted(name: str, value: Any, hint: Any, none: bool) -> Any:
    more = extras(hint)
    try:
        if none and value == NONE and any(isinstance(kind, inspect.NoneType) for kind in _members(hint)):
            return None
        converted = msgspec.convert(value, hint)
        more.get("check", lambda value: None)(converted)
    except (msgspec.ValidationError, InputError):
        expected = more.get("expected") or describe(hint, none=none)
        given = "a date or a time" if isinstance(value, date | time) else repr(value)
        raise InputError(f"{name} must be {expected}, got {given}") from None
    return converted


# -- types in words


def _members(hint: Any) -> list[inspect.Type]:
    """Return the types that a value may be of."""
    kind = hint if isinstance(hint, inspect.Type) else inspect.type_info(hint)
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    return [one for member in kind.types for one in _members(member)] if isinstance(kind, inspect.UnionType) else [kind]


def describe(hint: Any, *, none: bool = False) -> str:
    """Return what a value may be, in the words of a study file; None is "none" where that may be written."""
    words: list[str] = []
    for kind in _members(hint):
        if isinstance(kind, inspect.LiteralType):
            words += map(repr, kind.values)
        elif not isinstance(kind, inspect.NoneType):
            words.append(_words(kind))
        elif none:
            words.append(repr(NONE))
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _words(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        limits = {"of at least": kind.ge, "above": kind.gt, "at most": kind.le, "below": kind.lt}
        given = [f"{word} {limit:,}" for word, limit in limits.items() if limit is not None]
        return " ".join(
            ["a whole number" if isinstance(kind, inspect.IntType) else "a number", " and ".join(given)]
        ).strip()
    if isinstance(kind, inspect.StrType):
        return "text" if kind.pattern is None else "text that is not empty"
    if isinstance(kind, inspect.BoolType):
        return "true or false"
    if isinstance(kind, inspect.CollectionType):
        return f"a list of {_several(kind.item_type)}"
    if isinstance(kind, inspect.DictType):
        return f"{_several(kind.value_type)} by name"
    return "a value"


def _several(item: inspect.Type) -> str:
    members = _members(item)
    return _PLURALS.get(type(members[0]), describe(item)) if len(members) == 1 else "values"
