"""Quality of clustering, measured against other methods.

Each of the packages `local`, `centroids` and `central` has the data sets, methods, measures and tables of a benchmark.
`pipeline` runs a benchmark; `results` keeps one row per run as a pandas frame.
"""
