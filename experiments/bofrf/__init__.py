"""The publication on BOFRF, reproduced: twelve environments, and all combinations of eight sites."""
