"""Terms: what the text of a study fixes about every request, and the check of requests against it.

The approved study is the only source of permitted requests. Each field of a request is declared fixed,
agreed or derived (``federation/message.py``). Before a site touches a row, it compares

- fixed fields with the value that follows from the text, under the field's name;
- agreed fields with the first request: the schema in a study, anything else in a task of it.

The text must also allow the schema. A site without the text has no fixed values to compare. It still accepts only one
schema per study, for its own label.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from silvan.data.schema import Class, Schema
from silvan.errors import RefusedError
from silvan.federation import wire
from silvan.federation.describe import CountCategories
from silvan.federation.message import Blob, Bound, Request, bounds_of
from silvan.federation.site import Site
from silvan.federation.store import CacheKey, digest
from silvan.util.cell_text import cell_text

Fixed = Mapping[str, Any]
"""By the name of a fixed field: the value it must have, or a function that says whether a value is allowed."""


class DeviationError(RefusedError):
    """A request deviates from the study's text, or from the sites' agreement: it is kept as evidence."""


@dataclass(frozen=True)
class StudyText:
    """What a study's text says about its requests.

    ``fixed`` returns the values of fixed fields, which may depend on the agreed schema. ``schema`` is the one in
    the text, if any; without one, ``label``, ``event``, ``task`` and ``positive`` are what a schema must
    have. Without ``clusters`` all sums of the study are over the same sites.
    """

    label: str
    fixed: Callable[[Schema | None], Fixed]
    task: str | None = None
    schema: Schema | None = None
    excluded: frozenset[str] = frozenset()  # columns outside the study
    clusters: bool = False  # whether some sums are over clusters of sites
    positive: Class | None = None
    event: str | None = None
    _known: dict[str, Fixed] = field(default_factory=dict, compare=False, repr=False)

    def fixed_by(self, schema: Schema | None) -> Fixed:
        """Return the values of fixed fields, computed once per schema."""
        key = "" if schema is None else schema.hash
        if key not in self._known:
            self._known[key] = self.fixed(schema)
        return self._known[key]

    def allows(self, schema: Schema) -> bool:
        """Whether the text allows a schema."""
        if self.schema is not None:
            return schema == self.schema
        if schema.label.name != self.label or _text(schema.label.positive) != _text(self.positive):
            return False
        if schema.label.event != self.event:
            return False
        return self.task in (None, schema.label.task) and self.excluded.isdisjoint(schema.columns)


def _text(name: Class | None) -> str | None:
    """Return the text of a class, which study files and tables may write as text or as a number."""
    return None if name is None else cell_text(name)


@dataclass(frozen=True)
class Terms:
    """What a site knows about a study before the first request.

    Parameters
    ----------
    study
        The only study that the site serves; None for any.
    sites
        The sites that it begins with.
    losses
        How many of them it may lose.
    tasks
        The maximum number of models and evaluations.
    models
        The maximum number of external models that it evaluates at the site.
    epsilon
        Maximum cost of the study in the site's privacy budget; None for as much as is left.
    tolerate
        How many other sites may collude with the coordinator: the noise on a sum suffices without their shares, even if
        sites are lost. Between machines it is one, because every site knows its own share.
    approved
        The study that the owner approved, if this is one of its splits.
    left_out
        The approved sites that are not in this split.
    text
        What the study's text fixes; None if the site does not have it.
    """

    study: str | None = None
    sites: Sequence[str] | None = None
    losses: int | None = None
    tasks: int | None = None
    models: int | None = None
    epsilon: float | None = None
    tolerate: int = 1
    approved: str | None = None
    left_out: frozenset[str] = frozenset()
    text: StudyText | None = None

    def check(self, site: Site, request: Request, *, noisy: bool = False) -> None:
        """Raise ``DeviationError`` if a fixed or agreed field of a request deviates from the study.

        A ``noisy`` level of trees has no smallest leaf, public bins and its own sampling: epsilon protects its counts.
        """
        text, bounds = self.text, bounds_of(type(request))
        schema = _read_schema(site, request) if bounds.get("schema") is Bound.AGREED else None
        if schema is not None and not (_is_of(site, schema) if text is None else text.allows(schema)):
            raise DeviationError("the study's text does not allow this schema: it names other columns or another label")
        fixed = None if text is None else text.fixed_by(schema)
        self._check_fields(site, request.kind(), request, fixed, noisy=noisy)

    def _check_fields(self, site: Site, kind: str, part: msgspec.Struct, fixed: Fixed | None, *, noisy: bool) -> None:
        """Check the fields of a request, or of a struct in it whose fields are declared separately."""
        for name, bound in bounds_of(type(part)).items():
            value = getattr(part, name)
            if isinstance(value, Request):  # a level of trees in a request for noisy counts of it
                self.check(site, value, noisy=True)
            elif bound is Bound.EACH:
                self._check_fields(site, kind, value, fixed, noisy=noisy)
            elif bound is Bound.FIXED and fixed is not None and not (noisy and name in ("min_leaf", "bootstrap")):
                if name not in fixed:
                    raise DeviationError(f"the study does not ask for {kind}")
                said = fixed[name]
                if not (said(value) if callable(said) else wire.encode(said) == wire.encode(value)):
                    raise DeviationError(f"the study's text says otherwise: {name} of {kind}")
            elif bound is Bound.AGREED:
                _check_agreed(site, name, value)


def columns_of(site: Site, request: Request) -> Sequence[str]:
    """Return the columns that a request is about: those of its schema, or those that it names."""
    if bounds_of(type(request)).get("schema") is Bound.AGREED:
        return _read_schema(site, request).columns
    return request.names if isinstance(request, CountCategories) else ()


def _is_of(site: Site, schema: Schema) -> bool:
    """Whether a site may accept a schema without the study's text."""
    return schema.label.columns == tuple(filter(None, (site.label, site.event))) and site.schema in (None, schema)


def _read_schema(site: Site, request: Request) -> Schema:
    blob: Blob = request.schema  # type: ignore[attr-defined]  # declared as agreed
    return site.cache.once(CacheKey[Schema]("schema", blob.hash), lambda: Schema.from_json(site.blob(blob.hash)))


def _check_agreed(site: Site, name: str, value: Any) -> None:
    """Raise ``DeviationError`` if an earlier request had another value, in the study or in this task of it."""
    scope = [site.study, name] if name == "schema" else [site.study, site.task, name]
    key, now = f"agreed {digest(msgspec.json.encode(scope))}", digest(wire.encode(value)).encode()
    if not site.store.settles(key, now):
        raise DeviationError(f"the site was asked with another {name} before, and a study has one")
