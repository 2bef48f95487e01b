"""The audit of the privacy claims.

It reads the installed code, runs checks of every claim, and returns findings. `audit.planted` holds broken variants
of the same code. The same checks must detect each of them.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the setting of job processes; must precede numpy
