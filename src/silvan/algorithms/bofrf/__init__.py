"""BOFRF: trees exchanged, scored and weighted at all sites, with tuning, clusters and advice."""
