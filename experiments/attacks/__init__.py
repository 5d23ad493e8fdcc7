"""Attacks on what the documents claim."""
