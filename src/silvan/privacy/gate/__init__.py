"""A site's own rules: its policy, the studies its owner approved, and a signed ledger of what left."""
