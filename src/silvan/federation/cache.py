"""What a site keeps in memory between messages. It makes an answer faster, never different."""

from collections.abc import Callable, Hashable
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")


class CacheKey(tuple[Hashable, ...], Generic[T]):
    """Names something of type T: a word for its kind, and everything it was made from.

    Only the latest of a kind stay, ``most`` of them: two are enough for one study.
    """

    most: int

    def __new__(cls, kind: str, *made_from: Hashable, most: int = 2) -> Self:  # noqa: D102
        key = super().__new__(cls, (kind, *made_from))
        key.most = most
        return key


class Cache(dict[CacheKey[Any], Any]):
    """Things by key."""

    def __setitem__(self, key: CacheKey[T], value: T) -> None:
        super().__setitem__(key, value)
        alike = [other for other in list(self) if other[0] == key[0]]  # of a copy: another thread may be at work
        for old in alike[: -key.most]:
            self.pop(old, None)

    def once(self, key: CacheKey[T], make: Callable[[], T], fits: Callable[[T], bool] | None = None) -> T:
        """Return a key's value; create it if it is missing or does not fit."""
        value: T = self.get(key, _ABSENT)
        if value is _ABSENT or not (fits is None or fits(value)):
            value = self[key] = make()
        return value


_ABSENT: Any = object()
