"""Docstrings of learners: entries that several classes share, written out in each.

A line ``%(parameters)s`` in a class's docstring is replaced by all its parameters, as silvan/learners/parameters.py
describes them, and ``%(fit_attributes)s`` by what ``fit`` sets, so that ``help`` shows everything at every learner.
"""

import re
from textwrap import fill, indent
from typing import TypeVar

from silvan.learners.parameters import descriptions
from silvan.learners.registry import LEARNERS

T = TypeVar("T")

_MARKER = re.compile(r"^( *)%\((\w+)\)s$", re.MULTILINE)
_WIDTH = 120

_FIT_ATTRIBUTES = """\
schema_
    What the columns mean, as the sites agreed on it: a ``Schema``.
rounds_
    How many rounds of messages ``fit`` took.
bytes_
    The bytes of these messages, by site: how many it "sent" and "received"."""


def write_shared_entries(cls: type[T]) -> type[T]:
    """Replace the markers in a class's docstring by the entries that they stand for; a class decorator."""
    parameters = [
        f"{name}\n{fill(text, _WIDTH - 4, initial_indent='    ', subsequent_indent='    ', break_on_hyphens=False)}"
        for name, text in descriptions(LEARNERS[cls.__name__].parameters).items()
    ]
    entries = {"parameters": "\n".join(parameters), "fit_attributes": _FIT_ATTRIBUTES}
    cls.__doc__ = _MARKER.sub(lambda found: indent(entries[found[2]], found[1]), cls.__doc__ or "")
    return cls
