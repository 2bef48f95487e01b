"""The awaited client: the same conversations, sent by another pool."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from sfumato._exchange import get
from sfumato._http import AsyncHttp
from sfumato.bulk import perturb_records
from sfumato.client import AsyncClient
from sfumato.errors import ApiProblem, InvalidPoint, JobTimeout, ReportMalformed, Unreachable
from sfumato.specs import UniformGrid
from tests.sfumato.answers import DATASET, JOB, KEY, Service, lost, ok, pages
from tests.sfumato.scripted import refusal, round_spec
from tests.sfumato.test_report_labels import ITEMS, paged

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
    def test_a_lost_answer_is_asked_for_under_the_same_key_with_the_same_bytes(self) -> None:
        service, client = serving({"POST jobs": [lost, refusal(500, "internal_error"), ok(JOB, 202)]})
        job = awaited(lambda: client.submit_job("ds_1", UniformGrid(epsilon=1), target_reports=10))
        assert job.id == "job_1"
        assert len(service.requests) == 3
        assert len({request.headers["Idempotency-Key"] for request in service.requests}) == 1
        assert len({request.content for request in service.requests}) == 1

    def test_lists_come_page_after_page_as_they_are_asked_for(self) -> None:
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

    def test_one_left_early_asks_for_no_further_page(self) -> None:
        service, client = serving({"GET datasets": pages([DATASET], [DATASET])})

        async def main() -> None:
            async for _ in client.datasets():
                break

        awaited(main)
        assert len(service.requests) == 1

    def test_a_secret_that_was_lost_is_revoked_and_made_again(self) -> None:
        made = [lost, ok(KEY | {"secret": None}, 201), ok(KEY | {"id": "key_2", "secret": "sfk_2"}, 201)]
        service, client = serving({"POST keys": made, "DELETE keys/key_1": httpx.Response(204)})
        assert awaited(lambda: client.create_key("app", ["device"])).id == "key_2"
        assert [request.method for request in service.requests] == ["POST", "POST", "DELETE", "POST"]

    def test_labels_of_reports_are_iterated_over_as_often_as_asked(self) -> None:
        _, client = serving({"GET jobs/job_1/labels": paged})

        async def main() -> list[list[str]]:
            labels = await client.report_labels("job_1")
            assert labels.expected_accuracy == 0.6
            return [[each.report_id async for each in labels] for _ in range(2)]

        assert awaited(main) == [[item["report_id"] for item in ITEMS]] * 2

    def test_an_error_in_the_middle_says_what_is_stored(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sfumato._records.PART_BYTES", 4)
        stored = ok({"id": "rec_1", "n_records": 2, "n_clipped": 0}, 201)
        service, client = serving({"POST datasets/ds_1/records": [stored, refusal(422, "validation_failed")]})
        (tmp_path / "people.csv").write_text("x\n1\n2\n3\n4\n")
        with pytest.raises(ApiProblem, match="2 records before it are stored"):
            awaited(lambda: client.upload_file("ds_1", tmp_path / "people.csv"))
        assert len({request.headers["Idempotency-Key"] for request in service.requests}) == 2

    def test_checks_come_before_anything_is_sent(self) -> None:
        service, client = serving({})
        with pytest.raises(InvalidPoint):
            awaited(lambda: client.assign("job_1", [[float("nan")]]))
        assert service.requests == []

    def test_a_bad_report_is_named_by_its_place(self) -> None:

        bad = httpx.Response(422, json={"code": "report_malformed", "detail": "slot out of range", "index": 1})
        _, client = serving({"POST rounds/rnd_1/reports": bad})
        with pytest.raises(ReportMalformed) as raised:
            awaited(lambda: client.send_reports("rnd_1", *perturb_records(round_spec(), [[1, 2], [3, 4]])))
        assert raised.value.index == 1


class TestPatience:
    def test_retry_after_is_slept_without_keeping_others_from_their_work(self) -> None:
        busy = refusal(429, "rate_limited")
        busy.headers["Retry-After"] = "0.3"
        _, client = serving({"GET datasets/ds_1": [busy, ok(DATASET)]})

        async def main() -> tuple[str, int]:
            asked = asyncio.create_task(_of(client.get_dataset("ds_1")))
            turns = 0
            while not asked.done():
                await asyncio.sleep(0.01)
                turns += 1
            return (await asked).id, turns

        began = time.monotonic()
        found, turns = awaited(main)
        assert found == "ds_1"
        assert time.monotonic() - began >= 0.3
        assert turns >= 5

    def test_a_retry_after_beyond_the_time_left_is_not_waited_for(self) -> None:
        busy = refusal(503, "unavailable")
        busy.headers["Retry-After"] = "3600"
        service, client = serving({"GET datasets/ds_1": busy})
        with pytest.raises(ApiProblem, match="unavailable"):
            awaited(lambda: client.get_dataset("ds_1"))
        assert len(service.requests) == 1

    def test_no_answer_ends_as_unreachable(self) -> None:
        service, client = serving({"GET datasets/ds_1": lost}, retry_seconds=0)
        with pytest.raises(Unreachable):
            awaited(lambda: client.get_dataset("ds_1"))
        assert len(service.requests) == 1

    def test_an_answer_that_does_not_end_is_cut_off_and_no_redirect_followed(self) -> None:
        def http(answer: httpx.Response) -> AsyncHttp:
            return AsyncHttp(
                "http://service.example",
                "sfk_x",
                timeout_seconds=5,
                retry_seconds=0,
                max_answer_bytes=1 << 16,
                transport=httpx.MockTransport(lambda _: answer),
            )

        for answer, said in (
            (httpx.Response(200, content=b"x" * 65537), "over 65536 bytes"),
            (httpx.Response(307, headers={"Location": "https://elsewhere.example/"}), "redirect"),
        ):
            with pytest.raises(ApiProblem, match=said):
                awaited(partial(http(answer).perform, get("x")))

    def test_a_call_that_is_cancelled_stops(self) -> None:
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
    def test_a_job_is_awaited_asked_for_and_cancelled_by_itself(self) -> None:
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

    def test_it_ends_in_time(self) -> None:
        _, client = serving({"GET jobs/job_1": ok(JOB)})

        async def main() -> None:
            job = await client.get_job("job_1")
            await job.wait(timeout_seconds=0.2, progress=False)

        with pytest.raises(JobTimeout, match="collecting"):
            awaited(main)


class TestTheConnection:
    def test_is_given_back(self) -> None:
        async def main() -> bool:
            async with AsyncClient("http://service.example", "sfk_x") as client:
                pool = client._http._client
            return pool.is_closed

        assert awaited(main)

    def test_of_a_transport_that_was_given_stays_open(self) -> None:
        async def main() -> bool:
            _, client = serving({"GET datasets/ds_1": ok(DATASET)})
            await client.close()
            return (await client.get_dataset("ds_1")).id == "ds_1"

        assert awaited(main)

    def test_many_calls_share_one_client(self) -> None:
        service, client = serving({"GET datasets/ds_1": ok(DATASET)})

        async def main() -> int:
            found = await asyncio.gather(*(client.get_dataset("ds_1") for _ in range(50)))
            return len(found)

        assert awaited(main) == 50
        assert len(service.requests) == 50
        assert json.loads(service.requests[0].content or b"null") is None


async def _of(value: Awaitable[T]) -> T:
    return await value
