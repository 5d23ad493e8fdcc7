"""Checks single values of a study file: those of its own keys, and those that must fit a type hint."""

import inspect
import types
from collections.abc import Callable
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from silvan.algorithms.evaluation.repeats import MOST_REPEATS
from silvan.data.batches import read_size
from silvan.errors import InputError

NONE = "none"
"""TOML has no null; where None has a meaning, this text stands for it."""

_MOST = 2**63 - 1


# -- kinds of values: each function returns what is wrong, or an empty text


def _text(value: Any) -> str:
    return "" if isinstance(value, str) and value.strip() else "must be text that is not empty"


def _texts(value: Any) -> str:
    right = isinstance(value, list) and all(isinstance(v, str) for v in value)
    return "" if right else "must be a list of texts"


def _share(value: Any) -> str:
    right = isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value < 1.0
    return "" if right else "must be a number of at least 0 and below 1"


def whole_number(value: Any) -> str:
    """Return what is wrong with a value that must be a whole number; empty if nothing is."""
    right = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST
    return "" if right else "must be a whole number of at least 0"


def _repeats(value: Any) -> str:
    right = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_REPEATS
    return "" if right else f"must be a whole number between 1 and {MOST_REPEATS:,}"


def _one_of(*choices: str) -> Callable[[Any], str]:
    return lambda value: "" if value in choices else f"must be one of {', '.join(map(repr, choices))}"


def _size(value: Any) -> str:
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
    "repeats": _repeats,
    "random_state": whole_number,
    "task": _one_of("classification", "regression"),
    "sums": _one_of("trusted", "ring", "masked"),
    "id": _text,
    "match": _one_of("keyed", "psi"),
    "names": _one_of("coded", "shown"),
    "exclude": _texts,
    "output": _text,
    "query": _text,
    "memory": _size,
}
"""The keys before the first section, and what checks their values."""


# -- type hints


def parameters_of(kind: type) -> dict[str, Any]:
    """Return the parameters of a class with their types."""
    hints = get_type_hints(getattr(kind, "__init__"))  # noqa: B009, mypy wants a name that may be overridden
    return {name: hints.get(name, Any) for name in inspect.signature(kind).parameters}


def _members(hint: Any) -> list[Any]:
    return list(get_args(hint)) if get_origin(hint) in (Union, types.UnionType) else [hint]


def fits(value: Any, hint: Any) -> bool:
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


def describe_type(hint: Any) -> str:
    """Return a type in the words of a study file."""
    words = {
        int: "a whole number",
        float: "a number",
        str: "text",
        bool: "true or false",
        tuple: "a list of texts",
    }
    described: list[str] = []
    for member in _members(hint):
        kind = get_origin(member) or member
        described += map(repr, get_args(member)) if kind is Literal else [words.get(kind, repr(NONE))]
    return " or ".join(described)
