"""Studies to look at, on data that comes along."""
