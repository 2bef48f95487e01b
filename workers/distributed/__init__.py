"""Optional distribution of large aggregations and of sums over records over the workers of a Dask scheduler.

Only a worker with a configured scheduler imports this package. Ids and public parameters go to the Dask workers, which
read the database themselves. Tallies and exact sums come back, and they equal those of a single process.
"""
