"""Growing trees: draws, histograms, gains, splits, partitions, and the one grower for all kinds of forests."""
