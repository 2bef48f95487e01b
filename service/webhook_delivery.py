"""One attempt at a delivery: signed (Standard Webhooks), to a checked address, within its time.

No redirect is followed, no proxy is taken from the environment, no cookie is kept, and the
answer's body is dropped unread but for what a receiver needs to end its writing.
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

from models.db import SECOND
from models.delivery import SECRET_UNREADABLE, Held, Outcome
from service.webhook_addresses import Address, BadUrl, Network, NoSuchAddress, Target, checked, is_literal, parse

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

NO_ADDRESS = "no_public_address"
TIMEOUT = "timeout"
TLS_FAILED = "tls_failed"
CONNECTION_FAILED = "connection_failed"
REDIRECTED = "redirected"
BAD_STATUS = "bad_status"

MAX_ADDRESSES = 3  # of a host with many, so many are tried
_BODY_BYTES = 4096  # read of an answer, and dropped
_BODY_SECONDS = 1.0
_MAX_RETRY_AFTER_DIGITS = 9


def signature(secrets: Sequence[bytes], delivery_id: str, timestamp: int, body: bytes) -> str:
    """The header `webhook-signature`: one signature by each secret, newest first."""
    signed = f"{delivery_id}.{timestamp}.".encode() + body
    return " ".join("v1," + base64.b64encode(hmac.digest(secret, signed, "sha256")).decode() for secret in secrets)


def headers(held: Held, target: Target, *, now: int) -> dict[str, str]:
    """What is sent with a delivery."""
    timestamp = now // SECOND
    body = held.payload.encode()
    return {
        "host": target.authority,
        "user-agent": f"Sfumato/{version('sfumato-server')}",
        "content-type": "application/json",
        "accept": "*/*",
        "accept-encoding": "identity",
        "connection": "close",
        "webhook-id": held.delivery_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature(held.secrets, held.delivery_id, timestamp, body),
    }


def resolver(pool: ThreadPoolExecutor) -> Resolve:
    """The system's resolver, in threads of its own: one that hangs holds nobody else up."""

    async def resolve(host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            pool, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        )
        return [str(each[4][0]) for each in found]

    return resolve


class Courier:
    """Carries deliveries to their receivers.

    Parameters
    ----------
    resolve : callable
        Gives a host's addresses; raises OSError (or UnicodeError) where it has none.
    networks : sequence of networks
        What may be reached in spite of being private.
    seconds : float
        Longest time of an attempt: resolving, connecting, sending, and the answer's head.
    trust : SSLContext, optional
        Whose certificates are believed; by default those httpx brings, or SSL_CERT_FILE's.
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

    async def attempt(self, held: Held, *, now: int) -> Outcome:
        """Send it once. Never raises but what cancels it."""
        if not held.secrets:
            return Outcome(error=SECRET_UNREADABLE)
        answered: list[Outcome] = []  # whatever the rest of an answer does: its head is here
        outcome = Outcome(error=CONNECTION_FAILED)
        until = asyncio.get_running_loop().time() + self._seconds
        try:
            async with asyncio.timeout_at(until):
                target = parse(held.url, self._networks)
                addresses = checked(target, await self._look_up(target), self._networks)
                await self._send(held, target, addresses[:MAX_ADDRESSES], until, answered, now=now)
        except (TimeoutError, httpx.TimeoutException):
            outcome = Outcome(error=TIMEOUT)
        except (BadUrl, NoSuchAddress, httpx.InvalidURL):  # the rules, or the settings, may have changed since
            outcome = Outcome(error=NO_ADDRESS)
        except (httpx.HTTPError, OSError) as error:
            if _is_of_tls(error):
                outcome = Outcome(error=TLS_FAILED)
        return answered[0] if answered else outcome

    async def _look_up(self, target: Target) -> Sequence[str]:
        if is_literal(target.host):
            return [target.host]
        try:
            return await self._resolve(target.host, target.port)
        except (OSError, UnicodeError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise NoSuchAddress from None

    async def _send(
        self,
        held: Held,
        target: Target,
        addresses: Sequence[Address],
        until: float,
        answered: list[Outcome],
        *,
        now: int,
    ) -> None:
        """To the first address that lets us connect; the others get nothing."""
        sent = headers(held, target, now=now)
        for place, address in enumerate(addresses, 1):
            # Half of what is left to connect, and half to agree on TLS, so that the time never ends while that is
            # under way: httpcore closes the socket where its own time is over, and not where it is cancelled there.
            half = max(0.01, (until - asyncio.get_running_loop().time()) / 2 - 0.01)
            request = httpx.Request(
                "POST",
                target.url_of(address),
                headers=sent,
                content=held.payload.encode(),
                # the certificate is checked against this name; for the rest the whole attempt's time is enough
                extensions={"sni_hostname": target.host, "timeout": {"connect": half}},
            )
            try:
                await self._exchange(request, answered, now)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                if place == len(addresses) or _is_of_tls(error):
                    raise
            else:
                return

    async def _exchange(self, request: httpx.Request, answered: list[Outcome], now: int) -> None:
        # a transport, and no client: that would keep cookies and know of proxies and redirects
        async with httpx.AsyncHTTPTransport(verify=self._trust, trust_env=False) as transport:
            response = await transport.handle_async_request(request)
            answered.append(_outcome(response, now))
            await _drain(response)


async def _drain(response: httpx.Response) -> None:
    """Let a receiver write the end of a short answer; its status is what counts."""
    n_read = 0
    with suppress(TimeoutError, httpx.HTTPError):
        async with asyncio.timeout(_BODY_SECONDS):
            async for part in response.aiter_raw():
                n_read += len(part)
                if n_read >= _BODY_BYTES:
                    break
    with suppress(httpx.HTTPError):
        await response.aclose()


def _outcome(response: httpx.Response, now: int) -> Outcome:
    status = response.status_code
    if 200 <= status < 300:
        return Outcome(status)
    error = REDIRECTED if 300 <= status < 400 else BAD_STATUS
    return Outcome(status, error, _retry_after(response.headers.get("retry-after", ""), now))


def _retry_after(text: str, now: int) -> int | None:
    """Seconds; a date is one from now. None for what is neither."""
    if text.isascii() and text.isdigit() and len(text) <= _MAX_RETRY_AFTER_DIGITS:
        return int(text)
    try:
        return max(0, int(parsedate_to_datetime(text).timestamp()) - now // SECOND)
    except (ValueError, TypeError, OverflowError):
        return None


def _is_of_tls(error: BaseException) -> bool:
    """Whether a connection failed by its certificate or its handshake."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
