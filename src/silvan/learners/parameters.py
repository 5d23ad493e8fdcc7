"""Classes that declare parameters (``registry.py``), and docstrings that are completed from them."""

import inspect
import re
from dataclasses import dataclass, fields
from textwrap import TextWrapper
from typing import Annotated, Any, TypeVar, dataclass_transform, get_type_hints

from msgspec import Meta

T = TypeVar("T")

Positive = Annotated[int, Meta(ge=1)]

_WRAPPER = TextWrapper(116, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)


@dataclass_transform()
def declared(cls: type[T]) -> type[T]:
    """Make a class of parameters a dataclass with plain types in its signature."""
    made = dataclass(repr=False, eq=False)(cls)
    made.__init__.__annotations__.update(get_type_hints(made.__init__))
    return made


class Parameters:
    """The parameters of a learner; values that are not given have their defaults."""


def defaults(cls: type[Parameters]) -> dict[str, Any]:
    """Return the default of every parameter."""
    return {field.name: field.default for field in fields(cls)}  # type: ignore[arg-type]  # dataclasses, all of them


def changed(parameters: Parameters) -> dict[str, Any]:
    """Return the parameters that differ from their defaults."""
    given = vars(parameters)
    return {name: given[name] for name, default in defaults(type(parameters)).items() if given[name] != default}


def own_entries(cls: type, section: str = "Parameters") -> dict[str, str]:
    """Return the entries of a section of a class's own docstring."""
    _, _, entries = inspect.cleandoc(vars(cls).get("__doc__") or "").partition(f"{section}\n{'-' * len(section)}\n")
    listed = re.findall(r"^(\w[\w, ]*)\n((?: {4}.*(?:\n|$))+)", entries.split("\n\n")[0], re.M)
    return {names: " ".join(text.split()) for names, text in listed}


def descriptions(cls: type, section: str = "Parameters") -> dict[str, str]:
    """Return the documentation of parameters or attributes of a class and its bases, by name."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        for names, text in own_entries(base, section).items():
            found |= dict.fromkeys(names.split(", "), text)
    return found


def write_shared_entries(cls: type, like: type = Parameters) -> None:
    """Complete a docstring with entries for parameters and attributes from the bases, or from the class ``like``."""
    texts = descriptions(like) | descriptions(cls)
    attributes = own_entries(cls, "Attributes")
    known = {name for names in attributes for name in names.split(", ")}
    attributes |= {name: text for name, text in descriptions(cls, "Attributes").items() if name not in known}
    parameters = {name: texts[name] for name in inspect.signature(cls).parameters if name in texts}
    head, *rest = re.split(r"^([A-Z]\w+)\n-+\n", inspect.cleandoc(cls.__doc__ or ""), flags=re.M)
    examples = dict(zip(rest[::2], rest[1::2], strict=True)).get("Examples", "").strip()
    sections = {"Parameters": _listed(parameters), "Attributes": _listed(attributes), "Examples": examples}
    parts = [f"{title}\n{'-' * len(title)}\n{body}" for title, body in sections.items() if body]
    cls.__doc__ = "\n\n".join([head.strip(), *parts])


def _listed(entries: dict[str, str]) -> str:
    return "\n".join(f"{names}\n{_WRAPPER.fill(text)}" for names, text in entries.items())
