"""A device refuses rounds beyond its cap, rounds that changed, and rounds with a false cost."""

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from sfumato import mechanisms
from sfumato.device.device import Device
from sfumato.device.outcomes import Outcome
from sfumato.device.store import FileStore, MemoryStore
from sfumato.errors import (
    ApiProblem,
    CapExceeded,
    InvalidEpsilon,
    InvalidSpec,
    RoundRefused,
    StoreUnusable,
    Unreachable,
)
from sfumato.privacy.accounting import DRAW_SPAN, NANO
from sfumato.specs import Feature, GrrMechanism, Participation, RoundSpec, ShiftedGridEncoding
from tests.sfumato.replay import GeneratorEntropy, ReplayEntropy
from tests.sfumato.scripted import FEATURES, RECORD, ScriptedService, open_round, refusal, round_spec

pytestmark = pytest.mark.usefixtures("three_attempts")


class TestCap:
    def test_refuses_a_round_beyond_the_cap_and_sends_nothing(self) -> None:
        service = ScriptedService(open_round(spec=round_spec(2.5)))
        device = service.device(cap=2)
        with pytest.raises(CapExceeded) as refused:
            device.report(RECORD)
        error = refused.value
        assert (error.cost_nano, error.spent_nano, error.cap_nano) == (2_500_000_000, 0, 2 * NANO)
        assert service.sent == []
        assert device.spent == 0
        assert device.pending() == ()

    def test_spends_the_cap_to_the_last_nano_epsilon(self) -> None:
        service = ScriptedService()
        device = service.device(cap=0.3)
        for index in range(3):  # floats would not leave .1 of .3 - .1 - .1
            service.rounds = [open_round(f"rnd_{index}", round_spec(0.1))]
            assert device.report(RECORD).outcome is Outcome.SENT
        service.rounds = [open_round("rnd_3", round_spec(1e-6))]
        with pytest.raises(CapExceeded):
            device.report(RECORD)
        assert device.spent == 0.3

    def test_counts_closed_rounds_and_earlier_devices(self, tmp_path: Path) -> None:
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

    @pytest.mark.parametrize("declared", [0.999999999, 1e-6])
    def test_refuses_a_declared_cost_below_the_real_cost(self, declared: float) -> None:
        service = ScriptedService(open_round(spec=round_spec(1), epsilon=declared))
        device = service.device(cap=32)
        with pytest.raises(RoundRefused, match=r"costs 1$"):
            device.report(RECORD)
        assert service.sent == []
        assert device.spent == 0

    @pytest.mark.parametrize("declared", [None, "1", 0, 33, True, float("1e300"), [1]])
    def test_refuses_an_impossible_declared_cost(self, declared: Any) -> None:
        service = ScriptedService(open_round(epsilon=declared))
        with pytest.raises(InvalidSpec):
            service.device(cap=32).report(RECORD)
        assert service.sent == []

    def test_charges_the_real_cost_below_the_declared_cost(self) -> None:
        service = ScriptedService(open_round(spec=round_spec(1), epsilon=1.5))
        device = service.device()
        device.report(RECORD)
        assert device.spent == 1.0

    @pytest.mark.parametrize(
        ("threshold", "message"), [(DRAW_SPAN, "reveals its symbol"), (DRAW_SPAN - 1, "epsilon 32 but costs 47")]
    )
    def test_refuses_a_round_without_noise_for_any_cap(self, threshold: int, message: str) -> None:
        spec = RoundSpec(FEATURES, round_spec().encoding, GrrMechanism(16, threshold))
        service = ScriptedService(open_round(spec=spec, epsilon=32))
        with pytest.raises((InvalidSpec, RoundRefused), match=message):
            service.device(cap=32).report(RECORD)
        assert service.sent == []

    def test_sends_what_fits_and_returns_errors_of_other_rounds(self) -> None:
        service = ScriptedService(open_round("rnd_1", round_spec(1.5)), open_round("rnd_2", round_spec(1)))
        device = service.device(cap=2)
        receipt = device.report(RECORD)
        assert [answered.outcome for answered in receipt.rounds] == [Outcome.SENT, Outcome.REFUSED]
        assert isinstance(receipt.rounds[1].error, CapExceeded)
        assert list(service.stored) == ["rnd_1"]
        with pytest.raises(CapExceeded):
            device.report(RECORD)

    @pytest.mark.parametrize("cap", [0, float("nan"), True, "much", 33])
    def test_refuses_an_impossible_cap(self, cap: Any) -> None:
        with pytest.raises(InvalidEpsilon):
            ScriptedService().device(cap=cap)


