"""Four hospitals, one forest: the heart disease data with their real sites.

Needs the file ``heart_disease_4sites`` (see ``silvan.datasets``) in the folder named by SILVAN_DATA. Each
hospital keeps 30 % of its rows to judge by; everything is repeated over ten random splits.
"""

import polars as pl

import silvan as sv
from silvan import datasets

SPLITS = 10

data = datasets.load("heart_disease_4sites")
tables = []
for seed in range(SPLITS):
    fed = sv.federate_rows(data.frame.to_native(), site=data.site, label=data.label, test=0.3, random_state=seed)
    merged = sv.MergedForest(random_state=seed).fit(fed).evaluate(fed).filter(pl.col("model") == "federated")
    exact = sv.HistogramForest(random_state=seed).fit(fed).evaluate(fed)
    tables += [exact, merged.with_columns(model=pl.lit("merged"))]

mean = pl.concat(tables).group_by("site", "model", maintain_order=True).agg(pl.col("rows", "auc").mean())
table = mean.pivot(on="model", index=["site", "rows"], values="auc").select(
    "site", pl.col("rows").round().cast(int).alias("test rows"), "local", "merged", "federated", "pooled"
)
with pl.Config(
    float_precision=3,
    tbl_formatting="ASCII_MARKDOWN",
    tbl_hide_column_data_types=True,
    tbl_hide_dataframe_shape=True,
):
    print(table)
