"""The demo: devices report to a private service, and an analyst reads the released clusters.

A person starts it with `sfumato demo`. Pictures, a result file and a summary come out. The demo also computes locally,
in this process, and these results must equal those of the service to the last bit.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the setting of job processes; must precede numpy
