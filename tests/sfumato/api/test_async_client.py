"""The asynchronous client: pages, retries, time-outs and connections of its own."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from sfumato.api.client import AsyncClient
from sfumato.errors import ApiProblem, JobTimeout, Unreachable
from sfumato.specs import UniformGrid
from sfumato.transport.exchange import get
from sfumato.transport.http import AsyncHttp, PoolSettings
from tests.sfumato.answers import DATASET, JOB, Service, lost, ok, pages
from tests.sfumato.api.test_report_labels import ITEMS, paged
from tests.sfumato.scripted import refusal

T = TypeVar("T")


def serving(routes: dict[str, Any], *, retry_seconds: float = 5) -> tuple[Service, AsyncClient]:
    service = Service(**routes)
    transport = httpx.MockTransport(service)
    return service, AsyncClient("http://service.example", "sfk_x", transport=transport, retry_seconds=retry_seconds)


def awaited(main: Callable[[], Awaitable[T]]) -> T:
    async def run() -> T:
        return await main()

    return asyncio.run(run())


@pytest.mark.usefixtures("three_attempts")
class TestCalls:
    def test_repeats_the_same_request_after_a_lost_response(self) -> None:
        service, client = serving({"POST jobs": [lost, refusal(500, "internal_error"), ok(JOB, 202)]})
        job = awaited(lambda: client.submit_job("ds_1", UniformGrid(epsilon=1), target_reports=10))
        assert job.id == "job_1"
        assert len(service.requests) == 3
        assert len({request.headers["Idempotency-Key"] for request in service.requests}) == 1
        assert len({request.content for request in service.requests}) == 1

    def test_fetches_pages_on_demand(self) -> None:
        parts = [[DATASET | {"id": f"ds_{page}{i}"} for i in range(2)] for page in range(3)]
        service, client = serving({"GET datasets": pages(*parts)})

        async def main() -> list[str]:
            listed = client.datasets()
            assert isinstance(listed, AsyncIterator)
            assert service.requests == []
            first = await anext(listed)
            assert len(service.requests) == 1
            return [first.id, *[each.id async for each in listed]]

        assert awaited(main) == [d["id"] for part in parts for d in part]
        assert [request.url.params.get("cursor") for request in service.requests] == [None, "1", "2"]

    def test_iterates_over_labels_repeatedly(self) -> None:
        _, client = serving({"GET jobs/job_1/labels": paged})

        async def main() -> list[list[str]]:
            labels = await client.report_labels("job_1")
            assert labels.expected_accuracy == 0.6
            return [[each.report_id async for each in labels] for _ in range(2)]

        assert awaited(main) == [[item["report_id"] for item in ITEMS]] * 2

    def test_an_error_numbers_the_records_of_the_whole_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sfumato.api.records.PART_BYTES", 4)
        stored = ok({"id": "rec_1", "n_records": 2, "n_clipped": 0}, 201)
        service, client = serving(
            {"POST datasets/ds_1/records": [stored, refusal(422, "validation_failed", detail="record 1: no")]}
        )
        (tmp_path / "people.csv").write_text("x\n1\n2\n3\n4\n")
        with pytest.raises(ApiProblem, match="record 3: no"):
            awaited(lambda: client.upload_file("ds_1", tmp_path / "people.csv"))
        assert [request.url.params["part"] for request in service.requests] == ["1", "2"]


class TestRetries:
    def test_sleeps_for_retry_after_without_blocking_the_loop(self) -> None:
        busy = refusal(429, "rate_limited")
        busy.headers["Retry-After"] = "0.1"
        _, client = serving({"GET datasets/ds_1": [busy, ok(DATASET)]})

        async def main() -> tuple[str, int]:
            call = asyncio.ensure_future(client.get_dataset("ds_1"))
            turns = 0
            while not call.done():
                await asyncio.sleep(0.01)
                turns += 1
            return (await call).id, turns

        began = time.monotonic()
        found, turns = awaited(main)
        assert found == "ds_1"
        assert time.monotonic() - began >= 0.1
        assert turns >= 2

    def test_does_not_wait_beyond_the_time_left(self) -> None:
        busy = refusal(503, "unavailable")
        busy.headers["Retry-After"] = "3600"
        service, client = serving({"GET datasets/ds_1": busy})
        with pytest.raises(ApiProblem, match="unavailable"):
            awaited(lambda: client.get_dataset("ds_1"))
        assert len(service.requests) == 1

    def test_is_unreachable_without_a_response(self) -> None:
        service, client = serving({"GET datasets/ds_1": lost}, retry_seconds=0)
        with pytest.raises(Unreachable):
            awaited(lambda: client.get_dataset("ds_1"))
        assert len(service.requests) == 1

    def test_limits_responses_and_follows_no_redirect(self) -> None:
        def http(answer: httpx.Response) -> AsyncHttp:
            settings = PoolSettings(5, 0, 1 << 16)
            return AsyncHttp("http://service.example", "sfk_x", settings, httpx.MockTransport(lambda _: answer))

        for response, message in (
            (httpx.Response(200, content=b"x" * 65537), "more than 65536 bytes"),
            (httpx.Response(307, headers={"Location": "https://elsewhere.example/"}), "redirect"),
        ):
            with pytest.raises(ApiProblem, match=message):
                awaited(partial(http(response).send, get("x")))

    def test_stops_a_cancelled_call(self) -> None:
        busy = refusal(503, "unavailable")
        busy.headers["Retry-After"] = "4"
        service, client = serving({"GET datasets/ds_1": busy})

        async def main() -> None:
            async with asyncio.timeout(0.2):
                await client.get_dataset("ds_1")

        with pytest.raises(TimeoutError):
            awaited(main)
        assert len(service.requests) == 1


class TestWaiting:
    def test_awaits_refreshes_and_cancels_a_job(self) -> None:
        states = [ok(JOB | {"state": state}) for state in ("queued", "collecting", "succeeded")]
        service, client = serving(
            {
                "POST jobs": ok(JOB, 202),
                "GET jobs/job_1": states,
                "POST jobs/job_1/cancel": ok(JOB | {"state": "canceled"}),
                "GET jobs/job_1/result": refusal(409, "job_not_finished"),
            }
        )
        seen: list[str] = []

        async def main() -> tuple[str, str]:
            job = await client.submit_job("ds_1", UniformGrid(epsilon=1), target_reports=10)
            done = await job.wait(timeout_seconds=60, progress=lambda job: seen.append(job.state))
            with pytest.raises(ApiProblem):
                await done.result()
            assert (await done.refresh()).is_final
            return done.state, (await done.cancel()).state

        assert awaited(main) == ("succeeded", "canceled")
        assert seen == ["queued", "collecting", "succeeded"]
        waits = [r.url.params["wait"] for r in service.requests if "wait" in r.url.params]
        assert waits[0] == "1"

    def test_times_out(self) -> None:
        _, client = serving({"GET jobs/job_1": ok(JOB)})

        async def main() -> None:
            job = await client.get_job("job_1")
            await job.wait(timeout_seconds=0.2, progress=False)

        with pytest.raises(JobTimeout, match="collecting"):
            awaited(main)


class TestConnection:
    def test_closes_its_pool(self) -> None:
        async def main() -> bool:
            async with AsyncClient("http://service.example", "sfk_x") as client:
                pool = client._http._client
            return pool.is_closed

        assert awaited(main)

    def test_does_not_close_the_transport_of_the_caller(self) -> None:
        async def main() -> bool:
            _, client = serving({"GET datasets/ds_1": ok(DATASET)})
            await client.close()
            return (await client.get_dataset("ds_1")).id == "ds_1"

        assert awaited(main)

    def test_serves_many_calls_at_once(self) -> None:
        service, client = serving({"GET datasets/ds_1": ok(DATASET)})

        async def main() -> int:
            return len(await asyncio.gather(*(client.get_dataset("ds_1") for _ in range(50))))

        assert awaited(main) == len(service.requests) == 50
