"""Tables bundled with the package: heart disease at four hospitals, and incomes."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl


def heart_disease() -> "pl.DataFrame":
    """Return 920 patients of four hospitals: ``hospital``, 13 attributes, and ``disease``, 0 or 1.

    The heart disease data of Janosi, Steinbrunn, Pfisterer and Detrano (UCI, https://doi.org/10.24432/C52P4X, CC BY
    4.0); ``data/tables/heart_disease.txt`` lists the changes. Many cells are missing.
    """
    import polars as pl  # slow to import

    return pl.read_csv(Path(__file__).parent / "data" / "tables" / "heart_disease.csv")


def income() -> "pl.DataFrame":
    """Return 2,400 people of six kinds of employers: ``employer``, nine attributes, and ``above_50k``, 0 or 1.

    Sampled from the Adult data of Becker and Kohavi (UCI, https://doi.org/10.24432/C5XW20, CC BY 4.0), a census of
    1994; ``data/tables/income.txt`` lists the changes.
    """
    import polars as pl  # slow to import

    return pl.read_csv(Path(__file__).parent / "data" / "tables" / "income.csv.gz")


def from_sklearn(name: str) -> "pl.DataFrame":
    """Return a table from scikit-learn, with its label in the column ``label``."""
    import polars as pl  # slow to import
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{name}")()
    frame = pl.DataFrame(bunch.data, schema=list(map(str, bunch.feature_names)))
    return frame.with_columns(pl.Series("label", bunch.target))
