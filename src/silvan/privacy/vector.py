"""A reply as one row of counters modulo 2^64, and back: what can be hidden by adding random numbers.

Modulo 2^64 an offset that is drawn uniformly hides a counter wholly, and negative numbers add up as they
should. Every part is small enough for its sum not to wrap round.
"""

from math import prod

import msgspec
import numpy as np

from silvan.errors import RefusedError
from silvan.federation.message import Reply

WORD = np.dtype("<u8")


class Layout(msgspec.Struct, frozen=True):
    """What counters stand for: a kind of reply, and the element type and shape of each of its fields."""

    kind: str
    fields: list[tuple[str, str, list[int]]]

    @property
    def size(self) -> int:
        """How many counters there are."""
        return sum(prod(shape) for _, _, shape in self.fields)


def flatten(reply: Reply, n_sites: int) -> tuple[Layout, np.ndarray]:
    """Give a site's part of a sum over so many sites as counters."""
    kind, fields, words = type(reply).__name__, [], [np.zeros(0, WORD)]
    for name in reply.__struct_fields__:
        array = getattr(reply, name)
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu":
            raise RefusedError(f"{kind}.{name} cannot be summed: it is not an integer array")
        if array.dtype.itemsize == WORD.itemsize and array.size:  # shorter ones cannot wrap round
            most = int(np.iinfo(array.dtype).max) // n_sites
            if int(array.max()) > most or int(array.min()) < -most:
                raise RefusedError(f"{kind}.{name} is too large to be added to the others'")
        fields.append((name, array.dtype.newbyteorder("<").str, list(array.shape)))
        wide = array.astype("<i8" if array.dtype.kind == "i" else WORD)
        words.append(wide.reshape(-1).view(WORD))
    return Layout(kind, fields), np.concatenate(words)


def unflatten(layout: Layout, counters: np.ndarray, kind: type[Reply]) -> Reply:
    """Read a sum of counters as a reply, with the element types of its parts."""
    fields, start = {}, 0
    for name, code, shape in layout.fields:
        dtype, size = np.dtype(code), prod(shape)
        wide = counters[start : start + size].view("<i8" if dtype.kind == "i" else WORD)
        if size and not np.iinfo(dtype).min <= int(wide.min()) <= int(wide.max()) <= np.iinfo(dtype).max:
            raise RefusedError(f"{layout.kind}.{name} is too large when all are added")
        fields[name] = wide.astype(dtype).reshape(shape)
        start += size
    return kind(**fields)
