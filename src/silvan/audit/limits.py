"""How much of each attack's success a site puts up with: defaults, and a TOML file that changes them."""

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from silvan.errors import InputError

DEFAULTS: dict[str, float] = {
    "membership": 0.60,
    "support": 0.60,
    "attribute": 0.10,
    "lonely": 0.0,
    "thresholds": 0.10,
    "ranges": 0.25,
    "reconstruction": 0.25,
    "assignment": 0.0,
    "differencing": 0.0,
    "labels": 0.75,
    "backdoor": 0.10,
}
"""The largest figure that is still held; docs/audit.md says what each figure is and why these."""


def make_limits(given: Mapping[str, Any] | None = None) -> dict[str, float]:
    """Put what a site sets over the defaults."""
    limits = dict(DEFAULTS)
    for name, value in (given or {}).items():
        if name not in DEFAULTS:
            close = get_close_matches(str(name), DEFAULTS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(DEFAULTS)}"
            raise InputError(f"there is no attack {name!r} to set a limit for; {hint}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
            raise InputError(f"the limit of {name} must be a number from 0 to 1, got {value!r}")
        limits[name] = float(value)
    return limits


def read_limits(path: Path) -> dict[str, float]:
    """Read the section ``[limits]`` of a TOML file."""
    try:
        data = tomllib.loads(path.read_bytes().decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None
    if set(data) - {"limits"} or not isinstance(data.get("limits", {}), dict):
        raise InputError(f"{path}: it must hold one section, [limits], with a number for each attack that it names")
    try:
        return make_limits(data.get("limits", {}))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
