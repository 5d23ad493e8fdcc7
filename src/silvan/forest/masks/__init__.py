"""Rows go down small trees as bit masks: cuts, marks of the rows above them, and the way down."""
