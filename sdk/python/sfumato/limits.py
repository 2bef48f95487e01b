"""Limits of specifications that mechanisms and encodings share."""

MAX_FEATURES = 64  # maximum of a record on a device, and of queries with Laplace noise
MAX_RECORD_FEATURES = 1536  # maximum of a record of a central dataset
MAX_SYMBOLS = 1 << 20  # maximum for every encoding
MAX_RECORDS_PER_USER = 1_000_000  # maximum of records of one user that a job uses
MAX_INT32 = 2**31 - 1
MAX_STEPS = 1 << 16  # lattice units across a feature's range

# Attributes that form clusters by phases. Each category but one needs waves with its character. 1024 waves have each
# character of four attributes with 16 categories about 20 times, and 5 times without another attribute.
MAX_PHASE_ATTRIBUTES = 4
MAX_PHASE_CATEGORIES = 16  # with `other` and `missing`

MAX_CELL_SYMBOLS = 4096  # maximum cells of a grid with one bit per symbol in a report
MAX_SUBSET_SYMBOLS = MAX_CELL_SYMBOLS + 1  # the cells, and one symbol for records outside of the bounds
MAX_RESPONSE_SYMBOLS = MAX_SYMBOLS + 1  # likewise
MAX_HASH_RANGE = 1 << 16  # maximum range of local hashing
MAX_SCALE_PART = 1 << 32  # numerator and denominator of a Laplace scale
MAX_SCALE = 1 << 26  # lattice units
MAX_MARGIN = 1 << 30  # lattice units; a reported feature has at most 32 bits
MAX_WINDOW_SYMBOLS = 1 << 12  # maximum number of symbols on a circle