class TestDraw:
    def test_reports_only_to_rounds_that_contain_its_draw(self) -> None:
        lower = round_spec(participation=Participation(0, 1000))
        upper = round_spec(participation=Participation(1000, DRAW_SPAN))
        for draw, answered in [(0, "rnd_l"), (999, "rnd_l"), (1000, "rnd_u"), (DRAW_SPAN - 1, "rnd_u")]:
            service = ScriptedService(
                open_round("rnd_l", lower, collection_id="job_1"), open_round("rnd_u", upper, collection_id="job_1")
            )
            entropy = ReplayEntropy([draw, *[5] * 40])
            receipt = service.device(entropy=entropy).report(RECORD)
            assert receipt.outcome is Outcome.SENT
            assert list(service.stored) == [answered]
            assert {a.round_id: a.outcome for a in receipt.rounds}[answered] is Outcome.SENT
            assert {a.outcome for a in receipt.rounds} == {Outcome.SENT, Outcome.NOT_SELECTED}

    def test_draws_once_per_collection_and_stores_the_draw(self, tmp_path: Path) -> None:
        spec = round_spec(0.01, Participation(0, 2**63))
        service = ScriptedService()
        outcomes = set()
        for index in range(20):
            service.rounds = [open_round(f"rnd_{index}", spec, collection_id="job_1", index=index)]
            outcomes.add(service.device(store=tmp_path / "device.json").report(RECORD).outcome)
        assert len(outcomes) == 1  # twenty fresh draws would agree once in 500,000 times
        assert list(FileStore(tmp_path / "device.json").read("ds_1").draws) == ["job_1"]

    def test_draws_anew_for_each_collection_and_never_sends_a_draw(self) -> None:
        service = ScriptedService(open_round("rnd_1"), open_round("rnd_2", round_spec(0.5)))
        store = MemoryStore()
        service.device(store=store, entropy=GeneratorEntropy(3)).report(RECORD)
        draws = store.read("ds_1").draws
        assert draws["rnd_1"] != draws["rnd_2"]
        bodies = b"".join(body for _, body in service.sent)
        for draw in draws.values():
            assert str(draw).encode() not in bodies
            assert draw.to_bytes(8, "little").hex().encode() not in bodies

    def test_spends_nothing_outside_of_its_rounds(self) -> None:
        service = ScriptedService(open_round(spec=round_spec(participation=Participation(0, 1))))
        device = service.device(entropy=ReplayEntropy([1]))
        assert device.report(RECORD).outcome is Outcome.NOT_SELECTED
        assert device.spent == 0
        assert service.sent == []

    def test_draws_every_slot(self) -> None:
        encoding = ShiftedGridEncoding(n_features=2, cells=3, shifts=2)
        spec = RoundSpec(FEATURES, encoding, mechanisms.design("ss", 16, NANO))
        slots = []
        for _ in range(120):
            service = ScriptedService(open_round(spec=spec))
            service.device(retry_seconds=0).report(RECORD)
            slots.append(service.stored["rnd_1"][0]["slot"])
        assert (np.bincount(slots, minlength=4) > 8).all()
        assert set(slots) == {0, 1, 2, 3}


