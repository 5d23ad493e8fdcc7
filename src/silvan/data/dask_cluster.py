"""Connecting to a Dask cluster, and sending work to its workers.

Dask pickles what its processes exchange, and all of them belong to the site. Here they exchange functions of this
package by name, bytes, and arrays. Functions on workers depend only on their arguments, so that Dask may repeat them
elsewhere after a worker has died. Errors come back as values, because Dask would write the arguments of a failing
function, including rows, to the worker's log. Error messages may quote cells, so a worker logs only the code location.
"""

import logging
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from silvan import errors
from silvan.errors import FederationError, InputError, SilvanError

log = logging.getLogger("silvan.site")

_CONNECT_SECONDS = 10
_MESSAGE = 1 << 23  # bytes of one piece of a message; Dask warns about larger ones

_CLIENTS: dict[str, Any] = {}


@dataclass(frozen=True)
class Failure:
    """An error on a worker: the name of its class, and its text."""

    kind: str
    text: str

    def raised(self) -> Exception:
        """Return the error."""
        kind = getattr(errors, self.kind, None)
        return kind(self.text) if isinstance(kind, type) else RuntimeError(f"{self.kind}: {self.text}")


def on_worker(function: Callable[..., Any], *given: Any) -> Any:
    """Call a function on a worker and return errors, including those of its inputs, as values."""
    for one in (item for each in given for item in (each if isinstance(each, list) else [each])):
        if isinstance(one, Failure):
            return one
    try:
        return function(*given)
    except SilvanError as error:
        return Failure(type(error).__name__, str(error))
    except Exception as error:
        where = "".join(traceback.format_tb(error.__traceback__))
        log.error("a worker failed on a partition: %s\n%s", type(error).__name__, where)
        return Failure(type(error).__name__, str(error))


def same(value: Any) -> Any:
    """Return the value; on workers, Dask holds it and recomputes it if one of them dies."""
    return value


def installed_version() -> str:
    """Return the version of this package on the machine that runs this."""
    return version("silvan")


class Cluster:
    """The workers of a Dask cluster, which read files or hold data frames."""

    def __init__(self, address: str | None) -> None:
        self.client = _connect(address)
        self._check_workers(address)

    def _check_workers(self, address: str | None) -> None:
        """Raise ``InputError`` if there are no workers, or they run another version of this package."""
        where = "the Dask cluster" if address is None else f"the Dask cluster at {address!r}"
        try:
            self.client.wait_for_workers(1, timeout=_CONNECT_SECONDS)
        except TimeoutError:
            raise InputError(f"{where} has no workers; start some") from None
        try:
            versions = set(self.client.run(installed_version).values())
        except ModuleNotFoundError:
            raise InputError(f"the workers of {where} lack silvan; install it there, in the same version") from None
        if versions != {installed_version()}:
            raise InputError(
                f"the workers of {where} have silvan {', '.join(sorted(versions))}, and the site "
                f"{installed_version()}: install the same version on all of them"
            )

    def hold(self, frame: Any) -> list[Any]:
        """Let the workers hold the partitions of a Dask data frame, in order."""
        futures: list[Any] = self.client.compute(frame.to_delayed())
        return futures

    def submit(self, function: Callable[..., Any], *given: Any) -> Any:
        """Let a worker call a function; return a future for the result, which other calls may use."""
        return self.client.submit(on_worker, function, *given, pure=False)

    def send(self, data: bytes) -> list[Any]:
        """Send bytes to the workers; return futures of their pieces."""
        return [
            self.client.submit(same, data[start : start + _MESSAGE], pure=False)
            for start in range(0, max(len(data), 1), _MESSAGE)
        ]

    @property
    def threads(self) -> int:
        """Number of threads of all workers."""
        return sum(self.client.nthreads().values())

    def collect(self, futures: Sequence[Any]) -> list[Any]:
        """Return the results; raise the first error, in the order of the calls."""
        from distributed import KilledWorker

        try:
            results: list[Any] = self.client.gather(list(futures))
        except KilledWorker:
            raise FederationError(
                "the Dask workers died one after the other on the same partition: give them more memory, or use "
                "smaller partitions"
            ) from None
        except (OSError, CancelledError):
            raise FederationError(
                "the Dask cluster no longer answers; its scheduler may have stopped: restart it, then the study"
            ) from None
        for one in results:
            if isinstance(one, Failure):
                raise one.raised()
        return results

    def in_turn(self, function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Yield the results of a function in the order of its arguments, computing only a few ahead."""
        waiting: list[Any] = []
        ahead = self.threads + 1
        for given in arguments:
            waiting.append(self.submit(function, *given))
            if len(waiting) > ahead:
                yield from self.collect([waiting.pop(0)])
        while waiting:
            yield from self.collect([waiting.pop(0)])


def _connect(address: str | None) -> Any:
    """Return the client of a cluster; clients of the same address are shared."""
    try:
        import distributed
    except ImportError:
        raise InputError("a table in partitions needs Dask: pip install 'silvan[dask]'") from None
    if address is None:
        try:
            return distributed.get_client()
        except ValueError:
            raise InputError(
                "there is no Dask cluster for the table's partitions: create a distributed.Client first, or name the "
                "address of a scheduler, sv.Partitions(files, cluster='tcp://host:8786')"
            ) from None
    client = _CLIENTS.get(address)
    if client is None or client.status != "running":
        try:
            client = distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)  # type: ignore[no-untyped-call]
        except (OSError, ValueError):
            raise InputError(
                f"no Dask cluster answers at {address!r}; check the address, and that its scheduler runs"
            ) from None
        _CLIENTS[address] = client
    return client
