"""Connection pools to one service, blocking or asynchronous. No other module sends requests."""

import asyncio
import hmac
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from sfumato.errors import InvalidSpec
from sfumato.transport.exchange import (
    Request,
    Response,
    ResponseBuffer,
    Steps,
    async_attempts,
    attempts,
    translate_errors,
)
from sfumato.validation import require

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

_PROXY_VARIABLES = frozenset({"ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"})
_CERTIFICATE_VARIABLES = frozenset({"SSL_CERT_FILE", "SSL_CERT_DIR"})
_CHUNK_BYTES = 1 << 16
_BODY_BYTES_PER_SECOND = 1 << 20  # slowest processing of a body that a service responds to in time
_ADDRESS = re.compile(r"https?://(\[[0-9a-f:.]+\]|[^/:\[\]\\]+)(:(?P<port>[0-9]{1,5}))?(/|$)", re.IGNORECASE)
_PORTS = range(1, 1 << 16)


class PoolSettings(NamedTuple):
    """The settings of a pool.

    Attributes
    ----------
    timeout_seconds : float
        Timeout of one response, seconds. It is a second longer for each MiB of the request's body.
    retry_seconds : float
        Time after which no further attempt starts, seconds. 0 sends a request once.
    max_response_bytes : int
        Maximum length of a response. A longer one raises ApiProblem.
    """

    timeout_seconds: float
    retry_seconds: float
    max_response_bytes: int


def _load_httpx() -> Any:
    """Return httpx. Raise ImportError with the remedy if the packages of a client are missing."""
    try:
        import httpx
        import tenacity  # noqa: F401 - an attempt needs it
    except ImportError as error:
        raise ImportError(
            f"a device or client that connects to a service needs {error.name}: pip install anyio httpx tenacity"
        ) from None
    return httpx


class _Pool:
    """The common parts of both kinds of pool.

    Parameters
    ----------
    url : str, optional
        URL of the service, without `/v1`. Default: SFUMATO_URL of the environment.
    key : str, optional
        Bearer key (`sfk_...`). Default: SFUMATO_KEY of the environment.
    settings : PoolSettings

    Raises
    ------
    InvalidSpec
        There is no URL or no key, or one of them is not valid.
    """

    def __init__(self, url: str | None, key: str | None, settings: PoolSettings) -> None:
        self._url = _given(url, "url", "SFUMATO_URL").rstrip("/")
        self._key = _given(key, "key", "SFUMATO_KEY").encode()
        require(
            self._url.lower().startswith(("http://", "https://")),
            f"url must begin with http:// or https://, for example http://{self._url}",
        )
        require(
            not any(character in "@?#" or character.isspace() for character in self._url),
            "url must have no user name, query, fragment or space",
        )
        require(_has_address(self._url), "url must have a host name or address, and a port up to 65535 if it has one")
        require(not self._url.endswith("/v1"), f"url must be without /v1: pass {self._url.removesuffix('/v1')}")
        require(
            all("!" <= character <= "~" for character in self._key.decode()),
            "key must have visible ASCII characters only: remove spaces and line ends",
        )
        self._timeout_seconds, self._retry_seconds, self._max_response_bytes = settings

    def keyed_digest(self, message: bytes) -> str:
        """Return the HMAC-SHA256 of a message with the bearer key. A guess cannot be tested without the key."""
        return hmac.digest(self._key, message, "sha256").hex()

    def _client_settings(self) -> dict[str, Any]:
        return {
            "base_url": f"{self._url}/v1/",
            "headers": {"Authorization": f"Bearer {self._key.decode()}", "Accept": "application/json"},
            "timeout": self._timeout_seconds,
            "follow_redirects": False,  # a redirect would send the key and the reports elsewhere
        }

    def _local_settings(self) -> dict[str, Any]:
        """Return the settings of a transport to this machine. Reading all certificates takes 23 ms of CPU time."""
        import ssl  # httpx has loaded it

        if self._url.lower().startswith("https:"):
            return {"trust_env": True}
        return {"trust_env": False, "verify": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)}  # trusts no certificate

    def _build(self, client: "httpx.Client | httpx.AsyncClient", request: Request) -> "httpx.Request":
        body, seconds = request.body, self._timeout_seconds
        read_seconds = seconds + request.extra_seconds + len(body or b"") / _BODY_BYTES_PER_SECOND
        return client.build_request(
            request.method,
            request.path,
            content=body,
            headers=request.all_headers,
            params=request.params,
            timeout=(seconds, read_seconds, seconds, seconds),  # to connect, read, write, and get a connection
        )


def _given(value: str | None, name: str, variable: str) -> str:
    value = os.environ.get(variable, "").strip() if value is None else value
    require(bool(value), f"{name} is missing: pass it, or set {variable}")
    require(isinstance(value, str) and value.isascii(), f"{name} must be a string of ASCII characters")
    return value


def _has_address(url: str) -> bool:
    match = _ADDRESS.match(url)
    httpx = _load_httpx()
    try:
        httpx.URL(url)
    except httpx.InvalidURL:
        return False
    return match is not None and int(match["port"] or 1) in _PORTS


