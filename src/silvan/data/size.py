"""How much memory: a number of bytes, or a text such as "2GB"."""

import re
from numbers import Integral
from typing import Any

from silvan.errors import InputError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def read_size(value: Any, name: str = "memory") -> int:
    """Read a size in bytes."""
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]I?|)B?\s*", value.upper())
        size = int(float(found[1]) * _UNITS[found[2]]) if found else 0
    else:
        size = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else 0
    if size < 1:
        raise InputError(f"{name} must be a number of bytes, or text such as '2GB' or '500MB'; got {value!r}")
    return size
