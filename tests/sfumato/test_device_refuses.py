"""A device refuses: beyond its user's cap, outside its draw, and whatever is not what it says."""

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from sfumato import mechanisms
from sfumato.accounting import DRAW_SPAN, NANO
from sfumato.device import Device, Outcome
from sfumato.errors import (
    ApiProblem,
    CapExceeded,
    InvalidEpsilon,
    InvalidSpec,
    RoundRefused,
    StoreUnusable,
    Unreachable,
)
from sfumato.specs import Draw, Feature, GrrMechanism, RoundSpec, ShiftedGridEncoding
from sfumato.store import FileStore, MemoryStore
from tests.sfumato.replay import GeneratorEntropy, ReplayEntropy
from tests.sfumato.scripted import FEATURES, RECORD, ScriptedService, open_round, refusal, round_spec

pytestmark = pytest.mark.usefixtures("three_attempts")


class TestTheCap:
    def test_a_round_beyond_it_is_refused_and_nothing_is_sent(self) -> None:
        service = ScriptedService(open_round(spec=round_spec(2.5)))
        device = service.device(cap=2)
        with pytest.raises(CapExceeded) as refused:
            device.report(RECORD)
        assert (refused.value.asked_nano, refused.value.spent_nano, refused.value.cap_nano) == (
            2_500_000_000,
            0,
            2 * NANO,
        )
        assert service.sent == []
        assert device.spent == 0
        assert device.pending() == ()

    def test_it_can_be_spent_to_the_last_nano_and_no_further(self) -> None:
        service = ScriptedService()
        device = service.device(cap=0.3)
        for index in range(3):  # as floats, .3 - .1 - .1 would not leave .1
            service.rounds = [open_round(f"rnd_{index}", round_spec(0.1))]
            assert device.report(RECORD).outcome is Outcome.SENT
        service.rounds = [open_round("rnd_3", round_spec(1e-6))]
        with pytest.raises(CapExceeded):
            device.report(RECORD)
        assert device.spent == 0.3

    def test_it_holds_across_collections_closed_rounds_and_new_devices(self, tmp_path: Path) -> None:
        service = ScriptedService()
        for index in range(5):
            service.rounds = [open_round(f"rnd_{index}", round_spec(0.75))]
            device = service.device(store=tmp_path / "device.json", cap=2)
            if index < 2:
                device.report(RECORD)
            else:
                with pytest.raises(CapExceeded):
                    device.report(RECORD)
        assert list(service.stored) == ["rnd_0", "rnd_1"]

    def test_the_device_computes_the_cost_itself(self) -> None:
        service = ScriptedService(open_round(spec=round_spec(3), epsilon=3))
        spent_by_the_servers_word = service.device(cap=2)
        with pytest.raises(CapExceeded):
            spent_by_the_servers_word.report(RECORD)
        assert service.sent == []

    @pytest.mark.parametrize("declared", [0.999999999, 0.5, 1e-6])
    def test_a_service_that_declares_less_than_a_round_costs_is_refused(self, declared: float) -> None:
        service = ScriptedService(open_round(spec=round_spec(1), epsilon=declared))
        device = service.device(cap=32)
        with pytest.raises(RoundRefused, match=r"costs 1$"):
            device.report(RECORD)
        assert service.sent == []
        assert device.spent == 0

    @pytest.mark.parametrize("declared", [None, "1", 0, -1, 33, True, float("1e300"), [1]])
    def test_a_declared_epsilon_that_is_none_is_refused(self, declared: Any) -> None:
        service = ScriptedService(open_round(epsilon=declared))
        with pytest.raises(InvalidSpec):
            service.device(cap=32).report(RECORD)
        assert service.sent == []

    def test_more_declared_than_it_costs_is_charged_at_what_it_costs(self) -> None:
        service = ScriptedService(open_round(spec=round_spec(1), epsilon=1.5))
        device = service.device()
        device.report(RECORD)
        assert device.spent == 1.0

    def test_an_unperturbed_round_is_refused_at_any_cap(self) -> None:
        spec = RoundSpec(FEATURES, round_spec().encoding, GrrMechanism(16, DRAW_SPAN))
        service = ScriptedService(open_round(spec=spec, epsilon=32))
        with pytest.raises(InvalidSpec, match="gives the symbol away"):
            service.device(cap=32).report(RECORD)
        assert service.sent == []

    def test_a_threshold_that_gives_nearly_everything_away_is_refused_at_any_cap(self) -> None:
        spec = RoundSpec(FEATURES, round_spec().encoding, GrrMechanism(16, DRAW_SPAN - 1))
        service = ScriptedService(open_round(spec=spec, epsilon=32))
        with pytest.raises(RoundRefused, match="declares epsilon 32 and costs 47"):
            service.device(cap=32).report(RECORD)
        assert service.sent == []

    def test_what_fits_is_sent_and_the_receipt_says_what_did_not(self) -> None:
        service = ScriptedService(open_round("rnd_1", round_spec(1.5)), open_round("rnd_2", round_spec(1)))
        device = service.device(cap=2)
        receipt = device.report(RECORD)
        assert [answered.outcome for answered in receipt.rounds] == [Outcome.SENT, Outcome.REFUSED]
        assert isinstance(receipt.rounds[1].error, CapExceeded)
        assert list(service.stored) == ["rnd_1"]
        with pytest.raises(CapExceeded):
            device.report(RECORD)

    @pytest.mark.parametrize("cap", [0, -1, float("nan"), float("inf"), True, "much", 33])
    def test_a_cap_that_is_no_epsilon_is_refused(self, cap: Any) -> None:
        with pytest.raises(InvalidEpsilon):
            ScriptedService().device(cap=cap)


