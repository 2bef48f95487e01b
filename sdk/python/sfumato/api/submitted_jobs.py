"""Jobs that use their client to wait, cancel and fetch the result."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol, Self

from numpy.typing import ArrayLike

from sfumato.api.progress import ProgressDisplay, show_progress
from sfumato.api.resources import Job, Result, Round

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FIELDS = tuple(each.name for each in fields(Job))


class _JobClient(Protocol):
    """The calls of `Client` that a job uses."""

    def wait_for_job(
        self, job_id: str, *, timeout_seconds: float | None, on_progress: Callable[[Job], None] | None
    ) -> "SubmittedJob": ...
    def wait_for_round(self, job_id: str, *, timeout_seconds: float | None) -> Round: ...
    def send_as_devices(self, job_id: str, records: ArrayLike, *, timeout_seconds: float | None) -> "SubmittedJob": ...
    def get_job(self, job_id: str) -> "SubmittedJob": ...
    def cancel_job(self, job_id: str) -> "SubmittedJob": ...
    def profile(self, job_id: str, attributes: Sequence[str], **options: Any) -> "SubmittedJob": ...
    def result(self, job_id: str) -> Result: ...
    def name_clusters(self, job_id: str, names: Sequence[str] | Mapping[int, str]) -> Result: ...


class _AsyncJobClient(Protocol):
    """The calls of `AsyncClient` that a job uses."""

    def wait_for_job(
        self, job_id: str, *, timeout_seconds: float | None, on_progress: Callable[[Job], None] | None
    ) -> Awaitable["AsyncSubmittedJob"]: ...
    def wait_for_round(self, job_id: str, *, timeout_seconds: float | None) -> Awaitable[Round]: ...
    def send_as_devices(
        self, job_id: str, records: ArrayLike, *, timeout_seconds: float | None
    ) -> Awaitable["AsyncSubmittedJob"]: ...
    def get_job(self, job_id: str) -> Awaitable["AsyncSubmittedJob"]: ...
    def cancel_job(self, job_id: str) -> Awaitable["AsyncSubmittedJob"]: ...
    def profile(self, job_id: str, attributes: Sequence[str], **options: Any) -> Awaitable["AsyncSubmittedJob"]: ...
    def result(self, job_id: str) -> Awaitable[Result]: ...
    def name_clusters(self, job_id: str, names: Sequence[str] | Mapping[int, str]) -> Awaitable[Result]: ...


class _BoundJob(Job):
    """A job with a client, which stays in this process."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a plain Job, without the client and its key."""
        return Job, tuple(getattr(self, name) for name in _FIELDS)


