"""Cases of sealed reports: layers that only the right key opens, and rounds that a device must refuse."""

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.conformance.bench import Bench, Case, Difference, expect, expect_error, expect_outcome
from audit.conformance.input_cases import RECORD, ROUND
from audit.conformance.scripted_service import Answer, create_problem
from audit.conformance.vector_cases import read_vectors
from sfumato.device.sealing import (
    OUTER_KEY_HEADER,
    SIGNATURE_HEADER,
    RoundKeyPair,
    SealedContent,
    generate_round_key_pair,
    open_sealed,
    sign_round,
    unwrap,
)

N_HONEST = 29  # honest reports of the smallest release of the round: .29 of 100
TERMS = {"min_batch": 100, "honest_share": 0.29, "keep_reports": False}


BAD_TERMS: dict[str, tuple[object, ...]] = {
    "min_batch": (0, -1, 100.5, 1e30, 2**31, "100", True),
    "honest_share": (0, -0.5, 1.5, 1e30, "0.29", True),
}
BAD_PINS = ("", "AAAA", "key", base64.b64encode(bytes(31)).decode(), base64.b64encode(bytes(33)).decode())


def create_sealed_cases(directory: Path) -> Iterator[Case]:
    """Yield the cases of sealed reports, for implementations that state `sealed`."""
    for vector in read_vectors(directory, "sealed"):
        yield Case("sealed", f"vector: {vector['name']}", partial(_check_vector, vector=vector))
    checks: dict[str, Callable[[Bench], None]] = {
        "a report opens for the service alone": _check_report,
        "a resend has the same report in another layer": _check_resend,
        "a stored report is sent after its round was closed": _check_closed,
        "a round with fewer honest reports than required": partial(_check_refusal, min_batch=99),
        "a round without a number of honest reports": partial(
            _check_refusal, code="validation_failed", honest_share=None
        ),
        **{
            f"a round with {name} {value!a}": partial(_check_terms, changes={name: value})
            for name, values in BAD_TERMS.items()
            for value in values
        },
        "a round whose smallest release has no honest report": partial(_check_refusal, min_batch=1),
        "a round that keeps reports": partial(_check_refusal, keep_reports=True),
        "a round with a key of the wrong length": partial(
            _check_refusal, code="validation_failed", hpke_public_key="AAAA"
        ),
        "a round with a key of small order": partial(
            _check_refusal, code="validation_failed", hpke_public_key=base64.b64encode(bytes(32)).decode()
        ),
        **{f"the pinned key is {pin!a}": partial(_check_pin, pin=pin) for pin in BAD_PINS},
        "the pinned key lacks its last character": partial(_check_pin, pin=None),
        "a round of another shuffler": _check_signature,
        "an outer key of another": _check_outer_key,
        "another round than listed": _check_listed,
    }
    for name, check in checks.items():
        yield Case("sealed", name, check)


@dataclass(frozen=True, slots=True)
class _Shuffler:
    """Keys and rounds of a shuffler."""

    signing: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    inner: RoundKeyPair = field(default_factory=generate_round_key_pair)
    outer: RoundKeyPair = field(default_factory=generate_round_key_pair)

    @property
    def pinned(self) -> str:
        return base64.b64encode(self.signing.public_key().public_bytes_raw()).decode()

    def document(self, **changes: Any) -> bytes:
        key = base64.b64encode(self.inner.public_key).decode()
        members = {**ROUND, **TERMS, "hpke_public_key": key, **changes}
        return json.dumps({name: value for name, value in members.items() if value is not None}).encode()

    def announce(self, document: bytes, outer_key: bytes | None = None) -> Answer:
        signature = sign_round("rnd_1", document, self.outer.public_key, self.signing.private_bytes_raw())
        headers = {
            SIGNATURE_HEADER: base64.b64encode(signature).decode(),
            OUTER_KEY_HEADER: base64.b64encode(outer_key or self.outer.public_key).decode(),
        }
        return Answer(200, document, {"Content-Type": "application/json", **headers})

    def unwrap(self, body: bytes) -> bytes:
        [sealed] = unwrap([body], "rnd_1", self.outer.private_key)
        if sealed is None:
            raise Difference("the outer layer does not open with the shuffler's key")
        return sealed

    def open(self, body: bytes, document: bytes) -> SealedContent:
        [content] = open_sealed([self.unwrap(body)], "rnd_1", document, self.inner.private_key)
        if content is None:
            raise Difference("the sealed report does not open with the service's key")
        return content


def _report(bench: Bench, shuffler: _Shuffler, **changes: Any) -> dict[str, Any]:
    return bench.report(RECORD, shuffler_key=shuffler.pinned, min_honest_batch=N_HONEST, **changes)


