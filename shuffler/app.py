"""The shuffler's HTTP interface.

| request | answer |
|---|---|
| `GET /v1/datasets/{dataset_id}/rounds` | ids of the rounds that accept reports |
| `GET /v1/rounds/{round_id}` | the round, with the same bytes and outer key for all, and the shuffler's signature |
| `POST /v1/rounds/{round_id}/sealed` | 202 when the wrapped report is durable |
| `GET /metrics`, `GET /healthz` | numbers of released rounds; whether reports can be stored |

A device sends its key as bearer token. An app backend also names the sender in the header `Sfumato-Sender`. Neither
logs nor metrics contain a sender, an address or the number of reports of an open round.
"""

import asyncio
import base64
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from connections.headers import SeveralValues, bearer_secret, one_field
from sfumato.device.sealing import OUTER_KEY_HEADER, SIGNATURE_HEADER, sign_round
from sfumato.errors import SfumatoError
from sfumato.transport.exchange import PROBLEM_MEDIA_TYPE, PROBLEM_TYPE
from sfumato.transport.parameters import query_errors
from shuffler.clock import Clock
from shuffler.directory import Directory
from shuffler.intake import Intake, Overloaded
from shuffler.queue import Queue, Sender, State, Submission, Verdict
from shuffler.releases import RELEASE_SECONDS, Releaser
from shuffler.rounds import MAX_SENT_BYTES

if TYPE_CHECKING:
    from sfumato.transport.http import Http

BODY_SECONDS = 10.0  # timeout of the body of a request
HEALTH_SECONDS = 1.5  # longest wait for the write of a health check, which one write at most answers in this time
MAX_PERSON_BYTES = 200
SENDER_HEADER = "Sfumato-Sender"

REASONS = {
    Verdict.UNAUTHENTICATED: (401, "Send the key of a sender as bearer token."),
    Verdict.NOT_FOUND: (404, "There is no such round for this key. Fetch the list of rounds first."),
    Verdict.SENDER_MISSING: (
        422,
        f"An app backend names the sender in {SENDER_HEADER}, with 1 to {MAX_PERSON_BYTES} characters. "
        "A device does not send this header.",
    ),
    Verdict.WRONG_LENGTH: (
        422,
        "All reports of a round have one length. Seal the report for this round, and add the outer layer.",
    ),
    Verdict.NOT_WRAPPED: (
        422,
        f"The outer layer is missing, or it is not for this round. Wrap the sealed report for {OUTER_KEY_HEADER}.",
    ),
    Verdict.ALREADY_REPORTED: (409, "This sender has sent another report to this round. Resend the same report."),
    Verdict.CLOSED: (409, "This round accepts no more reports."),
}

logger = logging.getLogger(__name__)


class Rejection(Exception):
    """A request that ends with a problem document (RFC 9457)."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail = status, code, detail

    @classmethod
    def of(cls, verdict: Verdict) -> "Rejection":
        """Return the rejection for an outcome other than `stored`."""
        status, detail = REASONS[verdict]
        return cls(status, verdict.value, detail)

    def response(self) -> JSONResponse:
        """Return the problem document."""
        members = {
            "type": f"{PROBLEM_TYPE}{self.code}",
            "code": self.code,
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
        }
        headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "5"}}.get(self.status)
        problem = members | {"detail": self.detail}
        return JSONResponse(problem, self.status, headers, media_type=PROBLEM_MEDIA_TYPE)


class Health:
    """Whether the database can be written. One write answers all requests of a short time."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._until = 0.0  # on the monotonic clock, seconds
        self._write: asyncio.Future[None] | None = None

    async def is_writable(self) -> bool:
        """Return whether a write succeeds within HEALTH_SECONDS."""
        if self._write is None or (self._write.done() and time.monotonic() >= self._until):
            self._until = time.monotonic() + HEALTH_SECONDS
            self._write = asyncio.ensure_future(run_in_threadpool(self._queue.check_write))
        done, _ = await asyncio.wait([self._write], timeout=HEALTH_SECONDS)
        return bool(done) and self._write.exception() is None


