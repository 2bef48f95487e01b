"""One attempt to deliver a webhook: signed (Standard Webhooks), to a checked address, with a time limit.

The client follows no redirects, uses no proxies of the environment and stores no cookies. It reads and drops a short
part of the response body, so that the receiver can finish its response.
"""

import asyncio
import base64
import hmac
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from email.utils import parsedate_to_datetime
from importlib.metadata import version

import httpx

from models.database.types import SECOND
from models.webhooks.deliveries import SECRET_UNREADABLE, DeliveryLease, DeliveryOutcome
from service.webhooks.addresses import (
    Address,
    AddressNotAllowed,
    BadUrl,
    Network,
    Target,
    check_addresses,
    is_literal,
    parse,
)

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

NO_ADDRESS = "no_public_address"
TIMEOUT = "timeout"
TLS_FAILED = "tls_failed"
CONNECTION_FAILED = "connection_failed"
REDIRECTED = "redirected"
BAD_STATUS = "bad_status"

MAX_ADDRESSES = 3  # addresses of a host that are tried
_BODY_BYTES = 4096  # bytes of the response body that are read and dropped
_BODY_SECONDS = 1.0
_MAX_RETRY_AFTER_DIGITS = 9


def signature(secrets: Sequence[bytes], delivery_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of the `webhook-signature` header: one signature per secret, newest secret first."""
    signed = f"{delivery_id}.{timestamp}.".encode() + body
    return " ".join("v1," + base64.b64encode(hmac.digest(secret, signed, "sha256")).decode() for secret in secrets)


def headers(lease: DeliveryLease, target: Target, *, now: int) -> dict[str, str]:
    """Return the request headers of a delivery."""
    timestamp = now // SECOND
    body = lease.payload.encode()
    return {
        "host": target.authority,
        "user-agent": f"Sfumato/{version('sfumato-server')}",
        "content-type": "application/json",
        "accept": "*/*",
        "accept-encoding": "identity",
        "connection": "close",
        "webhook-id": lease.delivery_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature(lease.secrets, lease.delivery_id, timestamp, body),
    }


def make_resolver(pool: ThreadPoolExecutor) -> Resolve:
    """Return the system's resolver, run in a thread pool of its own so that a slow lookup does not block others."""

    async def resolve(host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        results = await loop.run_in_executor(
            pool, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        )
        return [str(each[4][0]) for each in results]

    return resolve


class DeliveryClient:
    """Sends deliveries to their receivers.

    Parameters
    ----------
    resolve : callable
        Returns the addresses of a host. Raises OSError or UnicodeError if it has none.
    networks : sequence of networks
        Private networks that the operator allows.
    seconds : float
        Time limit of an attempt: resolving, connecting, sending and receiving the response head.
    trust : SSLContext, optional
        Trusted certificates; by default those of httpx or SSL_CERT_FILE.
    """

    def __init__(
        self,
        resolve: Resolve,
        networks: Sequence[Network],
        seconds: float,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self._resolve = resolve
        self._networks = networks
        self._seconds = seconds
        self._trust = trust or httpx.create_ssl_context()

    async def attempt(self, lease: DeliveryLease, *, now: int) -> DeliveryOutcome:
        """Send a delivery once and return the outcome. Raise no exception except on cancellation."""
        if not lease.secrets:
            return DeliveryOutcome(error=SECRET_UNREADABLE)
        responses: list[
            DeliveryOutcome
        ] = []  # filled when the response head arrives; later errors do not change the outcome
        outcome = DeliveryOutcome(error=CONNECTION_FAILED)
        deadline = asyncio.get_running_loop().time() + self._seconds
        try:
            async with asyncio.timeout_at(deadline):
                target = parse(lease.url, self._networks)
                addresses = check_addresses(target, await self._resolve_host(target), self._networks)
                await self._send(lease, target, addresses[:MAX_ADDRESSES], deadline, responses, now=now)
        except (TimeoutError, httpx.TimeoutException):
            outcome = DeliveryOutcome(error=TIMEOUT)
        except (BadUrl, AddressNotAllowed, httpx.InvalidURL):  # the rules or settings may have changed since the setup
            outcome = DeliveryOutcome(error=NO_ADDRESS)
        except (httpx.HTTPError, OSError) as error:
            if _is_tls_error(error):
                outcome = DeliveryOutcome(error=TLS_FAILED)
        return responses[0] if responses else outcome

    async def _resolve_host(self, target: Target) -> Sequence[str]:
        if is_literal(target.host):
            return [target.host]
        try:
            return await self._resolve(target.host, target.port)
        except (OSError, UnicodeError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise AddressNotAllowed from None

    async def _send(
        self,
        lease: DeliveryLease,
        target: Target,
        addresses: Sequence[Address],
        deadline: float,
        responses: list[DeliveryOutcome],
        *,
        now: int,
    ) -> None:
        """Send to the first address that accepts a connection."""
        request_headers = headers(lease, target, now=now)
        for number, address in enumerate(addresses, 1):
            # httpx applies this timeout to the connection and to the TLS handshake, one after the other. Half of the
            # remaining time keeps both within the deadline, because httpcore leaks the socket if it is cancelled there.
            half = max(0.01, (deadline - asyncio.get_running_loop().time()) / 2 - 0.01)
            request = httpx.Request(
                "POST",
                target.url_of(address),
                headers=request_headers,
                content=lease.payload.encode(),
                # The certificate is checked against this name. The deadline of the attempt covers the other phases.
                extensions={"sni_hostname": target.host, "timeout": {"connect": half}},
            )
            try:
                await self._exchange(request, responses, now)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                if number == len(addresses) or _is_tls_error(error):
                    raise
            else:
                return

    async def _exchange(self, request: httpx.Request, responses: list[DeliveryOutcome], now: int) -> None:
        # An httpx client would store cookies and support proxies and redirects, so use the transport alone.
        async with httpx.AsyncHTTPTransport(verify=self._trust, trust_env=False) as transport:
            response = await transport.handle_async_request(request)
            responses.append(_outcome(response, now))
            await _drain(response)


async def _drain(response: httpx.Response) -> None:
    """Read the rest of a short response, so that the receiver can finish writing it."""
    n_read = 0
    with suppress(TimeoutError, httpx.HTTPError):
        async with asyncio.timeout(_BODY_SECONDS):
            async for part in response.aiter_raw():
                n_read += len(part)
                if n_read >= _BODY_BYTES:
                    break
    with suppress(httpx.HTTPError):
        await response.aclose()


def _outcome(response: httpx.Response, now: int) -> DeliveryOutcome:
    status = response.status_code
    if 200 <= status < 300:
        return DeliveryOutcome(status)
    error = REDIRECTED if 300 <= status < 400 else BAD_STATUS
    return DeliveryOutcome(status, error, _retry_after(response.headers.get("retry-after", ""), now))


def _retry_after(text: str, now: int) -> int | None:
    """Return the seconds of a `Retry-After` header, which is a number or a date, or None if it is neither."""
    if text.isascii() and text.isdigit() and len(text) <= _MAX_RETRY_AFTER_DIGITS:
        return int(text)
    try:
        return max(0, int(parsedate_to_datetime(text).timestamp()) - now // SECOND)
    except (ValueError, TypeError, OverflowError):
        return None


def _is_tls_error(error: BaseException) -> bool:
    """Return whether the certificate or the TLS handshake caused an error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
