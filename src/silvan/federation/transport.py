"""What a federation needs of whatever carries its messages: bytes to sites, and their answers back."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from silvan.federation.message import Verb
from silvan.federation.site import Site

Progress = Callable[[str, str, int, int], None]
"""Called with a site, what it is doing, how much is done, and of how much."""


class Transport(ABC):
    """Carries messages to sites; ``deliver`` is the one method that must be written."""

    local_sites: Mapping[str, Site] = MappingProxyType({})
    """The sites' own objects, where they live in this process."""

    progress: Progress | None = None
    """Where to report what sites are doing, if anybody wants to know."""

    @abstractmethod
    def deliver(
        self, messages: dict[str, bytes], verb: Verb, timeout: float | None
    ) -> Iterator[tuple[str, bytes | Exception]]:
        """Send each site its message; yield replies as they come, or what went wrong.

        A ``TimeoutError`` stands for a site that took more than ``timeout`` seconds; its text says for how long.
        """

    def explain(self, error: Exception) -> Exception:
        """Return an error with whatever is known here of its cause."""
        return error

    def now(self) -> float:
        """Return the time in seconds, by a clock that only goes on."""
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        """Wait before messages that did not arrive are sent again."""
        time.sleep(seconds)

    def close(self) -> None:  # noqa: B027, most have nothing to let go of
        """Let go of threads and connections."""
