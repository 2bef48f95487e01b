"""How requests are sent: problems, bounded retries, bounded answers, no redirects."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import tenacity

from sfumato._http import Http
from sfumato.errors import ApiProblem, Unreachable

Reply = httpx.Response | Exception


class Script:
    """A service that plays replies in order, the last one for ever."""

    def __init__(self, *replies: Reply | Callable[[httpx.Request], Reply]) -> None:
        self.replies = list(replies)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        assert isinstance(reply, httpx.Response)
        return httpx.Response(reply.status_code, headers=reply.headers, content=reply.content)

    def http(self, *, retry_seconds: float = 20.0, max_answer_bytes: int = 1 << 16) -> Http:
        return Http(
            "https://service.example/base/",
            "sfk_secret",
            timeout_seconds=5,
            retry_seconds=retry_seconds,
            max_answer_bytes=max_answer_bytes,
            transport=httpx.MockTransport(self),
        )


def problem(status: int, code: str, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    document = {"type": "about:blank", "title": code, "status": status, "code": code, "detail": "so it is", **fields}
    media = {"Content-Type": "application/problem+json"}
    return httpx.Response(status, headers={**media, **(headers or {})}, content=json.dumps(document).encode())


OK = httpx.Response(200, json={"fine": True})


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Seconds slept between attempts, without sleeping them."""
    seconds: list[float] = []
    monkeypatch.setattr(tenacity.nap.time, "sleep", seconds.append)
    return seconds


class TestRequests:
    def test_they_carry_the_key_below_v1_of_the_given_url(self) -> None:
        script = Script(OK)
        assert script.http().request("GET", "datasets/ds_1/round", params={"a": "1"}).object() == {"fine": True}
        (request,) = script.requests
        assert str(request.url) == "https://service.example/base/v1/datasets/ds_1/round?a=1"
        assert request.headers["Authorization"] == "Bearer sfk_secret"

    def test_json_is_sent_without_spaces(self) -> None:
        script = Script(OK)
        script.http().request("POST", "x", json_body={"a": [1, 2]})
        assert script.requests[0].content == b'{"a":[1,2]}'
        assert script.requests[0].headers["Content-Type"] == "application/json"

    def test_304_is_an_answer(self) -> None:
        assert Script(httpx.Response(304)).http().request("GET", "x").status == 304


class TestProblems:
    def test_a_problem_document_becomes_its_exception(self, slept: list[float]) -> None:
        script = Script(problem(409, "budget_exhausted", requested=2.0))
        with pytest.raises(ApiProblem) as raised:
            script.http().request("POST", "x", json_body={})
        assert (raised.value.status, raised.value.code) == (409, "budget_exhausted")
        assert raised.value.problem["requested"] == 2.0
        assert str(raised.value) == "409 budget_exhausted: so it is"
        assert len(script.requests) == 1
        assert slept == []

    @pytest.mark.parametrize("status", [400, 404, 422])
    def test_an_error_without_a_document_is_one_too(self, status: int) -> None:
        with pytest.raises(ApiProblem) as raised:
            Script(httpx.Response(status, text="<html>")).http().request("GET", "x")
        assert (raised.value.status, raised.value.code) == (status, "unexpected_answer")

    def test_a_redirect_is_not_followed(self) -> None:
        script = Script(httpx.Response(307, headers={"Location": "https://elsewhere.example/v1/x"}))
        with pytest.raises(ApiProblem, match="redirect"):
            script.http().request("POST", "x", json_body={"report": 1})
        assert [request.url.host for request in script.requests] == ["service.example"]

    @pytest.mark.parametrize("body", [b"<html>", b"", b"\xff"])
    def test_an_answer_that_is_not_json_is_one(self, body: bytes) -> None:
        with pytest.raises(ApiProblem, match="not JSON"):
            Script(httpx.Response(200, content=body)).http().request("GET", "x").object()

    def test_an_answer_that_is_no_object_is_one(self) -> None:
        with pytest.raises(ApiProblem, match="not a JSON object"):
            Script(httpx.Response(200, json=[])).http().request("GET", "x").object()

    def test_an_answer_that_does_not_end_is_cut_off(self) -> None:
        with pytest.raises(ApiProblem, match="over 65536 bytes"):
            Script(httpx.Response(200, content=b"x" * 65537)).http().request("GET", "x")

    def test_no_message_carries_the_key(self) -> None:
        for script in (Script(problem(401, "unauthenticated")), Script(httpx.ConnectError("refused"))):
            with pytest.raises((ApiProblem, Unreachable)) as raised:
                script.http(retry_seconds=0).request("GET", "x")
            assert "sfk_secret" not in str(raised.value)


class TestRetries:
    @pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
    def test_a_passing_fault_is_tried_again_with_the_same_bytes(self, status: int, slept: list[float]) -> None:
        script = Script(problem(status, "unavailable"), httpx.ReadTimeout("late"), httpx.ConnectError("no"), OK)
        script.http().request("POST", "x", json_body={"b": 1, "a": 2}, headers={"Idempotency-Key": "k"})
        assert len(script.requests) == 4
        assert {request.content for request in script.requests} == {b'{"b":1,"a":2}'}
        assert {request.headers["Idempotency-Key"] for request in script.requests} == {"k"}
        assert len(slept) == 3

    @pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 415, 422, 501])
    def test_what_would_fail_again_is_not_tried_again(self, status: int, slept: list[float]) -> None:
        script = Script(problem(status, "x"))
        with pytest.raises(ApiProblem):
            script.http().request("POST", "x", json_body={})
        assert len(script.requests) == 1

    @pytest.mark.parametrize("error", [httpx.UnsupportedProtocol("gopher"), httpx.LocalProtocolError("bad header")])
    def test_a_request_that_cannot_be_sent_is_not_tried_again(self, error: Exception, slept: list[float]) -> None:
        script = Script(error)
        with pytest.raises(Unreachable):
            script.http().request("GET", "x")
        assert len(script.requests) == 1
        assert slept == []

    def test_retry_after_says_when(self, slept: list[float]) -> None:
        script = Script(problem(429, "rate_limited", {"Retry-After": "7"}), OK)
        script.http().request("GET", "x")
        assert slept == [7.0]

    def test_a_retry_after_beyond_the_time_left_is_not_waited_for(self, slept: list[float]) -> None:
        script = Script(problem(503, "unavailable", {"Retry-After": "3600"}), OK)
        with pytest.raises(ApiProblem) as raised:
            script.http().request("GET", "x")
        assert raised.value.status == 503
        assert slept == []

    @pytest.mark.parametrize("value", ["soon", "-5", "nan", "inf", "Wed, 21 Oct 2026 07:28:00 GMT"])
    def test_a_retry_after_that_is_no_number_is_passed_over(self, value: str, slept: list[float]) -> None:
        script = Script(problem(503, "unavailable", {"Retry-After": value}), OK)
        assert script.http().request("GET", "x").status == 200
        assert 0.1 <= slept[0] <= 1.1

    def test_it_ends(self) -> None:
        script = Script(httpx.ConnectError("refused"))
        with pytest.raises(Unreachable, match="ConnectError"):
            script.http(retry_seconds=1).request("GET", "x")
        assert 2 <= len(script.requests) <= 5  # waits of .1, .2, .4 seconds at the least

    def test_zero_seconds_try_once(self) -> None:
        script = Script(problem(503, "unavailable"))
        with pytest.raises(ApiProblem):
            script.http(retry_seconds=0).request("GET", "x")
        assert len(script.requests) == 1
