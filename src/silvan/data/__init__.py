"""Tables: what their columns mean, how they are read, encoded, held out and binned."""
