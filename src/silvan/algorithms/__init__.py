"""The algorithms of the publications, one folder a family; importing this package registers every message."""
