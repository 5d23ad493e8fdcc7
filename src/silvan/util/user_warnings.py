"""Warnings that point at the user's own line, however deep inside the package they arise."""

import sys
import warnings
from pathlib import Path

_PACKAGE = str(Path(__file__).parents[1])


def warn_user(text: str) -> None:
    """Warn as if from the first caller outside this package."""
    frame, level = sys._getframe(1), 2  # the level of the caller of this function
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)