class TestTheDraw:
    def test_a_device_answers_only_where_its_draw_lies_inside(self) -> None:
        lower, upper = round_spec(draw=Draw(0, 1000)), round_spec(draw=Draw(1000, DRAW_SPAN))
        for draw, answered in [(0, "rnd_l"), (999, "rnd_l"), (1000, "rnd_u"), (DRAW_SPAN - 1, "rnd_u")]:
            service = ScriptedService(
                open_round("rnd_l", lower, collection_id="job_1"), open_round("rnd_u", upper, collection_id="job_1")
            )
            entropy = ReplayEntropy([draw, *[5] * 40])
            receipt = service.device(entropy=entropy).report(RECORD)
            assert receipt.outcome is Outcome.SENT
            assert list(service.stored) == [answered]
            assert {a.round_id: a.outcome for a in receipt.rounds}[answered] is Outcome.SENT
            assert {a.outcome for a in receipt.rounds} == {Outcome.SENT, Outcome.NOT_DRAWN}

    def test_it_is_drawn_once_for_each_collection_and_kept(self, tmp_path: Path) -> None:
        spec = round_spec(0.01, Draw(0, 2**63))
        service = ScriptedService()
        outcomes = set()
        for index in range(20):
            service.rounds = [open_round(f"rnd_{index}", spec, collection_id="job_1", index=index)]
            outcomes.add(service.device(store=tmp_path / "device.json").report(RECORD).outcome)
        assert len(outcomes) == 1  # twenty fresh draws would agree once in 500,000 times
        assert list(FileStore(tmp_path / "device.json").read("ds_1").draws) == ["job_1"]

    def test_another_collection_has_another_draw(self) -> None:
        service = ScriptedService(open_round("rnd_1"), open_round("rnd_2", round_spec(0.5)))
        store = MemoryStore()
        service.device(store=store).report(RECORD)
        draws = store.read("ds_1").draws
        assert set(draws) == {"rnd_1", "rnd_2"}
        assert draws["rnd_1"] != draws["rnd_2"]

    def test_it_is_told_to_nobody(self) -> None:
        service = ScriptedService(open_round())
        store = MemoryStore()
        service.device(store=store, entropy=GeneratorEntropy(3)).report(RECORD)
        draw = store.read("ds_1").draws["rnd_1"]
        told = b"".join(body for _, body in service.sent)
        assert str(draw).encode() not in told
        assert draw.to_bytes(8, "little").hex().encode() not in told

    def test_a_device_that_is_not_asked_spends_nothing(self) -> None:
        service = ScriptedService(open_round(spec=round_spec(draw=Draw(0, 1))))
        device = service.device(entropy=ReplayEntropy([1]))
        assert device.report(RECORD).outcome is Outcome.NOT_DRAWN
        assert device.spent == 0
        assert service.sent == []

    def test_slots_are_drawn_and_all_of_them_occur(self) -> None:
        encoding = ShiftedGridEncoding(n_features=2, cells=3, shifts=2)
        spec = RoundSpec(FEATURES, encoding, mechanisms.design("ss", 16, NANO))
        slots = []
        for _ in range(120):
            service = ScriptedService(open_round(spec=spec))
            service.device(retry_seconds=0).report(RECORD)
            slots.append(service.stored["rnd_1"][0]["slot"])
        assert (np.bincount(slots, minlength=4) > 8).all()
        assert set(slots) == {0, 1, 2, 3}


