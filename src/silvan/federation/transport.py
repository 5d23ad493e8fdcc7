"""Transports carry messages to sites and bring their replies back: the interface, and the transport in one process."""

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
"""Called with a site, its activity, the amount done, and the total."""


class Transport(ABC):
    """Carries messages to sites; subclasses implement ``deliver``."""

    local_sites: Mapping[str, Site] = MappingProxyType({})
    """The site objects, if they live in this process."""

    progress: Progress | None = None
    """Callback for the progress of sites, if anybody listens."""

    @abstractmethod
    def deliver(
        self, messages: dict[str, bytes], verb: Verb, timeout: float | None
    ) -> Iterator[tuple[str, bytes | Exception]]:
        """Send each site its message; yield replies or errors as they arrive.

        A ``TimeoutError`` stands for a site that took more than ``timeout`` seconds; its text says how long.
        """

    def explain(self, error: Exception) -> Exception:
        """Return an error with what is known here about its cause."""
        return error

    def now(self) -> float:
        """Return the time in seconds, by a monotonic clock."""
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        """Wait before lost messages are sent again."""
        time.sleep(seconds)

    def close(self) -> None:  # noqa: B027, most transports hold nothing
        """Release threads and connections."""


class InProcess(Transport):
    """Hands messages to sites in this process, as bytes.

    ``cold`` rebuilds a site from its table and its store for every message, as if its process had been restarted: all
    that an algorithm needs must be in the request, the table or the store.
    """

    def __init__(self, sites: dict[str, Site], *, cold: bool = False) -> None:
        self.local_sites: dict[str, Site] = sites
        self.cold = cold

    def deliver(
        self, messages: dict[str, bytes], verb: Verb, timeout: float | None
    ) -> Iterator[tuple[str, bytes | Exception]]:
        """Let each site reply in turn."""
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
        # a daemon thread: one that is late is left behind, and does not keep the program from ending
        threading.Thread(
            target=lambda: answer.put(self._answer(site, data, verb)), name=f"silvan-{site}", daemon=True
        ).start()
        try:
            return answer.get(timeout=seconds)
        except queue.Empty:
            return TimeoutError(f"within {seconds:g} s")

    def explain(self, error: Exception) -> Exception:
        """Return the error with its cause: here the site's owner is the user, and there is no log."""
        if not isinstance(error, SiteError) or error.site not in self.local_sites:
            return error
        cause = self.local_sites[error.site].last_error
        if cause is not None and error.owner_hint:
            known = isinstance(cause, SilvanError | OSError)
            why = str(cause) if known else f"a bug in silvan: {type(cause).__name__}: {cause}"
            error = SiteError(error.site, f"{error.text}: {why}", code=error.code)
        error.__cause__ = cause
        return error