def is_loopback(url: str) -> bool:
    """Return whether a URL names this machine. A proxy cannot reach it."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def naming_the_variable() -> Iterator[None]:
    """Replace an error of the environment's proxies or certificates by InvalidSpec, which names the variables."""
    try:
        yield
    except (ImportError, ValueError, OSError) as error:
        is_certificate = isinstance(error, OSError)
        candidates = _CERTIFICATE_VARIABLES if is_certificate else _PROXY_VARIABLES
        found = ", ".join(name for name in os.environ if name.upper() in candidates) or "the environment"
        fault = (
            "the certificates cannot be read: name an existing file in PEM"
            if is_certificate
            else "the proxy cannot be used: name one with http:// or https://, or install httpx[socks] for SOCKS"
        )
        raise InvalidSpec(f"{found}: {fault}, or unset the variable") from None


class Http(_Pool):
    """A blocking pool; see `_Pool`. The caller closes a `transport` that replaces the network."""

    def __init__(
        self, url: str | None, key: str | None, settings: PoolSettings, transport: "httpx.BaseTransport | None" = None
    ) -> None:
        httpx = _load_httpx()
        super().__init__(url, key, settings)
        self._owns_transport = transport is None
        with naming_the_variable():
            if transport is None and is_loopback(self._url):
                transport = httpx.HTTPTransport(**self._local_settings())
            self._client = httpx.Client(transport=transport, **self._client_settings())

    def close(self) -> None:
        """Close the connections."""
        if self._owns_transport:
            self._client.close()

    def run(self, steps: Steps[T]) -> T:
        """Run the steps of a call and return their value."""
        try:
            request = next(steps)
            while True:
                try:
                    response = self.send(request)
                except Exception as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(response)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            steps.close()

    def send(self, request: Request) -> Response:
        """Send a request, and retry after temporary errors.

        Raises
        ------
        ApiProblem
            The service answered the last attempt with an error.
        Unreachable
            The service did not answer the last attempt.
        """
        if request.after_seconds > 0:
            time.sleep(request.after_seconds)
        with translate_errors(self._url):
            for attempt in attempts(self._retry_seconds):
                with attempt:
                    return self._send_once(self._build(self._client, request))
        raise AssertionError("a retry context ends with a return or an exception")

    def _send_once(self, request: "httpx.Request") -> Response:
        response = self._client.send(request, stream=True)
        buffer = ResponseBuffer(response, self._max_response_bytes)
        try:
            for chunk in response.iter_bytes(_CHUNK_BYTES):
                buffer.append(chunk)
        finally:
            response.close()
        return buffer.response()


def _running_loop() -> object:
    """Return the running loop of asyncio; None outside of one, and with trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class AsyncHttp(_Pool):
    """An asynchronous pool for asyncio or trio; see `_Pool`. The caller closes a `transport`."""

    def __init__(
        self,
        url: str | None,
        key: str | None,
        settings: PoolSettings,
        transport: "httpx.AsyncBaseTransport | None" = None,
    ) -> None:
        self._httpx = _load_httpx()
        super().__init__(url, key, settings)
        self._owns_transport, self._transport = transport is None, transport
        self._client, self._loop = self._new_client(), _running_loop()

    def _new_client(self) -> "httpx.AsyncClient":
        with naming_the_variable():
            transport = self._transport
            if transport is None and is_loopback(self._url):
                transport = self._httpx.AsyncHTTPTransport(**self._local_settings())
            client: httpx.AsyncClient = self._httpx.AsyncClient(transport=transport, **self._client_settings())
            return client

    def _client_of_loop(self) -> "httpx.AsyncClient":
        """Return the client of the running event loop. Connections of an earlier loop cannot be used or closed."""
        loop = _running_loop()
        if loop is not self._loop:
            if self._loop is not None and self._owns_transport:
                self._client = self._new_client()
            self._loop = loop
        return self._client

    async def close(self) -> None:
        """Close the connections."""
        if self._owns_transport:
            await self._client_of_loop().aclose()

    async def run(self, steps: Steps[T]) -> T:
        """Run the steps of a call and return their value."""
        try:
            request = next(steps)
            while True:
                try:
                    response = await self.send(request)
                except Exception as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(response)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            steps.close()

    async def send(self, request: Request) -> Response:
        """Send a request as `Http.send` does."""
        import anyio

        if request.after_seconds > 0:
            await anyio.sleep(request.after_seconds)
        client = self._client_of_loop()
        with translate_errors(self._url):
            async for attempt in async_attempts(self._retry_seconds):
                with attempt:
                    return await self._send_once(client, self._build(client, request))
        raise AssertionError("a retry context ends with a return or an exception")

    async def _send_once(self, client: "httpx.AsyncClient", request: "httpx.Request") -> Response:
        response = await client.send(request, stream=True)
        buffer = ResponseBuffer(response, self._max_response_bytes)
        try:
            async for chunk in response.aiter_bytes(_CHUNK_BYTES):
                buffer.append(chunk)
        finally:
            await response.aclose()
        return buffer.response()
