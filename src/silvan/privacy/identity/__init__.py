"""Who is who: keys and signatures of parties, matching of ids, the sampling key that only sites share."""
