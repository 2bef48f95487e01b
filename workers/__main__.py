"""Run one worker with the settings of the environment: `python -m workers`.

If `SFUMATO_DIE_WITH_PARENT` is set, the worker stops when its parent process exits. The value is the process id of the
parent, or 1 for the parent at start-up. On SIGINT the worker requeues its current job and exits. On SIGTERM the job
may first take `SFUMATO_WORKER_DRAIN_SECONDS` to finish.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import structlog

from models.database.engine import Database
from models.database.schema import check_start
from runtime.change_publisher import open_change_publisher
from runtime.job_signal import open_job_signal
from runtime.logging import configure_logging
from runtime.metrics_server import start_metrics_server
from runtime.process import end_with_starter, leave_no_core
from runtime.settings import Settings, settings
from runtime.tracing import open_tracer
from sfumato.errors import SfumatoError
from sfumato.specs import ALGORITHMS
from workers.job_process import RunCentral, StartPlan
from workers.kernels import cache
from workers.metrics import WorkerMetrics
from workers.supervisor import Supervisor

WAIT_SECONDS = 1.0  # between checks of a database that cannot be used yet


def main(
    chosen: Settings | None = None, *, start: StartPlan | None = None, run_central: RunCentral | None = None
) -> None:
    """Run a worker until SIGTERM or SIGINT.

    Parameters
    ----------
    chosen : Settings, optional
        Settings; by default those of the environment.
    start : callable, optional
        Function that starts the plan of a local algorithm; by default that of the registry.
    run_central : callable, optional
        Function that runs a central algorithm; by default that of `clustering.central`.
    """
    is_bound = end_with_starter()
    leave_no_core()
    configure_logging()
    chosen = chosen or settings()
    redis_url = chosen.redis_url.get_secret_value() if chosen.redis_url else None
    database = Database.from_settings(chosen)
    job_signal = open_job_signal(redis_url, chosen.poll_seconds, chosen.database_file)
    publisher = open_change_publisher(redis_url, chosen.database_file)
    tracer = open_tracer(chosen, "sfumato-worker")
    metrics = WorkerMetrics(job_signal, publisher, tracer, database=database)
    supervisor = Supervisor(
        chosen,
        database,
        job_signal,
        stop_with_parent=is_bound,
        start=start,
        run_central=run_central,
        metrics=metrics,
        publisher=publisher,
    )
    stop_metrics_server = start_metrics_server(metrics.registry, chosen.host, chosen.metrics_port)

    def stop(number: int, _frame: FrameType | None) -> None:
        supervisor.stop(drain=number == signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    log = structlog.get_logger(__name__)
    _await_database(database, supervisor, is_pooled=chosen.database_pooler)
    log.info("worker_started", pid=os.getpid(), embedded=chosen.embedded, job_signal="redis" if redis_url else "local")
    supervisor.run()
    stop_metrics_server()
    if tracer is not None:
        tracer.close()
    database.close()
    log.info("worker_stopped", pid=os.getpid())


def _await_database(database: Database, supervisor: Supervisor, *, is_pooled: bool) -> None:
    """Return when the database can be used, or the worker is to stop. Exit if waiting is of no use."""
    told: str | None = None
    while not supervisor.is_stopping:
        try:
            problem = check_start(database, is_pooled=is_pooled)
        except SfumatoError as error:
            sys.stderr.write(f"sfumato: {error}\n")
            sys.exit(2)
        if problem is None:
            return
        if problem != told:
            structlog.get_logger(__name__).warning("worker_waits", reason=problem)
            told = problem
        time.sleep(WAIT_SECONDS)


def compile_kernels(folder: Path | None) -> int:
    """Compile the kernels of all algorithms and return the exit status.

    Parameters
    ----------
    folder : Path or None
        Folder for portable kernels, which every machine with this architecture can load. If None, numba compiles for
        this machine and stores the kernels in its own cache.
    """
    if folder is not None and not cache.compile_portably(os.environ, folder):
        sys.stderr.write("portable kernels cannot be compiled on this processor\n")
        return 1
    configure_logging()
    from workers.kernels import warmup

    missing = set(ALGORITHMS) - warmup.warm_up()
    sys.stdout.write(f"{len(ALGORITHMS) - len(missing)} of {len(ALGORITHMS)} algorithms are compiled\n")
    return 1 if missing else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="sfumato worker", description="Run one worker. Settings are read from the environment (SFUMATO_*)."
    )
    parser.add_argument("--warm", action="store_true", help="Compile the kernels of all algorithms, then exit.")
    parser.add_argument(
        "--into",
        type=Path,
        metavar="DIR",
        help="With --warm: compile portable kernels into this folder, for example while an image is built.",
    )
    arguments = parser.parse_args()
    if arguments.into is not None and not arguments.warm:
        parser.error("--into requires --warm")
    if arguments.warm:
        sys.exit(compile_kernels(arguments.into))
    main()
