"""Dry runs return reports and costs, and neither send nor store anything."""

import base64

import pytest

from sfumato.device.dry_runs import dry_run
from sfumato.device.store import MemoryStore
from sfumato.errors import ApiProblem, CapExceeded, InvalidPoint, InvalidSpec
from sfumato.privacy.accounting import DRAW_SPAN
from sfumato.specs import Participation
from tests.sfumato.scripted import ScriptedService, open_round, refusal, round_spec

RECORD = [0.6, 0.2]


class TestRound:
    def test_returns_the_cost_and_the_reports(self) -> None:
        spec = round_spec(epsilon=1.5)
        run = dry_run(spec, [RECORD] * 50)
        assert run.epsilon == spec.mechanism.epsilon_nano() / 1e9
        assert (run.participating_share, run.n_records, run.n_reports) == (1.0, 50, 50)
        assert run.report_bytes == 20 + spec.mechanism.value_bytes
        assert all(spec.mechanism.is_value(bytes(value)) for value in run.reports.values)

    def test_a_share_of_the_devices_participates(self) -> None:
        run = dry_run(round_spec(participation=Participation(0, DRAW_SPAN // 4)), [RECORD] * 4000)
        assert run.participating_share == 0.25
        assert 800 < run.n_reports < 1200  # 1000 with a standard deviation of 27
        assert "reports=" not in repr(run)

    def test_each_run_has_new_reports(self) -> None:
        assert len({dry_run(round_spec(), [RECORD] * 20).reports.report_ids.tobytes() for _ in range(10)}) == 10

    def test_refuses_records_that_do_not_fit(self) -> None:
        with pytest.raises(InvalidPoint):
            dry_run(round_spec(), [[0.1, float("inf")]])


class TestDevice:
    def test_returns_a_report_without_sending_it(self) -> None:
        service, store = ScriptedService(open_round()), MemoryStore()
        device = service.device(store=store)
        run = device.dry_run(RECORD)
        (prospect,) = run.rounds
        assert (prospect.round_id, prospect.would, prospect.probability, prospect.error) == ("rnd_1", "send", 1.0, None)
        assert run.epsilon == prospect.epsilon == 1.0
        assert (run.spent, run.cap) == (0.0, 2.0)
        assert prospect.body is not None
        assert set(prospect.body) == {"report_id", "slot", "value"}
        spec = round_spec()
        assert spec.mechanism.is_value(base64.b64decode(str(prospect.body["value"])))
        assert "body" not in repr(prospect)
        assert service.bodies() == []
        assert store.read("ds_1").memos == {}
        assert store.read("ds_1").draws == {}

    def test_states_whether_the_service_keeps_the_report(self) -> None:
        for keep in (False, True):
            service = ScriptedService(open_round(keep_reports=keep))
            (prospect,) = service.device(accept_kept_reports=True).dry_run(RECORD).rounds
            assert prospect.keep_reports is keep
        (prospect,) = service.device().dry_run(RECORD).rounds
        assert (prospect.would, str(prospect.error).count("accept_kept_reports=True")) == ("refuse", 1)

    def test_matches_the_report_that_follows(self) -> None:
        service = ScriptedService(open_round())
        device = service.device()
        device.dry_run(RECORD)
        assert device.report(RECORD).rounds[0].epsilon == 1.0
        (prospect,) = device.dry_run(RECORD).rounds
        assert (prospect.would, prospect.epsilon, prospect.body) == ("already_answered", 0.0, None)
        assert device.dry_run(RECORD).spent == 1.0

    def test_treats_the_rounds_of_a_collection_separately(self) -> None:
        rounds = [
            open_round(name, round_spec(participation=draw), collection_id="rnd_1")
            for name, draw in (("rnd_1", Participation()), ("rnd_2", Participation(DRAW_SPAN // 2, DRAW_SPAN)))
        ]
        run = ScriptedService(*rounds).device(cap=8).dry_run(RECORD)
        assert [(each.would, each.probability) for each in run.rounds] == [("send", 1.0), ("send", 0.5)]

    def test_uses_a_stored_draw(self) -> None:
        wire = open_round(spec=round_spec(participation=Participation(0, DRAW_SPAN // 4)))
        for draw, would in ((0, "send"), (DRAW_SPAN - 1, "not_selected")):
            store = MemoryStore()
            with store.changing("ds_1") as memory:
                memory.draws[wire["collection_id"]] = draw
            (prospect,) = ScriptedService(wire).device(store=store).dry_run(RECORD).rounds
            assert (prospect.would, prospect.probability) == (would, 1.0)

    def test_returns_the_reason_of_a_refusal(self) -> None:
        (prospect,) = ScriptedService(open_round()).device(cap=0.5).dry_run(RECORD).rounds
        assert prospect.would == "refuse"
        assert isinstance(prospect.error, CapExceeded)
        (prospect,) = ScriptedService(open_round()).device().dry_run([0.5]).rounds
        assert isinstance(prospect.error, InvalidPoint)
        broken = open_round() | {"spec": {"version": 7}}
        (prospect,) = ScriptedService(broken).device().dry_run(RECORD).rounds
        assert isinstance(prospect.error, InvalidSpec)

    def test_counts_all_rounds_against_the_cap(self) -> None:
        service = ScriptedService(open_round("rnd_1"), open_round("rnd_2", collection_id="rnd_2"))
        run = service.device(cap=1.5).dry_run(RECORD)
        assert [each.would for each in run.rounds] == ["send", "refuse"]
        assert run.epsilon == 1.0
        assert ScriptedService().device().dry_run(RECORD).rounds == ()

    def test_raises_the_problem_of_the_service(self) -> None:
        service = ScriptedService(open_round())
        with pytest.raises(ApiProblem):
            service.device(transport=lambda _: refusal(404, "not_run"), retry_seconds=0).dry_run(RECORD)