class TestRoundsThatAreRefused:
    def test_a_round_that_changed_since_it_was_answered(self) -> None:
        service = ScriptedService(open_round())
        device = service.device()
        device.report(RECORD)
        for changed in (open_round(spec=round_spec(0.5)), open_round(collection_id="job_9")):
            service.rounds = [changed]
            with pytest.raises(RoundRefused, match="no longer the round"):
                device.report(RECORD)
        assert len(service.sent) == 1

    def test_a_pending_report_is_not_sent_to_a_round_that_changed(self) -> None:
        service = ScriptedService(open_round())
        service.replies = [httpx.ReadTimeout("lost")] * 3
        device = service.device()
        with pytest.raises(Unreachable):
            device.report(RECORD)
        service.rounds = [open_round(spec=round_spec(0.5))]
        n_sent = len(service.sent)
        with pytest.raises(RoundRefused):
            device.report(RECORD)
        assert len(service.sent) == n_sent

    def test_the_same_round_written_otherwise_is_the_same(self) -> None:
        service = ScriptedService(open_round())
        device = service.device()
        device.report(RECORD)
        wire = open_round()
        wire["spec"] = dict(reversed(wire["spec"].items()))
        wire["spec"]["features"] = [{**f, "lower": int(f["lower"])} for f in wire["spec"]["features"]]
        service.rounds = [wire]
        assert device.report(RECORD).outcome is Outcome.ALREADY_ANSWERED

    def test_a_spec_of_another_version_or_with_unknown_parts(self) -> None:
        for change in ({"version": 2}, {"extra": 1}, {"mechanism": {"type": "oue"}}):
            wire = open_round()
            wire["spec"] |= change
            service = ScriptedService(wire)
            with pytest.raises(InvalidSpec):
                service.device().report(RECORD)
            assert service.sent == []

    def test_one_that_cannot_be_read_does_not_keep_the_others_from_being_answered(self) -> None:
        service = ScriptedService(open_round("rnd_new") | {"spec": {"version": 2}}, open_round())
        receipt = service.device().report(RECORD)
        assert [answered.outcome for answered in receipt.rounds] == [Outcome.REFUSED, Outcome.SENT]

    def test_features_other_than_the_app_was_built_for(self) -> None:
        service = ScriptedService(open_round())
        assert service.device(features=FEATURES).report(RECORD).outcome is Outcome.SENT
        for others in (FEATURES[::-1], (Feature("x", 0, 1), FEATURES[1])):
            with pytest.raises(RoundRefused, match="other features"):
                service.device(features=others).report(RECORD)

    @pytest.mark.parametrize(
        "rounds",
        [
            [open_round("../../keys")],
            [open_round("rnd_1/close?")],
            [open_round("")],
            [open_round("r" * 65)],
            [open_round(collection_id=None)],
            [open_round(), open_round()],
            [open_round(f"rnd_{i}") for i in range(65)],
            ["rnd_1"],
        ],
    )
    def test_a_list_of_rounds_that_cannot_be(self, rounds: list[Any]) -> None:
        service = ScriptedService(*rounds)
        with pytest.raises(InvalidSpec):
            service.device(cap=32).report(RECORD)
        assert service.sent == []

    def test_a_dataset_id_that_would_lead_elsewhere(self) -> None:
        with pytest.raises(InvalidSpec):
            Device("http://service.example", "k", "ds_1/../x", cap=1, store=MemoryStore())


