"""Horizontal forests: summed histograms, adaptive bins, merged forests."""
