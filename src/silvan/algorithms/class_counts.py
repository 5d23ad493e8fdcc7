"""Class weights that balance the classes over all sites, from a sum of class counts: one round."""

from dataclasses import replace
from typing import ClassVar

import numpy as np

from silvan.algorithms.requests import counts_of, schema_of
from silvan.algorithms.shared_bins import label_counts
from silvan.data.schema import Schema
from silvan.errors import reject
from silvan.federation.federation import Federation
from silvan.federation.message import Agreed, Blob, PartitionsWay, Request, SummedReply, Total
from silvan.federation.site import Site, answers
from silvan.tree.fit import Settings


class ClassCounts(SummedReply, frozen=True, kw_only=True):
    """Rows of each class."""

    counts: np.ndarray


class CountClasses(Total[ClassCounts], frozen=True, kw_only=True):
    """The number of training rows per class."""

    partitions: ClassVar[PartitionsWay] = "add up"

    schema: Agreed[Blob]


# -- at a site
@answers(CountClasses)
def count_classes(site: Site, request: CountClasses) -> ClassCounts:
    """Count the training rows by class."""
    schema = schema_of(site, request.schema)
    reject(not schema.n_classes, "the label has no classes to count")
    part = site.part(schema)
    counts = sum((label_counts(piece.y, schema) for piece in part.pieces()), start=label_counts(part.y[:0], schema))
    return ClassCounts(counts=counts.astype(np.int64))


# -- at the coordinator
def asks_for_classes(class_weight: object) -> tuple[type[Request], ...]:
    """Return the requests of ``balance_classes``."""
    return (CountClasses,) if class_weight == "balanced" else ()


def balance_classes(federation: Federation, schema: Schema, settings: Settings) -> Settings:
    """Return settings with a weight per class instead of "balanced", from the rows of all sites."""
    if settings.class_weight != "balanced":
        return settings
    schema_blob = federation.blob(schema.to_json().encode())
    total: ClassCounts = federation.total(CountClasses(schema=schema_blob), check=counts_of(counts=(schema.n_classes,)))
    weights = settings.class_weights(total.counts)
    return settings if weights is None else replace(settings, class_weight=weights.tolist())
