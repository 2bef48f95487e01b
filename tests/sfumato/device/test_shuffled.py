"""The device that reports through a shuffler: what it refuses, what it stores, and what it sends."""

import base64
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from sfumato.device.outcomes import Outcome
from sfumato.device.sealing import (
    OUTER_KEY_HEADER,
    SIGNATURE_HEADER,
    generate_round_key_pair,
    open_sealed,
    sign_round,
    unwrap,
)
from sfumato.device.shuffled import ShuffledDevice
from sfumato.device.store import Memory, MemoryStore
from sfumato.errors import CapExceeded, InvalidSpec, RoundRefused, SfumatoError, Unreachable
from sfumato.specs import to_wire
from sfumato.transport.batches import generate_signing_key_pair
from tests.sfumato.scripted import RECORD, place_spec, refusal, round_spec
from tests.shuffler.parties import KEYS, published

PRIVATE, PUBLIC = generate_signing_key_pair()
OUTER = generate_round_key_pair()


@dataclass
class Shuffler:
    """A shuffler in memory."""

    rounds: dict[str, bytes] = field(default_factory=lambda: {"rnd_1": published()})
    signing_key: bytes = PRIVATE
    outer_key: bytes = OUTER.public_key
    headers: dict[str, str] = field(default_factory=dict)  # replacements
    replies: list[httpx.Response | BaseException] = field(default_factory=list)
    sent: list[tuple[str, bytes]] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        assert request.headers["Authorization"] == "Bearer sfs_x"
        name = request.url.path.split("/")[3]
        if request.method == "POST":
            assert request.url.path == f"/v1/rounds/{name}/sealed"
            self.sent.append((name, request.content))
            reply = self.replies.pop(0) if self.replies else httpx.Response(202, json={"round_id": name, "accepted": 1})
            if isinstance(reply, BaseException):
                raise reply
            return reply
        if request.url.path == "/v1/datasets/ds_1/rounds":
            return httpx.Response(200, json={"rounds": list(self.rounds)})
        document = self.rounds[name]
        signature = base64.b64encode(sign_round(name, document, self.outer_key, self.signing_key)).decode()
        headers = {SIGNATURE_HEADER: signature, OUTER_KEY_HEADER: base64.b64encode(self.outer_key).decode()}
        return httpx.Response(200, content=document, headers=headers | self.headers)

    def device(self, store: MemoryStore | None = None, **options: Any) -> ShuffledDevice:
        defaults = {"cap": 2, "min_honest_batch": 3, "shuffler_key": base64.b64encode(PUBLIC).decode(),
                    "retry_seconds": 0, "transport": httpx.MockTransport(self)}  # fmt: skip
        return ShuffledDevice("http://shuffler", "sfs_x", "ds_1", store=store or MemoryStore(), **(defaults | options))


def unwrapped(round_id: str, wrapped: bytes, private_key: bytes = OUTER.private_key) -> bytes:
    """Return a sent report without its outer layer."""
    (sealed,) = unwrap([wrapped], round_id, private_key)
    assert sealed is not None
    return sealed


