"""Four hospitals with their own rows: does joining help each of them significantly?

The heart disease data comes with the package (920 patients, UCI, CC BY 4.0). Every patient is evaluated ten times, by
models that were not trained on that patient; it takes about a minute.
"""

import silvan as sv

fed = sv.federate_rows(sv.datasets.heart_disease(), site="hospital", label="disease")
learners = {
    "histogram": sv.HistogramForest(),  # one forest, equal to that of the pooled rows
    "merged": sv.MergedForest(),  # the local trees of all sites, merged
    "BOFRF": sv.BOFRF(n_estimators=50),  # local trees, weighted by their performance at all sites
}
found = sv.compare(fed, learners, repeats=10)
print(found)

sent = sum(ways["sent"] for ways in fed.bytes.values()) / len(fed.sites)
print(f"\nIn all splits together a hospital sent {sent / 1e6:.0f} MB of counts and trees, and no row.")
