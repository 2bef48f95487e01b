"""The HTTP transport: problems, limited retries, limited responses, no redirects."""

import ssl
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import tenacity

from sfumato.errors import ApiProblem, InvalidSpec, Unreachable
from sfumato.transport.exchange import Request
from sfumato.transport.http import AsyncHttp, Http, PoolSettings
from tests.sfumato.scripted import refusal

Reply = httpx.Response | Exception


class Script:
    """A service that sends replies in order and repeats the last one."""

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

    def http(self, *, retry_seconds: float = 20.0, max_response_bytes: int = 1 << 16) -> Http:
        settings = PoolSettings(5, retry_seconds, max_response_bytes)
        return Http("https://service.example/base/", "sfk_secret", settings, httpx.MockTransport(self))


def problem(status: int, code: str, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    response = refusal(status, code, detail="because", **fields)
    response.headers.update(headers or {})
    return response


OK = httpx.Response(200, json={"fine": True})


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Seconds slept between attempts, without sleeping them."""
    seconds: list[float] = []
    monkeypatch.setattr(tenacity.nap.time, "sleep", seconds.append)
    return seconds


class TestSurroundings:
    @pytest.mark.parametrize(
        "url", ["http://127.0.0.1:9", "http://127.9.9.9:9", "http://[::1]:9", "http://localhost:9"]
    )
    def test_a_service_on_this_machine_is_reached_without_proxy_and_certificates(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1080")
        monkeypatch.setenv("http_proxy", "http://192.0.2.1:1")
        monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent.pem")
        monkeypatch.delattr(ssl, "create_default_context")  # it reads the certificates for 23 ms
        with pytest.raises(Unreachable, match="ConnectError"):  # the port is closed; a proxy would time out
            Http(url, "sfk_x", PoolSettings(5, 0, 99)).send(Request("GET", "x"))
        assert AsyncHttp(url, "sfk_x", PoolSettings(5, 0, 99)) is not None

    def test_a_given_transport_is_the_only_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(httpx, "HTTPTransport", None)  # a call would raise; it reads the certificates for 15 ms
        monkeypatch.setattr(httpx, "AsyncHTTPTransport", None)
        answer = httpx.MockTransport(lambda _: httpx.Response(200, json={}))
        pool = Http("http://127.0.0.1:9", "sfk_x", PoolSettings(5, 0, 99), answer)
        assert pool.send(Request("GET", "x")).status == 200
        assert AsyncHttp("http://127.0.0.1:9", "sfk_x", PoolSettings(5, 0, 99), answer) is not None

    @pytest.mark.parametrize("pool", [Http, AsyncHttp])
    @pytest.mark.parametrize(
        ("variable", "value"),
        [
            ("ALL_PROXY", "ftp://user:secret@proxy"),
            ("https_proxy", "nonsense://x"),
            ("SSL_CERT_FILE", "/nonexistent.pem"),
        ],
    )
    def test_a_fault_of_the_environment_is_a_sentence_with_the_variable(
        self, pool: Any, variable: str, value: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(variable, value)
        with pytest.raises(InvalidSpec, match=f"{variable}.*unset the variable") as raised:
            pool("https://service.example", "sfk_x", PoolSettings(5, 0, 99))
        assert "secret" not in str(raised.value)


class TestRequests:
    def test_sends_the_key_to_v1_of_the_url(self) -> None:
        script = Script(OK)
        assert script.http().send(Request("GET", "datasets/ds_1/round", params={"a": "1"})).object() == {"fine": True}
        (request,) = script.requests
        assert str(request.url) == "https://service.example/base/v1/datasets/ds_1/round?a=1"
        assert request.headers["Authorization"] == "Bearer sfk_secret"

    def test_sends_json_without_spaces_and_accepts_304(self) -> None:
        assert Script(httpx.Response(304)).http().send(Request("GET", "x")).status == 304
        script = Script(OK)
        script.http().send(Request("POST", "x", json_body={"a": [1, 2]}))
        assert script.requests[0].content == b'{"a":[1,2]}'
        assert script.requests[0].headers["Content-Type"] == "application/json"


class TestProblems:
    def test_raises_a_problem_document(self, slept: list[float]) -> None:
        script = Script(problem(409, "budget_exhausted", requested=2.0))
        with pytest.raises(ApiProblem) as raised:
            script.http().send(Request("POST", "x", json_body={}))
        assert (raised.value.status, raised.value.code) == (409, "budget_exhausted")
        assert raised.value.problem["requested"] == 2.0
        assert str(raised.value) == "409 budget_exhausted: because"
        assert len(script.requests) == 1
        assert slept == []

    @pytest.mark.parametrize("status", [400, 404, 422])
    def test_raises_an_error_without_a_document(self, status: int) -> None:
        with pytest.raises(ApiProblem) as raised:
            Script(httpx.Response(status, text="<html>")).http().send(Request("GET", "x"))
        assert (raised.value.status, raised.value.code) == (status, "unexpected_response")

    def test_does_not_follow_a_redirect(self) -> None:
        script = Script(httpx.Response(307, headers={"Location": "https://elsewhere.example/v1/x"}))
        with pytest.raises(ApiProblem, match="redirect"):
            script.http().send(Request("POST", "x", json_body={"report": 1}))
        assert [request.url.host for request in script.requests] == ["service.example"]

    @pytest.mark.parametrize(
        ("body", "message"),
        [(b"<html>", "not JSON"), (b"", "not JSON"), (b"\xff", "not JSON"), (b"[]", "a JSON object")],
    )
    def test_another_body_is_a_problem(self, body: bytes, message: str) -> None:
        with pytest.raises(ApiProblem, match=message):
            Script(httpx.Response(200, content=body)).http().send(Request("GET", "x")).object()

    def test_limits_the_response(self) -> None:
        with pytest.raises(ApiProblem, match="more than 65536 bytes"):
            Script(httpx.Response(200, content=b"x" * 65537)).http().send(Request("GET", "x"))

    def test_no_message_contains_the_key(self) -> None:
        for script in (Script(problem(401, "unauthenticated")), Script(httpx.ConnectError("refused"))):
            with pytest.raises((ApiProblem, Unreachable)) as raised:
                script.http(retry_seconds=0).send(Request("GET", "x"))
            assert "sfk_secret" not in str(raised.value)


class TestRetries:
    @pytest.mark.parametrize("status", [408, 429, 500, 504])
    def test_repeats_the_same_bytes_after_a_temporary_fault(self, status: int, slept: list[float]) -> None:
        script = Script(problem(status, "unavailable"), httpx.ReadTimeout("late"), httpx.ConnectError("no"), OK)
        script.http().send(Request("POST", "x", json_body={"b": 1, "a": 2}, headers={"Idempotency-Key": "k"}))
        assert len(script.requests) == 4
        assert {request.content for request in script.requests} == {b'{"b":1,"a":2}'}
        assert {request.headers["Idempotency-Key"] for request in script.requests} == {"k"}
        assert len(slept) == 3

    @pytest.mark.parametrize("status", [400, 401, 409, 422, 501])
    def test_does_not_repeat_a_permanent_fault(self, status: int, slept: list[float]) -> None:
        script = Script(problem(status, "x"))
        with pytest.raises(ApiProblem):
            script.http().send(Request("POST", "x", json_body={}))
        assert len(script.requests) == 1

    @pytest.mark.parametrize("error", [httpx.UnsupportedProtocol("gopher"), httpx.LocalProtocolError("bad header")])
    def test_does_not_repeat_an_impossible_request(self, error: Exception, slept: list[float]) -> None:
        script = Script(error)
        with pytest.raises(Unreachable):
            script.http().send(Request("GET", "x"))
        assert len(script.requests) == 1
        assert slept == []

    def test_waits_for_retry_after(self, slept: list[float]) -> None:
        script = Script(problem(429, "rate_limited", {"Retry-After": "7"}), OK)
        script.http().send(Request("GET", "x"))
        assert slept == [7.0]

    def test_does_not_wait_beyond_the_time_left(self, slept: list[float]) -> None:
        script = Script(problem(503, "unavailable", {"Retry-After": "3600"}), OK)
        with pytest.raises(ApiProblem) as raised:
            script.http().send(Request("GET", "x"))
        assert raised.value.status == 503
        assert slept == []

    @pytest.mark.parametrize("value", ["soon", "-5", "nan", "inf", "Wed, 21 Oct 2026 07:28:00 GMT"])
    def test_ignores_an_invalid_retry_after(self, value: str, slept: list[float]) -> None:
        script = Script(problem(503, "unavailable", {"Retry-After": value}), OK)
        assert script.http().send(Request("GET", "x")).status == 200
        assert 0.1 <= slept[0] <= 1.1

    def test_stops_after_the_retry_time(self) -> None:
        script = Script(httpx.ConnectError("refused"))
        with pytest.raises(Unreachable, match="ConnectError"):
            script.http(retry_seconds=1).send(Request("GET", "x"))
        assert 2 <= len(script.requests) <= 5  # waits of .1, .2, .4 seconds at the least

    def test_tries_once_without_retry_time(self) -> None:
        script = Script(problem(503, "unavailable"))
        with pytest.raises(ApiProblem):
            script.http(retry_seconds=0).send(Request("GET", "x"))
        assert len(script.requests) == 1


class TestArguments:
    @pytest.mark.parametrize(
        "url",
        [
            *("localhost:8000", "https://service.example/v1", "https://service.example/v1/", "https://", "https:///a"),
            *("https://a:b@service.example", "https://service.example?a", "https://service.example#a", "http://a b"),
            *("http://[::1", "http://[:::]", "http://a:65536", "http://a:0", "http://a:b"),
        ],
    )
    def test_a_wrong_url_is_refused_before_a_request(self, url: str) -> None:
        with pytest.raises(InvalidSpec, match="url must "):
            Http(url, "sfk_secret", PoolSettings(5, 20, 1 << 16))

    @pytest.mark.parametrize(
        "url", ["HTTPS://service.example", "http://[::1]:8000/", "https://service.example:443/a/b"]
    )
    def test_a_right_url_is_accepted(self, url: str) -> None:
        Http(url, "sfk_secret", PoolSettings(5, 20, 1 << 16)).close()

    @pytest.mark.parametrize("key", ["sfk_secret\n", " sfk_secret", "sfk secret"])
    def test_a_key_that_no_header_can_contain_is_refused_and_not_shown(self, key: str) -> None:
        with pytest.raises(InvalidSpec, match="visible ASCII") as refused:
            Http("https://service.example", key, PoolSettings(5, 20, 1 << 16))
        assert "secret" not in str(refused.value)
