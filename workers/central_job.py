"""Execution of a job over records: load the records, run the algorithm against a curator, return the result document.

Each query is charged in the ledger and committed before its noise is drawn. Each query answer is stored before the
algorithm sees it (`models.jobs.curator_answers`). If a worker dies, another one runs the job from the beginning: it
receives the stored answers, so it obtains the same model and pays for nothing twice. The number of records appears
neither in the database nor in the log.
"""

import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from clustering.central.curator import Curator
from clustering.central.mapped_records import select_columns
from clustering.central.profile_clusters import describe_columns, label_records, profile_clusters
from clustering.central.queries import Query, Records
from models.database.engine import Database
from models.encryption import Keyring
from models.jobs import claims, curator_answers, jobs, lifecycle
from models.jobs.claims import Claim
from models.jobs.curator_answers import ChargedQuery
from models.records import records, window_records
from models.series import windows
from models.tables.datasets import Dataset, OutOfBounds
from models.tables.jobs import Job
from sfumato.model.cluster_model import ClusterModel, model_from_wire
from sfumato.privacy.entropy import SystemEntropy
from sfumato.specs import Auto, CentralAlgorithm, Feature, Profile, central_algorithm_from_wire, profile_from_wire

if TYPE_CHECKING:
    from workers.distributed.dask_client import Scheduler
    from workers.distributed.distribute import DistributedRecords

RunCentral = Callable[[CentralAlgorithm | Auto, tuple[Feature, ...], Curator], ClusterModel]


_ZLIB_LEVEL = 1  # fast: only the leading zeros of noisy numbers can be compressed


class Canceled(Exception):
    """The job was canceled on request. Nothing more is charged."""


class JobJournal:
    """The charges and query answers of a job in the database. Each write is a transaction guarded by the fence.

    Parameters
    ----------
    database : Database
    claim : Claim
        The worker's claim on the job.
    """

    def __init__(self, database: Database, claim: Claim) -> None:
        self._database, self._claim = database, claim

    def charge(self, index: int, query: Query) -> NDArray[np.int64] | None:
        """Charge a query once. Return its stored answer, or None if there is none.

        Raises
        ------
        Canceled
            The cancellation of the job was requested. The query was not charged, and the job has ended.
        StaleFence, BudgetExhausted, Conflict
            See `models.jobs.curator_answers.charge`.
        """
        asked = ChargedQuery(
            query.description, query.epsilon_nano, query.n_values, query.digest, delta_atto=query.delta_atto
        )

        def charge(session: Session) -> tuple[bool, bytes | None]:
            now = self._database.clock()
            if claims.load_claimed(session, self._claim).cancel_requested:
                lifecycle.cancel_claimed(session, self._claim, now=now)
                return True, None
            return False, curator_answers.charge(session, self._claim, index, asked, now=now)

        is_canceled, packed = self._database.run("charge_query", charge)
        if is_canceled:
            raise Canceled
        return None if packed is None else unpack(packed)

    def keep(self, index: int, noisy: NDArray[np.int64]) -> None:
        """Store a query answer. Raise StaleFence if another worker has claimed the job."""
        packed = pack(noisy)
        self._database.run(
            "store_query_answer", lambda session: curator_answers.store(session, self._claim, index, packed)
        )


def pack(noisy: NDArray[np.int64]) -> bytes:
    """Return the stored form of integers: little-endian 64-bit words, compressed with zlib."""
    return zlib.compress(noisy.astype("<i8").tobytes(), _ZLIB_LEVEL)


def unpack(packed: bytes) -> NDArray[np.int64]:
    """Return the integers of their stored form."""
    return np.frombuffer(zlib.decompress(packed), dtype="<i8").astype(np.int64)


def compute(
    database: Database,
    claim: Claim,
    job: Job,
    dataset: Dataset,
    keyring: Keyring,
    run: RunCentral,
    scheduler: "Scheduler | None" = None,
) -> dict[str, Any]:
    """Run a claimed job over the records of its dataset and return the result document.

    With a scheduler, its workers compute the sums over records. The charges, the noise and the writes stay in this
    process.

    Raises
    ------
    Canceled
        The cancellation of the job was requested and has been stored.
    SfumatoError
        The algorithm rejects its input, the records cannot be decrypted, or the claim is stale.
    """
    profile = profile_from_wire(job.algorithm) if job.algorithm["type"] == Profile.type else None
    of = None if profile is None else load_clusters(database, profile)
    journal = JobJournal(database, claim)
    with _open_source(database, job, keyring, scheduler) as source:
        features, attributes = dataset.features, dataset.attributes
        selection = select_columns(features, attributes, job.features)
        is_whole = of is not None or len(selection.positions) == dataset.n_columns
        curator = Curator(
            source,
            job.epsilon_nano,
            journal,
            SystemEntropy(),
            delta_atto=job.delta_atto,
            in_ball=dataset.norm is not None,
            selection=None if is_whole else selection,
            may_clip=dataset.out_of_bounds != OutOfBounds.REFUSE,
        )
        if profile is None or of is None:
            used = tuple(features[place] for place in selection.positions)
            model = run(central_algorithm_from_wire(job.algorithm), used, curator)
            released = {"model": model.to_wire()}
        else:
            labelling = label_records(of.model, features, attributes)
            described = describe_columns(features, attributes, dataset.describe(profile.attributes))
            found = profile_clusters(profile, of.model, labelling, described, curator)
            released = {"model": of.wire, "profile": found.to_wire()}
    return {
        **released,
        "algorithm": job.algorithm,
        "epsilon_nano": curator.spent_nano,
        "delta_atto": curator.spent_delta_atto,
        "rounds": [],
        "odometer": [query.entry for query in curator.odometer],
    }


def _open_source(
    database: Database, job: Job, keyring: Keyring, scheduler: "Scheduler | None"
) -> "AbstractContextManager[Records | DistributedRecords]":
    """Return the records of a job: those of the dataset, or those of its window in a series."""
    with database.reading() as session:
        period = windows.find_period(session, job)
        if period is None:
            return open_records(database, job.dataset_id, keyring, scheduler)
        loaded = window_records.load(session, job.dataset_id, keyring, since=period[0], until=period[1])
    return nullcontext(Records(loaded.points, loaded.max_per_user))


class Clusters(NamedTuple):
    """The released clusters of a job, and their document."""

    model: ClusterModel
    wire: dict[str, Any]


def load_clusters(database: Database, params: Profile) -> Clusters:
    """Return the clusters that a profile describes. Raise JobNotFinished if their job has no result."""
    with database.reading() as session:
        wire = jobs.get_result(session, params.of).document["model"]
    return Clusters(model_from_wire(wire), wire)


@contextmanager
def open_records(
    database: Database, dataset_id: str, keyring: Keyring, scheduler: "Scheduler | None" = None
) -> "Iterator[Records | DistributedRecords]":
    """Load the records of a dataset for a curator: into this process, or on the workers of a scheduler.

    The records are loaded before the first query, so a dataset that cannot be loaded costs nothing.

    Raises
    ------
    RecordsKeyMissing, RecordsUnreadable
        See `models.records.records.load`.
    Conflict
        Raised later, by a query that needs all distributed records here after they changed.
    """
    distributed = None
    if scheduler is not None:
        from workers.distributed import distribute

        distributed = distribute.open_records(database, dataset_id, keyring, scheduler)
    if distributed is not None:
        with closing(distributed):
            yield distributed
        return
    with database.reading() as session:
        loaded = records.load(session, dataset_id, keyring)
    yield Records(loaded.points, loaded.max_per_user)
