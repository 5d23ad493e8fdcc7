"""Attacks that a release must survive: each an attacker with stated knowledge, and a figure for what it gains."""
