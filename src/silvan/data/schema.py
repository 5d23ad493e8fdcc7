"""Schemas: the meaning of a table's columns, which sites agree on and every forest carries.

A schema holds no data. Category and class names are its only strings from tables, and it has bounds and edges only if
somebody declared them.
"""

import hashlib
import math
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import msgspec
import numpy as np

from silvan.errors import FormatError, SchemaError
from silvan.util.cell_text import Plain, cell_text
from silvan.util.readable import count_of, format_names, html_table

MISSING_BIN = 0  # bin 0 of each column holds its missing values; values start at bin 1
MAX_BINS = 255  # most value bins of a column: with the bin of missing values, a bin fits in one byte
MAX_CATEGORIES = MAX_BINS - 1  # most named categories of a column; one more bin is left for all others
CROWDED = f"has more than {MAX_CATEGORIES} categories: the most frequent are kept, the others count as one"
"""The remark about such a column."""

FEWER = (
    "leave it out if it is an identifier; if its categories matter, group them in the same way at every site (a code "
    "by its first letters), or replace them by numbers that all sites agree on"
)
"""The remedy for such a column."""

Kind = Literal["numeric", "categorical"]
DatePart = Literal["days", "year", "month", "weekday"]
Class = Plain
Task = Literal["classification", "regression", "survival"]


def _make_plain(struct: msgspec.Struct, *names: str) -> None:
    """Replace numpy values by plain Python values, which JSON knows, and other sequences by tuples."""
    for name in names:
        value = getattr(struct, name)
        if value is None:
            continue
        plain: Any = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, tuple | list | np.ndarray):
            plain = tuple(item.item() if isinstance(item, np.generic) else item for item in value)
        if plain is not value:
            msgspec.structs.force_setattr(struct, name, plain)


def _check_rising(what: str, values: tuple[float, ...]) -> None:
    if not all(map(math.isfinite, values)) or not all(a < b for a, b in pairwise(values)):
        raise SchemaError(f"{what} must be finite and rising, got {format_names(list(map(str, values)))}")


