"""Shared by the tests of boosting: tables with exact bins, sites that lie, AdaBoost in plain code."""

import msgspec
import numpy as np
import polars as pl
from helpers.studies import disturbed, parts, table

from silvan.algorithms.boosting.stumps import StumpTable
from silvan.data.bins.bins import find_bins
from silvan.federation import wire
from silvan.federation.message import Envelope


def few_values(n=400, seed=0):
    """Integers, few enough for one bin each, and two classes that depend on them."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.integers(0, k, n) for k in (7, 20, 31, 13)]).astype(float)
    signal = X @ [0.3, 0.1, -0.08, 0.2] + rng.normal(0, 1.2, n)
    return X, (signal > np.median(signal)).astype(int)


def uneven():
    """Three sites of different sizes, with missing values and categories."""
    frame = table(n=420)
    return {"large": frame[:240], "middle": frame[240:360], "small": frame[360:]}


def with_one_class():
    """Three sites, the last with one class only."""
    frame = table(n=400)
    return {**parts(frame[:300], 2), "only yes": frame[300:].filter(pl.col("label") == "yes")}


def rows_of(fed, site, floor=10):
    """A site's training rows: encoded, labels, and ready for stumps."""
    part = fed.site(site).part(fed.schema)
    bins, codes = find_bins(part.X, fed.schema, 64, 1, floor)
    return part.X, part.y, StumpTable(codes, bins, part.y.astype(np.int64))


def lying(kind, reply, change, site="middle", after=0):
    """A federation in which one site's replies of a kind are changed, after a given number of replies."""
    seen = [0]

    def twist(sender, data):
        envelope = wire.decode(data, Envelope)
        if envelope.kind == kind and sender == site:
            seen[0] += 1
            if seen[0] > after:
                body = wire.encode(change(wire.decode(envelope.body, reply)))
                data = wire.encode(msgspec.structs.replace(envelope, body=body))
        return [(sender, data)]

    return disturbed(twist)


def changed(stumps, **fields):
    """Stumps on other columns, each made from the old one."""
    return msgspec.structs.replace(stumps, **{name: make(getattr(stumps, name)) for name, make in fields.items()})


def put(at, value):
    """A copy of a column with one entry changed."""

    def make(column):
        column = column.copy()
        column[at] = value
        return column

    return make


WRONG_STUMPS = {
    "a weight that is no number": {"weight": put(0, np.nan)},
    "a weight without end": {"weight": put(-1, np.inf)},
    "a negative weight": {"weight": put(0, -0.5)},
    "a feature outside the schema": {"feature": put(0, 5)},
    "a feature below the first": {"feature": put(0, -2)},
    "a threshold that is no number": {"threshold": put(slice(None), np.nan)},
    "a threshold without end": {"threshold": put(slice(None), -np.inf)},
    "a vote for a third class": {"vote": put((0, 1), 2)},
    "a leaf of two minds": {"feature": put(0, -1), "vote": put(0, [0, 1])},
    "a set where there is no category": {"feature": put(0, 0), "words": put(0, 2)},
    "an unknown category": {"words": lambda words: words | np.uint64(1 << 60)},
    "columns of different lengths": {"vote": lambda vote: vote[:0]},
    "too many columns": {"vote": lambda vote: np.concatenate([vote, vote], axis=1)},
    "another type": {"feature": lambda feature: feature.astype(np.float64)},
    "no columns": {"feature": lambda feature: feature.reshape(-1, 1)},
}
