"""Tables in partitions that the workers of a Dask cluster hold or read."""
