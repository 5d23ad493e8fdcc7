"""Forests of rows that stay at their sites: summed histograms, adaptive bins, merged forests."""
