"""A site whose rows are partitions on the workers of a Dask cluster: to everybody else it is one site."""
