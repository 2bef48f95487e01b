"""Limits of specifications that mechanisms and encodings share."""

MAX_FEATURES = 64  # maximum of a record on a device, and of queries with Laplace noise
MAX_RECORD_FEATURES = 1536  # maximum of a record of a central dataset
MAX_SYMBOLS = 1 << 20  # maximum for every encoding
MAX_STEPS = 1 << 16  # lattice units across a feature's range
