"""Agreement before training: one schema for all sites, or a clear account of why there is none.

Sites describe their columns; nothing in a description is a value of a row. Of a numeric column it says in which very
coarse cell of the public grid the median of its sizes lies, so that a column in other units is noticed. Category names are told only
where at least ``FLOOR`` rows, of all sites together, fall under a hash of the name; rarer ones become "other".
"""

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from silvan.data import grid
from silvan.data.encode import Task, category_texts, infer_schema
from silvan.data.schema import MAX_CATEGORIES, Class, Feature, Label, Schema
from silvan.errors import AgreementError
from silvan.federation.federation import Federation
from silvan.federation.message import Reply, Request, Verb
from silvan.federation.site import Site, answers

FLOOR = 10
"""Categories with fewer rows in all are not named."""

BUCKETS = 1 << 14
"""Hashes of category names; two names share one with odds of about one in so many."""

_MEDIAN_SHIFT = 23
"""Medians are told to the power of two: the sign and the exponent."""

_FAR = 2
"""Medians so many powers of two apart look like other units."""

_NO_MEDIAN = -(1 << 30)


class Description(Reply, frozen=True, kw_only=True):
    """What a site's columns are called and which kind they are."""

    names: list[str]
    categorical: list[bool]
    declared: list[Feature]
    medians: np.ndarray
    classes: list[Class] | None  # None: the label is a number
    rows: int


class Describe(Request, frozen=True, kw_only=True):
    """Names and kinds of the columns, coarse cells of medians, classes of the label."""

    verb: ClassVar[Verb] = "ask"
    reply: ClassVar[type[Reply]] = Description

    task: Task | None = None


class CategoryCounts(Reply, frozen=True, kw_only=True):
    """Rows of each category, by a hash of its name: (columns, hashes)."""

    counts: np.ndarray


class CountCategories(Request, frozen=True, kw_only=True):
    """How many rows fall under each hash of a category name."""

    verb: ClassVar[Verb] = "total"
    reply: ClassVar[type[Reply]] = CategoryCounts

    names: list[str]


class CategoryNames(Reply, frozen=True, kw_only=True):
    """Names of categories that are common enough, for each column asked about."""

    names: list[list[str]]


class NameCategories(Request, frozen=True, kw_only=True):
    """Names of the categories whose hash is common enough over all sites."""

    verb: ClassVar[Verb] = "ask"
    reply: ClassVar[type[Reply]] = CategoryNames

    names: list[str]
    common: list[np.ndarray]


# -- at a site


@answers(Describe)
def describe(site: Site, request: Describe) -> Description:
    """Describe the table."""
    schema = infer_schema(site.frame, site.label, task=request.task)
    medians = []
    for feature in schema.features:
        medians.append(_NO_MEDIAN if feature.categorical else _median_cell(site, feature.name))
    classes = schema.label.classes
    return Description(
        names=list(schema.names),
        categorical=[f.categorical for f in schema.features],
        declared=[],
        medians=np.array(medians, np.int64),
        classes=None if classes is None else list(classes),
        rows=site.n_train,
    )


def _median_cell(site: Site, name: str) -> int:
    # sizes, not values: the median of a column around zero may be anywhere near it
    column = np.abs(site.frame[name].drop_nulls().to_numpy().astype(np.float32))
    column = column[np.isfinite(column) & (column > 0)]
    if len(column) < FLOOR:
        return _NO_MEDIAN
    image = int(grid.images(np.array([np.median(column)], np.float32))[0])
    return -(-image >> _MEDIAN_SHIFT)


@answers(CountCategories)
def count_categories(site: Site, request: CountCategories) -> CategoryCounts:
    """Count rows by hash of category."""
    counts = np.zeros((len(request.names), BUCKETS), np.int64)
    for row, name in enumerate(request.names):
        if name in site.frame.columns:
            for text, n in category_texts(site.frame[name]).items():
                counts[row, bucket(text)] += n
    return CategoryCounts(counts=counts)


@answers(NameCategories)
def name_categories(site: Site, request: NameCategories) -> CategoryNames:
    """Name the categories that are common."""
    names = []
    for name, common in zip(request.names, request.common, strict=True):
        allowed = set(common.tolist())
        texts = category_texts(site.frame[name]) if name in site.frame.columns else {}
        names.append(sorted(text for text in texts if bucket(text) in allowed))
    return CategoryNames(names=names)


def bucket(text: str) -> int:
    """Hash a category name."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % BUCKETS


# -- at the coordinator


@dataclass
class Differences:
    """How the sites' tables differ: one line a difference, and what was made of it."""

    notes: list[tuple[str, str, str]] = field(default_factory=list)  # column, what differs, what was done
    warnings: list[str] = field(default_factory=list)

    def add(self, column: str, what: str, done: str) -> None:
        """Note one difference."""
        self.notes.append((column, what, done))

    def __str__(self) -> str:
        return "\n".join(f"{column}: {what}; {done}" for column, what, done in self.notes)


