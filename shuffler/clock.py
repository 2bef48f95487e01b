"""Clock of the shuffler, which a jump of the machine's clock moves only after a delay."""

import time
from collections.abc import Callable

JUMP_SECONDS = 60.0  # a larger difference between the machine's clock and the elapsed time is a jump
HOLD_SECONDS = 600.0  # time for which a jump must last before the shuffler follows it


class Clock:
    """Seconds since the epoch, from the machine's clock and the elapsed time.

    Releases and discards are final, so a wrong clock must not cause them. After a jump, forward or back, the time
    continues from its last value. The shuffler follows the machine's clock when the jump has lasted for HOLD_SECONDS.
    Smaller corrections apply at once. Safe for threads: a race only repeats a comparison.

    Parameters
    ----------
    wall : callable
        The machine's clock, in seconds since the epoch.
    elapsed : callable
        Seconds since any fixed time. It must not jump.
    """

    def __init__(self, wall: Callable[[], float] = time.time, elapsed: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._elapsed = wall, elapsed
        self._offset = wall() - elapsed()  # offset of the shuffler's time
        self._jump: tuple[float, float] | None = None  # offset after a jump, and the elapsed time when it was seen

    def __call__(self) -> float:
        """Return the time."""
        elapsed = self._elapsed()
        offset = self._wall() - elapsed
        if abs(offset - self._offset) <= JUMP_SECONDS:
            self._offset, self._jump = offset, None
        elif self._jump is None or abs(offset - self._jump[0]) > JUMP_SECONDS:
            self._jump = (offset, elapsed)
        elif elapsed - self._jump[1] >= HOLD_SECONDS:
            self._offset, self._jump = offset, None
        return self._offset + elapsed
