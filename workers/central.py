"""Runs a central job: the dataset's records, a curator that charges before it answers, a model.

Every question is posted to the ledger and committed before its noise is drawn, and every
answer is stored before the algorithm sees it (`models.answer`). A job that lost its worker
is run again from its beginning: what was answered before is answered the same, so it comes
to the same model and pays for nothing twice. How many records there are shows nowhere: not
in what is stored, not in the log.
"""

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from clustering.curator import Curator, Question
from models import answer
from models import job as jobs
from models.answer import Asked
from models.db import Database
from models.job import Claim, Job
from models.sealing import Keyring
from sfumato.cluster_model import ClusterModel
from sfumato.entropy import SystemEntropy
from sfumato.specs import Auto, CentralAlgorithm, Feature, central_algorithm_from_wire
from workers.scheduler import Scheduler
from workers.spread import held_records

RunCentral = Callable[[CentralAlgorithm | Auto, tuple[Feature, ...], Curator], ClusterModel]

TOLD = ("what", "n_values", "epsilon_nano", "delta_atto", "rho_pico")  # of a question, in the odometer

_FAST = 1  # zlib's level: noisy numbers shrink by their leading zeros, and by little else


class Canceled(Exception):
    """The job was to be cancelled, and is: nothing more is spent on it."""


class JobJournal:
    """A job's charges and answers in the database, each a transaction that names the fence it holds.

    Parameters
    ----------
    database : Database
    held : Claim
    """

    def __init__(self, database: Database, held: Claim) -> None:
        self._database, self._held = database, held

    def charge(self, index: int, question: Question) -> NDArray[np.int64] | None:
        """Post what a question costs, once; the answer it had, where it had one.

        Raises
        ------
        Canceled
            The job's cancelling was requested: it is over, this question was not charged.
        StaleFence, BudgetExhausted, Conflict
            As `models.answer.charge`.
        """
        asked = Asked(
            question.what, question.epsilon_nano, question.n_values, question.digest, delta_atto=question.delta_atto
        )

        def charge(session: Session) -> tuple[bool, bytes | None]:
            now = self._database.clock()
            if jobs.held_job(session, self._held).cancel_requested:
                jobs.let_go(session, self._held, now=now)
                return True, None
            return False, answer.charge(session, self._held, index, asked, now=now)

        is_canceled, packed = self._database.run("charge_question", charge)
        if is_canceled:
            raise Canceled
        return None if packed is None else unpack(packed)

    def keep(self, index: int, noisy: NDArray[np.int64]) -> None:
        """Store an answer. Raises StaleFence."""
        packed = pack(noisy)
        self._database.run("keep_answer", lambda session: answer.keep(session, self._held, index, packed))


def pack(noisy: NDArray[np.int64]) -> bytes:
    """Integers as they are stored: little-endian 64-bit words, deflated."""
    return zlib.compress(noisy.astype("<i8").tobytes(), _FAST)


def unpack(packed: bytes) -> NDArray[np.int64]:
    """What `pack` was given."""
    return np.frombuffer(zlib.decompress(packed), dtype="<i8").astype(np.int64)


def compute(
    database: Database,
    held: Claim,
    job: Job,
    features: tuple[Feature, ...],
    keyring: Keyring,
    run: RunCentral,
    scheduler: Scheduler | None = None,
) -> dict[str, Any]:
    """Run a claimed job over its dataset's records; the document to publish.

    Where there is a scheduler, sums over records are computed by its workers; what is charged, drawn and
    stored is so here, as ever.

    Raises
    ------
    Canceled
        Its cancelling was requested, and is done.
    SfumatoError
        What the algorithm cannot take, records that do not open, a claim that is void.
    """
    params = central_algorithm_from_wire(job.algorithm)
    journal = JobJournal(database, held)
    with held_records(database, job.dataset_id, keyring, scheduler) as kept:
        curator = Curator(kept, job.epsilon_nano, journal, SystemEntropy(), delta_atto=job.delta_atto)
        model = run(params, features, curator)
    return {
        "model": model.to_wire(),
        "algorithm": job.algorithm,
        "epsilon_nano": curator.spent_nano,
        "delta_atto": curator.spent_delta_atto,
        "rounds": [],
        "odometer": [{name: getattr(asked, name) for name in TOLD} for asked in curator.odometer],
    }
