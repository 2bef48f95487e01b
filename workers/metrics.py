"""What a worker counts, for its operators. No time of a job over records: it tells how many there are."""

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from models.bulletin import Bulletin
from models.db import SECOND, Database
from models.doorbell import Doorbell
from models.exposition import RetriedTransactions
from models.job import Claim, Job
from models.tracing import Tracer

# How a claim ended, beside the states a job ends in and the reasons a child is killed for.
GOES_ON = "goes_on"  # its round is open, or another worker has it
DIED = "died"  # the child did
UNDONE = "undone"  # the database was away, or the child could not do it

LATENCY_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
WORK_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


class WorkerMetrics:
    """One worker's counters."""

    def __init__(
        self,
        doorbell: Doorbell | None = None,
        bulletin: Bulletin | None = None,
        tracer: Tracer | None = None,
        *,
        database: Database | None = None,
    ) -> None:
        self.tracer = tracer
        self.registry = CollectorRegistry()
        self.registry.register(RetriedTransactions(database))
        self.claims = Counter(
            "sfumato_claims_ended", "Claims on jobs that ended here.", ["outcome"], registry=self.registry
        )
        self.claim_latency = Histogram(
            "sfumato_claim_latency_seconds",
            "From a job's submission to its first claim, by a worker that was idle before.",
            buckets=LATENCY_SECONDS,
            registry=self.registry,
        )
        self.claim_seconds = Histogram(
            "sfumato_claim_seconds",
            "Time of a claim on a job over reports.",
            buckets=WORK_SECONDS,
            registry=self.registry,
        )
        self.fold_seconds = Histogram(
            "sfumato_fold_seconds",
            "Time to fold a round that no job folds.",
            buckets=WORK_SECONDS,
            registry=self.registry,
        )
        self.children = Counter(
            "sfumato_children_ended", "Computing processes that ended.", ["reason"], registry=self.registry
        )
        away = Gauge("sfumato_redis_away", "1 where Redis does not answer.", ["part"], registry=self.registry)
        if doorbell is not None:
            away.labels("doorbell").set_function(lambda: doorbell.is_away)
        if bulletin is not None:
            away.labels("bulletin").set_function(lambda: bulletin.is_away)

    def claimed(self, job: Job, held: Claim, *, now: int, idle_since: int | None) -> "ClaimMetrics":
        """A claim began.

        How long the job waited is counted where this worker was idle as it was submitted: else
        it is the time of the job before, which may have been one over records.
        """
        if held.fence == 1 and idle_since is not None and idle_since <= job.created_at:
            self.claim_latency.observe(max(0, now - job.created_at) / SECOND)
        is_timed = bool(job.round_ids or job.target_reports)
        return ClaimMetrics(self, is_timed=is_timed, is_traced=is_timed and idle_since is not None, job=job)


class ClaimMetrics:
    """What is counted of one claim."""

    def __init__(self, metrics: WorkerMetrics, *, is_timed: bool, is_traced: bool, job: Job) -> None:
        self._metrics = metrics
        self._tracer = metrics.tracer if is_traced else None  # else it may begin where a job over records ended
        self._algorithm = str(job.algorithm["type"])
        self._began_ns = time.time_ns()
        self._is_timed = is_timed
        self._began = time.monotonic()

    def ended(self, outcome: str) -> None:
        """It is over."""
        self._metrics.claims.labels(outcome).inc()
        if self._is_timed:
            self._metrics.claim_seconds.observe(time.monotonic() - self._began)
        if self._tracer is not None:
            self._tracer.tell(
                "job attempt",
                {"sfumato.algorithm": self._algorithm, "sfumato.outcome": outcome},
                began_ns=self._began_ns,
                ended_ns=time.time_ns(),
                failed=outcome in (DIED, UNDONE),
            )

    def child_ended(self, reason: str) -> None:
        """It is over, and so is the child."""
        self._metrics.children.labels(reason).inc()
        self.ended(reason)
