"""One file an algorithm: its messages, the site's half, the coordinator's half."""
