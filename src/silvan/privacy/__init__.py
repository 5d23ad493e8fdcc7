"""What protects rows: keys between sites, matching of ids, and the four folders below."""
