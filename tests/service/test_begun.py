"""An awaitable that is run up to where it waits: the same result, the same errors, the same cancelling."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from service.middleware import Begun


async def at_once() -> int:
    return 7


async def later(seconds: float = 0.01) -> int:
    await asyncio.sleep(seconds)
    await asyncio.sleep(0)
    return 8


async def wrong(seconds: float | None = None) -> int:
    if seconds is not None:
        await asyncio.sleep(seconds)
    raise LookupError("gone")


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


class TestBegun:
    def test_what_waits_for_nothing_is_over(self) -> None:
        async def test() -> None:
            begun = Begun(at_once())
            assert (begun.is_over, begun.result) == (True, 7)

        run(test)

    def test_what_waits_goes_on_when_it_is_awaited(self) -> None:
        async def test() -> None:
            begun = Begun(later())
            assert not begun.is_over
            assert await begun == 8

        run(test)

    @pytest.mark.parametrize("seconds", [None, 0.01])
    def test_errors_come_where_they_are_raised(self, seconds: float | None) -> None:
        async def test() -> None:
            with pytest.raises(LookupError, match="gone"):
                await Begun(wrong(seconds))

        run(test)

    def test_a_time_limit_ends_it_and_what_it_waits_for(self) -> None:
        ended: list[str] = []

        async def endless() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("yes")

        async def test() -> None:
            begun = Begun(endless())
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await begun
            assert ended == ["yes"]

        run(test)

    def test_that_takes_its_cancelling_for_an_answer_ends_with_it(self) -> None:
        async def stubborn() -> int:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                await asyncio.sleep(0.01)
            return 9

        async def test() -> None:
            async def wait() -> int:
                begun = Begun(stubborn())
                result: int = await begun
                return result

            task = asyncio.create_task(wait())
            await asyncio.sleep(0.01)
            task.cancel()
            assert await task == 9

        run(test)
