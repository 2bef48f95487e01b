"""Work on the side while the demo goes on."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Later(Generic[T]):
    """A function's result, worked out in a thread that never keeps the process alive.

    An executor's threads are waited for at exit, which would make Ctrl-C wait for a compiler.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._outcome: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="later", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome.append(self._work())
        except BaseException as error:  # for whoever asks for the result
            self._error = error

    def result(self) -> T:
        """Wait for it; raises what the work raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._outcome[0]
