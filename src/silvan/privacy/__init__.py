"""What protects rows: the gate that replies pass, sums that hide their parts, noise and its accounting."""
