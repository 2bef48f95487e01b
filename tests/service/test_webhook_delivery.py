"""One attempt: what a receiver is sent, what its answers mean, and that it cannot lead anywhere else."""

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

from models.db import SECOND, system_clock
from models.delivery import Held, Outcome
from service import webhook_delivery
from service.webhook_delivery import Courier
from tests.service.receivers import PATIENCE_SECONDS, Receiver, receiving, says

LOOPBACK = (ip_network("127.0.0.0/8"),)
SECRETS = (bytes(range(32)), b"the one before, of 32 bytes too.")
PAYLOAD = '{"data":{"id":"job_1"},"timestamp":"2026-11-22T00:00:00.000000Z","type":"job.succeeded"}'


async def nobody(host: str, port: int) -> Sequence[str]:
    raise AssertionError("an address is looked up by nobody")


def resolving(*answers: Sequence[str]) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    """A resolver that says one after the other, and the last one from then on."""
    left = list(answers)

    async def resolve(host: str, port: int) -> Sequence[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return resolve


def attempt(url: str, *, seconds: float = 30.0, secrets: tuple[bytes, ...] = SECRETS, **other: Any) -> Outcome:
    given = {"resolve": nobody, "networks": LOOPBACK, **other}
    held = Held("msg_01", 1, url, PAYLOAD, secrets)

    async def once() -> Outcome:
        return await Courier(seconds=seconds, **given).attempt(held, now=system_clock())

    return asyncio.run(once())


class TestWhatIsSent:
    def test_is_the_payload_signed_by_each_secret(self) -> None:
        with receiving(says("200 OK")) as receiver:
            assert attempt(receiver.url) == Outcome(200)
        (request,) = receiver.requests
        assert request.line == "POST /hook?x=1 HTTP/1.1"
        assert request.body.decode() == PAYLOAD
        assert request.headers["webhook-id"] == "msg_01"
        assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
        assert len(request.headers["webhook-signature"].split(" ")) == 2
        for secret in SECRETS:
            Verifier("whsec_" + b64encode(secret).decode()).verify(request.body, request.headers)
        with pytest.raises(WebhookVerificationError):
            Verifier("whsec_" + b64encode(bytes(32)).decode()).verify(request.body, request.headers)

    @pytest.mark.parametrize("part", ["webhook-id", "webhook-timestamp", "body"])
    def test_is_all_covered_by_the_signature(self, part: str) -> None:
        now = int(time.time())
        headers = {
            "webhook-id": "msg_01",
            "webhook-timestamp": str(now),
            "webhook-signature": webhook_delivery.signature(SECRETS[:1], "msg_01", now, PAYLOAD.encode()),
        }
        verifier = Verifier("whsec_" + b64encode(SECRETS[0]).decode())
        verifier.verify(PAYLOAD, headers)
        changed = headers | {"webhook-id": "msg_02"} if part == "webhook-id" else headers
        changed = headers | {"webhook-timestamp": str(now - 1)} if part == "webhook-timestamp" else changed
        with pytest.raises(WebhookVerificationError):
            verifier.verify(PAYLOAD + " " if part == "body" else PAYLOAD, changed)

    def test_names_no_more_than_is_needed(self) -> None:
        with receiving(says("204 No Content")) as receiver:
            attempt(receiver.url)
        told = {"host", "user-agent", "content-type", "content-length", "accept", "accept-encoding", "connection"}
        assert set(receiver.requests[0].headers) == told | {"webhook-id", "webhook-timestamp", "webhook-signature"}

    def test_without_a_secret_is_not_sent(self) -> None:
        with receiving(says("200 OK")) as receiver:
            assert attempt(receiver.url, secrets=()).error == "secret_unreadable"
        assert receiver.requests == []


class TestAnAnswer:
    @pytest.mark.parametrize("status", ["200 OK", "201 Created", "202 Accepted", "204 No Content", "299 X"])
    def test_of_2xx_is_a_success(self, status: str) -> None:
        with receiving(says(status)) as receiver:
            assert attempt(receiver.url).is_success

    @pytest.mark.parametrize("status", ["400 X", "401 X", "404 X", "410 Gone", "429 X", "500 X", "503 X", "599 X"])
    def test_of_an_error_is_a_failure(self, status: str) -> None:
        with receiving(says(status)) as receiver:
            assert attempt(receiver.url) == Outcome(int(status[:3]), "bad_status")

    @pytest.mark.parametrize("status", ["301 X", "302 X", "303 X", "307 X", "308 X"])
    def test_that_redirects_is_a_failure_and_is_not_followed(self, status: str) -> None:
        with (
            receiving(says("200 OK")) as elsewhere,
            receiving(says(status, more=f"location: {elsewhere.url}\r\n")) as receiver,
        ):
            assert attempt(receiver.url) == Outcome(int(status[:3]), "redirected")
        assert elsewhere.requests == []

    @pytest.mark.parametrize(
        ("said", "seconds"),
        [("120", 120), ("0", 0), ("-5", None), ("soon", None), ("1e9", None), ("9" * 30, None), ("", None)],
    )
    def test_may_ask_for_a_pause(self, said: str, seconds: int | None) -> None:
        with receiving(says("503 X", more=f"retry-after: {said}\r\n")) as receiver:
            assert attempt(receiver.url).retry_after_seconds == seconds

    def test_may_ask_for_a_pause_by_a_date(self) -> None:
        until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
        more = f"retry-after: {until:%a, %d %b %Y %H:%M:%S} GMT\r\n"
        with receiving(says("503 X", more=more)) as receiver:
            asked = attempt(receiver.url).retry_after_seconds
        assert asked is not None
        assert 3000 < asked <= 3600

    def test_that_sets_a_cookie_is_not_sent_it(self) -> None:
        with receiving(says("500 X", more="set-cookie: a=b\r\n")) as receiver:
            for _ in range(2):
                attempt(receiver.url)
        assert "cookie" not in receiver.requests[1].headers

    def test_without_an_end_is_not_read_to_it(self) -> None:
        n_sent = 0

        def floods(connection: socket.socket, place: int) -> None:
            nonlocal n_sent
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
            while n_sent < 1_000_000_000:
                n_sent += connection.send(b"x" * 65536)

        with receiving(floods) as receiver:
            assert attempt(receiver.url) == Outcome(200)
        assert n_sent < 100_000_000  # what buffers hold, and no gigabyte

    def test_whose_body_drips_counts_by_its_status(self) -> None:
        def drips(connection: socket.socket, place: int) -> None:
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
            while not receiver.ending.wait(0.05):
                connection.sendall(b"x")

        with receiving(drips) as receiver:
            assert attempt(receiver.url) == Outcome(200)
            assert attempt(receiver.url, seconds=0.9) == Outcome(200)  # also where the time ends meanwhile

    def test_that_drips_for_ever_is_given_up_in_time(self) -> None:
        def drips(connection: socket.socket, place: int) -> None:
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            while not receiver.ending.wait(0.05):
                connection.sendall(b"x-more: x\r\n")

        with receiving(drips) as receiver:
            assert attempt(receiver.url, seconds=1.0) == Outcome(error="timeout")

    @pytest.mark.parametrize("said", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200", b"HTTP/9.9 x y\r\n\r\n", b"\0" * 99])
    def test_that_breaks_off_or_is_none_is_a_failure(self, said: bytes) -> None:
        with receiving(lambda connection, place: connection.sendall(said)) as receiver:
            assert attempt(receiver.url) == Outcome(error="connection_failed")

    def test_of_a_port_that_is_closed_is_a_failure(self) -> None:
        with receiving(says("200 OK")) as receiver:
            pass
        assert attempt(receiver.url) == Outcome(error="connection_failed")

    def test_that_never_comes_is_given_up_in_time(self) -> None:
        with receiving(lambda connection, place: receiver.ending.wait(60) and None) as receiver:
            assert attempt(receiver.url, seconds=0.5) == Outcome(error="timeout")


class TestAName:
    def test_is_asked_for_once_and_the_checked_address_is_connected_to(self) -> None:
        asked = []

        async def rebinds(host: str, port: int) -> Sequence[str]:
            asked.append(host)
            return ["127.0.0.1"] if len(asked) == 1 else ["10.0.0.1"]

        with receiving(says("200 OK")) as receiver:
            url = f"http://hooks.example:{receiver.port}/x"
            assert attempt(url, resolve=rebinds) == Outcome(200)
        assert asked == ["hooks.example"]
        assert receiver.requests[0].headers["host"] == f"hooks.example:{receiver.port}"

    def test_that_was_public_and_is_private_now_is_not_connected_to(self) -> None:
        with receiving(says("200 OK")) as receiver:
            resolve = resolving(["127.0.0.1"], ["127.0.0.1", "10.0.0.1"], ["169.254.169.254"], [])
            url = f"http://hooks.example:{receiver.port}/x"
            outcomes = [attempt(url, resolve=resolve) for _ in range(4)]
        assert outcomes == [Outcome(200)] + 3 * [Outcome(error="no_public_address")]
        assert len(receiver.requests) == 1

    @pytest.mark.parametrize("error", [socket.gaierror(), OSError(), UnicodeError()], ids=["gaierror", "os", "unicode"])
    def test_that_leads_nowhere_looks_like_one_that_leads_somewhere_private(self, error: Exception) -> None:
        async def fails(host: str, port: int) -> Sequence[str]:
            raise error

        private = attempt("https://db.corp.example/", resolve=resolving(["10.0.0.1"]), networks=())
        assert attempt("https://db.corp.example/", resolve=fails, networks=()) == private

    def test_whose_servers_hang_is_given_up_in_time(self) -> None:
        async def hangs(host: str, port: int) -> Sequence[str]:
            await asyncio.sleep(3600)
            return []

        assert attempt("https://hooks.example/", resolve=hangs, seconds=0.3) == Outcome(error="timeout")

    def test_with_an_address_that_is_dead_leads_to_the_next(self) -> None:
        with receiving(says("200 OK")) as receiver:
            url = f"http://hooks.example:{receiver.port}/x"
            assert attempt(url, resolve=resolving(["127.0.0.2", "127.0.0.1"])) == Outcome(200)

    def test_is_looked_up_by_the_system(self) -> None:
        from concurrent.futures import ThreadPoolExecutor

        with receiving(says("200 OK")) as receiver, ThreadPoolExecutor(1) as pool:
            url = f"http://localhost:{receiver.port}/x"
            networks = (*LOOPBACK, ip_network("::1/128"))
            assert attempt(url, resolve=webhook_delivery.resolver(pool), networks=networks) == Outcome(200)

    def test_that_a_network_no_longer_allows_is_not_connected_to(self) -> None:
        with receiving(says("200 OK")) as receiver:
            assert attempt(receiver.url, networks=()) == Outcome(error="no_public_address")
        assert receiver.requests == []


def certificate(name: str, directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """What a server of this name shows, and what trusts it."""
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
    def test_asks_for_the_name_and_checks_the_certificate_against_it(self, tmp_path: Path) -> None:
        shown, trust = certificate("hooks.example", tmp_path)
        asked: list[str | None] = []
        shown.sni_callback = lambda _socket, name, _context: asked.append(name)
        with receiving(says("200 OK"), shown) as receiver:
            at = resolving(["127.0.0.1"])
            good = attempt(f"https://hooks.example:{receiver.port}/", resolve=at, trust=trust)
            other = attempt(f"https://other.example:{receiver.port}/", resolve=at, trust=trust)
            unknown = attempt(f"https://hooks.example:{receiver.port}/", resolve=at)
        assert (good, other, unknown) == (Outcome(200), Outcome(error="tls_failed"), Outcome(error="tls_failed"))
        assert asked == ["hooks.example", "other.example", "hooks.example"]
        assert len(receiver.requests) == 1

    def test_is_asked_of_what_does_not_speak_it(self) -> None:
        with receiving(says("200 OK")) as receiver:  # it waits for the end of a head, which never comes
            outcome = attempt(f"https://127.0.0.1:{receiver.port}/", seconds=2)
            began = time.monotonic()
        assert outcome.error == "timeout"
        assert receiver.requests == []
        assert time.monotonic() - began < PATIENCE_SECONDS / 2  # the connection was closed, and not forgotten


class TestAProxy:
    def test_in_the_environment_is_not_taken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with receiving(says("200 OK")) as proxy, receiving(says("200 OK")) as receiver:
            for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
                monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
            assert attempt(receiver.url) == Outcome(200)
        assert proxy.requests == []


def test_two_attempts_at_once_do_not_wait_for_each_other() -> None:
    met = threading.Barrier(2)

    def meets(connection: socket.socket, place: int) -> None:
        met.wait(60)
        says("200 OK")(connection, place)

    async def both(receiver: Receiver) -> list[Outcome]:
        courier = Courier(nobody, LOOPBACK, 60.0)
        held = [Held(f"msg_{i}", 1, receiver.url, PAYLOAD, SECRETS) for i in range(2)]
        return list(await asyncio.gather(*(courier.attempt(each, now=5 * SECOND) for each in held)))

    with receiving(meets) as receiver:
        assert asyncio.run(both(receiver)) == [Outcome(200)] * 2
