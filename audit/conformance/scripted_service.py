"""Service on this machine with scripted rounds and answers, and shuffler of the cases with sealed reports."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PROBLEM_TYPE = "urn:sfumato:problem:"
_NO_BODY = {204, 304}


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a request. `status` 0 closes the connection without an answer."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that sends a report."""

    round_id: str
    body: bytes
    key: str


def create_problem(status: int, code: str, **headers: str) -> Answer:
    """Return a problem document of the service."""
    document = {"type": PROBLEM_TYPE + code, "title": code, "status": status, "detail": code, "code": code}
    return Answer(status, json.dumps(document).encode(), {"Content-Type": "application/problem+json", **headers})


def create_receipt(round_id: str) -> Answer:
    """Return the receipt of one report."""
    body = json.dumps({"round_id": round_id, "accepted": 1}).encode()
    return Answer(202, body, {"Content-Type": "application/json"})


class ScriptedService:
    """A service on a free port of this machine.

    Attributes
    ----------
    rounds : list
        Open rounds of each dataset.
    documents : dict
        Answers of the shuffler for its rounds, by round id.
    replies : list of Answer
        Answers to the next reports, before receipts.
    sent : list of Sent
        Requests with reports.
    hold : callable or None
        Called with each report before its answer.
    paths : list of str
        Paths of all requests.
    """

    def __init__(self) -> None:
        self.reset([])
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _create_handler(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        """Return the URL of the service."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def reset(self, rounds: list[Any], documents: Mapping[str, Answer] | None = None) -> None:
        """Publish these rounds, and forget everything else."""
        self.rounds = rounds
        self.documents = dict(documents or {})
        self.replies: list[Answer] = []
        self.sent: list[Sent] = []
        self.paths: list[str] = []
        self.listing: Answer | None = None
        self.hold: Callable[[Sent], None] | None = None

    def close(self) -> None:
        """Stop the service."""
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, path: str, body: bytes, key: str) -> Answer:
        """Return the answer to a request."""
        self.paths.append(path)
        parts = path.strip("/").split("/")
        if method == "GET" and len(parts) == 4 and parts[1] == "datasets":
            if self.listing is not None:
                return self.listing
            listed = list(self.documents) if parts[3] == "rounds" else self.rounds
            return Answer(200, json.dumps({"rounds": listed}).encode(), {"Content-Type": "application/json"})
        if method == "GET" and len(parts) == 3 and parts[2] in self.documents:
            return self.documents[parts[2]]
        if method == "POST" and len(parts) == 4 and parts[3] in {"reports", "sealed"}:
            if not body:  # Node.js 20 repeats a request after 421, and loses its body
                return create_problem(422, "validation_failed")
            report = Sent(parts[2], body, key)
            self.sent.append(report)
            if self.hold is not None:
                self.hold(report)
            return self.replies.pop(0) if self.replies else create_receipt(parts[2])
        return create_problem(404, "not_found")


def _create_handler(service: ScriptedService) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._respond()

        def do_POST(self) -> None:
            self._respond()

        def _respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer = service.answer(self.command, self.path, body, self.headers.get("Authorization", ""))
            if answer.status == 0:
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            content = b"" if answer.status in _NO_BODY else answer.body
            if answer.status not in _NO_BODY:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            try:
                self.wfile.write(content)
            except OSError:  # the device closed the connection
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
