"""Bins that fit in one byte: a grid of float cells, cut points chosen from cell counts, bin codes of values."""
