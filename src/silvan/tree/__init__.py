"""Growing trees: sampling, histograms, gains, splits, partitions, and a single grower for all kinds of forests."""
