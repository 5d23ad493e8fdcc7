"""The engine in one process: sites are objects, messages are bytes all the same.

``cold`` rebuilds a site from its table and its store for every message, as if its process had been restarted:
whatever an algorithm needs must be in the request, the table or the store.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from silvan.data.schema import Schema
from silvan.errors import InputError, SiteError
from silvan.federation.federation import Federation, Sums
from silvan.federation.message import Verb
from silvan.federation.question import Event
from silvan.federation.site import Part, Site

_SETTLED = ("schema", "differences", "rows", "columns")
"""What sites are asked for before anything is learnt."""


class LocalFederation(Federation):
    """A federation whose sites live in this process."""

    def __init__(self, members: dict[str, Site], sums: Sums, *, cold: bool = False, **settings: Any) -> None:
        super().__init__(members, sums, **settings)
        self.members, self.cold = members, cold
        self._agree_later: Callable[[], None] | None = None

    def agree_later(self, settle: Callable[[], None]) -> None:
        """Have sites asked for what a study begins with when it is first needed, not before: owners approve first."""
        self._agree_later = settle

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Find out what a study begins with."""
            settle = self.__dict__.get("_agree_later")
            if settle is None or name not in _SETTLED:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            self._agree_later = None
            try:
                settle()
            except BaseException:
                self._agree_later = settle
                raise
            return getattr(self, name)

    def deliver(self, messages: dict[str, bytes], verb: Verb) -> Iterator[tuple[str, bytes | Exception]]:
        """Let each site answer in turn."""
        for site, data in messages.items():
            if self.timeout is None:
                yield site, self._answer(site, data, verb)
            else:
                yield site, self._answer_in_time(site, data, verb, self.timeout)

    def _answer(self, site: str, data: bytes, verb: Verb) -> bytes:
        member = self.members[site]
        if self.cold:
            member = self.members[site] = member.rebuilt()
        member.watcher = partial(self._progress, site)
        return member.receive(data, verb)

    def _progress(self, site: str, what: str, done: int, total: int) -> None:
        self._tell(Event("progress", what, self.rounds, site, done=done, total=total))

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
        """Chain what went wrong at the site to the error: its owner sits at this very keyboard."""
        if isinstance(error, SiteError) and error.site in self.members:
            error.__cause__ = self.members[error.site].last_error
        return error

    @property
    def limited(self) -> bool:
        """Whether a site may not have all of its rows in memory."""
        return any(member.memory is not None for member in self.members.values())

    # -- baselines, which may see everything

    def pooled(self, schema: Schema) -> tuple[Part, np.ndarray]:
        """Give all training rows in one place, and the key of their draws."""
        parts = [self.site(name).part(schema) for name in self.active]
        rows = Part(*(np.concatenate([getattr(p, f) for p in parts]) for f in ("X", "y", "row_keys")))
        return rows, self.site(self.active[0]).sampling_key

    @property
    def alone_at(self) -> list[str]:
        """The sites that can learn something alone."""
        return self.active

    def alone(self, name: str, schema: Schema) -> tuple[Site, Schema]:
        """Give what a site can learn from alone, and by which schema."""
        return self.site(name), schema

    def site(self, name: str) -> Site:
        """Give a site's own object: for baselines that may see its rows, in one process only."""
        if name not in self.members:
            raise InputError(f"there is no site {name!r}; the sites are {', '.join(self.members)}")
        return self.members[name]
