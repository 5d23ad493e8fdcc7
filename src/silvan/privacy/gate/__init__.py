"""A site's own rules: what may leave, what was approved, and a ledger of what left."""
