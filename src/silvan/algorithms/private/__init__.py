"""Forests with differential privacy: noisy tables, noisy levels, noisy rows."""
