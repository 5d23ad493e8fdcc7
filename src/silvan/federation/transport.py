"""What a federation needs of whatever carries its messages: bytes to sites, and their answers back."""

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType

from silvan.errors import SilvanError, SiteError
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


class InProcess(Transport):
    """Hands messages to sites that live in this process."""

    def __init__(self, sites: dict[str, Site], *, cold: bool = False) -> None:
        self.local_sites: dict[str, Site] = sites
        self.cold = cold

    def deliver(
        self, messages: dict[str, bytes], verb: Verb, timeout: float | None
    ) -> Iterator[tuple[str, bytes | Exception]]:
        """Let each site answer in turn."""
        for site, data in messages.items():
            if timeout is None:
                yield site, self._answer(site, data, verb)
            else:
                yield site, self._answer_in_time(site, data, verb, timeout)

    def _answer(self, name: str, data: bytes, verb: Verb) -> bytes:
        site = self.local_sites[name]
        if self.cold:
            site = self.local_sites[name] = site.rebuilt()
        site.watcher = None if self.progress is None else partial(self.progress, name)
        return site.receive(data, verb)

    def _answer_in_time(self, site: str, data: bytes, verb: Verb, seconds: float) -> bytes | Exception:
        answer: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        # a thread that is left behind if it is late, and does not keep the program from ending
        threading.Thread(
            target=lambda: answer.put(self._answer(site, data, verb)), name=f"silvan-{site}", daemon=True
        ).start()
        try:
            return answer.get(timeout=seconds)
        except queue.Empty:
            return TimeoutError(f"within {seconds:g} s")

    def explain(self, error: Exception) -> Exception:
        """Return the error with the reason: the site's owner sits at this very keyboard, and there is no log."""
        if not isinstance(error, SiteError) or error.site not in self.local_sites:
            return error
        cause = self.local_sites[error.site].last_error
        if cause is not None and error.owner_hint:
            known = isinstance(cause, SilvanError | OSError)
            why = str(cause) if known else f"a mistake in silvan: {type(cause).__name__}: {cause}"
            error = SiteError(error.site, f"{error.text}: {why}", code=error.code)
        error.__cause__ = cause
        return error
