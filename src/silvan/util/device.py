"""The graphics card that trees grow on: whether there is one, and what to do when it fails.

Nothing of it is imported before it is asked for. The package ``numba-cuda`` comes with the extra ``gpu``.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import numpy as np

from silvan.errors import InputError
from silvan.util.user_warnings import warn_user

R = TypeVar("R")

DEVICES = ("auto", "cpu", "cuda")
"""Where trees may grow: on the processor, on a graphics card, or where it is faster."""

WORTHWHILE = 1 << 20
"""Minimum number of rows for which a graphics card is faster."""


class DeviceError(Exception):
    """The graphics card is missing, too small for a table, or has failed: the processor must go on."""


def check_device(device: object) -> None:
    """Raise ``InputError`` unless a device is one there can be."""
    if device not in DEVICES:
        raise InputError.wrong("device", f"one of {', '.join(DEVICES)}", device)


def is_simulated() -> bool:
    """Whether numba simulates a graphics card, as in tests."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


def cuda() -> Any:
    """Return numba's module for graphics cards; raise ``DeviceError`` if there is none that can be used."""
    problem = why_unusable()
    if problem is not None:
        raise DeviceError(problem)
    from numba import cuda as module

    return module


@cache
def why_unusable() -> str | None:
    """Return in words why no graphics card can be used; None if one can."""
    if not hasattr(np, "row_stack"):  # some releases of numba-cuda name it when they are imported
        np.row_stack = np.vstack  # noqa: NPY201
    try:
        from numba import cuda as untyped_module

        module: Any = untyped_module
        if is_simulated():
            return None
        if not module.is_available():
            return "there is no graphics card with a driver that can be used"
        module.current_context()
    except Exception as error:
        return f"the graphics card cannot be used ({type(error).__name__}); `silvan doctor` says more"
    return None


def describe_device() -> str:
    """Return the name and the memory of the graphics card; raise ``DeviceError`` if there is none."""
    module = cuda()
    if is_simulated():
        return "simulated"
    free, total = module.current_context().get_memory_info()
    name = module.get_current_device().name
    name = name.decode() if isinstance(name, bytes) else str(name)
    return f"{name}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free"


def free_bytes() -> int:
    """Return how much memory of the graphics card is free."""
    context = cuda().current_context()
    if is_simulated():
        return 1 << 40
    context.deallocations.clear()  # memory that nobody uses any more
    return int(context.get_memory_info()[0])


def on_device_or_not(device: str, n_rows: int, work: Callable[[bool], R]) -> R:
    """Do what the argument True does on a graphics card there, if that is wanted, and otherwise on the processor.

    The results are the same. If the graphics card fails, the user is warned and the processor begins anew.
    """
    if takes_device(device, n_rows):
        try:
            return work(True)
        except DeviceError as failure:
            warn_of(failure)
    return work(False)


def takes_device(device: str, n_rows: int) -> bool:
    """Whether a graphics card is to do what is about so many rows."""
    return device == "cuda" or (device == "auto" and n_rows >= WORTHWHILE and why_unusable() is None)


def warn_of(failure: DeviceError) -> None:
    """Warn that the processor goes on without the graphics card."""
    warn_user(f"{failure}; the processor grows the trees instead, which are the same")


@contextmanager
def failures_as_such() -> Iterator[None]:
    """Turn whatever goes wrong on the graphics card into a ``DeviceError``."""
    try:
        yield
    except (DeviceError, InputError):
        raise
    except Exception as error:
        text = str(error).lower()
        if "memory" in text and ("out" in text or "alloc" in text):
            raise DeviceError("the graphics card has too little free memory") from error
        raise DeviceError(f"the graphics card failed ({type(error).__name__})") from error
