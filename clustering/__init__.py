"""Clustering algorithms: tallies or curated records in, cluster models out.

The folders follow the methods. All functions take arrays and parameters and return arrays or models; they use no
database, no network and no clock.
"""
