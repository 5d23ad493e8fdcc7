"""How each field of a request is bound to the study: fixed by its text, agreed by all sites, or derived from sums.

A field says so where it is declared: ``n_trees: Fixed[int]``. A site compares fixed and agreed fields before it touches
a row (``privacy/terms.py``). Derived fields follow from sums that the site does not see: their shape and their place in
the protocol are checked by whoever answers, their value by whoever verifies the study.
"""

from enum import Enum
from functools import cache
from typing import Annotated, TypeVar, get_type_hints

import msgspec

T = TypeVar("T")


class Bound(Enum):
    """What decides a field of a request."""

    FIXED = "fixed"
    AGREED = "agreed"
    DERIVED = "derived"
    EACH = "each"  # a struct, each of whose fields says so for itself


Fixed = Annotated[T, Bound.FIXED]
Agreed = Annotated[T, Bound.AGREED]
Derived = Annotated[T, Bound.DERIVED]
Each = Annotated[T, Bound.EACH]


@cache
def bounds_of(kind: type[msgspec.Struct]) -> dict[str, Bound | None]:
    """Return what determines each field of a request, or of a struct in one; None if not declared."""
    hints = get_type_hints(kind, include_extras=True)
    found: dict[str, Bound | None] = {}
    for name in kind.__struct_fields__:
        said = [more for more in getattr(hints[name], "__metadata__", ()) if isinstance(more, Bound)]
        found[name] = said[0] if said else None
    return found
