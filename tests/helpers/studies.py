"""Small studies, and recorded, disturbed or stopped federations."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import polars as pl

import silvan as sv
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.message import Envelope
from silvan.federation.transport import InProcess

TASKS = ("binary", "several", "number")


def table(task: str = "binary", n: int = 240, seed: int = 0) -> pl.DataFrame:
    """Numbers, integers and text, with missing values, rare categories and a label that depends on them."""
    rng = np.random.default_rng(seed)
    age = rng.normal(50, 12, n)
    dose = rng.integers(1, 6, n)
    sex = rng.choice(["f", "m"], n)
    ward = rng.choice(["a", "b", "c", "rare", "very rare"], n, p=[0.5, 0.3, 0.14, 0.04, 0.02])
    signal = age / 10 + dose * (ward == "a") + 2 * (sex == "f") + rng.normal(size=n)
    labels = {
        "binary": np.where(signal > np.quantile(signal, 0.6), "yes", "no"),
        "several": np.array(["low", "middle", "high", "top"])[np.searchsorted([6, 8, 10], signal)],
        "number": np.round(1000 + 7 * signal, 3),
    }

    def gaps(values: np.ndarray, share: float) -> list:
        return [None if lost else value for value, lost in zip(values.tolist(), rng.random(n) < share, strict=True)]

    columns = {"age": gaps(age, 0.1), "dose": dose, "sex": sex, "ward": gaps(ward, 0.1), "noise": rng.normal(20, 5, n)}
    return pl.DataFrame({**columns, "label": labels[task]}, strict=False)


def parts(frame: pl.DataFrame, n_sites: int, seed: int = 0) -> dict[str, pl.DataFrame]:
    """Distributes the rows; every site gets at least one."""
    rng = np.random.default_rng(seed)
    site = rng.permutation(np.concatenate([np.arange(n_sites), rng.integers(0, n_sites, len(frame) - n_sites)]))
    return {f"site {i}": frame.filter(pl.Series(site == i)) for i in range(n_sites)}


def federate(tables: object, kind: type[InProcess] = InProcess, **settings: object) -> Federation:
    """Makes a federation with another transport."""
    return sv.federate_rows(tables, transport=kind, **{"n_jobs": 1, **settings})


class Reversed(InProcess):
    """The last site's reply arrives first."""

    def deliver(
        self, messages: dict[str, bytes], verb: str, timeout: float | None
    ) -> Iterator[tuple[str, bytes | Exception]]:
        yield from reversed(list(super().deliver(messages, verb, timeout)))


class Shuffled(InProcess):
    """Replies arrive in any order, some twice."""

    def deliver(
        self, messages: dict[str, bytes], verb: str, timeout: float | None
    ) -> Iterator[tuple[str, bytes | Exception]]:
        replies = list(super().deliver(messages, verb, timeout)) * 2
        for i in np.random.default_rng(len(messages)).permutation(len(replies)):
            yield replies[i]


class Recorded(InProcess):
    """Keeps all messages, as (site, "received" or "sent", bytes) from the site's view."""

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **settings)
        self.record: list[tuple[str, str, bytes]] = []

    def deliver(
        self, messages: dict[str, bytes], verb: str, timeout: float | None
    ) -> Iterator[tuple[str, bytes | Exception]]:
        self.record += [(site, "received", data) for site, data in messages.items()]
        for site, data in super().deliver(messages, verb, timeout):
            self.record.append((site, "sent", data))
            yield site, data

    def sent(self) -> bytes:
        return b"\0".join(data for _, way, data in self.record if way == "sent")


def envelopes(fed: Federation, way: str, site: str | None = None) -> list[Envelope]:
    """Messages that sites have "received" or "sent", opened; of one site, if it is named."""
    return [wire.decode(d, Envelope) for s, w, d in fed.transport.record if w == way and site in (None, s)]


def assert_books(fed: Federation) -> None:
    """Every byte that was delivered is counted, once."""
    for way in ("sent", "received"):
        for site in fed.sites:
            moved = sum(len(d) for s, w, d in fed.transport.record if (s, w) == (site, way))
            assert fed.bytes[site][way] == moved
            assert sum(n for (s, w, _), n in fed.traffic.items() if (s, w) == (site, way)) == moved


class Stop(Exception):  # noqa: N818
    """The coordinator is killed here."""


Twist = Callable[[str, bytes], Iterable[tuple[str, bytes | Exception]]]


def disturbed(twist: Twist) -> type[InProcess]:
    """Makes a kind of federation in which arriving messages differ from the sent ones."""

    class Disturbed(InProcess):
        def deliver(
            self, messages: dict[str, bytes], verb: str, timeout: float | None
        ) -> Iterator[tuple[str, bytes | Exception]]:
            for site, data in super().deliver(messages, verb, timeout):
                yield from twist(site, data)

    return Disturbed


def twice(site: str, data: bytes) -> list[tuple[str, bytes]]:
    """Every reply arrives twice, with nonsense and unknown senders."""
    return [(site, data), (site, data), (site, b"\xc1"), ("nobody", data)]


class Late(InProcess):
    """Before its own replies, every request gets those to the previous request."""

    before: Iterable[tuple[str, bytes | Exception]] = ()

    def deliver(
        self, messages: dict[str, bytes], verb: str, timeout: float | None
    ) -> Iterator[tuple[str, bytes | Exception]]:
        answers = list(super().deliver(messages, verb, timeout))
        yield from self.before
        yield from answers
        self.before = answers


def stopping(after: int) -> type[Recorded]:
    """Makes a kind of federation whose coordinator is killed after this many replies."""

    class Stopping(Recorded):
        count = 0

        def deliver(
            self, messages: dict[str, bytes], verb: str, timeout: float | None
        ) -> Iterator[tuple[str, bytes | Exception]]:
            for site, data in super().deliver(messages, verb, timeout):
                yield site, data
                self.count += 1
                if self.count == after:
                    raise Stop

    return Stopping


def from_reply(number: int, do: Twist) -> Twist:
    """Lets everything pass until this many replies have arrived, then does something else."""
    seen = [0]

    def twist(site: str, data: bytes) -> Iterable[tuple[str, bytes | Exception]]:
        seen[0] += 1
        return do(site, data) if seen[0] > number else [(site, data)]

    return twist
