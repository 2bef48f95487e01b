"""Where the demo's story plays: the service that devices and analyst speak to."""

from types import TracebackType
from typing import Protocol, Self

import httpx


class Stage(Protocol):
    """A service that runs from entering to leaving, entered by a thread that stays until then.

    Attributes
    ----------
    url, key : str
        An address clients are given, and an admin key.
    """

    url: str
    key: str

    def __enter__(self) -> Self:
        """Start the service."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End it."""

    def check(self) -> None:
        """Raise ServiceFailed if it has ended."""

    def network(self) -> httpx.BaseTransport:
        """A new way to it, the caller's to close."""

    def reported(self, n_reports: int) -> None:
        """So many reports are acknowledged so far."""

    def submitted(self, job_id: str) -> None:
        """This job is to be computed as soon as its devices have reported."""

    def ended(self, job_id: str) -> None:
        """The job succeeded; the service is about to end."""
