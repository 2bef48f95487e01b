"""The client's calls for jobs and their results."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato import resources
from sfumato._exchange import Ask, Listing, Steps, ask, get, given, post
from sfumato._operations import Listed, Operation, call
from sfumato.errors import InvalidPoint, JobTimeout
from sfumato.jobs import AsyncSubmittedJob, SubmittedJob
from sfumato.resources import Job, Result
from sfumato.specs import CENTRAL_ALGORITHMS, AnyAlgorithm, to_wire

P = ParamSpec("P")

ASSIGN_NUMBERS = 500_000  # coordinates in one request
LONG_POLL_SECONDS = 30.0
TOLD_SECONDS = 1.0  # how often a caller is told
PAUSE_SECONDS = 0.1  # between two questions about one job, should the service not wait


def _submitted(
    conversation: Callable[Concatenate[Any, P], Steps[Job]],
) -> Operation[P, SubmittedJob, AsyncSubmittedJob]:
    return Operation(conversation, SubmittedJob.of, AsyncSubmittedJob.of)


def _all_submitted(
    described: Callable[Concatenate[Any, P], Listing[Job]],
) -> Listed[P, SubmittedJob, AsyncSubmittedJob]:
    return Listed(described, SubmittedJob.of, AsyncSubmittedJob.of)


class JobCalls:
    """What a client can do with jobs and results."""

    @_submitted
    def submit_job(
        self,
        dataset_id: str,
        algorithm: AnyAlgorithm,
        *,
        target_reports: int | None = None,
        min_reports: int = 0,
        collect_seconds: int = 604_800,
        round_ids: Sequence[str] = (),
        allow_insufficient: bool = False,
        idempotency_key: str | None = None,
    ) -> Steps[Job]:
        """Ask for clusters.

        Parameters
        ----------
        algorithm : Algorithm or CentralAlgorithm
            One for the dataset: over devices' reports, or over records; `Auto` is for both.
        target_reports : int, optional
            Devices expected to take part; needed on a local dataset without `round_ids`, and left out with
            all that follows on a central one. A round for a share of the draws
            waits for its share of them.
        round_ids : sequence of str
            Earlier, closed rounds to work on: nothing more is asked, or reserved.
        allow_insufficient : bool
            Whether to ask even where a result of so few reports cannot mean anything.
        idempotency_key : str, optional
            Yours, where the same job is to be found again after a crash of your own; a
            fresh one by default.

        Returns
        -------
        SubmittedJob
            With `wait()`, `cancel()`, `result()`; an AsyncSubmittedJob of an AsyncClient.

        Examples
        --------
        People around two places report once each; the round they answered serves the job.

        >>> import numpy as np
        >>> from sfumato import Client, Feature, GridEncoding, UniformGrid, perturb_records
        >>> people = np.repeat([[2.2], [7.7]], 2000, axis=0)
        >>> with Client(url, key) as client:
        ...     dataset = client.create_dataset("Lunch", [Feature("east", 0, 10)], epsilon=4)
        ...     opened = client.open_round(dataset.id, GridEncoding((8,)), epsilon=4, target_reports=4000)
        ...     sent = client.send_reports(opened.id, *perturb_records(opened.spec, people))
        ...     job = client.submit_job(dataset.id, UniformGrid(epsilon=4, clusters=2, cells=8), round_ids=[opened.id])
        ...     model = job.wait(timeout_seconds=600).result().model
        >>> model.n_clusters
        2
        """
        body: dict[str, Any] = {"dataset_id": dataset_id, "algorithm": given(to_wire(algorithm))}
        if round_ids:
            body["round_ids"] = list(round_ids)
        elif target_reports is not None or algorithm.type not in CENTRAL_ALGORITHMS:
            body |= {"target_reports": target_reports, "min_reports": min_reports, "collect_seconds": collect_seconds}
            body |= {"allow_insufficient": True} if allow_insufficient else {}
        return (yield post("jobs", body, idempotency_key)).read(resources.job)

    @_all_submitted
    def jobs(self, dataset_id: str | None = None) -> Listing[Job]:
        """Every job the key sees, oldest first."""
        return Listing("jobs", resources.job, {"dataset_id": dataset_id} if dataset_id else {})

    @_submitted
    def get_job(self, job_id: str) -> Steps[Job]:
        """One job as it stands."""
        return (yield get(f"jobs/{job_id}")).read(resources.job)

    @_submitted
    def wait_for_job(
        self, job_id: str, *, timeout_seconds: float | None = None, on_progress: Callable[[Job], None] | None = None
    ) -> Steps[Job]:
        """Wait until a job is over: succeeded, failed, canceled or expired.

        Parameters
        ----------
        timeout_seconds : float, optional
            Longest wait; without end by default.
        on_progress : callable, optional
            Told the job about once a second, and when it is over. `job.wait()` draws a line on a terminal.

        Raises
        ------
        JobTimeout
            It is not over in time.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        longest = TOLD_SECONDS if on_progress else LONG_POLL_SECONDS
        pause = 0.0
        while True:
            left = longest if deadline is None else max(0.0, deadline - time.monotonic())
            wait = int(min(max(0.0, left - pause), longest))
            asked = {"wait": str(wait)}
            job = (
                yield Ask("GET", f"jobs/{job_id}", params=asked, extra_seconds=wait, after_seconds=min(left, pause))
            ).read(resources.job)
            if on_progress is not None:
                on_progress(job)
            if job.is_final:
                return job
            if left == 0:
                raise JobTimeout(job, timeout_seconds or 0.0)
            pause = PAUSE_SECONDS

    @_submitted
    def cancel_job(self, job_id: str) -> Steps[Job]:
        """Cancel: what was posted stays, the rest of the reservation is released."""
        return (yield post(f"jobs/{job_id}/cancel")).read(resources.job)

    @call
    def result(self, job_id: str) -> Steps[Result]:
        """What a job that succeeded released."""
        return (yield get(f"jobs/{job_id}/result")).read(resources.result)

    @call
    def plot_svg(self, job_id: str) -> Steps[str]:
        """The result as an SVG picture."""
        return (yield Ask("GET", f"jobs/{job_id}/plot.svg", headers={"Accept": "image/svg+xml"})).body.decode()

    @call
    def plot_png(self, job_id: str) -> Steps[bytes]:
        """The result as a PNG picture, 1200 pixels wide."""
        return (yield Ask("GET", f"jobs/{job_id}/plot.png", headers={"Accept": "image/png"})).body

    @call
    def assign(self, job_id: str, points: ArrayLike) -> Steps[NDArray[np.int64]]:
        """Label points with a job's model; the service stores none of them.

        `result(job_id).model.assign(points)` does the same here, without showing the
        points to anybody.

        Parameters
        ----------
        points : array-like of shape (n, n_features)
            In the features' units.

        Returns
        -------
        ndarray of shape (n,), int64
        """
        array = np.asarray(points, dtype=np.float64)
        if array.ndim != 2 or not np.isfinite(array).all():
            raise InvalidPoint("points are finite numbers in shape (n, n_features)")
        labels = np.empty(len(array), dtype=np.int64)
        step = max(1, ASSIGN_NUMBERS // max(1, array.shape[1]))
        for start in range(0, len(array), step):
            part = array[start : start + step]
            answer = yield ask(f"jobs/{job_id}/assign", {"points": part.tolist()})
            labels[start : start + step] = answer.read(resources.point_labels)
        return labels
