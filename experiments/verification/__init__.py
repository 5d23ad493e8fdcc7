"""Deviations of whole studies, and whether verification finds them."""
