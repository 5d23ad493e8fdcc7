"""Compile kernels with numba, and keep them compiled while all files with kernels stay as they are.

numba keeps compiled kernels beside the files that they are in, and uses them while the file itself is unchanged. That
is not enough: a kernel of another file, which is called, may have changed; and a class that the index of compiled
kernels names may have moved, which makes numba fail as soon as it reads the index, so that nothing runs after an
upgrade. So an index is marked with the text of all files with kernels: one of another text is to numba one of another
version, which it does not read.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba

from silvan.util.kernel_texts import digest_of_kernels

F = TypeVar("F", bound=Callable[..., Any])

_STATE = digest_of_kernels()


def njit(**options: Any) -> Callable[[F], F]:
    """Return numba's decorator of the same name, for kernels that are kept compiled."""

    def compiled(function: F) -> F:
        kernel: Any = numba.njit(**options)(function)
        index: Any = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
        if hasattr(index, "_version"):  # there is none where numba is told to compile nothing
            index._version = f"{index._version}, kernels {_STATE}"
        found: F = kernel
        return found

    return compiled
