"""The type of a column, from all its cells: numbers, truth values, dates or text, or a mixture that is refused.

A few odd cells never make a column categorical. If at least a tenth of the cells are numbers (or dates), the column is
numeric (or a date), and cells that are neither that nor a marker of missing values are an error. A column with hardly
any numbers is text.

Polars is imported where it is used, because importing it takes longer than the rest of the package.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from silvan.data.cells import MARKERS, read_date
from silvan.data.schema import DatePart
from silvan.errors import InputError

if TYPE_CHECKING:
    import polars as pl

Kinds = Mapping[str, str | Sequence[DatePart]]
"""The kinds of columns that a study declares: "numeric", "categorical", "date", or the parts of a date to use.

A label may be "folded": case and surrounding blanks of its class names are ignored.
"""

_PARTS = get_args(DatePart)

_SHARE = 0.1  # a column with at least this share of numbers, or dates, is not text

_FEW_CODES = 20
"""Text in a data frame with more distinct numbers than this counts as a numeric column with some broken cells."""

_UNIT = r"\s[A-Za-zµ°][\w/%°^]*|(mg|µg|ug|kg|g|cm|mm|ml|dl|mmol)(/\w+)?"
_ALMOST = rf"^[$€£]?\s*[+\-−–]?\d[\d.,'’\s]*(%|‰|[$€£]|{_UNIT})?$"
"""Texts that people read as numbers (with signs, separators or units) but a program should not."""

_MONTH = r"(jan|feb|mar|mär|mrz|apr|may|mai|jun|jul|aug|sep|oct|okt|nov|dec|dez)\pL*"
_DAY = r"(0?[1-9]|[12]\d|3[01])"
_DATED = (
    rf"(?i)^(\d{{4}}[/.-]{_DAY}[/.-]{_DAY}|{_DAY}[/.-]{_DAY}[/.-](\d{{4}}|\d{{2}})"
    rf"|\d{{1,2}}[ ./-]*{_MONTH}[ ./-]*(\d{{4}}|\d{{2}})|{_MONTH}[ .]*\d{{1,2}},? *\d{{4}})([ T].*)?$"
)
"""Texts that people read as dates, in formats that are not read here."""


def check_kinds(kinds: Any) -> dict[str, str | tuple[DatePart, ...]]:
    """Return the declared kinds of columns; raise ``InputError`` for an unknown kind."""
    if not isinstance(kinds, Mapping):
        raise InputError.about("kinds", f"must be a dict of kinds by column, got {type(kinds).__name__}")
    found: dict[str, str | tuple[DatePart, ...]] = {}
    for name, kind in kinds.items():
        parts = isinstance(kind, list | tuple) and kind and all(part in _PARTS for part in kind)
        if not parts and kind not in ("numeric", "categorical", "folded", "date"):
            known = f"'numeric', 'categorical', 'folded', 'date', or a list of {', '.join(_PARTS)}"
            raise InputError(f"kinds: {name} must be {known}; got {kind!r}", parameter="kinds")
        found[str(name)] = tuple(dict.fromkeys(kind)) if parts else str(kind)
    return found


def check_apart(
    parameter: str, column: str | None, label: str, site: str | None = None, features: Sequence[str] = ()
) -> None:
    """Raise ``InputError`` if a parameter names a column with another role: the label, the site or a feature."""
    if column is None:
        return
    if not column:
        raise InputError.wrong(parameter, "the name of a column", column)
    others = {label: "the label", site: "the column that names the site"}
    if column in others:
        raise InputError.about(parameter, f"names {column!r}, which is {others[column]}; name a column of its own")
    if column in features:
        raise InputError.about(parameter, f"names {column!r}, which the schema has as a feature; leave it out there")


def kind_of(kinds: Kinds, name: str) -> str | None:
    """Return the declared kind of a column; None if it is not declared."""
    kind = kinds.get(name)
    if kind == "folded":
        return "categorical"
    return kind if kind is None or isinstance(kind, str) else "date"


def said_categorical(kinds: Kinds) -> list[str]:
    """Return the columns declared as categorical."""
    return [name for name, kind in kinds.items() if kind in ("categorical", "folded")]


def date_parts(kinds: Kinds, name: str) -> Sequence[DatePart]:
    """Return the part used of a date column: by default the days since 1970."""
    kind = kinds.get(name)
    return ("days",) if kind is None or isinstance(kind, str) else kind


class CellTypes:
    """The types that fit all cells of a column seen so far.

    ``typed`` means that the source declares types. Then text stays text even if all of it could be numbers, unless some
    cells mark missing values, or there are too many distinct numbers for codes.
    """

    def __init__(self, kind: str | None = None, *, typed: bool = False) -> None:
        self.kind, self.typed = kind, typed
        self.whole = self.boolean = True
        self.seen = self.present = self.numbers = self.truths = self.dates = self.almost = self.dated = self.markers = 0
        self.others: list[int] = []  # the first rows with neither a number nor a date
        self.codes: set[str] = set()  # distinct numbers among the texts, while few enough for codes
        self.all_texts = True  # whether all cells are text

    def add(self, text: "pl.Series", rows: "pl.Series | None" = None) -> None:
        """Add some cells, or with ``rows`` distinct texts and the number of rows with each."""
        import polars as pl

        clean = _clean(text)
        before, self.seen = self.seen, self.seen + len(clean)
        if self.typed:  # blank text and missing text may both occur
            blank = clean.is_null() & text.is_not_null()
            self.markers += int(blank.sum() if rows is None else rows.filter(blank).sum())
        if rows is None:
            missing = clean.null_count()
            if missing == len(clean):
                return
            for dtype in (pl.Int64, pl.Float64):
                numbers = clean.cast(dtype, strict=False)
                if numbers.null_count() == missing and not numbers.is_nan().any():  # a NaN marks a missing value
                    self._count(numbers=len(clean) - missing)
                    self.whole, self.boolean = self.whole and dtype == pl.Int64, False
                    return
        words = pl.DataFrame(
            {"word": clean, "rows": rows if rows is not None else pl.repeat(1, len(clean), eager=True)}
        )
        counted = words.drop_nulls().group_by("word").agg(pl.col("rows").sum())
        usual = self._look_at(counted)
        if rows is None and len(self.others) < 3:
            strange = clean.is_not_null() & ~clean.is_in(usual.to_list())
            self.others += [before + row + 1 for row in strange.arg_true().head(3 - len(self.others)).to_list()]

    def add_values(self, values: Sequence[Any], rows: Sequence[int]) -> None:
        """Add distinct values of any type, and the number of rows with each."""
        import polars as pl

        texts = [(value, n) for value, n in zip(values, rows, strict=True) if isinstance(value, str)]
        if texts:
            self.add(pl.Series([t for t, _ in texts], dtype=pl.String), pl.Series([n for _, n in texts]))
        for value, n in zip(values, rows, strict=True):
            if not isinstance(value, str):
                self.all_texts = False
                self._count(**{"truths" if isinstance(value, bool) else "numbers": n})
                self.whole = self.whole and isinstance(value, int)
                self.boolean = self.boolean and isinstance(value, bool)

    def _look_at(self, counted: "pl.DataFrame") -> "pl.Series":
        """Classify and count distinct texts; return those that are numbers, dates or markers."""
        words, rows = counted["word"], counted["rows"].to_numpy()
        marker, truth, number, whole = (sign.to_numpy() for sign in counted.select(_signs()))
        present = int(rows[~marker].sum())
        self.markers += int(rows.sum()) - present
        if not present:
            return words
        self.whole = self.whole and bool((whole | marker).all())
        self.boolean = self.boolean and bool((truth | marker).all())
        number = number & ~marker
        if len(self.codes) <= _FEW_CODES:
            self.codes.update(words.filter(number).to_list()[: _FEW_CODES + 1])
        date = np.array([read_date(word) is not None for word in words.to_list()], np.bool_) & ~marker
        other = ~(number | truth | date | marker)
        self._count(
            numbers=int(rows[number].sum()),
            truths=int(rows[truth].sum()),
            dates=int(rows[date].sum()),
            others=int(rows[other].sum()),
        )
        if not other.any():
            return words
        almost, dated = (sign.to_numpy() for sign in counted.select(_readings()))
        self.almost += int(rows[other & almost].sum())
        self.dated += int(rows[other & dated].sum())
        return words.filter(~other)

    def _count(self, numbers: int = 0, truths: int = 0, dates: int = 0, others: int = 0) -> None:
        self.present += numbers + truths + dates + others
        self.numbers += numbers
        self.truths += truths
        self.dates += dates

    @property
    def found(self) -> str:
        """The kind of the column: "empty", "numeric", "date" or "categorical"; for mixtures, the majority decides."""
        if not self.present:
            return "empty"
        if self.kind is not None:
            return self.kind
        if self.dates > self.numbers and self.dates >= _SHARE * self.present:
            return "date"
        if self.all_numbers:
            return "categorical" if self.typed and not self.markers else "numeric"
        if self.typed and self.all_texts and not self.markers and 0 < len(self.codes) <= _FEW_CODES:
            return "categorical"
        many = self.numbers >= _SHARE * self.present or self.almost > 0.5 * self.present
        return "numeric" if many else "categorical"

    @property
    def all_numbers(self) -> bool:
        """Whether every non-empty cell is a number, true or false."""
        return self.numbers + self.truths == self.present

    def narrowest(self) -> Any:
        """Return the polars type of the column; a column without any value is numeric."""
        import polars as pl

        found = self.found
        if found == "empty":
            return pl.Float64
        if found != "numeric" or not self.all_numbers:
            return pl.String
        return pl.Int64 if self.whole else pl.Boolean if self.boolean else pl.Float64

    def complaint(self, name: str) -> str | None:
        """Return why the column cannot be described; None if it can. No cell is quoted."""
        found, mend = self.found, f'set its kind (kinds: {name} = "categorical")'
        if self.kind is None and not self.dates and self.dated >= max(1, 0.9 * self.present):
            return (
                f"column {name!r} seems to hold dates that are not written as 2020-01-31 or 31.1.2020; some formats "
                "are ambiguous (01/02/2020 may be in January or February); write them as 2020-02-01, leave the column "
                f"out (exclude), or {mend}"
            )
        if found in ("empty", "categorical"):
            return None
        fitting = self.numbers + self.truths if found == "numeric" else self.dates
        others = self.present - fitting
        if not others:
            return None
        places = f" ({places_text(self.others, others)})" if self.others else ""
        if not fitting and found == "numeric" and self.kind is None:
            return (
                f"the numbers of column {name!r} have separators, signs or units, which cannot be read{places}; write "
                f"plain numbers such as 1234.5, set decimal if they have decimal commas, or {mend}"
            )
        what = "number" if found == "numeric" else "date"
        are = f"is no {what}" if others == 1 else f"are no {what}s"
        return (
            f"column {name!r} mixes {what}s and text: {others:,} of its {self.present:,} cells{places} {are}; "
            f"correct or empty these cells, declare the markers of missing values (missing), or {mend}"
        )


@cache
def _signs() -> "list[pl.Expr]":
    """Return checks for distinct texts: markers, true or false, numbers, whole numbers."""
    import polars as pl

    word = pl.col("word")
    low = word.str.to_lowercase()
    return [
        low.is_in(sorted(MARKERS)).alias("marker"),
        low.is_in(["true", "false"]).alias("truth"),
        word.cast(pl.Float64, strict=False).is_not_null().alias("number"),
        word.cast(pl.Int64, strict=False).is_not_null().alias("whole"),
    ]


@cache
def _readings() -> "list[pl.Expr]":
    """Return checks for other texts: whether people would read them as numbers or dates."""
    import polars as pl

    return [pl.col("word").str.contains(text).alias(text) for text in (_ALMOST, _DATED)]


def places_text(rows: Sequence[int], n: int) -> str:
    """List the first of n rows as text."""
    places = ", ".join(f"{row:,}" for row in rows[:3])
    return f"row {places}" if n == 1 else f"rows {places}{', ...' if n > 3 else ''}"


def convert(text: "pl.Series", dtype: Any) -> "pl.Series":
    """Convert a text column to a type that fits all its cells; empty cells, blanks and markers become missing."""
    import polars as pl

    clean = _clean(text)
    if dtype == pl.String:
        return text.set(clean.is_null(), None)
    if dtype == pl.Boolean:
        low = clean.str.to_lowercase()
        return low.set(~low.is_in(["true", "false"]), None) == "true"
    numbers = clean.cast(dtype, strict=False)
    if dtype == pl.Float64 and numbers.null_count() > clean.null_count():
        truth = clean.str.to_lowercase().replace_strict({"true": 1.0, "false": 0.0}, default=None, return_dtype=dtype)
        numbers = numbers.fill_null(truth) if truth.null_count() < len(truth) else numbers
    return numbers


def _clean(text: "pl.Series") -> "pl.Series":
    clean = text.str.strip_chars()
    return clean.set(clean == "", None)
