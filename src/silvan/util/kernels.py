"""Compile kernels with numba, with a cache that is valid while all files with kernels stay unchanged.

numba stores compiled kernels beside their source files, and uses them while the file itself is unchanged. That
is not enough: a called kernel in another file may have changed; and a class that the index of compiled
kernels names may have moved, which makes numba fail as soon as it reads the index, so that nothing runs after an
upgrade. So an index is marked with the text of all files with kernels: one of another text is to numba one of another
version, which it does not read.

This is the only place that touches numba's internals (``_cache``). numba's own settings offer a cache folder for the
whole process alone, which would move the kernels of other packages too. If no folder is writable, as in a
service with a read-only system and a closed home, or the disk is full, kernels are compiled but not stored.

With ``NUMBA_DISABLE_JIT=1`` kernels run as plain Python, for a debugger or for coverage. Two things then differ, and
both are handled here: unsigned integers warn when they wrap around, and numba's bit instructions do not exist.
"""

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import numba
import numpy as np
from numba.core import config as untyped_config

from silvan.util.kernel_texts import digest_of_kernels
from silvan.util.user_warnings import warn_user

F = TypeVar("F", bound=Callable[..., Any])

_STATE = digest_of_kernels()

config: Any = untyped_config  # its settings are made at run time

if TYPE_CHECKING or config.DISABLE_JIT:

    def leading_zeros(n: Any) -> int:
        """Count the zeros before the first set bit of a 64-bit number above 0."""
        return 64 - int(n).bit_length()

    def trailing_zeros(n: Any) -> int:
        """Count the zeros after the last set bit of a 64-bit number above 0."""
        return (int(n) & -int(n)).bit_length() - 1

else:
    from numba.cpython.unsafe.numbers import leading_zeros, trailing_zeros  # noqa: F401


def njit(**options: Any) -> Callable[[F], F]:
    """Return numba's decorator of the same name, with a persistent cache of compiled kernels."""

    def compiled(function: F) -> F:
        try:
            kernel: Any = numba.njit(**options)(function)
        except RuntimeError:  # numba found no folder for its cache
            _warn_unkept()
            kernel = numba.njit(**{**options, "cache": False})(function)
        else:
            if not config.DISABLE_JIT:
                _mark(kernel)
        if config.DISABLE_JIT:
            # hashes wrap around; elsewhere overflows are as silent as in compiled code
            kernel = np.errstate(over="ignore")(function)
        found: F = kernel
        return found

    return compiled


def cuda_jit(**options: Any) -> Callable[[F], Any]:
    """Return numba's decorator for kernels of a graphics card, which are kept compiled like all others."""
    from numba import cuda as untyped_cuda

    cuda: Any = untyped_cuda

    def compiled(function: F) -> Any:
        if config.ENABLE_CUDASIM or options.get("device"):
            return cuda.jit(**options)(function)
        try:
            kernel: Any = cuda.jit(cache=True, **options)(function)
        except RuntimeError:
            _warn_unkept()
            kernel = cuda.jit(**options)(function)
        else:
            _mark(kernel)
        return kernel

    return compiled


def skip_blas() -> None:
    """Make numba do without SciPy's linear algebra, which it loads for kernels that multiply matrices: ours do not.

    It takes 10 MB. For processes of our own only: another program may have such kernels.
    """
    algebra = "scipy.linalg"
    if algebra not in sys.modules:
        sys.modules[algebra] = None  # type: ignore[assignment]  # which is how Python notes that there is none
        try:
            import_module("numba.np.arraymath")  # looks for it once
        finally:
            del sys.modules[algebra]


def _mark(kernel: Any) -> None:
    """Mark a kernel's index with the state of all kernels, and use it even if it cannot be written."""
    index, save = kernel._cache._cache_file, kernel._cache.save_overload
    index._version = f"{index._version}, kernels {_STATE}"

    def save_if_possible(*what: Any) -> None:
        try:
            save(*what)
        except OSError:
            _warn_unkept()

    kernel._cache.save_overload = save_if_possible


@cache
def _warn_unkept() -> None:
    """Warn, once in a process, that compiled kernels are not kept."""
    warn_user(
        "silvan cannot keep its compiled code, so every process spends a minute or two to compile it: set "
        "NUMBA_CACHE_DIR to a folder that only you can write"
    )
