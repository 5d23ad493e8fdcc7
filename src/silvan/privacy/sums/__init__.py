"""Sums that hide their parts: passed round a ring, or masked pairwise."""
