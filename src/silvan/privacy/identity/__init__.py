"""Keys and signatures of parties, matching of IDs, and the sampling key that only sites share."""
