"""A site whose values can be searched for in its messages, and a way to send it requests."""

import msgspec
import numpy as np
import polars as pl

from silvan.data.schema import Feature, Label, Schema
from silvan.federation import wire
from silvan.federation.message import Blob, Envelope, Trouble
from silvan.federation.site import Site
from silvan.federation.store import digest

SECRET, NUMBER = "Zyzzyva", 86753.0625
MARKS = [SECRET.encode(), str(NUMBER).encode(), np.float64(NUMBER).tobytes(), np.float32(NUMBER).tobytes()]
SCHEMA = Schema.of(["age", Feature("name", "categorical", categories=("x",))], Label("label", ("no", "yes")))


def frame(n=40):
    """A table whose values can be searched for; the column of numbers and the rare name must never be disclosed."""
    rng = np.random.default_rng(0)
    ages = rng.normal(50, 10, n)
    ages[3] = NUMBER
    names = ["x", "y"] * (n // 2)
    names[3] = SECRET
    return pl.DataFrame({"age": ages, "name": names, "label": rng.choice(["no", "yes"], n)})


def site(source=None, **settings):
    return Site("here", frame() if source is None else source, n_jobs=1, **settings)


def send(site, request, verb=None, blobs=(), **fields):
    """Sends a request to a site; returns the envelope of its reply. Blobs are named by their hash by default."""
    named = blobs if isinstance(blobs, dict) else {digest(b): b for b in blobs}
    body = wire.encode(request)
    envelope = Envelope("study", digest(body), "", type(request).__name__, body, named)
    data = site.receive(wire.encode(msgspec.structs.replace(envelope, **fields)), verb or request.verb)
    return wire.decode(data, Envelope)


def trouble(envelope):
    assert envelope.kind == "Trouble"
    return wire.decode(envelope.body, Trouble)


def schema_blob(schema=SCHEMA):
    data = schema.to_json().encode()
    return Blob(digest(data)), data
