"""Terms: what the text of a study fixes of every request, and the check of requests against it.

The study that an owner approves is the only source of what may be asked. Each field of a request is declared fixed,
agreed or derived (``federation/bound.py``). Before a site touches a row, it compares

- fixed fields with the value that follows from the text, under the field's name;
- agreed fields with what the site was first asked with: the schema in a study, anything else in a task of it.

A schema must also be one that the text allows. Nothing is compared where a site has no text of the study: then it
answers what its policy and its approvals allow.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from silvan.data.schema import Schema
from silvan.errors import RefusedError
from silvan.federation import wire
from silvan.federation.bound import Bound, bounds_of
from silvan.federation.cache import CacheKey
from silvan.federation.message import Blob, Request
from silvan.federation.site import Site
from silvan.federation.store import digest

Fixed = Mapping[str, Any]
"""By the name of a fixed field: the value it must have, or a function that says whether a value is allowed."""


class DeviationError(RefusedError):
    """A request is not what the study's text says, or not what the sites agreed on: it is kept as evidence."""


@dataclass(frozen=True)
class StudyText:
    """What a study's text says of its requests.

    ``fixed`` returns the values of fixed fields, which may depend on the agreed schema. ``schema`` is the one that the
    text gives, if it gives one; without one, ``label`` and ``task`` are what a schema must have. Without ``clusters``
    all sums of the study are over the same sites.
    """

    label: str
    fixed: Callable[[Schema | None], Fixed]
    task: str | None = None
    schema: Schema | None = None
    excluded: frozenset[str] = frozenset()  # columns that are not in the study
    clusters: bool = False  # whether some sums are over clusters of sites
    _known: dict[str, Fixed] = field(default_factory=dict, compare=False, repr=False)

    def fixed_by(self, schema: Schema | None) -> Fixed:
        """Return the values of fixed fields, worked out once for a schema."""
        key = "" if schema is None else schema.hash
        if key not in self._known:
            self._known[key] = self.fixed(schema)
        return self._known[key]

    def allows(self, schema: Schema) -> bool:
        """Whether the text allows a schema."""
        if self.schema is not None:
            return schema == self.schema
        if schema.label.name != self.label:
            return False
        task = "classification" if schema.n_classes else "regression"
        return self.task in (None, task) and self.excluded.isdisjoint(schema.names)


@dataclass(frozen=True)
class Terms:
    """What a site knows of a study before the first request.

    Parameters
    ----------
    study
        The study that the site answers, and no other; None for any.
    sites
        The sites that it begins with.
    losses
        How many of them it may lose.
    models
        The maximum number of external models that it evaluates at the site.
    approved
        The study that the owner approved, if this is one of its splits.
    text
        What the study's text fixes; None where the site does not have it.
    """

    study: str | None = None
    sites: Sequence[str] | None = None
    losses: int | None = None
    models: int | None = None
    approved: str | None = None
    text: StudyText | None = None

    def check(self, site: Site, request: Request, *, noisy: bool = False) -> None:
        """Raise ``DeviationError`` if a fixed or agreed field of a request is not what the study says.

        A ``noisy`` level of trees has no smallest leaf and its own way of sampling: epsilon protects its counts.
        """
        text = self.text
        if text is None:
            return
        bounds = bounds_of(type(request))
        schema = _read_schema(site, request) if bounds.get("schema") is Bound.AGREED else None
        if schema is not None and not text.allows(schema):
            raise DeviationError("the study's text does not allow this schema: it names other columns or another label")
        fixed = text.fixed_by(schema)
        for name, bound in bounds.items():
            value = getattr(request, name)
            if isinstance(value, Request):  # a level of trees in a request for noisy counts of it
                self.check(site, value, noisy=True)
            elif bound is Bound.FIXED and not (noisy and name in ("min_leaf", "bootstrap")):
                if name not in fixed:
                    raise DeviationError(f"the study does not ask for {request.kind()}")
                said = fixed[name]
                if not (said(value) if callable(said) else wire.encode(said) == wire.encode(value)):
                    raise DeviationError(f"the study's text says otherwise: {name} of {request.kind()}")
            elif bound is Bound.AGREED:
                _check_agreed(site, name, value)


def _read_schema(site: Site, request: Request) -> Schema:
    blob: Blob = request.schema  # type: ignore[attr-defined]  # declared as agreed
    return site.cache.once(CacheKey[Schema]("schema", blob.hash), lambda: Schema.from_json(site.blob(blob.hash)))


def _check_agreed(site: Site, name: str, value: Any) -> None:
    """Raise ``DeviationError`` if a site was asked with another value before, in the study or in this task of it."""
    scope = [site.study, name] if name == "schema" else [site.study, site.task, name]
    key, now = f"agreed {digest(msgspec.json.encode(scope))}", digest(wire.encode(value)).encode()
    before = site.store.get(key)
    if before is None:
        site.store.put(key, now)
    elif before != now:
        raise DeviationError(f"the site was asked with another {name} before, and a study has one")
