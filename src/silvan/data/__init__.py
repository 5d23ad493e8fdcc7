"""Tables: what their columns mean, and how they are read, encoded, held out and binned."""
