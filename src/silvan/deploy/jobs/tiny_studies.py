"""Tiny studies in one process, after which everything that is compiled is loaded.

A site's process does no more than grow a forest by rows: learners and scikit-learn would take 90 MB that no site needs.
"""

import numpy as np
import polars as pl

from silvan.algorithms.horizontal import histogram_forest
from silvan.federate.by_rows import federate_rows
from silvan.tree.fit import Settings
from silvan.tree.sampling import make_key


def run(*, at_site: bool) -> None:
    """Train a forest by rows; at a coordinator also evaluate one, and train one by columns."""
    draw = np.random.default_rng(0)
    table = pl.DataFrame({"a": draw.normal(size=64), "b": draw.choice(["x", "y"], 64), "label": np.arange(64) % 2})
    by_rows = federate_rows({"one": table[:32], "two": table[32:]}, label="label", task="classification", test=0.25)
    if at_site:
        settings = Settings(n_estimators=2, max_depth=2)
        histogram_forest.fit(by_rows, by_rows.schema, settings, make_key(0, "features"))
        return
    from silvan.federate.by_columns import federate_columns
    from silvan.learners.horizontal import HistogramForest
    from silvan.learners.vertical import VerticalForest

    HistogramForest(n_estimators=2, max_depth=2).fit(by_rows).evaluate(by_rows)
    table = table.with_columns(pl.int_range(64).cast(pl.String).alias("id"))
    parties = {"one": table["id", "a", "label"], "two": table["id", "b"]}
    by_columns = federate_columns(parties, id="id", label="label", task="classification")
    VerticalForest(n_estimators=2, max_depth=2).fit(by_columns)
