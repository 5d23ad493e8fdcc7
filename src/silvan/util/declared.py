"""Checks values against declared types, and reports in plain words what was expected.

msgspec converts and checks the values, but speaks of types. Parameters of learners and keys of study files are declared
with ``Annotated``; both get the same words.
"""

import math
from collections.abc import Mapping
from datetime import date, time
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec import Meta, inspect

from silvan.errors import InputError

NOT_EMPTY = r"\S"  # the pattern of a text that is not empty

_PLURALS = {inspect.StrType: "texts", inspect.IntType: "whole numbers", inspect.FloatType: "numbers"}


NOT_A_KEY = Meta(extra={"key": False})  # marks the field of a struct that is not in the file


def about(**more: Any) -> Meta:
    """Return what is said of a key beside its type.

    ``expected`` says in words what a value must be, where the type does not tell; ``check`` raises ``InputError`` for a
    value of the right type that is wrong all the same. What else is given is for whoever reads the file.
    """
    return Meta(extra=more)


def typed_keys(struct: type) -> Mapping[str, Any]:
    """Return the types of the fields of a struct or dataclass that are in a file, by name."""
    hints = get_type_hints(struct, include_extras=True)
    return {name: hint for name, hint in hints.items() if extras(hint).get("key", True)}


def extras(hint: Any) -> dict[str, Any]:
    """Return the arguments given to ``about``."""
    found: dict[str, Any] = {}
    for meta in get_args(hint)[1:]:
        found |= (meta.extra or {}) if isinstance(meta, Meta) else {}
    return found


def convert(name: str, value: Any, hint: Any, none: str = "None") -> Any:
    """Convert a value to its declared type; raise ``InputError`` if it is wrong. ``none`` is the word for None."""
    more = extras(hint)
    try:
        converted = msgspec.convert(value, hint)
        more.get("check", lambda value: None)(converted)
        if isinstance(converted, float) and not math.isfinite(converted):
            raise ValueError
    except (msgspec.ValidationError, ValueError):
        expected = more.get("expected") or describe(hint, none=none)
        given = "a date or a time" if isinstance(value, date | time) else repr(value)
        text = f"{name} must be {expected}, got {given}"
        raise InputError(text, parameter=name, given=value, expected=expected) from None
    return converted


# -- types in words


def _members(hint: Any) -> list[inspect.Type]:
    """Return the types that a value may have."""
    kind = hint if isinstance(hint, inspect.Type) else inspect.type_info(hint)
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    return [one for member in kind.types for one in _members(member)] if isinstance(kind, inspect.UnionType) else [kind]


def may_be_none(hint: Any) -> bool:
    """Return whether a type allows None."""
    return any(isinstance(kind, inspect.NoneType) for kind in _members(hint))


def describe(hint: Any, *, none: str = "") -> str:
    """Return in plain words what a value may be; None is called ``none``, and left out if that is empty."""
    words: list[str] = []
    for kind in _members(hint):
        if isinstance(kind, inspect.LiteralType):
            words += map(repr, kind.values)
        elif isinstance(kind, inspect.BoolType):
            words += ["True", "False"] if none == "None" else ["true", "false"]
        elif not isinstance(kind, inspect.NoneType):
            words.append(_words(kind))
        elif none:
            words.append(none)
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
    if isinstance(kind, inspect.CollectionType):
        return f"a list of {_several(kind.item_type)}"
    if isinstance(kind, inspect.DictType):
        return f"{_several(kind.value_type)} by name"
    return "a value"


def _several(item: inspect.Type) -> str:
    members = _members(item)
    return _PLURALS.get(type(members[0]), describe(item)) if len(members) == 1 else "values"