class TestProblems:
    def test_a_round_that_closed_meanwhile_is_settled_and_stays_charged(self) -> None:
        service = ScriptedService(open_round())
        service.replies = [refusal(409, "round_closed")]
        device = service.device()
        assert device.report(RECORD).outcome is Outcome.TOO_LATE
        assert device.pending() == ()
        assert device.spent == 1.0
        assert device.report(RECORD).outcome is Outcome.ALREADY_ANSWERED
        assert len(service.sent) == 1

    @pytest.mark.parametrize(("status", "code"), [(422, "report_malformed"), (404, "not_found"), (413, "too_large")])
    def test_a_report_the_service_will_not_have_is_kept_as_refused_and_not_sent_again(
        self, status: int, code: str
    ) -> None:
        service = ScriptedService(open_round())
        service.replies = [refusal(status, code)]
        store = MemoryStore()
        device = service.device(store=store)
        with pytest.raises(ApiProblem) as raised:
            device.report(RECORD)
        assert raised.value.code == code
        assert store.read("ds_1").memos["rnd_1"].state == "refused"
        assert device.report(RECORD).outcome is Outcome.ALREADY_ANSWERED
        assert device.flush() == ()
        assert len(service.sent) == 1
        assert device.spent == 1.0

    @pytest.mark.parametrize(("status", "code"), [(401, "unauthenticated"), (403, "forbidden"), (429, "rate_limited")])
    def test_a_fault_that_is_not_the_reports_keeps_it_for_later(self, status: int, code: str) -> None:
        service = ScriptedService(open_round())
        service.replies = [refusal(status, code)] * (3 if status == 429 else 1)
        device = service.device()
        with pytest.raises(ApiProblem):
            device.report(RECORD)
        assert device.pending() == ("rnd_1",)
        assert device.report(RECORD).outcome is Outcome.SENT
        assert len(set(service.bodies())) == 1

    def test_flush_raises_what_the_service_said(self) -> None:
        service = ScriptedService(open_round())
        service.replies = [refusal(503, "unavailable")] * 6
        device = service.device()
        with pytest.raises(ApiProblem):
            device.report(RECORD)
        with pytest.raises(ApiProblem, match="503"):
            device.flush()
        assert device.pending() == ("rnd_1",)

    def test_without_the_list_of_rounds_nothing_is_drawn(self) -> None:
        entropy = GeneratorEntropy(1)

        def away(request: httpx.Request) -> httpx.Response:
            raise httpx.ConnectError("no")

        with pytest.raises(Unreachable):
            ScriptedService().device(away, entropy=entropy).report(RECORD)
        assert entropy.n_drawn == 0

    def test_a_damaged_memory_answers_nothing(self, tmp_path: Path) -> None:
        service = ScriptedService(open_round())
        service.device(store=tmp_path / "device.json").report(RECORD)
        path = tmp_path / "device.json"
        path.write_bytes(path.read_bytes()[:-30])
        service.rounds = [open_round("rnd_2")]
        with pytest.raises(StoreUnusable):
            service.device(store=path).report(RECORD)
        assert len(service.sent) == 1

    def test_errors_and_receipts_carry_neither_key_nor_value(self) -> None:
        service = ScriptedService(open_round())
        service.replies = [refusal(422, "report_malformed")]
        with pytest.raises(ApiProblem) as raised:
            service.device().report(RECORD)
        value = json.loads(service.bodies()[0])["value"]
        assert value not in repr(raised.value)
        assert "sfk_device" not in repr(raised.value)
