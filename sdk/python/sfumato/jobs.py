"""A job in the hands of the client that asked for it: waits, cancels itself, fetches its result."""

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

from sfumato.progress import Shown, shown
from sfumato.resources import Job, Result

if TYPE_CHECKING:
    from sfumato.client import AsyncClient, Client

_FIELDS = tuple(each.name for each in fields(Job))


@dataclass(frozen=True, slots=True)
class SubmittedJob(Job):
    """A job as it was when the service last spoke of it, and the client that can ask again."""

    client: "Client" = field(kw_only=True, repr=False, compare=False)

    @classmethod
    def of(cls, client: Any, job: Job) -> Self:
        """A job as a client of its own sees it."""
        return cls(**{name: getattr(job, name) for name in _FIELDS}, client=client)

    def wait(self, *, timeout_seconds: float | None = None, progress: Shown = None) -> "SubmittedJob":
        """Wait until it is over: succeeded, failed, canceled or expired.

        Parameters
        ----------
        timeout_seconds : float, optional
            Longest wait; without end by default.
        progress : bool or callable, optional
            True draws a line on standard error that says how far it is, False nothing; by
            default it is drawn where standard error is a terminal. A callable is told the job
            about once a second instead.

        Returns
        -------
        SubmittedJob
            As it is in the end; what failed says why in `error`.

        Raises
        ------
        JobTimeout
            It is not over in time.
        """
        with shown(progress) as tell:
            return self.client.wait_for_job(self.id, timeout_seconds=timeout_seconds, on_progress=tell)

    def refresh(self) -> "SubmittedJob":
        """The job as it stands now."""
        return self.client.get_job(self.id)

    def cancel(self) -> "SubmittedJob":
        """Cancel: what was posted stays, the rest of the reservation is released."""
        return self.client.cancel_job(self.id)

    def result(self) -> Result:
        """What it released; raises ApiProblem where it has not succeeded."""
        return self.client.result(self.id)


@dataclass(frozen=True, slots=True)
class AsyncSubmittedJob(Job):
    """The same of an AsyncClient: `await job.wait()`."""

    client: "AsyncClient" = field(kw_only=True, repr=False, compare=False)

    @classmethod
    def of(cls, client: Any, job: Job) -> Self:
        """A job as a client of its own sees it."""
        return cls(**{name: getattr(job, name) for name in _FIELDS}, client=client)

    async def wait(self, *, timeout_seconds: float | None = None, progress: Shown = None) -> "AsyncSubmittedJob":
        """As `SubmittedJob.wait`."""
        with shown(progress) as tell:
            return await self.client.wait_for_job(self.id, timeout_seconds=timeout_seconds, on_progress=tell)

    async def refresh(self) -> "AsyncSubmittedJob":
        """The job as it stands now."""
        return await self.client.get_job(self.id)

    async def cancel(self) -> "AsyncSubmittedJob":
        """Cancel: what was posted stays, the rest of the reservation is released."""
        return await self.client.cancel_job(self.id)

    async def result(self) -> Result:
        """What it released; raises ApiProblem where it has not succeeded."""
        return await self.client.result(self.id)