class TestReport:
    def test_is_sealed_for_the_service_and_costs_the_local_epsilon(self) -> None:
        shuffler = Shuffler()
        device = shuffler.device()
        assert device.report(RECORD).outcome == Outcome.SENT
        assert device.report(RECORD).outcome == Outcome.ALREADY_ANSWERED
        ((round_id, wrapped),) = shuffler.sent
        (content,) = open_sealed([unwrapped(round_id, wrapped)], round_id, shuffler.rounds["rnd_1"], KEYS.private_key)
        assert content is not None
        assert round_spec().mechanism.is_value(content.value)
        assert content.slot == 0
        assert device.spent == round_spec().mechanism.epsilon_nano() / 1e9

    def test_is_resent_in_a_new_outer_layer_and_the_store_has_no_plain_report(self) -> None:
        shuffler, store = Shuffler(replies=[httpx.ConnectError("no")]), MemoryStore()
        with pytest.raises(Unreachable):
            shuffler.device(store).report(RECORD)
        memo = store.read("ds_1").memos["rnd_1"]
        assert (memo.report_id, memo.slot, memo.state) == ("", None, "pending")
        shuffler.rounds.clear()  # the round is no longer listed, and the report is still pending
        assert shuffler.device(store).report(RECORD).outcome == Outcome.NO_OPEN_ROUND
        (_, first), (_, second) = shuffler.sent
        assert len(first) == len(second)
        assert not {first[at : at + 8] for at in range(len(first) - 7)} & {
            second[at : at + 8] for at in range(len(second) - 7)
        }
        assert unwrapped("rnd_1", first) == unwrapped("rnd_1", second)
        assert store.read("ds_1").memos["rnd_1"].value is None

    def test_has_a_new_outer_layer_at_each_attempt_of_one_call(self) -> None:
        shuffler = Shuffler(replies=[httpx.ConnectError("no"), httpx.Response(503), httpx.ReadTimeout("slow")])
        assert shuffler.device(retry_seconds=30).report(RECORD).outcome == Outcome.SENT
        wrapped = [each for _, each in shuffler.sent]
        assert len(set(wrapped)) == 4
        assert len({unwrapped("rnd_1", each) for each in wrapped}) == 1

    def test_is_wrapped_for_the_outer_key_that_the_shuffler_announces_now(self) -> None:
        """The shuffler lost its database during the round."""
        shuffler, store, new = Shuffler(replies=[httpx.ConnectError("no")]), MemoryStore(), generate_round_key_pair()
        with pytest.raises(Unreachable):
            shuffler.device(store).report(RECORD)
        shuffler.outer_key = new.public_key
        assert shuffler.device(store).report(RECORD).outcome == Outcome.SENT
        (_, first), (_, second) = shuffler.sent
        assert unwrapped("rnd_1", first) == unwrapped("rnd_1", second, new.private_key)

    def test_is_too_late_for_a_closed_round(self) -> None:
        shuffler = Shuffler(replies=[refusal(409, "round_closed")])
        assert shuffler.device().report(RECORD).outcome == Outcome.TOO_LATE

    def test_dry_run_sends_nothing(self) -> None:
        shuffler = Shuffler()
        (preview,) = shuffler.device().dry_run(RECORD).rounds
        assert preview.would == "send"
        assert preview.body is not None
        assert list(preview.body) == ["sealed"]
        assert shuffler.sent == []


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "error"),
        [
            ({"min_batch": 2}, RoundRefused),
            ({"honest_share": 0.5}, RoundRefused),
            ({"honest_share": 0}, InvalidSpec),
            ({"honest_share": None}, InvalidSpec),
            ({"min_batch": "many"}, InvalidSpec),
            ({"keep_reports": True}, RoundRefused),
            ({"epsilon": 0.5}, RoundRefused),
            ({"hpke_public_key": base64.b64encode(bytes(32)).decode()}, InvalidSpec),
            ({"hpke_public_key": "?"}, InvalidSpec),
            ({"hpke_public_key": None}, InvalidSpec),
            ({"id": "rnd_2"}, RoundRefused),
        ],
    )
    def test_of_a_round_send_and_store_nothing(self, changes: dict[str, Any], error: type[SfumatoError]) -> None:
        shuffler, store = Shuffler({"rnd_1": published(**changes)}), MemoryStore()
        with pytest.raises(error):
            shuffler.device(store).report(RECORD)
        assert (shuffler.sent, store.read("ds_1").memos) == ([], {})

    @pytest.mark.parametrize("record", [[3.5, 7.5], [95, 7.5]])
    def test_of_an_undeclared_place_do_not_depend_on_the_record(self, record: list[float]) -> None:
        shuffler, store = Shuffler({"rnd_1": published(spec=to_wire(place_spec()))}), MemoryStore()
        with pytest.raises(RoundRefused, match="Declare the features of the app"):
            shuffler.device(store).report(record)
        assert (shuffler.sent, store.read("ds_1")) == ([], Memory())

    def test_of_the_cap_count_the_local_epsilon(self) -> None:
        with pytest.raises(CapExceeded):
            Shuffler().device(cap="0.99").report(RECORD)

    def test_of_rounds_that_another_key_signed(self) -> None:
        shuffler = Shuffler(signing_key=generate_signing_key_pair()[0])
        with pytest.raises(RoundRefused, match="not signed with the key"):
            shuffler.device().report(RECORD)
        assert shuffler.sent == []

    @pytest.mark.parametrize("name", [OUTER_KEY_HEADER, SIGNATURE_HEADER])
    @pytest.mark.parametrize("value", ["", "?", "AAAA", base64.b64encode(b"x" * 32).decode()])
    def test_of_outer_keys_without_the_signature(self, name: str, value: str) -> None:
        """A forwarder that replaces the outer key would read the sealed report, and find it in the batch."""
        shuffler = Shuffler(headers={name: value})
        with pytest.raises(RoundRefused, match="not signed with the key"):
            shuffler.device().report(RECORD)
        assert shuffler.sent == []

    def test_of_a_signed_outer_key_that_is_not_valid(self) -> None:
        shuffler, store = Shuffler(outer_key=bytes(32)), MemoryStore()
        with pytest.raises(InvalidSpec, match="HPKE"):
            shuffler.device(store).report(RECORD)
        assert (shuffler.sent, store.read("ds_1").memos) == ([], {})

    def test_of_changed_rounds_that_are_answered_already(self) -> None:
        shuffler, store = Shuffler(), MemoryStore()
        shuffler.device(store).report(RECORD)
        shuffler.rounds["rnd_1"] = published(spec=to_wire(round_spec(cells=2)))
        with pytest.raises(RoundRefused, match="has changed"):
            shuffler.device(store).report(RECORD)

    @pytest.mark.parametrize("listed", [None, "rnd_1", ["../x"], [1], ["r"] * 65])
    def test_of_bad_lists(self, listed: object) -> None:
        transport = httpx.MockTransport(lambda _: httpx.Response(200, json={"rounds": listed}))
        with pytest.raises(InvalidSpec):
            Shuffler().device(transport=transport).report(RECORD)

    @pytest.mark.parametrize(
        "options", [{"shuffler_key": "?"}, {"shuffler_key": "AAAA"}, {"min_honest_batch": 0}, {"min_honest_batch": 1.5}]
    )
    def test_of_bad_options(self, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidSpec):
            Shuffler().device(**options)
