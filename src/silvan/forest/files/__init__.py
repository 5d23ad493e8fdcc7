"""Forests in files and in the formats of other libraries."""
