"""The engine in one process: sites are objects, messages are bytes all the same.

``cold`` rebuilds a site from its table and its store for every message, as if its process had been restarted: whatever
an algorithm needs must be in the request, the table or the store.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from typing import Any

from silvan.errors import InputError, SiteError
from silvan.federation.federation import Federation, Sums
from silvan.federation.message import Verb
from silvan.federation.site import Site


class LocalFederation(Federation):
    """A federation whose sites live in this process."""

    def __init__(self, members: dict[str, Site], sums: Sums, *, cold: bool = False, **settings: Any) -> None:
        super().__init__(members, sums, **settings)
        self.members, self.cold = members, cold

    def deliver(self, messages: dict[str, bytes], verb: Verb) -> Iterator[tuple[str, bytes | Exception]]:
        """Let each site answer in turn; with a timeout, on a thread that is left behind if it is late."""
        for site, data in messages.items():
            if self.timeout is None:
                yield site, self._answer(site, data, verb)
                continue
            pool = ThreadPoolExecutor(1, thread_name_prefix=f"silvan-{site}")
            try:
                yield site, pool.submit(self._answer, site, data, verb).result(self.timeout)
            except Late:
                yield site, SiteError(site, f"did not answer within {self.timeout:g} s")
            finally:
                pool.shutdown(wait=False)

    def _answer(self, site: str, data: bytes, verb: Verb) -> bytes:
        member = self.members[site]
        if self.cold:
            member = self.members[site] = member.rebuilt()
        return member.receive(data, verb)

    def explain(self, error: Exception) -> Exception:
        """Chain what went wrong at the site to the error: its owner sits at this very keyboard."""
        if isinstance(error, SiteError) and error.site in self.members:
            error.__cause__ = self.members[error.site].last_error
        return error

    def site(self, name: str) -> Site:
        """Give a site's own object: for baselines that may see its rows, in one process only."""
        if name not in self.members:
            raise InputError(f"there is no site {name!r}; the sites are {', '.join(self.members)}")
        return self.members[name]

