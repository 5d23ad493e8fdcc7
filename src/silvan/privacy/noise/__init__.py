"""Differential privacy: noise, exact sampling, requests with noise, budgets and accounts."""
