"""Differential privacy: noise, exact sampling, requests answered with noise, budgets and accounting."""
