"""A clinic and a laboratory hold different columns about the same patients, and neither may share them.

The breast cancer data of scikit-learn: the clinic has the diagnosis and ten measurements, the laboratory twenty others.
Each has patients unknown to the other. Run it with ``python examples/03_columns.py``.
"""

import importlib.util
import tempfile
import time

import numpy as np
import polars as pl
from sklearn.datasets import load_breast_cancer

import silvan as sv

X, y = load_breast_cancer(return_X_y=True, as_frame=True)
diagnosis = np.where(y == 0, "malignant", "benign")
everybody = pl.from_pandas(X).with_columns(
    pl.Series("patient", np.arange(len(X)) + 7000), diagnosis=pl.Series(diagnosis)
)
old, new = everybody[:500], everybody[500:]


def clinic(table: pl.DataFrame) -> pl.DataFrame:
    """Return the clinic's columns."""
    return table.select("patient", *X.columns[:10], "diagnosis")


def laboratory(table: pl.DataFrame) -> pl.DataFrame:
    """Return the laboratory's columns, in another order of rows."""
    return table.select("patient", *X.columns[10:]).sample(fraction=1.0, shuffle=True, seed=1)


# -- which patients do both have? Ids are compared as keyed hashes, and nobody sees them
tables = {"clinic": clinic(old[:460]), "laboratory": laboratory(old[20:])}
fed = sv.federate_columns(tables, id="patient", label="diagnosis", test=0.3)
n_train, n_test = len(fed.columns.training), len(fed.columns.test)
print(f"{n_train} training patients, {n_test} test patients; the {fed.label_holder} has the label")
for column, what, done in fed.differences.notes:
    print(f"  {column} {what}: {done}")

# -- a forest, and a linear model for comparison
forest = sv.VerticalForest(max_depth=6).fit(fed)
linear = sv.VerticalLinear().fit(fed)
whole = sv.PooledForest(max_depth=6).fit(fed)
assert forest.forest_.hash == whole.forest_.hash  # noqa: S101
print(f"\n{len(forest.forest_)} trees in {forest.rounds_} rounds, identical to those of the joined table")
print(f"linear model in {linear.rounds_} rounds, equal to scikit-learn's on the joined table\n")
columns = ["site", "model", "auc", "gain", "gain_low", "gain_high"]
with pl.Config(
    float_precision=3,
    tbl_formatting="ASCII_MARKDOWN",
    tbl_hide_column_data_types=True,
    tbl_hide_dataframe_shape=True,
    tbl_rows=20,
):
    for model in (forest, linear):
        print(f"{type(model).__name__}:\n{model.evaluate(fed).select(columns)}\n")

# -- new patients, by id; five of them are still unknown to the laboratory
tables = {"clinic": clinic(new).drop("diagnosis"), "laboratory": laboratory(new[5:])}
arrived = sv.federate_columns(tables, id="patient", match="keyed")  # to predict patients that only one of them has
replies = forest.predict(arrived, incomplete=True)
right = replies.join(new.select("patient", "diagnosis"), on="patient").select(
    pl.col("prediction") == pl.col("diagnosis")
)
print(f"{len(replies)} new patients in one round, {right.sum().item()} right; unknown to some party: {forest.lacking_}")

# -- each party keeps its own file
with tempfile.TemporaryDirectory() as folder:
    forest.save(folder)
    again = sv.VerticalForest.load(folder)
    assert again.predict(arrived, incomplete=True).equals(replies)  # noqa: S101
    splits = [f"the {party} has {len(share.node)} splits" for party, share in forest.shares_.items()]
    print(f"saved in shares: {', '.join(splits)}")

# -- the same trees with labels that only the clinic can read
if importlib.util.find_spec("gmpy2") is None:
    print("\nlabels can be encrypted too: pip install 'silvan[vertical]'")
else:
    small = {"n_estimators": 2, "max_depth": 2, "min_samples_leaf": 20}
    start = time.perf_counter()
    secret = sv.VerticalForest(**small, labels="encrypted").fit(fed)
    took = time.perf_counter() - start
    assert secret.forest_ == sv.VerticalForest(**small).fit(fed).forest_  # noqa: S101
    print(f"\nencrypted labels, 2048 bits: the same trees as with encoded ones, {secret.rounds_} rounds, {took:.0f} s")
