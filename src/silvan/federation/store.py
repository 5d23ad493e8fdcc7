"""What a site remembers for good: secrets, blobs named by their hash, replies that must not be drawn twice.

Everything else a site holds in memory is a cache: it makes an answer faster, never different.
"""

import hashlib
from typing import Protocol


class Store(Protocol):
    """A small durable map; ``MemoryStore`` for tests and federations in one process."""

    def get(self, key: str) -> bytes | None:
        """Give what was put, or None."""

    def put(self, key: str, value: bytes) -> None:
        """Keep a value for good."""


class MemoryStore:
    """A store that lives as long as the process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        """Give what was put, or None."""
        return self._values.get(key)

    def put(self, key: str, value: bytes) -> None:
        """Keep a value."""
        self._values[key] = value


def digest(data: bytes) -> str:
    """Name bytes by their SHA-256."""
    return hashlib.sha256(data).hexdigest()
