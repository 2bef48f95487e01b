"""The clock: it follows small corrections at once, and a jump only after a delay."""

import pytest

from shuffler.clock import HOLD_SECONDS, Clock

START = 1_800_000_000.0


class Machine:
    """A machine with a clock that can jump."""

    def __init__(self) -> None:
        self.wall, self.elapsed = START, 50.0
        self.clock = Clock(lambda: self.wall, lambda: self.elapsed)

    def wait(self, seconds: float) -> float:
        self.wall += seconds
        self.elapsed += seconds
        return self.clock() - START


class TestClock:
    def test_follows_the_machine_and_its_small_corrections(self) -> None:
        machine = Machine()
        assert machine.wait(100) == 100
        machine.wall += 59
        assert machine.wait(0) == 159
        machine.wall -= 59
        assert machine.wait(0) == 100
        for _ in range(100):  # a drift
            machine.wall += 10
            machine.wait(1)
        assert machine.wait(0) == 100 + 1100

    @pytest.mark.parametrize("jump", [86_400.0, -86_400.0, 61.0, -61.0, -START])
    def test_continues_after_a_jump_that_is_corrected(self, jump: float) -> None:
        machine = Machine()
        machine.wait(100)
        machine.wall += jump
        assert machine.wait(0) == 100
        assert machine.wait(HOLD_SECONDS - 1) == 100 + HOLD_SECONDS - 1
        machine.wall -= jump
        assert machine.wait(1) == 100 + HOLD_SECONDS

    @pytest.mark.parametrize("jump", [86_400.0, -86_400.0])
    def test_follows_a_jump_that_lasts(self, jump: float) -> None:
        machine = Machine()
        machine.wall += jump
        machine.wait(1)
        machine.wait(HOLD_SECONDS - 1)
        assert machine.wait(1) == HOLD_SECONDS + 1 + jump

    def test_a_second_jump_begins_a_new_delay(self) -> None:
        machine = Machine()
        machine.wall += 1000
        machine.wait(0)
        machine.wait(HOLD_SECONDS - 1)
        machine.wall += 1000
        assert machine.wait(2) == HOLD_SECONDS + 1
        assert machine.wait(HOLD_SECONDS) == 2 * HOLD_SECONDS + 1 + 2000
