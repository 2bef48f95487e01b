"""`python -m workers`: one worker, set up from the environment.

`SFUMATO_DIE_WITH_PARENT` ends it with the process that started it: the parent's process
id, or 1 for whoever is the parent when it looks. SIGTERM and SIGINT end it in good order:
the job under way goes back to the queue at once.
"""

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType

import structlog

from models.bulletin import open_bulletin
from models.db import Database
from models.doorbell import open_doorbell
from models.exposition import expose
from models.process import end_with_starter
from models.settings import Settings, settings
from models.tracing import open_tracer
from sfumato.specs import ALGORITHMS
from workers import kernel_cache
from workers.child import RunCentral, StartPlan
from workers.metrics import WorkerMetrics
from workers.process import leave_no_core, log_to_stderr
from workers.supervisor import Supervisor


def main(
    chosen: Settings | None = None, *, start: StartPlan | None = None, run_central: RunCentral | None = None
) -> None:
    """Work until told to stop.

    Parameters
    ----------
    chosen : Settings, optional
        By default what the environment says.
    start : callable, optional
        Which plan runs which algorithm; the registry's by default.
    run_central : callable, optional
        Runs central algorithms.
    """
    is_bound = end_with_starter()
    leave_no_core()
    log_to_stderr()
    chosen = chosen or settings()
    redis_url = chosen.redis_url.get_secret_value() if chosen.redis_url else None
    database = Database(chosen.resolved_database_url, pool_size=2, wait_seconds=chosen.database_wait_seconds)
    doorbell = open_doorbell(redis_url, chosen.poll_seconds, chosen.database_file)
    bulletin = open_bulletin(redis_url, chosen.database_file)
    tracer = open_tracer(chosen, "sfumato-worker")
    metrics = WorkerMetrics(doorbell, bulletin, tracer, database=database)
    supervisor = Supervisor(
        chosen,
        database,
        doorbell,
        stop_with_parent=is_bound,
        start=start,
        run_central=run_central,
        metrics=metrics,
        bulletin=bulletin,
    )
    stop_exposing = expose(metrics.registry, chosen.host, chosen.metrics_port)

    def stop(_signal: int, _frame: FrameType | None) -> None:
        supervisor.stop()

    for order in (signal.SIGTERM, signal.SIGINT):
        signal.signal(order, stop)
    log = structlog.get_logger(__name__)
    log.info("worker_started", pid=os.getpid(), embedded=chosen.embedded, doorbell="redis" if redis_url else "polling")
    supervisor.run()
    stop_exposing()
    if tracer is not None:
        tracer.close()
    database.close()
    log.info("worker_stopped", pid=os.getpid())


def compile_ahead(into: Path | None) -> int:
    """Compile every algorithm's kernels and end; the exit status.

    Parameters
    ----------
    into : Path or None
        Kernels for all machines of this one's family go there; None is for this machine, where numba keeps its own.
    """
    if into is not None and not kernel_cache.portable(os.environ, into):
        sys.stderr.write("kernels for other machines cannot be compiled here\n")
        return 1
    log_to_stderr()
    from workers import warm

    missing = set(ALGORITHMS) - warm.warm_up()
    sys.stdout.write(f"{len(ALGORITHMS) - len(missing)} of {len(ALGORITHMS)} algorithms are compiled\n")
    return 1 if missing else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="sfumato worker",
        description="One worker over the database of the settings (SFUMATO_* in the environment).",
    )
    parser.add_argument("--warm", action="store_true", help="only compile what jobs will run, for later starts")
    parser.add_argument(
        "--into", type=Path, metavar="DIR", help="with --warm: for every machine of this one's family, as an image is"
    )
    chosen = parser.parse_args()
    if chosen.into is not None and not chosen.warm:
        parser.error("--into goes with --warm")
    if chosen.warm:
        sys.exit(compile_ahead(chosen.into))
    main()
