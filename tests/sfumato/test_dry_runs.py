"""Dry runs: what would be sent and what it would cost, with nothing sent and nothing remembered."""

import base64

import pytest

from sfumato import mechanisms
from sfumato.accounting import DRAW_SPAN
from sfumato.dry_runs import dry_run
from sfumato.errors import ApiProblem, CapExceeded, InvalidPoint, InvalidSpec
from sfumato.specs import Draw
from sfumato.store import MemoryStore
from tests.sfumato.scripted import ScriptedService, open_round, round_spec

RECORD = [0.6, 0.2]


class TestARound:
    def test_says_what_it_costs_and_what_is_sent(self) -> None:
        spec = round_spec(epsilon=1.5)
        found = dry_run(spec, [RECORD] * 50)
        assert found.epsilon == mechanisms.epsilon_nano(spec.mechanism) / 1e9
        assert (found.share_asked, found.n_records, found.n_reports) == (1.0, 50, 50)
        assert found.report_bytes == 20 + mechanisms.value_bytes(spec.mechanism)
        assert all(mechanisms.is_value(spec.mechanism, bytes(value)) for value in found.reports.values)

    def test_asks_the_share_of_the_devices_that_the_draw_does(self) -> None:
        found = dry_run(round_spec(draw=Draw(0, DRAW_SPAN // 4)), [RECORD] * 4000)
        assert found.share_asked == 0.25
        assert 800 < found.n_reports < 1200  # 1000 with a standard deviation of 27

    def test_is_blurred_anew_each_time(self) -> None:
        runs = {dry_run(round_spec(), [RECORD] * 20).reports.report_ids.tobytes() for _ in range(10)}
        assert len(runs) == 10

    def test_does_not_print_reports(self) -> None:
        assert "reports=" not in repr(dry_run(round_spec(), [RECORD]))

    def test_of_records_that_do_not_fit_is_refused(self) -> None:
        with pytest.raises(InvalidPoint):
            dry_run(round_spec(), [[0.1, float("inf")]])


class TestADevice:
    def test_says_what_it_would_send_and_does_not(self) -> None:
        service, store = ScriptedService(open_round()), MemoryStore()
        device = service.device(store=store)
        seen = device.dry_run(RECORD)
        (prospect,) = seen.rounds
        assert (prospect.round_id, prospect.would, prospect.chance, prospect.error) == ("rnd_1", "send", 1.0, None)
        assert seen.epsilon == prospect.epsilon == 1.0
        assert (seen.spent, seen.cap) == (0.0, 2.0)
        assert prospect.body is not None
        assert set(prospect.body) == {"report_id", "slot", "value"}
        spec = round_spec()
        assert mechanisms.is_value(spec.mechanism, base64.b64decode(str(prospect.body["value"])))
        assert "body" not in repr(prospect)
        assert service.bodies() == []
        assert store.read("ds_1").memos == {}
        assert store.read("ds_1").draws == {}

    def test_then_reports_as_it_said(self) -> None:
        service = ScriptedService(open_round())
        device = service.device()
        device.dry_run(RECORD)
        assert device.report(RECORD).rounds[0].epsilon == 1.0
        (prospect,) = device.dry_run(RECORD).rounds
        assert (prospect.would, prospect.epsilon, prospect.body) == ("already_answered", 0.0, None)
        assert device.dry_run(RECORD).spent == 1.0

    def test_tells_the_chance_that_a_round_asks_it(self) -> None:
        asked = open_round(spec=round_spec(draw=Draw(0, DRAW_SPAN // 4)))
        service, store = ScriptedService(asked), MemoryStore()
        seen = service.device(store=store).dry_run(RECORD)
        assert (seen.rounds[0].would, seen.rounds[0].chance) == ("send", 0.25)
        assert store.read("ds_1").draws == {}

    def test_tells_of_each_round_of_a_collection_alone(self) -> None:
        rounds = [
            open_round(name, round_spec(draw=draw), collection_id="rnd_1")
            for name, draw in (("rnd_1", Draw()), ("rnd_2", Draw(DRAW_SPAN // 2, DRAW_SPAN)))
        ]
        seen = ScriptedService(*rounds).device(cap=8).dry_run(RECORD)
        assert [(each.would, each.chance) for each in seen.rounds] == [("send", 1.0), ("send", 0.5)]

    def test_whose_draw_is_made_knows(self) -> None:
        asked = open_round(spec=round_spec(draw=Draw(0, DRAW_SPAN // 4)))
        for draw, would in ((0, "send"), (DRAW_SPAN - 1, "not_drawn")):
            store = MemoryStore()
            with store.changing("ds_1") as memory:
                memory.draws[asked["collection_id"]] = draw
            (prospect,) = ScriptedService(asked).device(store=store).dry_run(RECORD).rounds
            assert (prospect.would, prospect.chance) == (would, 1.0)

    def test_says_why_it_would_refuse(self) -> None:
        (prospect,) = ScriptedService(open_round()).device(cap=0.5).dry_run(RECORD).rounds
        assert prospect.would == "refuse"
        assert isinstance(prospect.error, CapExceeded)
        (prospect,) = ScriptedService(open_round()).device().dry_run([0.5]).rounds
        assert isinstance(prospect.error, InvalidPoint)
        broken = open_round() | {"spec": {"version": 7}}
        (prospect,) = ScriptedService(broken).device().dry_run(RECORD).rounds
        assert isinstance(prospect.error, InvalidSpec)

    def test_counts_rounds_together_against_its_cap(self) -> None:
        service = ScriptedService(open_round("rnd_1"), open_round("rnd_2", collection_id="rnd_2"))
        seen = service.device(cap=1.5).dry_run(RECORD)
        assert [each.would for each in seen.rounds] == ["send", "refuse"]
        assert seen.epsilon == 1.0

    def test_sees_nothing_where_nothing_is_open(self) -> None:
        seen = ScriptedService().device().dry_run(RECORD)
        assert (seen.rounds, seen.epsilon) == ((), 0.0)

    def test_fails_where_the_service_does(self) -> None:
        from tests.sfumato.scripted import refusal

        service = ScriptedService(open_round())
        with pytest.raises(ApiProblem):
            service.device(transport=lambda _: refusal(404, "not_found"), retry_seconds=0).dry_run(RECORD)
