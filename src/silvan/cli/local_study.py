"""What ``silvan study local`` runs if nothing else is named."""

from pathlib import Path

EXAMPLE = """\
name = "example"
label = "malignant"
test = 0.3

[learner]
kind = "HistogramForest"
n_estimators = 50
max_depth = 8
"""


def deal(folder: Path, n: int, table: Path | None) -> dict[str, str]:
    """Write a table for each site: every n-th row of one, or of data that comes with scikit-learn."""
    import polars as pl

    if table is None:
        from sklearn.datasets import load_breast_cancer

        data = load_breast_cancer()
        names = [name.replace(" ", "_") for name in data.feature_names]
        frame = pl.DataFrame(data.data, schema=names).with_columns(malignant=pl.Series(1 - data.target))
    else:
        from silvan.data.table import read_table

        frame = pl.DataFrame(read_table(table).to_native())
    tables = {}
    for i in range(n):
        path = folder / f"site-{i + 1}.csv"
        frame.gather_every(n, i).write_csv(path)
        tables[f"site-{i + 1}"] = str(path.resolve())
    return tables
