"""Work on the side: its result, or its error, for whoever asks."""

import threading

import pytest

from demo.later import Later


class TestLater:
    def test_gives_the_result_to_everyone_who_asks(self) -> None:
        later = Later(lambda: threading.current_thread().name)
        assert later.result() == later.result() == "later"

    def test_raises_what_the_work_raised(self) -> None:
        later = Later(lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            later.result()

    def test_waits_until_it_is_done(self) -> None:
        gate = threading.Event()
        later = Later(lambda: gate.wait(30))
        threading.Timer(0.05, gate.set).start()
        assert later.result() is True
