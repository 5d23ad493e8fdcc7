"""What federated models are compared with: all rows in one place, and each site alone, where sites live in this process."""
