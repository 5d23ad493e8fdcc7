"""Four hospitals with their own rows: does joining help each of them, by more than noise?

The heart disease data comes with the package (920 patients, UCI, CC BY 4.0). Every patient is judged ten times, by
models that have not seen them; it takes about a minute.
"""

import silvan as sv

fed = sv.federate_rows(sv.datasets.heart_disease(), site="hospital", label="disease")
learners = {
    "histogram": sv.HistogramForest(),  # one forest, that of all rows in one place
    "merged": sv.MergedForest(),  # sites' own trees put together
    "BOFRF": sv.BOFRF(n_estimators=50),  # sites' own trees, weighed by how they do at all sites
}
found = sv.compare(fed, learners, repeats=10)
print(found)

sent = sum(ways["sent"] for ways in fed.bytes.values()) / len(fed.sites)
print(f"\nIn all splits together a hospital sent {sent / 1e6:.0f} MB of counts and trees, and no row.")
