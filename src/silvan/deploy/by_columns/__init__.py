"""Studies over columns between machines: a party's side, what its owner is told, and predictions of new rows."""
