"""Compiled loops (numba): counting reports, assigning points to cells and centres, sums for fits.

Kernels take arrays and scalars and write into output arrays. They draw no randomness; noise is an
argument. `tests/naive.py` has a plain twin of each.
"""
