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
    """A store that lives as long as the process.

    The oldest blobs make room when there are too many: a site that lacks one asks for it.
    """

    def __init__(self, room: int = 1 << 28) -> None:
        self._values: dict[str, bytes] = {}
        self._room = room

    def get(self, key: str) -> bytes | None:
        """Give what was put, or None."""
        return self._values.get(key)

    def put(self, key: str, value: bytes) -> None:
        """Keep a value."""
        self._values.pop(key, None)
        blobs = {k: len(v) for k, v in self._values.items() if k.startswith("blob ")}
        size = sum(blobs.values()) + len(value)
        for old in blobs if key.startswith("blob ") else ():
            if size <= self._room:
                break
            size -= len(self._values.pop(old))
        self._values[key] = value


def digest(data: bytes) -> str:
    """Name bytes by their SHA-256."""
    return hashlib.sha256(data).hexdigest()
