"""Tables: what their columns mean, how they are read, encoded and binned."""
