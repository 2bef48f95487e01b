"""Prometheus metrics and traces of a worker.

The metrics contain no duration of a job over records, because it would reveal the number of records.
"""

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from models.database.engine import Database
from models.database.types import SECOND
from models.jobs.claims import Claim
from models.tables.jobs import Job
from runtime.change_publisher import ChangePublisher
from runtime.job_signal import JobSignal
from runtime.metrics_server import TransactionRetries
from runtime.tracing import Tracer

# Outcomes of a claim, besides the final states of a job and the reasons for killing the job process.
CONTINUES = "continues"  # the job's round is open, or another worker claimed the job
DIED = "died"  # the job process died
INTERRUPTED = "interrupted"  # the database was unavailable, or the job process could not do the task

LATENCY_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
WORK_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


class WorkerMetrics:
    """The metrics of one worker."""

    def __init__(
        self,
        job_signal: JobSignal | None = None,
        publisher: ChangePublisher | None = None,
        tracer: Tracer | None = None,
        *,
        database: Database | None = None,
    ) -> None:
        self.tracer = tracer
        self.registry = CollectorRegistry()
        self.registry.register(TransactionRetries(database.retries if database else {}))
        self.claims = Counter(
            "sfumato_claims_ended", "Ended claims on jobs, by outcome.", ["outcome"], registry=self.registry
        )
        self.claim_latency = Histogram(
            "sfumato_claim_latency_seconds",
            "Time from a job's submission to its first claim by a worker that was idle.",
            buckets=LATENCY_SECONDS,
            registry=self.registry,
        )
        self.claim_seconds = Histogram(
            "sfumato_claim_seconds",
            "Duration of a claim on a job over reports.",
            buckets=WORK_SECONDS,
            registry=self.registry,
        )
        self.aggregation_seconds = Histogram(
            "sfumato_aggregation_seconds",
            "Time to aggregate a round that no job aggregates.",
            buckets=WORK_SECONDS,
            registry=self.registry,
        )
        self.job_processes = Counter(
            "sfumato_job_processes_ended", "Job processes that ended, by reason.", ["reason"], registry=self.registry
        )
        away = Gauge("sfumato_redis_unavailable", "1 while Redis is unavailable.", ["part"], registry=self.registry)
        if job_signal is not None:
            away.labels("job_signal").set_function(lambda: not job_signal.is_available)
        if publisher is not None:
            away.labels("change_feed").set_function(lambda: not publisher.is_available)

    def start_claim(self, job: Job, claim: Claim, *, now: int, idle_since: int | None) -> "ClaimMetrics":
        """Return the metrics of a claim that starts now.

        The job's waiting time is observed only if this worker was idle when the job was submitted. Otherwise the
        waiting time would contain the duration of the previous job, which may be a job over records.
        """
        if claim.fence == 1 and idle_since is not None and idle_since <= job.created_at:
            self.claim_latency.observe(max(0, now - job.created_at) / SECOND)
        is_timed = bool(job.round_ids or job.target_reports)
        return ClaimMetrics(self, is_timed=is_timed, is_traced=is_timed and idle_since is not None, job=job)


class ClaimMetrics:
    """The metrics of one claim."""

    def __init__(self, metrics: WorkerMetrics, *, is_timed: bool, is_traced: bool, job: Job) -> None:
        self._metrics = metrics
        self._tracer = metrics.tracer if is_traced else None  # the start could reveal when a job over records ended
        self._algorithm = str(job.algorithm["type"])
        self._began_ns = time.time_ns()
        self._is_timed = is_timed
        self._began = time.monotonic()

    def end(self, outcome: str) -> None:
        """Record the end of the claim."""
        self._metrics.claims.labels(outcome).inc()
        if self._is_timed:
            self._metrics.claim_seconds.observe(time.monotonic() - self._began)
        if self._tracer is not None:
            self._tracer.record_span(
                "job attempt",
                {"sfumato.algorithm": self._algorithm, "sfumato.outcome": outcome},
                began_ns=self._began_ns,
                ended_ns=time.time_ns(),
                failed=outcome in (DIED, INTERRUPTED),
            )

    def end_with_process(self, reason: str) -> None:
        """Record the end of the claim and of the job process."""
        self._metrics.job_processes.labels(reason).inc()
        self.end(reason)
