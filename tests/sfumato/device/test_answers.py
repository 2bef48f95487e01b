"""A report is settled by the service alone, however proxies and other hosts answer in its place."""

import json
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.api.client import Client
from sfumato.device.bulk import perturb_records
from sfumato.device.store import MemoryStore
from sfumato.errors import ApiProblem, ReportMalformed, SfumatoError, Unreachable
from sfumato.transport.exchange import PROBLEM_MEDIA_TYPE
from sfumato.transport.receipts import SETTLED_STATES
from tests.sfumato.device.test_shuffled import Shuffler, unwrapped
from tests.sfumato.scripted import RECORD, Reply, ScriptedService, open_round, refusal, round_spec

RECEIPT = {"round_id": "rnd_1", "accepted": 1}
OWN_PROBLEM = json.loads(refusal(409, "round_closed").content)

statuses = st.integers(200, 599).filter(lambda status: status not in {204, 304})
media_types = st.sampled_from(["text/html", "text/plain", "application/json", PROBLEM_MEDIA_TYPE, "", "nonsense"])
documents = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 600) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=4,
)


def changed(document: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw a document in which one member has another value or is missing."""
    different = st.sampled_from(sorted(set(document) & {"round_id", "accepted", "type", "code", "status"})).flatmap(
        lambda name: (documents | st.just("rnd_2") | st.just(2)).map(lambda value: document | {name: value})
    )
    missing = st.sampled_from(sorted(set(document) & {"round_id", "accepted", "type", "status"})).map(
        lambda name: {key: value for key, value in document.items() if key != name}
    )
    return (different | missing).filter(lambda each: str(each) != str(document))


def respond(status: int, media_type: str, body: bytes) -> httpx.Response:
    return httpx.Response(status, headers={"Content-Type": media_type, "Retry-After": "0"}, content=body)


def is_own(response: httpx.Response) -> bool:
    """Return whether the service could have written a response about rnd_1, by the documented form alone."""
    try:
        document = response.json()
    except (ValueError, RecursionError):
        return False
    if not isinstance(document, dict):
        return False
    if response.status_code == 202:
        return repr([document.get("round_id"), document.get("accepted")]) == "['rnd_1', 1]"
    is_problem = response.headers["Content-Type"] == PROBLEM_MEDIA_TYPE and response.status_code >= 400
    names_its_code = document.get("type") == f"urn:sfumato:problem:{document.get('code')}"
    return is_problem and names_its_code and document.get("status") == response.status_code


bodies = (
    st.binary(max_size=40)
    | st.just(b"<!doctype html><title>Sign in</title>")
    | documents.map(lambda document: json.dumps(document).encode())
    | changed(RECEIPT).map(lambda document: json.dumps(document).encode())
    | changed(OWN_PROBLEM).map(lambda document: json.dumps(document).encode())
    | st.integers(0, len(json.dumps(RECEIPT)) - 1).map(lambda n: json.dumps(RECEIPT).encode()[:n])
    | st.just(json.dumps(OWN_PROBLEM | {"status": 410}).encode())
)
foreign = st.builds(respond, statuses, media_types, bodies).filter(lambda response: not is_own(response))
broken = st.sampled_from([httpx.ReadTimeout("lost"), httpx.ConnectError("no"), httpx.RemoteProtocolError("cut")])
intermediaries = st.lists(foreign | broken, min_size=1, max_size=4)


def attempt(action: Any) -> SfumatoError | None:
    try:
        action()
    except (ApiProblem, Unreachable) as error:
        return error
    return None


class TestIntermediaries:
    @settings(max_examples=40)
    @given(replies=intermediaries, settles=st.sampled_from([None, *SETTLED_STATES]))
    def test_never_settle_a_report_and_the_same_bytes_are_sent_again(
        self, replies: list[Reply], settles: str | None
    ) -> None:
        service, store = ScriptedService(open_round()), MemoryStore()
        service.replies = [*replies, None if settles is None else refusal(409, settles)]
        device = service.device(store=store, retry_seconds=0)
        for number in range(len(replies)):
            assert attempt(lambda: device.report(RECORD)) is not None
            assert device.pending() == ("rnd_1",)
            assert device.spent == 1.0
            assert len(service.sent) == number + 1
        attempt(lambda: device.report([0, 0]))
        assert store.read("ds_1").memos["rnd_1"].state == SETTLED_STATES.get(settles or "", "acknowledged")
        assert device.spent == 1.0
        assert len(set(service.sent)) == 1
        attempt(lambda: device.report(RECORD))
        assert len(service.sent) == len(replies) + 1

    @settings(max_examples=25)
    @given(replies=intermediaries)
    def test_never_settle_a_sealed_report(self, replies: list[httpx.Response | BaseException]) -> None:
        shuffler, store = Shuffler(replies=list(replies)), MemoryStore()
        device = shuffler.device(store)
        for _ in replies:
            assert attempt(lambda: device.report(RECORD)) is not None
            assert device.pending() == ("rnd_1",)
        assert device.report(RECORD).outcome == "sent"
        assert len({unwrapped(*each) for each in shuffler.sent}) == 1
        assert len(set(shuffler.sent)) == len(shuffler.sent)
        assert len(shuffler.sent) == len(replies) + 1

    @given(reply=foreign)
    def test_never_acknowledge_a_batch_of_reports(self, reply: httpx.Response) -> None:
        reports = perturb_records(round_spec(), [RECORD])
        transport = httpx.MockTransport(lambda _: reply)
        with Client("http://service.example", "sfk_x", transport=transport, retry_seconds=0) as client:
            error = attempt(lambda: client.send_reports("rnd_1", *reports))
        assert isinstance(error, ApiProblem)
        assert error.code == "unexpected_response"

    @pytest.mark.parametrize("n_accepted", [0, 1, 3])
    def test_a_receipt_for_another_number_does_not_acknowledge_a_batch(self, n_accepted: int) -> None:
        answer = httpx.Response(202, json={"round_id": "rnd_1", "accepted": n_accepted})
        transport = httpx.MockTransport(lambda _: answer)
        reports = perturb_records(round_spec(), [RECORD, RECORD])
        client = Client("http://service.example", "sfk_x", transport=transport)
        with pytest.raises(ApiProblem, match="not from the service"):
            client.send_reports("rnd_1", *reports)

    def test_a_foreign_answer_names_no_malformed_report(self) -> None:
        answer = httpx.Response(422, json={"code": ReportMalformed.code, "index": 0})
        transport = httpx.MockTransport(lambda _: answer)
        client = Client("http://service.example", "sfk_x", transport=transport)
        with pytest.raises(ApiProblem, match="not from the service"):
            client.send_reports("rnd_1", *perturb_records(round_spec(), [RECORD]))


class TestRoundLists:
    @pytest.mark.parametrize("answer", [respond(200, "text/html", b"<html>"), httpx.Response(304), httpx.Response(204)])
    def test_from_elsewhere_are_an_error_and_not_the_end_of_all_rounds(self, answer: httpx.Response) -> None:
        with pytest.raises(ApiProblem, match="check the URL"):
            ScriptedService().device(lambda _: answer).report(RECORD)
