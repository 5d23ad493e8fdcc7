"""The narrowest type that fits all cells of a column of CSV text: whole numbers, numbers, booleans, or text.

Polars is imported where it is used: it takes longer to import than the rest of the package.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl


class CellTypes:
    """The types that all cells of a column fit, as far as they have been seen."""

    def __init__(self) -> None:
        self.whole = self.number = self.boolean = True
        self.empty = True  # no cell has a value

    def add(self, text: "pl.Series") -> None:
        """Look at some cells."""
        import polars as pl

        clean = _clean(text)
        missing = clean.null_count()
        if missing == len(clean):
            return
        self.empty = False
        self.whole = self.whole and clean.cast(pl.Int64, strict=False).null_count() == missing
        self.number = self.number and clean.cast(pl.Float64, strict=False).null_count() == missing
        self.boolean = self.boolean and bool(clean.str.to_lowercase().is_in(["true", "false"]).all())

    def narrowest(self) -> Any:
        """Return the polars type of the column; a column without any value is numeric."""
        import polars as pl

        if self.empty:
            return pl.Float64
        return pl.Int64 if self.whole else pl.Float64 if self.number else pl.Boolean if self.boolean else pl.String


def convert(text: "pl.Series", dtype: Any) -> "pl.Series":
    """Convert a column of text to a type that all its cells fit; empty and blank cells become missing."""
    import polars as pl

    clean = _clean(text)
    if dtype == pl.String:
        return text.set(clean.is_null(), None)
    return clean.str.to_lowercase() == "true" if dtype == pl.Boolean else clean.cast(dtype)


def narrow(text: "pl.Series") -> "pl.Series":
    """Convert a column of text to the narrowest type that fits all of its cells."""
    types = CellTypes()
    types.add(text)
    return convert(text, types.narrowest())


def _clean(text: "pl.Series") -> "pl.Series":
    clean = text.str.strip_chars()
    return clean.set(clean == "", None)
