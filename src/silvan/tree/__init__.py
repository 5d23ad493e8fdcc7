"""Growing trees: draws, histograms, gains, splits, partitions, and the one grower."""
