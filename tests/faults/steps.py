"""Steps at which a test can pause the shipped processes, clocks it can shift, and bugs it can plant.

The tests' own main (`fork_server`) wraps functions of the shipped code before it runs them. The code itself has no
hook. Files in the directory `FAULTS_DIRECTORY` control the processes:
    arm.<step>              pauses the next process at this step; the process renames the file
    paused.<step>.<pid>     marks a paused process, which continues when the file is deleted
    clock.<name>            microseconds by which the clock of a process is ahead
"""

import os
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import models.database.engine
from models.collection import aggregation_leases, report_intake, rounds
from models.jobs import claims, curator_answers, lifecycle
from models.records import records
from models.tables.jobs import Job, QueryAnswer

MAX_PAUSE_SECONDS = 60.0  # a paused process continues after this time

GATEWAY_STEPS = {
    "gateway.group": "a batch of reports is closed, nothing is written",
    "gateway.received": "reports are written, not committed",
    "gateway.committed": "reports are committed, no response is sent",
    "gateway.upload": "an upload of records is half received",
    "gateway.append": "an upload is written, not committed",
    "gateway.submit": "a job is written, not committed",
    "gateway.cancel": "a cancel is written, not committed",
    "gateway.open": "a round is written, not committed",
    "gateway.charged": "a POST is committed, no response is sent",
}
SUPERVISOR_STEPS = {
    "supervisor.claim": "a claim is written, not committed",
    "supervisor.send": "a claim is committed, the job process has no order",
    "supervisor.renew": "a longer lease is written, not committed",
    "supervisor.aggregate": "a claim of an aggregation is written, not committed",
}
CHILD_STEPS = {
    "child.aggregate": "a round is about to be aggregated",
    "child.count": "an aggregation is half finished",
    "child.tally": "a tally is written, not committed",
    "child.open": "a round and its cost are written, not committed",
    "child.opened": "a round is open, the claim is about to be released",
    "child.publish": "a model is computed, nothing is written",
    "child.result": "a result is written, not committed",
    "child.published": "a result is committed, the supervisor has no message",
    "child.charge": "the charge of a query is written, not committed",
    "child.charged": "a query is charged, not answered",
    "child.keep": "an answer is written, not committed",
    "child.kept": "an answer is stored, the algorithm has not received it",
}
STEPS = GATEWAY_STEPS | SUPERVISOR_STEPS | CHILD_STEPS

PLANTED = {
    "acknowledge_early": "a gateway that responds before the commit",
    "count_repeats": "an aggregation that counts repeated reports",
    "ignore_fence": "a worker that writes the result of a stale claim",
    "charge_twice": "a query that is charged again when it is repeated",
    "forget_keys": "a gateway that stores no idempotency keys",
    "long_lease": "a lease of an hour, which a lost worker keeps",
}

_directory = Path(os.environ.get("FAULTS_DIRECTORY", "/nonexistent"))
_planted = os.environ.get("FAULTS_PLANTED", "")


def pause_at(step: str) -> None:
    """Pause here if the harness armed this step."""
    paused = _directory / f"paused.{step}.{os.getpid()}"
    try:
        os.rename(_directory / f"arm.{step}", paused)
    except OSError:
        return
    deadline = time.monotonic() + MAX_PAUSE_SECONDS
    while paused.exists() and time.monotonic() < deadline:
        time.sleep(0.005)


def wrap(owner: Any, name: str, *, before: str = "", after: str = "") -> None:
    """Wrap a function of a module or class with steps. Skip the step after an unsuccessful claim."""
    function: Callable[..., Any] = getattr(owner, name)

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if before:
            pause_at(before)
        result = function(*args, **kwargs)
        if after and (result is not None or after not in ("supervisor.claim", "supervisor.aggregate")):
            pause_at(after)
        return result

    setattr(owner, name, wrapper)


def shift_clock() -> None:
    """Replace the clock of this process by one that the harness can shift with a file."""
    original, offset_file = models.database.engine.system_clock, _directory / f"clock.{os.environ['FAULTS_NAME']}"
    if original.__name__ == "shifted_clock":  # the supervisor of a job process has replaced it already
        return

    def shifted_clock() -> int:
        try:
            return original() + int(offset_file.read_text())
        except (OSError, ValueError):
            return original()

    models.database.engine.system_clock = shifted_clock


