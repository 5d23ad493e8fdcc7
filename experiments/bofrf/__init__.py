"""The publication on BOFRF, made again: twelve environments, and all combinations of eight sites."""