def agree(federation: Federation, label: str, task: Task | None = None) -> tuple[Schema, Differences]:
    """Find the schema that all sites' tables fit."""
    with federation.counted_apart():
        told: dict[str, Description] = federation.ask(Describe(task=task))
        differences = Differences()
        kinds = _kinds(told, differences)
        classes = _classes(told, label, differences)
        _suspect_units(told, kinds, differences)
        features = [Feature(name, "categorical" if cat else "numeric") for name, cat in kinds.items()]
        if any(kinds.values()):
            features = _name_categories(federation, features, differences)
    return Schema(tuple(features), Label(label, classes)), differences


def _kinds(told: dict[str, Description], differences: Differences) -> dict[str, bool]:
    """Give every column of any site, in the order of the sites, and whether it is categorical."""
    kinds: dict[str, dict[str, bool]] = {}
    for site, description in told.items():
        for name, categorical in zip(description.names, description.categorical, strict=True):
            kinds.setdefault(name, {})[site] = categorical
    orders = {tuple(n for n in d.names if len(kinds[n]) == len(told)) for d in told.values()}
    if len(orders) > 1:
        differences.add("(all)", "columns stand in another order at some sites", "matched by name")
    agreed = {}
    for name, by_site in kinds.items():
        lacking = [site for site in told if site not in by_site]
        if lacking:
            differences.add(name, f"absent at {', '.join(lacking)}", "counts as missing there")
        text = [site for site, categorical in by_site.items() if categorical]
        if text and len(text) < len(by_site):
            numbers = [site for site in by_site if site not in text]
            differences.add(name, f"text at {', '.join(text)}, numbers at {', '.join(numbers)}", "read as categories")
        agreed[name] = bool(text)
    return agreed


def _classes(told: dict[str, Description], label: str, differences: Differences) -> tuple[Class, ...] | None:
    by_site = {site: d.classes for site, d in told.items()}
    numbers = [site for site, classes in by_site.items() if classes is None]
    if numbers and len(numbers) < len(by_site):
        classed = [site for site in by_site if site not in numbers]
        raise AgreementError(
            f"the label {label!r} is a number at {', '.join(numbers)} and has classes at {', '.join(classed)}; "
            "pass task='classification' or task='regression'"
        )
    if numbers:
        return None
    everything = {c for classes in by_site.values() for c in classes or ()}
    if len({isinstance(c, str) for c in everything}) > 1:
        raise AgreementError(f"the classes of {label!r} are text at some sites and numbers at others; make them alike")
    for site, classes in by_site.items():
        lacking = sorted(everything - set(classes or ()), key=str)
        if lacking:
            differences.add(label, f"{site} has no rows of class {', '.join(map(str, lacking))}", "kept")
    return tuple(sorted(everything))


def _suspect_units(told: dict[str, Description], kinds: dict[str, bool], differences: Differences) -> None:
    """Warn where medians are powers of two apart: the same column may be in other units."""
    for name, categorical in kinds.items():
        if categorical:
            continue
        cells = {}
        for site, description in told.items():
            if name in description.names:
                cell = int(description.medians[description.names.index(name)])
                if cell not in (_NO_MEDIAN, 0):
                    cells[site] = cell
        if len(cells) < 2:
            continue
        middle = int(np.median(list(cells.values())))
        odd = [site for site, cell in cells.items() if abs(cell - middle) > _FAR]
        if odd:
            text = f"{name}: the median at {', '.join(odd)} is far from the others'; are the units the same?"
            differences.warnings.append(text)
            differences.add(name, f"median far off at {', '.join(odd)}", "warning only")


def _name_categories(federation: Federation, features: list[Feature], differences: Differences) -> list[Feature]:
    names = [f.name for f in features if f.categorical]
    counts = federation.total(CountCategories(names=names)).counts
    common = [np.flatnonzero(row >= FLOOR) for row in counts]
    told = federation.ask(NameCategories(names=names, common=common))
    named = {}
    for i, name in enumerate(names):
        by_site: Counter[str] = Counter(text for reply in told.values() for text in set(reply.names[i]))
        categories = sorted(by_site)
        if len(categories) > MAX_CATEGORIES:
            categories = sorted(sorted(categories, key=lambda text: (-counts[i, bucket(text)], text))[:MAX_CATEGORIES])
        kept = {bucket(text) for text in categories}
        rest = int(sum(n for b, n in enumerate(counts[i]) if n and b not in kept))
        for text, sites in by_site.items():
            if sites < len(told):
                absent = [site for site, reply in told.items() if text not in reply.names[i]]
                differences.add(name, f"no rows of {text!r} at {', '.join(absent)}", "kept")
        if rest:
            differences.add(name, f"categories with fewer than {FLOOR} rows in all", "together as 'other'")
        named[name] = Feature(name, "categorical", categories=tuple(categories), other=rest > 0)
    return [named.get(f.name, f) for f in features]