def prepare_gateway() -> None:
    """Wrap the functions of a gateway."""
    from service.api.dependencies import IdempotentRequest
    from service.ingestion.report_writer import ReportWriter

    shift_clock()
    _plant_in_gateway()
    wrap(report_intake, "receive", after="gateway.received")
    wrap(ReportWriter, "_commit", before="gateway.group", after="gateway.committed")
    wrap(records.Upload, "add", after="gateway.upload")
    wrap(records, "append", after="gateway.append")
    wrap(lifecycle, "submit", after="gateway.submit")
    wrap(lifecycle, "cancel", after="gateway.cancel")
    wrap(rounds, "open_standalone", after="gateway.open")
    wrap(IdempotentRequest, "respond", after="gateway.charged")


def prepare_supervisor() -> None:
    """Wrap the functions of a supervisor."""
    from workers.process_handle import JobProcessHandle

    shift_clock()
    _plant_in_worker()
    wrap(claims, "claim_job", after="supervisor.claim")
    wrap(JobProcessHandle, "send", before="supervisor.send")
    wrap(claims, "renew", after="supervisor.renew")
    wrap(aggregation_leases, "claim_aggregation", after="supervisor.aggregate")


def prepare_child() -> None:
    """Wrap the functions of a job process."""
    from clustering.rounds.counting import RoundAggregator
    from workers import job_runner
    from workers.central_job import JobJournal

    shift_clock()
    _plant_in_worker()
    _plant_in_child()
    wrap(job_runner, "aggregate_round", before="child.aggregate")
    wrap(RoundAggregator, "add_packed", after="child.count")
    wrap(rounds, "store_tally", after="child.tally")
    wrap(rounds, "open_for_job", after="child.open")
    wrap(job_runner._OwnRounds, "_open", after="child.opened")
    wrap(job_runner, "_publish", before="child.publish", after="child.published")
    wrap(lifecycle, "add_result", after="child.result")
    wrap(curator_answers, "charge", after="child.charge")
    wrap(JobJournal, "charge", after="child.charged")
    wrap(curator_answers, "store", after="child.keep")
    wrap(JobJournal, "keep", after="child.kept")


# ---- deliberate bugs, which the oracle must detect ----


def _plant_in_gateway() -> None:
    from models.jobs import idempotency
    from service.ingestion.report_writer import ReportWriter

    if _planted == "acknowledge_early":
        store = ReportWriter.store

        async def store_in_background(self: Any, round_id: str, packed: Any) -> None:
            import asyncio

            asyncio.get_running_loop().create_task(store(self, round_id, packed))

        ReportWriter.store = store_in_background  # type: ignore[method-assign]
    if _planted == "forget_keys":
        idempotency.begin = lambda *_args, **_kwargs: None
        idempotency.finish = lambda *_args, **_kwargs: None


def _plant_in_worker() -> None:
    if _planted == "ignore_fence":

        def load_claimed(session: Any, claim: Any) -> Any:
            return session.get(Job, claim.job_id, with_for_update=True, populate_existing=True)

        for module in (claims, curator_answers, lifecycle):  # each has its own reference to the function
            module.load_claimed = load_claimed


def _plant_in_child() -> None:
    if _planted == "count_repeats":
        from workers.aggregation.id_set import IdSet

        IdSet.add_packed = lambda self, records, statuses: None  # type: ignore[method-assign]
    if _planted == "charge_twice":
        from models.ledger import ledger
        from models.ledger.amounts import Amounts

        charge = curator_answers.charge

        def charge_again(session: Any, claim: Any, index: int, query: Any, *, now: int) -> Any:
            before = session.get(QueryAnswer, (claim.job_id, index))
            if before is not None:
                job = claims.load_claimed(session, claim)
                ledger.charge(
                    session,
                    job.dataset_id,
                    Amounts(query.epsilon_nano),
                    reference=f"{curator_answers.reference(claim.job_id, index)}a{claim.fence}",
                    reservation=None,
                    actor=job.created_by,
                    now=now,
                )
            return charge(session, claim, index, query, now=now)

        curator_answers.charge = charge_again
