"""A site's description of its table before training: the messages, and the site's side.

A description contains no value of any row. For a numeric column it gives the very coarse cell of the public grid that
holds the median magnitude, so that different units are noticed.

Only classes and categories leave a table by name. Between machines a site names the classes that at least ``FLOOR`` of
its own rows have. A class that is rarer at a site is still counted there if another site names it; a class that is rare
at every site must be in the study's schema. In one process sites name all classes, because the caller has the tables.

A category is named if at least ``FLOOR`` rows of all sites together have it; rarer ones become "other". These counts
need no names: sites count rows under two hashes of each name, and reveal a name if both counts reach the floor. The
coordinator must prove the counts (``proven_sums.py``); without a proof a site names only what enough of its own rows
have. A rare name is revealed by mistake only if it shares both hashes with common names.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from silvan.data.bins.column_summary import Sizes, summarise
from silvan.data.cells import MISSING, class_places, distinct, fold
from silvan.data.encode import category_texts
from silvan.data.schema import MAX_CATEGORIES, Class, Task
from silvan.errors import FormatError, RefusedError, reject
from silvan.federation import wire
from silvan.federation.message import (
    Ask,
    Blob,
    Derived,
    Fixed,
    PartitionsWay,
    Reply,
    SummedReply,
    Total,
    request_digest,
)
from silvan.federation.proven_sums import SumName, is_proven
from silvan.federation.site import Site, answers
from silvan.tree.sampling import one_of_each
from silvan.util.cell_text import cell_text
from silvan.util.readable import count_of

FLOOR = 10
"""Minimum number of rows, of one site or all, behind anything that names or describes them."""

BUCKETS = 1 << 14
"""Values of each of the two hashes of a category name."""

MOST_NUMBERS = 30  # a label with more distinct numbers needs enough rows of each to have classes

MANY = 2048
"""A column with more distinct texts at a site looks like free text or personal names."""

NO_MEDIAN = -(1 << 30)


class Description(Reply, frozen=True, kw_only=True):
    """The names and kinds of a site's columns."""

    names: list[str]
    kinds: tuple[str, ...]  # numeric, categorical, date, or empty for a column without any value
    medians: np.ndarray
    classes: list[Class] | None  # None: the label is a number
    unnamed: int = 0  # number of classes that too few of the site's rows have
    rows: int


class Describe(Ask[Description], frozen=True, kw_only=True, omit_defaults=True):
    """Names and kinds of the columns, coarse cells of medians, classes of the label."""

    partitions: ClassVar[PartitionsWay] = "site"

    task: Fixed[Task | None] = None
    grouped: Fixed[bool] = False  # whether rows are counted by person

    def describe(self, reply: Any = None) -> str:
        """Describe the request, or the reply."""
        n = "" if reply is None else f"{len(reply.names):,} "
        return f"names and kinds of {n}columns, coarse cells of medians, classes of the label, how many rows there are"


class Size(Reply, frozen=True, kw_only=True):
    """The number of a site's training rows."""

    rows: int


class CountRows(Ask[Size], frozen=True, kw_only=True, omit_defaults=True):
    """The number of training rows at the site."""

    partitions: ClassVar[PartitionsWay] = "site"

    grouped: Fixed[bool] = False  # whether rows are counted by person


class CategoryCounts(SummedReply, frozen=True, kw_only=True):
    """Rows per hash of the category name, (columns, hashes)."""

    counts: np.ndarray


class CountCategories(Total[CategoryCounts], frozen=True, kw_only=True):
    """The number of rows for each value of two hashes of category names."""

    partitions: ClassVar[PartitionsWay] = "site"

    names: Fixed[list[str]]

    def describe(self, reply: Any = None) -> str:
        """Describe the request, or the reply."""
        return f"counts of rows under {2 * BUCKETS:,} hashes of category names x {count_of(len(self.names), 'column')}"


class CategoryNames(Reply, frozen=True, kw_only=True):
    """Names of sufficiently frequent categories, for each requested column."""

    names: list[list[str]]


class NameCategories(Ask[CategoryNames], frozen=True, kw_only=True):
    """Names of categories that enough rows of all sites have, found by their hashes."""

    once: ClassVar[bool] = True
    partitions: ClassVar[PartitionsWay] = "site"

    names: Fixed[list[str]]
    counts: Derived[Blob]  # the sum of what these sites counted
    sites: Derived[list[str]]

    def describe(self, reply: Any = None) -> str:
        """Describe the request, or the reply."""
        n = "" if reply is None else f"{sum(map(len, reply.names)):,} "
        return f"names of {n}common categories of {count_of(len(self.names), 'column')}"


# -- at a site


@answers(Describe)
def describe(site: Site, request: Describe) -> Description:
    """Describe the table."""
    _check_grouped(site, request)
    counted = None if site.groups is None else one_of_each(site.groups.keys)
    replies = summarise(site.table, site.label, request.task, site.sizes_apart(), counted, site.event)
    classes = replies.label.classes
    named = None if classes is None else _named_classes(site, classes)
    return Description(
        names=list(replies.sizes),
        kinds=tuple(replies.kinds.values()),
        medians=np.array([_median_cell(sizes) for sizes in replies.sizes.values()], np.int64),
        classes=named,
        unnamed=0 if classes is None or named is None else _count_unnamed(site, classes, named),
        rows=site.n_train,
    )


def _check_grouped(site: Site, request: Describe | CountRows) -> None:
    """Raise ``RefusedError`` unless both sides count rows, or both count persons."""
    if request.grouped != (site.group is not None):
        goes, asked = ("persons", "rows") if site.group is not None else ("rows", "persons")
        raise RefusedError(f"the site counts {goes} and the request {asked}: group must be the same for all")


