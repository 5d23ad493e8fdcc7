"""Secure sums: the parts of single sites stay hidden, passed round a ring or masked pairwise."""
