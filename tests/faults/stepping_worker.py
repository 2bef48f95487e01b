"""A worker with a job process that pauses at the armed steps: `python -m tests.faults.stepping_worker`.

It runs the toy algorithms. `FAULTS_DIRECTORY` names the folder of the steps.
"""

from typing import Any

import workers.job_process
from tests.workers.toy import Toy
from tests.workers.toy_central import ToyCentral

_compute = workers.job_process.main


def compute_with_steps(*args: Any) -> None:
    """Run a job process with functions that are wrapped with steps."""
    from tests.faults import steps

    steps.prepare_child()
    _compute(*args)


if __name__ == "__main__":
    from tests.faults import stepping_worker
    from workers.__main__ import main

    # Pickled by its name, which the spawned process imports.
    workers.job_process.main = stepping_worker.compute_with_steps
    main(start=Toy(draws=((0.0, 1.0),)), run_central=ToyCentral())