def check_classes(classes: Sequence[Class], rows: int) -> None:
    """Raise ``RefusedError`` if the classes look like measurements: many numbers, with few rows each."""
    if sum(not isinstance(value, str) for value in classes) > max(MOST_NUMBERS, rows // FLOOR):
        raise RefusedError(
            f"the label has more than {MOST_NUMBERS} different numbers, in fewer than {FLOOR} rows each: say "
            "task='regression', or name its classes in a schema"
        )


def _named_classes(site: Site, classes: Sequence[Class]) -> list[Class]:
    """Return the classes that enough of the site's rows have."""
    check_classes(classes, len(site.table))
    if site.naming == "all":
        return list(classes)
    rows = np.zeros(len(classes), np.int64)
    found = (class_places(batch[site.label], classes) for batch in site.table.batches([site.label]))
    if site.groups is not None:
        rows = site.groups.count(np.concatenate(list(found)), len(classes))
    else:
        for places in found:
            rows += np.bincount(places[places >= 0], minlength=len(classes))
    return [value for value, n in zip(classes, rows.tolist(), strict=True) if n >= FLOOR]


def _count_unnamed(site: Site, classes: Sequence[Class], named: Sequence[Class]) -> int:
    """Count the classes that are not named; one that differs from a named class only in case may be the same."""
    folded = site.kinds.get(site.label) == "folded"
    known = {fold(str(value)) if folded else value for value in named}
    return len({fold(str(value)) if folded else value for value in classes} - known)


def _median_cell(sizes: Sizes | None) -> int:
    # magnitudes, not values: the median of values around zero says nothing about units
    return NO_MEDIAN if sizes is None or sizes.rows < FLOOR else sizes.median_cell()


@answers(CountRows)
def count_rows(site: Site, request: CountRows) -> Size:
    """Count the training rows."""
    _check_grouped(site, request)
    return Size(rows=site.n_train)


def _check_once(names: list[str]) -> None:
    """Raise an error if a column is named twice, or the same request could have several forms."""
    reject(len(set(names)) < len(names), "a column is named twice")


@answers(CountCategories)
def count_categories(site: Site, request: CountCategories) -> CategoryCounts:
    """Count rows by hashes of category."""
    _check_once(request.names)
    counts = np.zeros((len(request.names), 2 * BUCKETS), np.int32)
    for row, name in enumerate(request.names):
        for texts in _texts(site, name):
            for text, n in texts.items():
                counts[row, buckets(text)] += n
    return CategoryCounts(counts=counts)


@answers(NameCategories)
def name_categories(site: Site, request: NameCategories) -> CategoryNames:
    """Name the common categories."""
    _check_once(request.names)
    total = wire.decode(site.blob(request.counts.hash), CategoryCounts)
    check_counts(total, len(request.names))
    proven = site.naming == "all" or _is_counted(site, request, total)
    names = []
    for name, counts in zip(request.names, total.counts, strict=True):
        allowed = set(common_hashes(counts).tolist())
        seen: set[str] = set()
        rows: Counter[str] = Counter()
        for texts in _texts(site, name):
            if len(seen) <= MANY:
                seen.update(texts)
            rows.update({text: n for text, n in texts.items() if allowed.issuperset(buckets(text))})
        # in a column that does not look categorical, name only what is common among the site's own rows
        plain = len(seen) <= MANY and not (seen and site.table.dtypes[name].is_numeric())
        least = 1 if plain and proven else FLOOR
        names.append(sorted(text for text, n in rows.items() if n >= least))
    return CategoryNames(names=names)


def _texts(site: Site, name: str) -> Iterator[dict[str, int]]:
    """Count the rows of each category batch by batch; if rows belong to persons, count persons over all batches."""
    if name not in site.table.names or name in (site.label, site.event):
        return
    batches = site.table.batches([name])
    if site.groups is None:
        yield from (category_texts(batch[name]) for batch in batches)
        return
    known, codes = dict[str, int](), []
    for batch in batches:
        values, places = distinct(batch[name])
        named = [known.setdefault(cell_text(value), len(known)) for value in values]
        codes.append(np.array([*named, MISSING], np.int64)[places])
    yield dict(zip(known, site.groups.count(np.concatenate(codes), len(known)).tolist(), strict=True))


def _is_counted(site: Site, request: NameCategories, total: CategoryCounts) -> bool:
    """Whether counts are proved to be the sum of what these sites counted, this one among them."""
    key, counted = site.proof_key, CountCategories(names=request.names)
    asked = request_digest(counted.kind(), wire.encode(counted))
    name = SumName(site.study, site.task, request.sites)
    return (
        key is not None
        and site.name in request.sites
        and is_proven(key, name, dict.fromkeys(request.sites, asked), total) is True
    )


def check_counts(reply: CategoryCounts, n_columns: int) -> None:
    """Raise ``FormatError`` unless these are category counts for this many columns."""
    counts = reply.counts
    if counts.shape != (n_columns, 2 * BUCKETS) or counts.dtype != np.int32 or counts.min(initial=0) < 0:
        raise FormatError("its counts are not counts")


def common_hashes(counts: np.ndarray) -> np.ndarray:
    """Choose the hashes of a column that reach the floor, at most as many as can be named."""
    found = []
    for start in (0, BUCKETS):
        half = counts[start : start + BUCKETS]
        order = np.argsort(-half, kind="stable")[:MAX_CATEGORIES]
        found.append(start + order[half[order] >= FLOOR])
    return np.sort(np.concatenate(found)).astype(np.int32)


def buckets(text: str) -> list[int]:
    """Hash a category name twice; the second hash has its own range after the first."""
    word = hashlib.sha256(text.encode()).digest()
    return [int.from_bytes(word[:4], "big") % BUCKETS, BUCKETS + int.from_bytes(word[4:8], "big") % BUCKETS]
