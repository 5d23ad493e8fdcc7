"""Four hospitals with their own rows: does joining help each of them significantly?

The heart disease data is bundled with the package (920 patients, UCI, CC BY 4.0). Each patient is evaluated ten times,
with models that have not seen them; this takes about a minute.
"""

import silvan as sv

fed = sv.federate_rows(sv.datasets.heart_disease(), site="hospital", label="disease")
learners = {
    "histogram": sv.HistogramForest(),  # one forest, identical to that of the pooled rows
    "merged": sv.MergedForest(),  # the local trees of all sites together
    "BOFRF": sv.BOFRF(n_estimators=50),  # local trees, weighted by their scores at all sites
}
print(sv.compare(fed, learners, repeats=10))

sent = sum(ways["sent"] for ways in fed.bytes.values()) / len(fed.sites)
print(f"\nOver all splits, the average hospital sent {sent / 1e6:.0f} MB of counts and trees, and no row.")
