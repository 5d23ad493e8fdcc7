"""A finished forest: its arrays, its checks, prediction, scoring, and the forms it is shared in."""
