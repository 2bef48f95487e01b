"""Run the command line in this process, optionally against the gateway of a test."""

from collections.abc import Callable

import httpx
import pytest
from typer.testing import CliRunner, Result

from service.cli import main
from sfumato.api.client import Client
from tests.service.api import Api

Run = Callable[..., Result]


def run_command(*arguments: str, status: int = 0) -> Result:
    """Run `sfumato ARGUMENTS` and check its exit status."""
    result = CliRunner().invoke(main.app, list(arguments), env={"TERM": "dumb", "COLUMNS": "200"})
    assert result.exit_code == status, result.output
    return result


def connect_commands(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands use the gateway and the key of `api`."""
    original = Client.__init__

    def init(self: Client, url: str, key: str, **options: object) -> None:
        original(self, url, key, transport=_Forward(api.http), **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Client, "__init__", init)
    monkeypatch.setenv("SFUMATO_URL", "http://gateway")
    monkeypatch.setenv("SFUMATO_KEY", api.secret)


class _Forward(httpx.BaseTransport):
    """A transport that forwards each request to the test's HTTP client."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._http.request(
            request.method, request.url.raw_path.decode(), headers=request.headers.raw, content=request.read()
        )
        return httpx.Response(response.status_code, headers=response.headers, content=response.content)
