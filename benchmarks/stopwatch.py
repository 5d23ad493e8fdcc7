"""Where the time of a fit in one process goes."""

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.message import Envelope


class Stopwatch:
    """Splits the sites' time by kind of message; the rest is the coordinator's."""

    def __init__(self, fed: Federation) -> None:
        self.seconds: Counter[str] = Counter()
        deliver = fed.transport.deliver

        def timed(messages: Any, verb: Any, timeout: float | None) -> Iterator[Any]:
            kind = wire.decode(next(iter(messages.values())), Envelope).kind
            replies = deliver(messages, verb, timeout)
            while True:
                start = time.perf_counter()
                try:
                    item = next(replies)
                except StopIteration:
                    return
                finally:
                    self.seconds[kind] += time.perf_counter() - start
                yield item

        fed.transport.deliver = timed  # type: ignore[method-assign]
