"""What a site remembers for good: secrets, blobs named by their hash, replies that must not be drawn twice.

Everything else a site holds in memory is a cache: it makes an answer faster, never different.
"""

import hashlib
from typing import Protocol

CONDUCT = "conduct"
"""How keys begin of what a site holds a coordinator to."""

SHARE = "share "
"""How keys begin of a party's shares of models."""


class Store(Protocol):
    """A small durable map; ``MemoryStore`` for tests and federations in one process."""

    def get(self, key: str) -> bytes | None:
        """Give what was put, or None."""

    def put(self, key: str, value: bytes) -> None:
        """Keep a value for good."""

    def put_all(self, values: dict[str, bytes]) -> None:
        """Keep several values, all or none."""


class MemoryStore:
    """A store that lives as long as the process.

    The oldest blobs make room when there are too many: a site that lacks one asks for it.
    """

    def __init__(self, room: int = 1 << 28) -> None:
        self._values: dict[str, bytes] = {}
        self._blobs: dict[str, int] = {}  # their sizes, the oldest first
        self._room = room

    def get(self, key: str) -> bytes | None:
        """Give what was put, or None."""
        return self._values.get(key)

    def put(self, key: str, value: bytes) -> None:
        """Keep a value."""
        if key.startswith("blob "):
            self._blobs.pop(key, None)
            while self._blobs and sum(self._blobs.values()) + len(value) > self._room:
                oldest = next(iter(self._blobs))
                del self._blobs[oldest], self._values[oldest]
            self._blobs[key] = len(value)
        self._values[key] = value

    def put_all(self, values: dict[str, bytes]) -> None:
        """Keep several values."""
        for key, value in values.items():
            self.put(key, value)


def digest(data: bytes) -> str:
    """Name bytes by their SHA-256."""
    return hashlib.sha256(data).hexdigest()