def _check_vector(bench: Bench, vector: dict[str, Any]) -> None:
    """Check both layers of new reports, because a device draws their ephemeral keys itself."""
    call, round_id, document = bench.implementation.call, vector["round_id"], bytes.fromhex(vector["round"])
    names = ("report_id", "slot", "value", "round_id", "round", "public_key")
    bodies = [bytes.fromhex(call("seal", **{name: vector[name] for name in names})["result"]["sealed"]) for _ in "ab"]
    expect(len(set(bodies)), 2, "number of different sealed reports")
    expected = SealedContent(bytes.fromhex(vector["report_id"]), vector["slot"], bytes.fromhex(vector["value"]))
    for content in open_sealed(bodies, round_id, document, bytes.fromhex(vector["private_key"])):
        expect(content, expected, "content of the sealed report")
    layer = {"sealed": vector["sealed"], "round_id": round_id, "outer_key": vector["outer_public_key"]}
    wrapped = [bytes.fromhex(call("wrap", **layer)["result"]["wrapped"]) for _ in "ab"]
    expect(len(set(wrapped)), 2, "number of different wrapped reports")
    for sealed in unwrap(wrapped, round_id, bytes.fromhex(vector["outer_private_key"])):
        expect(sealed, bytes.fromhex(vector["sealed"]), "report without its outer layer")


def _check_report(bench: Bench) -> None:
    shuffler = _Shuffler()
    document = shuffler.document()
    bench.service.reset([], {"rnd_1": shuffler.announce(document)})
    result = expect_outcome(_report(bench, shuffler), "sent")
    [request] = bench.service.sent
    content = shuffler.open(request.body, document)
    expect((len(content.report_id), content.slot, len(content.value)), (16, 0, 1), "content of the report")
    expect_outcome(_report(bench, shuffler), "already_answered")
    expect(round(result["spent"], 6), 1.098612, "spent local epsilon")


def _check_resend(bench: Bench) -> None:
    shuffler = _Shuffler()
    document = shuffler.document()
    bench.service.reset([], {"rnd_1": shuffler.announce(document)})
    bench.service.replies = [create_problem(503, "unavailable"), *[Answer(0)] * 100]
    expect_error(_report(bench, shuffler, retry_seconds=1), "unreachable")
    bench.service.replies = []
    expect_outcome(_report(bench, shuffler), "sent")
    bodies = [each.body for each in bench.service.sent]
    expect(len(set(bodies)), len(bodies), "number of different requests")
    expect(len({shuffler.unwrap(body) for body in bodies}), 1, "number of different sealed reports")


def _check_closed(bench: Bench) -> None:
    """Check that a pending report is wrapped for the outer key of its time, if the round is not announced any more."""
    shuffler = _Shuffler()
    document = shuffler.document()
    bench.service.reset([], {"rnd_1": shuffler.announce(document)})
    bench.service.replies = [Answer(0)]
    expect_error(_report(bench, shuffler), "unreachable")
    bench.service.documents = {}
    expect(_report(bench, shuffler).get("result", {}).get("pending"), [], "pending rounds")
    shuffler.open(bench.service.sent[-1].body, document)


def _check_refusal(bench: Bench, code: str = "round_refused", **changes: Any) -> None:
    shuffler = _Shuffler()
    bench.service.reset([], {"rnd_1": shuffler.announce(shuffler.document(**changes))})
    answer = _report(bench, shuffler)
    expect_error(answer, code)
    expect((bench.service.sent, answer.get("spent")), ([], 0), "reports and spent")


def _check_pin(bench: Bench, pin: str | None) -> None:
    shuffler = _Shuffler()
    bench.service.reset([], {"rnd_1": shuffler.announce(shuffler.document())})
    key = shuffler.pinned[:-1] if pin is None else pin
    expect_error(bench.report(RECORD, shuffler_key=key, min_honest_batch=N_HONEST), "validation_failed")
    expect(bench.service.paths, [], "requests")


def _check_terms(bench: Bench, changes: dict[str, Any]) -> None:
    _check_refusal(bench, "validation_failed", **changes)


def _check_signature(bench: Bench) -> None:
    shuffler, other = _Shuffler(), _Shuffler()
    bench.service.reset([], {"rnd_1": other.announce(other.document())})
    expect_error(_report(bench, shuffler), "round_refused")
    expect(bench.service.sent, [], "reports")


def _check_outer_key(bench: Bench) -> None:
    shuffler = _Shuffler()
    announced = shuffler.announce(shuffler.document(), generate_round_key_pair().public_key)
    bench.service.reset([], {"rnd_1": announced})
    expect_error(_report(bench, shuffler), "round_refused")
    expect(bench.service.sent, [], "reports")


def _check_listed(bench: Bench) -> None:
    shuffler = _Shuffler()
    bench.service.reset([], {"rnd_1": shuffler.announce(shuffler.document(id="rnd_2", collection_id="rnd_2"))})
    expect_error(_report(bench, shuffler), "round_refused")
    expect(bench.service.sent, [], "reports")
