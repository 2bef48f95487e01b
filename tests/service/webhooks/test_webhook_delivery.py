"""One delivery attempt: its request, the meaning of responses, and its restriction to checked addresses."""

import asyncio
import datetime
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from standardwebhooks.webhooks import Webhook as Verifier
from standardwebhooks.webhooks import WebhookVerificationError

from models.database.types import SECOND, system_clock
from models.webhooks.deliveries import DeliveryLease, DeliveryOutcome
from service.webhooks import delivery
from service.webhooks.delivery import DeliveryClient
from tests.service.receivers import PATIENCE_SECONDS, Receiver, receiving, respond

LOOPBACK = (ip_network("127.0.0.0/8"),)
SECRETS = (bytes(range(32)), b"the one before, of 32 bytes too.")
PAYLOAD = '{"data":{"id":"job_1"},"timestamp":"2026-11-22T00:00:00.000000Z","type":"job.succeeded"}'


async def refuse_to_resolve(host: str, port: int) -> Sequence[str]:
    raise AssertionError("the address of the test needs no resolver")


def resolving(*answers: Sequence[str]) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    """Return a resolver with these results in turn; the last one repeats."""
    left = list(answers)

    async def resolve(host: str, port: int) -> Sequence[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return resolve


def attempt(url: str, *, seconds: float = 30.0, secrets: tuple[bytes, ...] = SECRETS, **other: Any) -> DeliveryOutcome:
    given = {"resolve": refuse_to_resolve, "networks": LOOPBACK, **other}
    lease = DeliveryLease("msg_01", 1, url, PAYLOAD, secrets)

    async def once() -> DeliveryOutcome:
        return await DeliveryClient(seconds=seconds, **given).attempt(lease, now=system_clock())

    return asyncio.run(once())


class TestRequest:
    def test_has_the_payload_and_a_signature_per_secret(self) -> None:
        with receiving(respond("200 OK")) as receiver:
            assert attempt(receiver.url) == DeliveryOutcome(200)
        (request,) = receiver.requests
        assert request.line == "POST /hook?x=1 HTTP/1.1"
        assert request.body.decode() == PAYLOAD
        headers = {"host", "user-agent", "content-type", "content-length", "accept", "accept-encoding", "connection"}
        assert set(request.headers) == headers | {"webhook-id", "webhook-timestamp", "webhook-signature"}
        assert request.headers["webhook-id"] == "msg_01"
        assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
        assert len(request.headers["webhook-signature"].split(" ")) == 2
        for secret in SECRETS:
            Verifier("whsec_" + b64encode(secret).decode()).verify(request.body, request.headers)
        with pytest.raises(WebhookVerificationError):
            Verifier("whsec_" + b64encode(bytes(32)).decode()).verify(request.body, request.headers)

    def test_signature_covers_id_timestamp_and_body(self) -> None:
        now = int(time.time())
        signature = delivery.signature(SECRETS[:1], "msg_01", now, PAYLOAD.encode())
        headers = {"webhook-id": "msg_01", "webhook-timestamp": str(now), "webhook-signature": signature}
        verifier = Verifier("whsec_" + b64encode(SECRETS[0]).decode())
        verifier.verify(PAYLOAD, headers)
        for payload, changed in (
            (PAYLOAD, {"webhook-id": "msg_02"}),
            (PAYLOAD, {"webhook-timestamp": str(now - 1)}),
            (PAYLOAD + " ", {}),
        ):
            with pytest.raises(WebhookVerificationError):
                verifier.verify(payload, headers | changed)

    def test_without_a_secret_is_not_sent(self) -> None:
        with receiving(respond("200 OK")) as receiver:
            assert attempt(receiver.url, secrets=()).error == "secret_unreadable"
        assert receiver.requests == []


class TestResponse:
    def test_is_a_success_with_2xx_only(self) -> None:
        errors = [400, 401, 404, 410, 429, 500, 503, 599]
        outcomes = [DeliveryOutcome(status) for status in (200, 201, 202, 204, 299)]
        outcomes += [DeliveryOutcome(status, "bad_status") for status in errors]
        with receiving(respond(*(f"{outcome.status} X" for outcome in outcomes))) as receiver:
            assert [attempt(receiver.url) for _ in outcomes] == outcomes
        assert [outcome.is_success for outcome in outcomes] == [True] * 5 + [False] * len(errors)

    def test_with_a_redirect_is_a_failure_and_not_followed(self) -> None:
        statuses = [301, 302, 303, 307, 308]
        with receiving(respond("200 OK")) as elsewhere:
            answer = respond(*(f"{status} X" for status in statuses), more=f"location: {elsewhere.url}\r\n")
            with receiving(answer) as receiver:
                for status in statuses:
                    assert attempt(receiver.url) == DeliveryOutcome(status, "redirected")
        assert elsewhere.requests == []

    def test_may_have_a_retry_after_in_seconds_or_a_date(self) -> None:
        def delay(header: str) -> int | None:
            with receiving(respond("503 X", more=f"retry-after: {header}\r\n")) as receiver:
                return attempt(receiver.url).retry_after_seconds

        for header, seconds in (
            ("120", 120),
            ("0", 0),
            *((text, None) for text in ("-5", "soon", "1e9", "9" * 30, "")),
        ):
            assert delay(header) == seconds, header
        until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
        assert 3000 < (delay(f"{until:%a, %d %b %Y %H:%M:%S} GMT") or 0) <= 3600

    def test_cookies_are_not_sent_back(self) -> None:
        with receiving(respond("500 X", more="set-cookie: a=b\r\n")) as receiver:
            for _ in range(2):
                attempt(receiver.url)
        assert "cookie" not in receiver.requests[1].headers

    def test_with_an_endless_body_is_not_read_completely(self) -> None:
        n_sent = 0

        def floods(connection: socket.socket, place: int) -> None:
            nonlocal n_sent
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
            while n_sent < 1_000_000_000:
                n_sent += connection.send(b"x" * 65536)

        with receiving(floods) as receiver:
            assert attempt(receiver.url) == DeliveryOutcome(200)
        assert n_sent < 100_000_000  # at most the buffers, not a gigabyte

    def test_with_a_slow_body_counts_by_its_status(self) -> None:
        def send_slowly(connection: socket.socket, place: int) -> None:
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
            while not receiver.ending.wait(0.05):
                connection.sendall(b"x")

        with receiving(send_slowly) as receiver:
            for seconds in (30.0, 0.9):  # the second limit ends during the body
                assert attempt(receiver.url, seconds=seconds) == DeliveryOutcome(200)

    def test_with_a_slow_head_times_out(self) -> None:
        def drips(connection: socket.socket, place: int) -> None:
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            while not receiver.ending.wait(0.05):
                connection.sendall(b"x-more: x\r\n")

        with receiving(drips) as receiver:
            assert attempt(receiver.url, seconds=1.0) == DeliveryOutcome(error="timeout")

    def test_that_is_incomplete_or_invalid_or_missing_is_a_failure(self) -> None:
        for data in (b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200", b"HTTP/9.9 x y\r\n\r\n", b"\0" * 99):
            with receiving(lambda connection, place, data=data: connection.sendall(data)) as receiver:  # type: ignore[misc]
                assert attempt(receiver.url) == DeliveryOutcome(error="connection_failed")
        assert attempt(receiver.url) == DeliveryOutcome(error="connection_failed")  # a closed port

    def test_that_never_arrives_times_out(self) -> None:
        with receiving(lambda connection, place: receiver.ending.wait(60) and None) as receiver:
            assert attempt(receiver.url, seconds=0.5) == DeliveryOutcome(error="timeout")


class TestHostName:
    def test_is_resolved_once_and_the_checked_address_is_used(self) -> None:
        with receiving(respond("200 OK")) as receiver:
            url = f"http://hooks.example:{receiver.port}/x"
            assert attempt(url, resolve=resolving(["127.0.0.1"], ["10.0.0.1"])) == DeliveryOutcome(200)
        assert receiver.requests[0].headers["host"] == f"hooks.example:{receiver.port}"

    def test_that_now_resolves_to_a_private_address_is_rejected(self) -> None:
        with receiving(respond("200 OK")) as receiver:
            resolve = resolving(["127.0.0.1"], ["127.0.0.1", "10.0.0.1"], ["169.254.169.254"], [])
            url = f"http://hooks.example:{receiver.port}/x"
            outcomes = [attempt(url, resolve=resolve) for _ in range(4)]
        assert outcomes == [DeliveryOutcome(200)] + 3 * [DeliveryOutcome(error="no_public_address")]
        assert len(receiver.requests) == 1

    def test_without_an_address_has_the_same_outcome_as_a_private_one(self) -> None:
        private = attempt("https://db.corp.example/", resolve=resolving(["10.0.0.1"]), networks=())
        for error in (socket.gaierror(), OSError(), UnicodeError()):

            async def fail(host: str, port: int, error: Exception = error) -> Sequence[str]:
                raise error

            assert attempt("https://db.corp.example/", resolve=fail, networks=()) == private

    def test_with_slow_name_servers_times_out(self) -> None:
        async def hangs(host: str, port: int) -> Sequence[str]:
            await asyncio.sleep(3600)
            return []

        assert attempt("https://hooks.example/", resolve=hangs, seconds=0.3) == DeliveryOutcome(error="timeout")

    def test_with_an_unreachable_address_falls_back_to_the_next(self) -> None:
        with receiving(respond("200 OK")) as receiver:
            url = f"http://hooks.example:{receiver.port}/x"
            assert attempt(url, resolve=resolving(["127.0.0.2", "127.0.0.1"])) == DeliveryOutcome(200)

    def test_is_resolved_by_the_system(self) -> None:
        from concurrent.futures import ThreadPoolExecutor

        with receiving(respond("200 OK")) as receiver, ThreadPoolExecutor(1) as pool:
            url = f"http://localhost:{receiver.port}/x"
            networks = (*LOOPBACK, ip_network("::1/128"))
            assert attempt(url, resolve=delivery.make_resolver(pool), networks=networks) == DeliveryOutcome(200)

    def test_in_a_network_that_is_no_longer_allowed_is_rejected(self) -> None:
        with receiving(respond("200 OK")) as receiver:
            assert attempt(receiver.url, networks=()) == DeliveryOutcome(error="no_public_address")
        assert receiver.requests == []


def certificate(name: str, directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the TLS contexts of a server with this name and of a client that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    public = made.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = directory / f"{name}.pem"
    path.write_bytes(private + public)
    shown = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    shown.load_cert_chain(path)
    return shown, ssl.create_default_context(cadata=public.decode())


class TestTls:
    def test_checks_the_certificate_against_the_host_name(self, tmp_path: Path) -> None:
        context, trust = certificate("hooks.example", tmp_path)
        names: list[str | None] = []
        context.sni_callback = lambda _socket, name, _context: names.append(name)
        failed = DeliveryOutcome(error="tls_failed")
        with receiving(respond("200 OK"), context) as receiver:
            for name, more, outcome in (
                ("hooks.example", {"trust": trust}, DeliveryOutcome(200)),
                ("other.example", {"trust": trust}, failed),
                ("hooks.example", {}, failed),
            ):
                url = f"https://{name}:{receiver.port}/"
                assert attempt(url, resolve=resolving(["127.0.0.1"]), **more) == outcome
        assert names == ["hooks.example", "other.example", "hooks.example"]
        assert len(receiver.requests) == 1

    def test_fails_with_a_server_without_tls(self) -> None:
        with receiving(respond("200 OK")) as receiver:  # the receiver waits for the end of a head, which never arrives
            outcome = attempt(f"https://127.0.0.1:{receiver.port}/", seconds=2)
            began = time.monotonic()
        assert outcome.error == "timeout"
        assert receiver.requests == []
        assert time.monotonic() - began < PATIENCE_SECONDS / 2  # the connection was closed


class TestProxy:
    def test_in_the_environment_is_not_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with receiving(respond("200 OK")) as proxy, receiving(respond("200 OK")) as receiver:
            for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
                monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
            assert attempt(receiver.url) == DeliveryOutcome(200)
        assert proxy.requests == []


def test_concurrent_attempts_do_not_block_each_other() -> None:
    met = threading.Barrier(2)

    def meets(connection: socket.socket, place: int) -> None:
        met.wait(60)
        respond("200 OK")(connection, place)

    async def both(receiver: Receiver) -> list[DeliveryOutcome]:
        courier = DeliveryClient(refuse_to_resolve, LOOPBACK, 60.0)
        lease = [DeliveryLease(f"msg_{i}", 1, receiver.url, PAYLOAD, SECRETS) for i in range(2)]
        return list(await asyncio.gather(*(courier.attempt(each, now=5 * SECOND) for each in lease)))

    with receiving(meets) as receiver:
        assert asyncio.run(both(receiver)) == [DeliveryOutcome(200)] * 2