def create_app(
    queue: Queue,
    service: "Http",
    signing_key: bytes,
    *,
    listing: "Http | None" = None,
    release_seconds: float = RELEASE_SECONDS,
    clock: Callable[[], float] | None = None,
) -> FastAPI:
    """Return the application. Its lifespan runs the thread of the releases.

    Parameters
    ----------
    queue : Queue
    service : Http
        Connection to the service, without retries.
    signing_key : bytes
        Ed25519 private key of the shuffler.
    listing : Http, optional
        Connection to the service for the lists of open rounds, with a short timeout. Default: `service`.
    release_seconds : float
        Longest delay between the last report of a full round and its release.
    clock : callable, optional
        Seconds since the epoch. Default: a `Clock` of the machine.
    """
    clock = clock or Clock()
    releaser = Releaser(queue, service, signing_key, clock, release_seconds)
    intake, directory = Intake(queue, releaser.wake, clock), Directory(queue, listing or service, clock)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        releaser.start()
        yield
        directory.close()
        await asyncio.to_thread(releaser.stop)

    app = FastAPI(
        title="Sfumato shuffler",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        dependencies=[Depends(_reject_unread_input)],
    )

    _answer_failures(app)
    _add_operations(app, queue)

    def authenticate(request: Request) -> Sender:
        sender = queue.find_sender(_bearer_key(request))
        if sender is None:
            raise Rejection.of(Verdict.UNAUTHENTICATED)
        return sender

    @app.get("/v1/datasets/{dataset_id}/rounds")
    async def list_rounds(dataset_id: str, sender: Annotated[Sender, Depends(authenticate)]) -> Response:
        if dataset_id != sender.dataset_id:
            raise Rejection(404, "not_found", "There is no such dataset for this key.")
        try:
            return JSONResponse({"rounds": await directory.list_open(dataset_id)})
        except SfumatoError:
            detail = "The service does not list its open rounds. Try again later."
            raise Rejection(503, "service_unavailable", detail) from None

    @app.get("/v1/rounds/{round_id}")
    def get_round(round_id: str, sender: Annotated[Sender, Depends(authenticate)]) -> Response:
        found = queue.find_announced(round_id, sender.dataset_id)
        if found is None:
            raise Rejection.of(Verdict.NOT_FOUND)
        document, outer_key = found
        if outer_key is None:
            raise Rejection.of(Verdict.CLOSED)
        signature = sign_round(round_id, document, outer_key, signing_key)
        headers = {SIGNATURE_HEADER: _base64(signature), OUTER_KEY_HEADER: _base64(outer_key)}
        return Response(document, headers=headers, media_type="application/json")

    @app.post("/v1/rounds/{round_id}/sealed")
    async def receive(round_id: str, request: Request) -> Response:
        key, person = _bearer_key(request), _field(request, SENDER_HEADER.lower().encode())
        if person is not None and not 1 <= len(person) <= MAX_PERSON_BYTES:
            raise Rejection.of(Verdict.SENDER_MISSING)
        submission = Submission(key, person, round_id, await _read_body(request))
        try:
            verdict = await intake.submit(submission)
        except Overloaded:
            raise Rejection(503, "overloaded", "The report cannot be stored now. Resend the same report.") from None
        if verdict != Verdict.STORED:
            raise Rejection.of(verdict)
        return JSONResponse({"round_id": round_id, "accepted": 1}, 202)

    return app


def _answer_failures(app: FastAPI) -> None:
    """Add the handlers that answer failures with problem documents."""

    @app.exception_handler(Rejection)
    async def reject(_request: Request, rejection: Rejection) -> Response:
        return rejection.response()

    @app.exception_handler(HTTPException)
    async def reject_route(_request: Request, error: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "bad_request")
        return Rejection(error.status_code, code, "See docs/shuffler.md for the shuffler's requests.").response()

    @app.exception_handler(SeveralValues)
    async def reject_values(_request: Request, error: SeveralValues) -> Response:
        text = str(error)
        return Rejection(400, "bad_request", f"{text[0].upper()}{text[1:]}.").response()

    @app.exception_handler(sqlite3.Error)
    async def reject_busy(_request: Request, error: sqlite3.Error) -> Response:
        logger.error("the database cannot be used: %s", error)
        return Rejection(503, "overloaded", "The database cannot be used now. Try again later.").response()


def _add_operations(app: FastAPI, queue: Queue) -> None:
    """Add the requests of operators: metrics and health."""
    health = Health(queue)

    @app.get("/metrics")
    def show_metrics() -> Response:
        return PlainTextResponse(_metrics(queue), media_type="text/plain; version=0.0.4")

    @app.get("/healthz")
    async def show_health() -> Response:
        if not await health.is_writable():
            raise Rejection(503, "service_unavailable", "The database cannot be written. See the log.")
        return JSONResponse({"status": "ok"})


async def _reject_unread_input(request: Request) -> None:
    """Raise Rejection for query parameters, which no request has, and for the body of a GET request."""
    for error in query_errors(request.scope["query_string"], ()):
        raise Rejection(422, "validation_failed", f"{error['parameter']}: {error['message']}")
    has_body = request.headers.get("Content-Length", "0").strip() != "0" or "Transfer-Encoding" in request.headers
    if request.method == "GET" and has_body:
        raise Rejection(422, "validation_failed", "This request has no body. Send none.")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bearer_key(request: Request) -> str:
    key = bearer_secret(_field(request, b"authorization"))
    if key is None:
        raise Rejection.of(Verdict.UNAUTHENTICATED)
    return key


def _field(request: Request, name: bytes) -> str | None:
    """Return a header, or None. Raise SeveralValues for different values."""
    return one_field(request.scope["headers"], name)


async def _read_body(request: Request) -> bytes:
    """Return the body. Raise Rejection if it is too long or too slow."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_SENT_BYTES:
                    raise Rejection(413, "body_too_large", f"A sealed report may have at most {MAX_SENT_BYTES} bytes.")
    except TimeoutError:
        raise Rejection(408, "request_timeout", f"The body takes longer than {BODY_SECONDS:g} s.") from None
    return bytes(body)


def _metrics(queue: Queue) -> str:
    """Return the metrics in Prometheus' text format. They contain no number of reports before a release."""
    rounds = queue.list_released()
    by_state = Counter(each.state for each in rounds)
    lines = [
        "# HELP sfumato_shuffler_rounds Rounds by state.",
        "# TYPE sfumato_shuffler_rounds gauge",
        *(f'sfumato_shuffler_rounds{{state="{state.value}"}} {by_state[state]}' for state in State),
        "# HELP sfumato_shuffler_released_reports_total Reports in released batches.",
        "# TYPE sfumato_shuffler_released_reports_total counter",
        f"sfumato_shuffler_released_reports_total {sum(each.n_reports for each in rounds)}",
    ]
    return "\n".join(lines) + "\n"
