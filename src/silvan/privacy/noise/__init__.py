"""Differential privacy: noise, exact sampling, noisy requests, budgets and accounting."""
