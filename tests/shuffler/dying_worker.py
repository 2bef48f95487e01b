"""A worker that kills itself once, when it has opened a batch: `python -m tests.shuffler.dying_worker`.

The supervisor and its job process both end, before the tally is stored.
"""

import os
import signal
from typing import Any

import workers.job_process

_compute = workers.job_process.main


def compute_until_opened(*args: Any) -> None:
    """Run a job process that ends with its supervisor after it opened a batch."""
    from workers.aggregation import aggregate

    open_batch = aggregate.open_batch

    def die_opened(*args: Any, **options: Any) -> None:
        open_batch(*args, **options)
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    aggregate.open_batch = die_opened  # type: ignore[assignment]
    _compute(*args)


if __name__ == "__main__":
    from tests.shuffler import dying_worker
    from workers.__main__ import main

    # Pickled by its name, which the spawned process imports.
    workers.job_process.main = dying_worker.compute_until_opened
    main()
