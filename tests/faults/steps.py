"""Steps of the shipped processes where a test may hold them, clocks it may turn, and faults it may plant.

The tests' own main (`zygote`) wraps functions of the shipped code before it runs it; the code itself
has no hook. What the harness wants is told by files in the directory `FAULTS_DIRECTORY`: `arm.<step>`
holds the next process that comes to the step, which renames it to `held.<step>.<pid>` and waits until
that file is gone; `clock.<name>` holds the microseconds a process of that name is ahead.
"""

import os
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import models.db
from models import answer, fold, job, record, result
from models import round as rounds

HELD_SECONDS = 60.0  # after which a process goes on, should nobody let it

GATEWAY_STEPS = {
    "gateway.group": "a group of reports was gathered, nothing is written",
    "gateway.received": "reports are written, not committed",
    "gateway.committed": "reports are committed, nobody is answered",
    "gateway.upload": "an upload of records is half-way in",
    "gateway.append": "an upload is written, not committed",
    "gateway.submit": "a job is written, not committed",
    "gateway.cancel": "a cancel is written, not committed",
    "gateway.open": "a round is written, not committed",
    "gateway.posted": "a POST is committed, not answered",
}
SUPERVISOR_STEPS = {
    "supervisor.claim": "a claim is written, not committed",
    "supervisor.ask": "a claim is committed, the child knows of nothing",
    "supervisor.renew": "a longer lease is written, not committed",
    "supervisor.fold": "a fold is claimed, not committed",
}
CHILD_STEPS = {
    "child.fold": "a round is about to be folded",
    "child.count": "a fold is half-way",
    "child.tally": "a tally is written, not committed",
    "child.open": "a round and its cost are written, not committed",
    "child.opened": "a round is open, the claim is about to end",
    "child.publish": "a model is there, nothing of it is written",
    "child.result": "a result is written, not committed",
    "child.published": "a result is committed, the supervisor does not know",
    "child.charge": "a question's charge is written, not committed",
    "child.charged": "a question is charged, not answered",
    "child.keep": "an answer is written, not committed",
    "child.kept": "an answer is kept, the algorithm has not seen it",
}
STEPS = GATEWAY_STEPS | SUPERVISOR_STEPS | CHILD_STEPS

PLANTED = {
    "acknowledge_early": "a gateway that answers before the commit",
    "count_repeats": "a fold that forgets to leave repeats out",
    "ignore_fence": "a worker that writes what a stale claim computed",
    "charge_twice": "a question that is charged again when it is asked again",
    "forget_keys": "a gateway that keeps no idempotency keys",
}

_directory = Path(os.environ.get("FAULTS_DIRECTORY", "/nonexistent"))
_planted = os.environ.get("FAULTS_PLANTED", "")


def at(step: str) -> None:
    """Wait here, where the harness asked for that."""
    held = _directory / f"held.{step}.{os.getpid()}"
    try:
        os.rename(_directory / f"arm.{step}", held)
    except OSError:
        return
    deadline = time.monotonic() + HELD_SECONDS
    while held.exists() and time.monotonic() < deadline:
        time.sleep(0.005)


def wrap(owner: Any, name: str, *, before: str = "", after: str = "") -> None:
    """Have a function of a module or class come by steps. One that returned None did nothing worth a stop."""
    inner: Callable[..., Any] = getattr(owner, name)

    @wraps(inner)
    def stepping(*args: Any, **kwargs: Any) -> Any:
        if before:
            at(before)
        given = inner(*args, **kwargs)
        if after and (given is not None or after not in ("supervisor.claim", "supervisor.fold")):
            at(after)
        return given

    setattr(owner, name, stepping)


def turn_clock() -> None:
    """Have this process read a clock the harness may turn, by as much as its file says."""
    real, ahead = models.db.system_clock, _directory / f"clock.{os.environ['FAULTS_NAME']}"
    if real.__name__ == "turned":  # a child's supervisor has turned it already
        return

    def turned() -> int:
        try:
            return real() + int(ahead.read_text())
        except (OSError, ValueError):
            return real()

    models.db.system_clock = turned


def in_gateway() -> None:
    """Prepare a gateway."""
    from service.dependencies import Posting
    from service.writer import ReportWriter

    turn_clock()
    _plant_in_gateway()
    wrap(rounds, "receive", after="gateway.received")
    wrap(ReportWriter, "_commit", before="gateway.group", after="gateway.committed")
    wrap(record.Upload, "add", after="gateway.upload")
    wrap(record, "append", after="gateway.append")
    wrap(job, "submit", after="gateway.submit")
    wrap(job, "cancel", after="gateway.cancel")
    wrap(rounds, "open_standalone", after="gateway.open")
    wrap(Posting, "answer", after="gateway.posted")


def in_supervisor() -> None:
    """Prepare a supervisor."""
    from workers.handle import ChildHandle

    turn_clock()
    _plant_in_worker()
    wrap(job, "claim", after="supervisor.claim")
    wrap(ChildHandle, "ask", before="supervisor.ask")
    wrap(job, "renew", after="supervisor.renew")
    wrap(fold, "claim_fold", after="supervisor.fold")


def in_child() -> None:
    """Prepare a computing process."""
    from clustering.tally import Counting
    from workers import runner
    from workers.central import JobJournal

    turn_clock()
    _plant_in_worker()
    _plant_in_child()
    wrap(runner, "fold_round", before="child.fold")
    wrap(Counting, "add_packed", after="child.count")
    wrap(rounds, "store_tally", after="child.tally")
    wrap(rounds, "open_for_job", after="child.open")
    wrap(runner._OwnRounds, "_open", after="child.opened")
    wrap(runner, "_publish", before="child.publish", after="child.published")
    wrap(result, "add", after="child.result")
    wrap(answer, "charge", after="child.charge")
    wrap(JobJournal, "charge", after="child.charged")
    wrap(answer, "keep", after="child.keep")
    wrap(JobJournal, "keep", after="child.kept")


# ---- faults on purpose, so that the oracle is seen to notice them ----


def _plant_in_gateway() -> None:
    from models import idempotency
    from service.writer import ReportWriter

    if _planted == "acknowledge_early":
        store = ReportWriter.store

        async def unheard(self: Any, round_id: str, packed: Any) -> None:
            import asyncio

            asyncio.get_running_loop().create_task(store(self, round_id, packed))

        ReportWriter.store = unheard  # type: ignore[method-assign]
    if _planted == "forget_keys":
        idempotency.begin = lambda *_args, **_kwargs: None
        idempotency.finish = lambda *_args, **_kwargs: None


def _plant_in_worker() -> None:
    if _planted == "ignore_fence":

        def held_job(session: Any, held: Any) -> Any:
            return session.get(job.Job, held.job_id, with_for_update=True, populate_existing=True)

        job.held_job = held_job


def _plant_in_child() -> None:
    if _planted == "count_repeats":
        from workers.distinct import IdSet

        IdSet.add_packed = lambda self, records, said: None  # type: ignore[method-assign]
    if _planted == "charge_twice":
        from models import ledger

        charge = answer.charge

        def charge_again(session: Any, held: Any, index: int, question: Any, *, now: int) -> Any:
            before = session.get(answer.Answer, (held.job_id, index))
            if before is not None:
                entry = job.held_job(session, held)
                ledger.post(
                    session,
                    entry.dataset_id,
                    question.epsilon_nano,
                    reference=f"{answer.reference(held.job_id, index)}a{held.fence}",
                    reservation=None,
                    actor=entry.created_by,
                    now=now,
                )
            return charge(session, held, index, question, now=now)

        answer.charge = charge_again
