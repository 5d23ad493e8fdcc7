"""Studies by columns: tables about the same rows, and recorded or disturbed federations of them."""

from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import polars as pl
from helpers import studies

import silvan as sv
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.message import Envelope, Request
from silvan.federation.site import Site
from silvan.federation.transport import InProcess

ID = "person"
MATCHING = ["DealKey", "TakeKey", "Introduce", "HideIds", "HideTwice", "Intersect", "DescribeColumns"]
"""Messages that match rows and describe columns."""

SMALL = {"n_estimators": 5, "max_depth": 4}


def wide(task: str = "binary", n: int = 240, seed: int = 0) -> pl.DataFrame:
    """A table of nine columns, numbers and text, with missing values, and an id."""
    rng = np.random.default_rng(seed + 100)
    frame = studies.table(task, n, seed)
    more = {
        "height": frame["age"] * 0.5 + rng.normal(150, 4, n),
        "storey": rng.integers(0, 3, n),
        "colour": rng.choice(["red", "green", "blue"], n),
        "pounds": [None if x < 55 else float(x) for x in rng.normal(70, 10, n)],
    }
    more[ID] = rng.permutation(10 * n)[:n]
    return frame.with_columns(**{name: pl.Series(values) for name, values in more.items()})


def split(frame: pl.DataFrame, n_parties: int, holder: int = 0, seed: int = 0) -> dict[str, pl.DataFrame]:
    """Distributes the columns; every party's rows are in another order."""
    names = [name for name in frame.columns if name not in (ID, "label")]
    tables = {}
    for k in range(n_parties):
        own = [*names[k::n_parties], *(["label"] if k == holder else [])]
        tables[f"party {k}"] = frame.select(ID, *own).sample(fraction=1.0, shuffle=True, seed=seed + k)
    return tables


def federate(tables: object, kind: type[InProcess] = InProcess, **settings: object) -> Federation:
    """Makes a federation with another transport.

    If nobody records and nothing fails, ids are matched in the faster way.
    """
    quick = {"match": "keyed"} if kind is InProcess and not {"cold", "journal"} & settings.keys() else {}
    return sv.federate_columns(tables, transport=kind, **{"id": ID, "label": "label", "n_jobs": 1, **quick, **settings})


class Recorded(InProcess):
    """Keeps all envelopes, as (site, "received" or "sent", envelope) from the party's view."""

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **settings)
        self.record: list[tuple[str, str, Envelope]] = []
        self.data: list[bytes] = []

    def deliver(
        self, messages: dict[str, bytes], verb: str, timeout: float | None
    ) -> Iterator[tuple[str, bytes | Exception]]:
        self.record += [(site, "received", wire.decode(data, Envelope)) for site, data in messages.items()]
        self.data += messages.values()
        for site, data in super().deliver(messages, verb, timeout):
            self.record.append((site, "sent", wire.decode(data, Envelope)))
            self.data.append(data)
            yield site, data


def task_of(fed: Federation, kind: type = Request) -> str:
    """Returns the task of the last message, or of the last of a kind: labels are signed for one."""
    sent = [envelope for _, way, envelope in fed.transport.record if way == "received" and envelope.task]
    return [envelope.task for envelope in sent if kind is Request or envelope.kind == kind.__name__][-1]


def lying(liar: str, kind: type, **changes: object) -> type[InProcess]:
    """Makes a kind of federation in which one party's replies of a kind are changed on their way, field by field."""

    class Lying(InProcess):
        def deliver(
            self, messages: dict[str, bytes], verb: str, timeout: float | None
        ) -> Iterator[tuple[str, bytes | Exception]]:
            for site, data in super().deliver(messages, verb, timeout):
                envelope = wire.decode(data, Envelope)
                if site == liar and envelope.kind == kind.__name__:
                    reply = wire.decode(envelope.body, kind)
                    fields = {name: change(getattr(reply, name)) for name, change in changes.items()}
                    body = wire.encode(msgspec.structs.replace(reply, **fields))
                    data = wire.encode(msgspec.structs.replace(envelope, body=body))
                yield site, data

    return Lying


def answering(site: Site, kind: type, **changes: Callable[[object], object]) -> None:
    """Makes a site compute changed replies of a kind, field by field, and sign them."""
    work = site.work

    def changed(handler: Callable[[object, object], object], request: Request) -> object:
        reply = work(handler, request)
        if not isinstance(reply, kind):
            return reply
        return msgspec.structs.replace(
            reply, **{name: change(getattr(reply, name)) for name, change in changes.items()}
        )

    site.work = changed


def mirrored(bits: np.ndarray) -> np.ndarray:
    """The same number of rows goes left at every node, but other rows: in mixed bytes the bits are reversed."""
    flipped = np.packbits(np.unpackbits(bits).reshape(-1, 8)[:, ::-1]).copy()
    return np.where((bits > 0) & (bits < 255) & (np.arange(len(bits)) < len(bits) // 3), flipped, bits)


def asking(fed: Federation, kind: type, change: Callable[[Federation, Request], Request]) -> Federation:
    """Makes a federation send a changed request of one kind."""
    ask, total = fed.ask, fed.total

    def changed(request: object) -> object:
        if isinstance(request, dict):
            return {site: changed(r) for site, r in request.items()}
        return change(fed, request) if isinstance(request, kind) else request

    fed.ask = lambda request, *args, **more: ask(changed(request), *args, **more)
    fed.total = lambda request, *args, **more: total(changed(request), *args, **more)
    return fed
