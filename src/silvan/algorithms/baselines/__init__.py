"""What federated models are compared with, in one process: all rows in one place, and each site alone."""
