"""What a site says of its table before training: the messages of agreement and the site's half.

Nothing in a description is a value of a row. Of a numeric column it says in which very coarse cell of the
public grid the median of its sizes lies, so that a column in other units is noticed.

Category names are told only if at least ``FLOOR`` rows of all sites together have them; rarer ones become
"other". Who has how many is found without names: rows are counted under two hashes of the name, and a name is
told if both its counts reach the floor. A rare name is told by mistake only if it shares both with common
ones.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from silvan.data.bins.column_summary import Sizes, summarise
from silvan.data.encode import Task, category_texts
from silvan.data.schema import MAX_CATEGORIES, Class
from silvan.errors import FormatError, RefusedError
from silvan.federation.bound import Derived, Fixed
from silvan.federation.message import Ask, PartitionsWay, Reply, Total
from silvan.federation.site import Site, answers
from silvan.util.readable import count_of

FLOOR = 10
"""Fewest rows, of all sites or of one, behind anything that names or describes some of them."""

BUCKETS = 1 << 14
"""Values of each of the two hashes of a category name."""

MANY = 2048
"""A column with more different texts at a site looks like free text, or like names of people."""

NO_MEDIAN = -(1 << 30)


class Description(Reply, frozen=True, kw_only=True):
    """What a site's columns are called and which kind they are."""

    names: list[str]
    kinds: tuple[str, ...]  # numeric, categorical, date, or empty where no cell of the column holds anything
    medians: np.ndarray
    classes: list[Class] | None  # None: the label is a number
    rows: int


class Describe(Ask[Description], frozen=True, kw_only=True):
    """Names and kinds of the columns, coarse cells of medians, classes of the label."""

    partitions: ClassVar[PartitionsWay] = "site"

    task: Fixed[Task | None] = None

    def describe(self, reply: Any = None) -> str:
        """Describe what is asked for, or answered."""
        n = "" if reply is None else f"{len(reply.names):,} "
        return f"names and kinds of {n}columns, coarse cells of medians, classes of the label, how many rows there are"


class Size(Reply, frozen=True, kw_only=True):
    """How many rows a site learns from."""

    rows: int


class CountRows(Ask[Size], frozen=True, kw_only=True):
    """How many rows the site has to learn from."""

    partitions: ClassVar[PartitionsWay] = "site"


class CategoryCounts(Reply, frozen=True, kw_only=True):
    """Rows of each category, by the hashes of its name: (columns, hashes)."""

    counts: np.ndarray


class CountCategories(Total[CategoryCounts], frozen=True, kw_only=True):
    """How many rows fall under each of two hashes of a category name."""

    partitions: ClassVar[PartitionsWay] = "site"

    names: Fixed[list[str]]

    def describe(self, reply: Any = None) -> str:
        """Describe what is asked for, or answered."""
        return f"counts of rows under {2 * BUCKETS:,} hashes of category names x {count_of(len(self.names), 'column')}"


class CategoryNames(Reply, frozen=True, kw_only=True):
    """Names of categories that are common enough, for each column asked about."""

    names: list[list[str]]


class NameCategories(Ask[CategoryNames], frozen=True, kw_only=True):
    """Names of the categories whose hashes are common enough over all sites."""

    once: ClassVar[bool] = True  # which are common is the coordinator's word
    partitions: ClassVar[PartitionsWay] = "site"

    names: Fixed[list[str]]
    common: Derived[list[np.ndarray]]

    def describe(self, reply: Any = None) -> str:
        """Describe what is asked for, or answered."""
        n = "" if reply is None else f"{sum(map(len, reply.names)):,} "
        return f"names of {n}common categories of {count_of(len(self.names), 'column')}"


# -- at a site


@answers(Describe)
def describe(site: Site, request: Describe) -> Description:
    """Describe the table."""
    replies = summarise(site.table, site.label, request.task, site.sizes_apart())
    classes = replies.label.classes
    return Description(
        names=list(replies.sizes),
        kinds=tuple(replies.kinds.values()),
        medians=np.array([_median_cell(sizes) for sizes in replies.sizes.values()], np.int64),
        classes=None if classes is None else list(classes),
        rows=site.n_train,
    )


def _median_cell(sizes: Sizes | None) -> int:
    # sizes, not values: the median of a column around zero may be anywhere near it
    return NO_MEDIAN if sizes is None or sizes.rows < FLOOR else sizes.median_cell()


@answers(CountRows)
def count_rows(site: Site, request: CountRows) -> Size:
    """Count the training rows."""
    return Size(rows=site.n_train)


def _check_once(names: list[str]) -> None:
    """Raise an error if a column is named twice: the same question would have many forms."""
    if len(set(names)) < len(names):
        raise FormatError("a column is named twice")


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
    """Name the categories that are common."""
    if len(request.names) != len(request.common) or any(c.ndim != 1 for c in request.common):
        raise FormatError("the hashes do not match the columns")
    _check_once(request.names)
    names = []
    for name, common in zip(request.names, request.common, strict=True):
        if len(common) > 2 * MAX_CATEGORIES:
            raise RefusedError(f"the site names at most {MAX_CATEGORIES} categories a column")
        allowed = set(common.tolist())
        seen: set[str] = set()
        rows: Counter[str] = Counter()
        for texts in _texts(site, name):
            if len(seen) <= MANY:
                seen.update(texts)
            rows.update({text: n for text, n in texts.items() if allowed.issuperset(buckets(text))})
        # of what does not look like categories, only what the site's own rows make common
        plain = len(seen) <= MANY and not (seen and site.table.dtypes[name].is_numeric())
        names.append(sorted(text for text, n in rows.items() if plain or n >= FLOOR))
    return CategoryNames(names=names)


def _texts(site: Site, name: str) -> Iterator[dict[str, int]]:
    """Count the rows of each category, batch by batch."""
    if name in site.table.names and name != site.label:
        for batch in site.table.batches([name]):
            yield category_texts(batch[name])


def buckets(text: str) -> list[int]:
    """Hash a category name twice; the second hash counts on from the first."""
    word = hashlib.sha256(text.encode()).digest()
    return [int.from_bytes(word[:4], "big") % BUCKETS, BUCKETS + int.from_bytes(word[4:8], "big") % BUCKETS]
