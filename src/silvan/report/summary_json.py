"""The summary of a run as JSON, for programs."""

from typing import Any

import msgspec


def summary_json(summary: dict[str, Any]) -> str:
    """Return what the page shows as JSON, ending with a newline."""
    return msgspec.json.format(msgspec.json.encode(summary), indent=1).decode() + "\n"
