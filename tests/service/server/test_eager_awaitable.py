"""`EagerAwaitable` has the same result, errors and cancellation as the wrapped awaitable."""

import asyncio

import pytest

from service.http.middleware import EagerAwaitable


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


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
class TestEagerAwaitable:
    async def test_is_done_if_it_never_suspends_and_else_continues_when_awaited(self) -> None:
        eager = EagerAwaitable(at_once())
        assert (eager.is_done, eager.result) == (True, 7)
        eager = EagerAwaitable(later())
        assert not eager.is_done
        assert await eager == 8

    @pytest.mark.parametrize("seconds", [None, 0.01])
    async def test_raises_the_errors(self, seconds: float | None) -> None:
        with pytest.raises(LookupError, match="gone"):
            await EagerAwaitable(wrong(seconds))

    async def test_a_timeout_cancels_the_inner_awaitable(self) -> None:
        ended: list[str] = []

        async def endless() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("yes")

        eager = EagerAwaitable(endless())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await eager
        assert ended == ["yes"]

    async def test_returns_the_result_of_an_awaitable_that_catches_cancellation(self) -> None:
        async def stubborn() -> int:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                await asyncio.sleep(0.01)
            return 9

        async def wait() -> int:
            eager = EagerAwaitable(stubborn())
            result: int = await eager
            return result

        task = asyncio.create_task(wait())
        await asyncio.sleep(0.01)
        task.cancel()
        assert await task == 9
