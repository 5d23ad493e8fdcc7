"""Protection of rows: keys between sites, matching of ids; gate, noise, hidden sums and encryption have folders."""
