"""Compilation of numba kernels before the first job needs them.

`warmup` runs each algorithm once on a tiny input. `cache` installs the compiled kernels that an image contains.
"""
