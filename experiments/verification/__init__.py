"""Deviations of whole studies, and whether verification detects them."""