@dataclass(frozen=True, slots=True)
class SubmittedJob(_BoundJob):
    """A job in the state that the service returned last. It uses its client to wait, cancel and fetch the result."""

    client: _JobClient = field(kw_only=True, repr=False, compare=False)

    @classmethod
    def of(cls, client: Any, job: Job) -> Self:
        """Return a job that uses `client`."""
        return cls(**{name: getattr(job, name) for name in _FIELDS}, client=client)

    def wait(self, *, timeout_seconds: float | None = None, progress: ProgressDisplay = None) -> "SubmittedJob":
        """Wait until the job has a final state: succeeded, failed, canceled or expired.

        Parameters
        ----------
        timeout_seconds : float, optional
            Maximum time to wait, seconds. The default is no limit.
        progress : bool or callable, optional
            True draws a progress line on standard error, and False draws nothing. The default
            draws the line if standard error is a terminal or a notebook. A callable receives the job about
            once a second.

        Returns
        -------
        SubmittedJob
            The job in its final state. `error` states why it failed or expired.

        Raises
        ------
        JobTimeout
            The job has no final state after `timeout_seconds`.
        """
        with show_progress(progress) as on_progress:
            return self.client.wait_for_job(self.id, timeout_seconds=timeout_seconds, on_progress=on_progress)

    def wait_for_round(self, *, timeout_seconds: float | None = None) -> Round:
        """Wait until the job has an open round and return it; see `Client.wait_for_round`."""
        return self.client.wait_for_round(self.id, timeout_seconds=timeout_seconds)

    def send_as_devices(self, records: ArrayLike, *, timeout_seconds: float | None = None) -> "SubmittedJob":
        """Perturb records as devices would, and send them to every round of the job; see `Client.send_as_devices`."""
        return self.client.send_as_devices(self.id, records, timeout_seconds=timeout_seconds)

    def refresh(self) -> "SubmittedJob":
        """Return the current state of the job."""
        return self.client.get_job(self.id)

    def cancel(self) -> "SubmittedJob":
        """Cancel the job. Charges remain, and the rest of the reservation is released."""
        return self.client.cancel_job(self.id)

    def result(self) -> Result:
        """Return the result. Raise ApiProblem if the job has not succeeded."""
        return self.client.result(self.id)

    def profile(self, attributes: Sequence[str], **options: Any) -> "SubmittedJob":
        """Submit a profile of the job's clusters; see `Client.profile`."""
        return self.client.profile(self.id, attributes, **options)

    def name_clusters(self, names: Sequence[str] | Mapping[int, str]) -> Result:
        """Name the clusters of the result; see `Client.name_clusters`."""
        return self.client.name_clusters(self.id, names)

    def plot(self, ax: Any = None, **options: Any) -> "Figure":
        """Plot the result as `Result.plot` does. Raise ApiProblem if the job has not succeeded."""
        return self.result().plot(ax, **options)


@dataclass(frozen=True, slots=True)
class AsyncSubmittedJob(_BoundJob):
    """A job of an AsyncClient; see `SubmittedJob`. Its methods are awaited."""

    client: _AsyncJobClient = field(kw_only=True, repr=False, compare=False)

    @classmethod
    def of(cls, client: Any, job: Job) -> Self:
        """Return a job that uses `client`."""
        return cls(**{name: getattr(job, name) for name in _FIELDS}, client=client)

    async def wait(
        self, *, timeout_seconds: float | None = None, progress: ProgressDisplay = None
    ) -> "AsyncSubmittedJob":
        """Wait until the job has a final state, as `SubmittedJob.wait` does."""
        with show_progress(progress) as on_progress:
            return await self.client.wait_for_job(self.id, timeout_seconds=timeout_seconds, on_progress=on_progress)

    async def wait_for_round(self, *, timeout_seconds: float | None = None) -> Round:
        """Do the same as `SubmittedJob.wait_for_round`."""
        return await self.client.wait_for_round(self.id, timeout_seconds=timeout_seconds)

    async def send_as_devices(self, records: ArrayLike, *, timeout_seconds: float | None = None) -> "AsyncSubmittedJob":
        """Do the same as `SubmittedJob.send_as_devices`."""
        return await self.client.send_as_devices(self.id, records, timeout_seconds=timeout_seconds)

    async def refresh(self) -> "AsyncSubmittedJob":
        """Return the current state of the job."""
        return await self.client.get_job(self.id)

    async def cancel(self) -> "AsyncSubmittedJob":
        """Cancel the job. Charges remain, and the rest of the reservation is released."""
        return await self.client.cancel_job(self.id)

    async def result(self) -> Result:
        """Return the result. Raise ApiProblem if the job has not succeeded."""
        return await self.client.result(self.id)

    async def profile(self, attributes: Sequence[str], **options: Any) -> "AsyncSubmittedJob":
        """Submit a profile of the job's clusters; see `Client.profile`."""
        return await self.client.profile(self.id, attributes, **options)

    async def name_clusters(self, names: Sequence[str] | Mapping[int, str]) -> Result:
        """Name the clusters of the result; see `Client.name_clusters`."""
        return await self.client.name_clusters(self.id, names)

    async def plot(self, ax: Any = None, **options: Any) -> "Figure":
        """Plot the result as `Result.plot` does. Raise ApiProblem if the job has not succeeded."""
        return (await self.result()).plot(ax, **options)
