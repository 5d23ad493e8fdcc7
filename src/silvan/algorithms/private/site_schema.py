"""What a site lets a noisy question say of its columns: whoever chooses labels and bounds chooses the noise."""

from silvan.algorithms.private.public_cuts import check_public
from silvan.algorithms.requests import schema_of
from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError, RefusedError
from silvan.federation.message import Blob
from silvan.federation.site import Site

NARROWEST = 2.0**-40
"""Bounds must be this far apart at least, as a share of their magnitude: closer ones are lost in rounding."""


def public_schema_of(site: Site, blob: Blob) -> Schema:
    """Read the schema that a noisy question refers to, and check it by what the site itself knows, not by its rows."""
    schema = schema_of(site, blob)
    if site.schema is not None and schema != site.schema:
        raise RefusedError("the question is about other columns, bounds or classes than the schema given to the site")
    if schema.label.name != site.label:
        raise RefusedError("the question is about another label than the site's")
    try:
        check_public(schema)
    except InputError:
        raise FormatError("the schema of a noisy question lacks bounds, categories or classes") from None
    for bounds in [schema.label.bounds, *(feature.bounds for feature in schema.features)]:
        if bounds is not None and not _wide_enough(*bounds):
            raise RefusedError("the bounds of a noisy question are too close to each other, or too large")
    return schema


def _wide_enough(low: float, high: float) -> bool:
    """Whether bounds are apart by more than rounding, and no further than numbers reach."""
    return NARROWEST * max(abs(low), abs(high), 2.0**-960) <= high - low < 2.0**1000
