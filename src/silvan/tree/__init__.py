"""Trees: histograms, splits, growing, and the forest they make."""