class Feature(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One column that a tree may split on.

    Parameters
    ----------
    name
        The name of the column.
    kind
        "numeric" or "categorical".
    bounds
        The smallest and largest possible value of a numeric column, as publicly known; None if unknown.
    categories
        The named categories of a categorical column, in the order of their codes; at most 254.
    other
        Whether one more code stands for all categories that are not named.
    edges
        Rising cut points of a numeric column, instead of those computed from the data; at most 254.
    date
        The part of a date that the feature holds: "days" since 1970, "year", "month" or "weekday" (1 for Monday). The
        feature's name is that of the column with the part in brackets, such as ``admitted (month)``.

    Examples
    --------
    >>> import silvan as sv
    >>> sv.Feature("age", bounds=(0, 120)).categorical
    False
    >>> ward = sv.Feature("ward", "categorical", categories=("north", "south"), other=True)
    >>> ward.n_codes
    3
    """

    name: str
    kind: Kind = "numeric"
    bounds: tuple[float, float] | None = None
    categories: tuple[str, ...] | None = None
    other: bool = False
    edges: tuple[float, ...] | None = None
    date: DatePart | None = None

    @property
    def column(self) -> str:
        """The column of a table that the feature is read from."""
        return self.name if self.date in (None, "days") else self.name.removesuffix(f" ({self.date})")

    def __post_init__(self) -> None:
        """Convert numpy values to plain ones; raise ``SchemaError`` for contradictory fields."""
        _make_plain(self, "name", "bounds", "categories", "edges")
        if not self.name:
            raise SchemaError("a feature needs a name; received an empty one")
        if self.kind == "categorical":
            self._check_categorical()
        else:
            self._check_numeric()

    @property
    def crowded(self) -> bool:
        """Whether the column has too many categories to name all."""
        return self.other and len(self.categories or ()) == MAX_CATEGORIES

    def _check_categorical(self) -> None:
        if self.bounds is not None or self.edges is not None or self.date is not None:
            raise SchemaError(f"feature {self.name!r} is categorical: bounds, edges and dates are for numeric ones")
        names = self.categories
        if names is None:
            return
        if not all(isinstance(name, str) for name in names):
            raise SchemaError(f"feature {self.name!r}: categories are text; write numbers as '1', truth as 'true'")
        if len(set(names)) != len(names):
            raise SchemaError(f"feature {self.name!r} names a category twice")
        if len(names) > MAX_CATEGORIES:
            raise SchemaError(
                f"feature {self.name!r} has {len(names)} categories; at most {MAX_CATEGORIES} can be named, "
                "let the rarest fall under 'other'"
            )

    def _check_numeric(self) -> None:
        if self.categories is not None or self.other:
            raise SchemaError(f"feature {self.name!r} is numeric: categories are for categorical ones")
        if self.bounds is not None:
            _check_rising(f"feature {self.name!r}: bounds", self.bounds)
        if self.edges is not None:
            _check_rising(f"feature {self.name!r}: edges", self.edges)
            if len(self.edges) >= MAX_BINS:
                raise SchemaError(f"feature {self.name!r}: at most {MAX_BINS - 1} edges, got {len(self.edges)}")

    @property
    def categorical(self) -> bool:
        """Whether splits are by category."""
        return self.kind == "categorical"

    @property
    def n_codes(self) -> int:
        """The number of codes of a categorical column."""
        return len(self.categories or ()) + self.other


class Label(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The column to predict: ``classes`` in the order of their codes, or None for a number, or for times of an event.

    Parameters
    ----------
    name
        The name of the column.
    classes
        The classes, in the order of their codes and of probabilities; None for a number.
    bounds
        The smallest and largest possible number, as publicly known; None if unknown.
    folded
        Whether case and surrounding blanks of class names are ignored.
    positive
        The positive of two classes, which sensitivity, precision, F1 and thresholds refer to; None for the second.
    event
        For survival, where ``name`` is the column of times: the column that says whether the event happened then.

    Examples
    --------
    >>> import silvan as sv
    >>> sv.Label("diagnosis", classes=("benign", "malignant")).positive_class
    'malignant'
    >>> sv.Label("days", bounds=(0, 365)).classes is None
    True
    """

    name: str = "label"
    classes: tuple[Class, ...] | None = None
    bounds: tuple[float, float] | None = None
    folded: bool = False
    positive: Class | None = None
    event: str | None = None

    def __post_init__(self) -> None:
        """Convert numpy values to plain ones; raise ``SchemaError`` for contradictory fields."""
        _make_plain(self, "name", "classes", "bounds", "positive", "event")
        if self.event is not None and (self.classes is not None or self.event in ("", self.name)):
            raise SchemaError(f"label {self.name!r}: event is for times, and must name another column")
        if self.folded and not all(isinstance(c, str) for c in self.classes or (0,)):
            raise SchemaError(f"label {self.name!r}: only classes that are texts can be folded")
        if self.classes is not None:
            if not self.classes:
                raise SchemaError(f"label {self.name!r} needs at least one class")
            if any(isinstance(c, float) and not math.isfinite(c) for c in self.classes):
                raise SchemaError(f"label {self.name!r}: a class must not be infinite or NaN")
            if len(set(self.classes)) != len(self.classes):
                raise SchemaError(f"label {self.name!r} names a class twice")
            if self.bounds is not None:
                raise SchemaError(f"label {self.name!r} has classes: bounds are for numbers")
        if self.bounds is not None:
            _check_rising(f"label {self.name!r}: bounds", self.bounds)
        if self.positive is not None:
            msgspec.structs.force_setattr(self, "positive", self._class_called(self.positive))

    def _class_called(self, given: Class) -> Class:
        """Return the one of two classes with this spelling; raise ``SchemaError`` if there is none."""
        if len(self.classes or ()) != 2:
            has = f"has {count_of(len(self.classes), 'class')}" if self.classes else "is a number"
            raise SchemaError.about("positive", f"is for a label of two classes, and {self.name!r} {has}")
        by_text = {cell_text(c): c for c in self.classes or ()}
        if cell_text(given) not in by_text:
            lowered = {text.lower(): text for text in by_text}
            close = get_close_matches(cell_text(given).lower(), lowered, n=1)
            mend = f"did you mean {lowered[close[0]]!r}?" if close else f"it has {format_names(list(by_text))}"
            raise SchemaError.wrong("positive", f"a class of {self.name!r}", given, mend)
        return by_text[cell_text(given)]

    def with_positive(self, positive: Class | None) -> "Label":
        """Return the label with a positive class, if one is given; raise ``SchemaError`` for an impossible one."""
        if positive is None:
            return self
        chosen = msgspec.structs.replace(self, positive=positive)
        if self.positive not in (None, chosen.positive):
            why = f"is {positive!r}, and the schema says {self.positive!r}; leave it out of one of them"
            raise SchemaError.about("positive", why)
        return chosen

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the label is read from."""
        return (self.name,) if self.event is None else (self.name, self.event)

    @property
    def task(self) -> Task:
        """What a model of this label does."""
        if self.event is not None:
            return "survival"
        return "regression" if self.classes is None else "classification"

    @property
    def positive_code(self) -> int:
        """The code of the positive class of two."""
        return 1 if self.positive is None else (self.classes or ()).index(self.positive)

    @property
    def scored(self) -> list[str]:
        """The classes with scores and curves: the positive of two, or each of several; none for a number."""
        some = self.classes or () if self.positive_class is None else (self.positive_class,)
        return [str(c) for c in some]

    @property
    def positive_class(self) -> Class | None:
        """The positive of two classes, which metrics and thresholds refer to; None unless there are two."""
        return self.classes[self.positive_code] if self.classes is not None and len(self.classes) == 2 else None


def _describe_values(feature: Feature) -> str:
    if feature.categories is not None:
        return format_names(list(feature.categories)) + (", and others" if feature.other else "")
    return "" if feature.bounds is None else f"{feature.bounds[0]:g} to {feature.bounds[1]:g}"


class Schema(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """The features, in the order of their indices, and the label.

    ``Schema.of`` takes plain names for columns of numbers.

    Parameters
    ----------
    features
        The columns that trees may split on, each a ``Feature``.
    label
        The column to predict, a ``Label``.

    Attributes
    ----------
    names
        Feature names by index.
    n_classes
        The number of classes of the label; 0 for a number.
    hash
        SHA-256 of the schema as JSON: equal for equal schemas.

    Examples
    --------
    >>> import silvan as sv
    >>> ward = sv.Feature("ward", "categorical", categories=("north", "south"))
    >>> schema = sv.Schema.of(["age", ward], sv.Label("ill", classes=("no", "yes")))
    >>> schema.names, schema.n_classes
    (('age', 'ward'), 2)
    >>> sv.Schema.from_json(schema.to_json()) == schema
    True
    """

    features: tuple[Feature, ...]
    label: Label

    def __post_init__(self) -> None:
        """Raise ``SchemaError`` if two columns have the same name."""
        seen: set[str] = set()
        for name in self.names:
            if name in seen:
                raise SchemaError(f"column {name!r} appears twice; give every column its own name")
            seen.add(name)
        for name in self.label.columns:
            if name in seen:
                raise SchemaError(f"the label {name!r} is also listed as a feature")

    def _rows(self) -> list[tuple[str, str, str]]:
        """Return name, kind and values of each column, the label last."""
        label = self.label
        predicted = "a number" if label.classes is None else f"classes: {format_names(list(map(str, label.classes)))}"
        predicted = predicted if label.event is None else f"the time of an event, which {label.event} tells"
        rows = [(f.name, f.kind, _describe_values(f)) for f in self.features]
        return [*rows, (label.name, "label", predicted)]

    def __str__(self) -> str:
        rows = self._rows()
        wide = [max(len(row[i]) for row in rows) for i in (0, 1)]
        return "\n".join(f"{name:{wide[0]}}  {kind:{wide[1]}}  {values}".rstrip() for name, kind, values in rows)

    def _repr_html_(self) -> str:
        """Return the columns as a table for notebooks."""
        return html_table(("column", "kind", "values"), self._rows(), title="Schema")

    def with_positive(self, positive: Class | None) -> "Schema":
        """Return the schema with a positive class, if one is given."""
        return self if positive is None else Schema(self.features, self.label.with_positive(positive))

    @classmethod
    def of(cls, features: Iterable[Feature | str], label: Label | str = "label") -> "Schema":
        """Build a schema; a plain string is a numeric feature, or a numeric label."""
        return cls(
            tuple(Feature(f) if isinstance(f, str) else f for f in features),
            Label(label) if isinstance(label, str) else label,
        )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Feature names by index."""
        return tuple(f.name for f in self.features)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that features are read from, by index: their names, except for parts of dates."""
        return tuple(f.column for f in self.features)

    @property
    def n_classes(self) -> int:
        """The number of classes of the label; 0 for a number, and for times."""
        return len(self.label.classes or ())

    def to_json(self) -> str:
        """Return the schema as JSON; equal schemas give equal texts."""
        return msgspec.json.encode(self, order="deterministic").decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "Schema":
        """Read the output of ``to_json``, checking everything."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise FormatError(f"not a schema: {error}") from None

    @property
    def hash(self) -> str:
        """SHA-256 of the JSON text."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()