class TestChangedRounds:
    def test_refuses_a_round_that_changed_since_its_report(self) -> None:
        service = ScriptedService(open_round())
        device = service.device()
        device.report(RECORD)
        for changed in (open_round(spec=round_spec(0.5)), open_round(collection_id="job_9")):
            service.rounds = [changed]
            with pytest.raises(RoundRefused, match="has changed since"):
                device.report(RECORD)
        assert len(service.sent) == 1
        service.rounds, service.replies = [open_round("rnd_2", round_spec(0.5))], [httpx.ReadTimeout("lost")] * 3
        with pytest.raises(Unreachable):
            device.report(RECORD)
        service.rounds = [open_round("rnd_2", round_spec(0.25))]  # with a pending report
        n_sent = len(service.sent)
        with pytest.raises(RoundRefused):
            device.report(RECORD)
        assert len(service.sent) == n_sent

    def test_accepts_another_notation_of_the_same_round(self) -> None:
        service = ScriptedService(open_round())
        device = service.device()
        device.report(RECORD)
        wire = open_round()
        wire["spec"] = dict(reversed(wire["spec"].items()))
        wire["spec"]["features"] = [{**f, "lower": int(f["lower"])} for f in wire["spec"]["features"]]
        service.rounds = [wire]
        assert device.report(RECORD).outcome is Outcome.ALREADY_ANSWERED

    def test_refuses_other_versions_and_unknown_parts(self) -> None:
        for change in ({"version": 2}, {"extra": 1}, {"mechanism": {"type": "oue"}}):
            wire = open_round()
            wire["spec"] |= change
            service = ScriptedService(wire)
            with pytest.raises(InvalidSpec):
                service.device().report(RECORD)
            assert service.sent == []

    def test_reports_to_other_rounds_despite_an_unreadable_one(self) -> None:
        service = ScriptedService(open_round("rnd_new") | {"spec": {"version": 2}}, open_round())
        receipt = service.device().report(RECORD)
        assert [answered.outcome for answered in receipt.rounds] == [Outcome.REFUSED, Outcome.SENT]

    def test_sends_no_unsealed_report_of_a_shuffled_round(self) -> None:
        service = ScriptedService(open_round() | {"hpke_public_key": "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="})
        with pytest.raises(RoundRefused, match="shuffled"):
            service.device().report(RECORD)
        assert service.sent == []

    @pytest.mark.parametrize("stated", [{"keep_reports": True}, {"keep_reports": None}, {"keep_reports": 0}, {}])
    def test_refuses_kept_reports_unless_its_owner_accepts(self, stated: dict[str, Any]) -> None:
        listed = open_round()
        del listed["keep_reports"]
        service, store = ScriptedService(listed | stated), MemoryStore()
        with pytest.raises(RoundRefused, match="accept_kept_reports=True"):
            service.device(store=store).report(RECORD)
        assert (service.sent, store.read("ds_1").draws) == ([], {})
        assert service.device(store=store, accept_kept_reports=True).report(RECORD).outcome is Outcome.SENT

    def test_resends_a_report_that_its_owner_accepted(self) -> None:
        service, store = ScriptedService(open_round(keep_reports=True)), MemoryStore()
        service.replies = [httpx.ReadError("the response was lost")] * 3
        with pytest.raises(Unreachable):
            service.device(store=store, accept_kept_reports=True, retry_seconds=0).report(RECORD)
        assert service.device(store=store).report(RECORD).outcome is Outcome.SENT
        assert len(set(service.sent)) == 1

    def test_refuses_features_that_the_app_does_not_support(self) -> None:
        service = ScriptedService(open_round())
        assert service.device(features=FEATURES).report(RECORD).outcome is Outcome.SENT
        for others in (FEATURES[::-1], (Feature("x", 0, 1), FEATURES[1])):
            with pytest.raises(RoundRefused, match="this app"):
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
    def test_refuses_an_impossible_list_of_rounds(self, rounds: list[Any]) -> None:
        service = ScriptedService(*rounds)
        with pytest.raises(InvalidSpec):
            service.device(cap=32).report(RECORD)
        assert service.sent == []

    def test_refuses_a_dataset_id_with_a_path(self) -> None:
        with pytest.raises(InvalidSpec):
            Device("http://service.example", "k", "ds_1/../x", cap=1, store=MemoryStore())


class TestProblems:
    def test_a_late_report_is_settled_and_stays_charged(self) -> None:
        service = ScriptedService(open_round())
        service.replies = [refusal(409, "round_closed")]
        device = service.device()
        assert device.report(RECORD).outcome is Outcome.TOO_LATE
        assert device.pending() == ()
        assert device.spent == 1.0
        assert device.report(RECORD).outcome is Outcome.ALREADY_ANSWERED
        assert len(service.sent) == 1

    @pytest.mark.parametrize(
        ("status", "code"), [(422, "report_malformed"), (422, "validation_failed"), (409, "conflict")]
    )
    def test_a_rejected_report_stays_charged_and_is_not_sent_again(self, status: int, code: str) -> None:
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

    @pytest.mark.parametrize(("status", "code"), [(401, "unauthenticated"), (503, "unavailable")])
    def test_another_problem_keeps_the_report_for_the_next_call(self, status: int, code: str) -> None:
        service = ScriptedService(open_round())
        service.replies = [refusal(status, code)] * (1 if status == 401 else 6)
        device = service.device()
        for send in (lambda: device.report(RECORD), device.flush)[: 1 if status == 401 else 2]:
            with pytest.raises(ApiProblem, match=str(status)):
                send()
            assert device.pending() == ("rnd_1",)
        assert device.report(RECORD).outcome is Outcome.SENT
        assert len(set(service.bodies())) == 1

    def test_draws_nothing_without_the_list_of_rounds(self) -> None:
        entropy = GeneratorEntropy(1)

        def away(request: httpx.Request) -> httpx.Response:
            raise httpx.ConnectError("no")

        with pytest.raises(Unreachable):
            ScriptedService().device(away, entropy=entropy).report(RECORD)
        assert entropy.n_drawn == 0

    def test_reports_nothing_with_a_damaged_store(self, tmp_path: Path) -> None:
        service = ScriptedService(open_round())
        service.device(store=tmp_path / "device.json").report(RECORD)
        path = tmp_path / "device.json"
        path.write_bytes(path.read_bytes()[:-30])
        service.rounds = [open_round("rnd_2")]
        with pytest.raises(StoreUnusable):
            service.device(store=path).report(RECORD)
        assert len(service.sent) == 1

    def test_errors_contain_neither_key_nor_value(self) -> None:
        service = ScriptedService(open_round())
        service.replies = [refusal(422, "report_malformed")]
        with pytest.raises(ApiProblem) as raised:
            service.device().report(RECORD)
        value = json.loads(service.bodies()[0])["value"]
        assert value not in repr(raised.value)
        assert "sfk_device" not in repr(raised.value)
