"""Rows of the same person, by a column of ids: a row's key is derived from the person and the row's place among theirs.

A person's key depends only on the person's id, so adding or removing a person changes no other key.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from silvan.data.batches import Batched
from silvan.data.cells import MARKERS, distinct
from silvan.errors import SchemaError
from silvan.util.cell_text import STRANGE, cell_text
from silvan.util.readable import count_of

NO_GROUPS = (
    "is for horizontal studies: in vertical ones an aligned id is a person, and group would show every party which "
    "rows belong together; leave it out, and have one row per person"
)

ROW_OF_PERSON = np.dtype([("person", np.uint64), ("place", np.uint32), ("rows", np.uint32)])
"""The key of a person's row: the person, the row's position among the person's rows, and their number."""


class Groups:
    """The persons of a table: ``ids`` as text, the number of each row's person, and the keys of all rows."""

    def __init__(self, ids: list[str], person: np.ndarray, salt: bytes) -> None:
        """Derive the keys of all rows; ``salt`` separates the persons of different sites."""
        self.ids, self.person = ids, person
        words = b"".join(hashlib.blake2b(text.encode(), key=salt, digest_size=8).digest() for text in ids)
        rows = np.bincount(person, minlength=len(ids))
        order = np.argsort(person, kind="stable")
        self.keys = np.empty(len(person), ROW_OF_PERSON)
        self.keys["person"] = np.frombuffer(words, "<u8")[person]
        self.keys["rows"] = rows[person]
        self.keys["place"][order] = np.arange(len(person)) - np.repeat(np.cumsum(rows) - rows, rows)

    def count(self, codes: np.ndarray, n: int) -> np.ndarray:
        """Count the persons with a row of each of n codes; negative codes are ignored."""
        there = codes >= 0
        once = np.unique(self.person[there].astype(np.int64) * n + codes[there]) % max(n, 1)
        return np.bincount(once, minlength=n)

    @property
    def first(self) -> np.ndarray:
        """Which rows are their person's first: bool."""
        return np.asarray(self.keys["place"] == 0)


def shared_ids(ids: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a line if sites share ids, which only their tables together show."""
    counts = Counter(text for of_site in ids.values() for text in of_site)
    shared = sum(n > 1 for n in counts.values())
    if not shared:
        return []
    return [
        f"group: {count_of(shared, 'id')} {'is' if shared == 1 else 'are'} at more than one site; if these are the "
        "same persons, some train the model at one site and test it at another: keep each person at one site"
    ]


def read_groups(table: Batched, group: str, salt: bytes) -> Groups:
    """Read the column of ids; raise ``SchemaError`` if it is absent or has missing cells."""
    if group not in table.excluded:
        raise SchemaError(f"the table has no column {group!r}, which group names; every site needs it")
    numbers: dict[str, int] = {}
    person, start, missing = np.empty(len(table), np.uint32), 0, 0
    for batch in table.batches([group]):
        values, places = distinct(batch[group])
        if STRANGE in values:
            raise SchemaError(f"column {group!r}, which group names, must hold numbers or text; write ids as text")
        texts = ["" if str(value).strip().lower() in MARKERS else cell_text(value).strip() for value in values]
        codes = np.array([numbers.setdefault(text, len(numbers)) if text else -1 for text in texts] + [-1], np.int64)
        missing += int((codes[places] < 0).sum())
        person[start : start + len(places)] = np.maximum(codes[places], 0)
        start += len(places)
    if missing:
        raise SchemaError(
            f"column {group!r}, which group names, is missing in {missing:,} of {count_of(len(table), 'row')}; fill in "
            "the ids, or drop these rows"
        )
    return Groups(list(numbers), person, salt)
