"""A private Sfumato service of the demo: on loopback, with a temporary home, ended together with the demo."""

import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from demo.scenario import DemoService, ServiceFailed
from devservers.fleet import Member, make_environment, start


class LocalService(DemoService):
    """A `DemoService` that runs `sfumato serve` as a child process.

    Its address is a free port of 127.0.0.1. Its key is the first admin key.
    """

    member: Member

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(prefix="sfumato-demo-")
        home = Path(self._directory.name)
        arguments = ("serve", "--host", "127.0.0.1", "--port", "0")
        environment = make_environment(home, warm_kernels="false")  # the single job needs few kernels
        self.member = start(home, "the service", *arguments, environment=environment)
        try:
            self.member.wait_for_gateway()
            self.url, self.key = self.member.url, _admin_key(home)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    def check(self) -> None:
        """Raise ProcessFailed if the service has ended."""
        self.member.check()

    def _stop(self) -> None:
        self.member.stop()
        self._directory.cleanup()


def _admin_key(home: Path) -> str:
    try:
        return (home / "admin.key").read_text(encoding="ascii").strip()
    except OSError:
        raise ServiceFailed("the service left no admin key in its home") from None
