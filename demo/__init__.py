"""The demo, one process; what it computes beside the service must agree with that to the last bit."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as workers' children have it; read when numpy is loaded
