"""`Device.check` validates a record, sends nothing and reads no memory."""

from dataclasses import replace
from typing import Any

import pytest

from sfumato import mechanisms
from sfumato.errors import InvalidPoint, InvalidSpec, RoundRefused
from sfumato.privacy.accounting import NANO
from sfumato.specs import PhaseEncoding, RoundSpec
from sfumato.specs.attributes import Categorical, Numeric
from tests.sfumato.scripted import FEATURES, RECORD, ScriptedService, open_round


class _Unusable:
    """A store that a check must not use."""

    def read(self, dataset_id: str) -> Any:
        raise AssertionError(dataset_id)

    changing = read


class TestCheck:
    def test_sends_no_report_and_reads_no_memory(self) -> None:
        service = ScriptedService(open_round())
        check = service.device(store=_Unusable()).check({"y": 7.5, "x": 3.5})
        assert (check.outside, service.sent) == ((), [])

    def test_names_the_features_outside_of_their_bounds(self) -> None:
        device = ScriptedService(open_round()).device()
        assert device.check([0, 8]).outside == ()
        assert device.check([-0.001, 9]).outside == ("x", "y")

    @pytest.mark.parametrize("record", [[1.0], [1, float("nan")], {"x": 1.0}, {"x": 1, "y": 2, "z": 3}])
    def test_refuses_an_invalid_record(self, record: Any) -> None:
        with pytest.raises(InvalidPoint):
            ScriptedService(open_round()).device().check(record)

    def test_takes_the_features_of_the_app_without_a_request(self) -> None:
        service = ScriptedService(open_round())
        assert service.device(features=FEATURES).check(RECORD).outside == ()
        assert service.requests == []

    def test_checks_the_attributes_of_a_round_that_the_app_reports(self) -> None:
        attribute = Categorical("plan", ["free", "pro"], use="cluster")
        encoding = PhaseEncoding(((900, 1),), 16, (attribute,), ((1,),))
        spec = RoundSpec(FEATURES, encoding, mechanisms.design("window", 16, NANO))
        service, record = ScriptedService(open_round(spec=spec)), {"x": 1, "y": 9, "plan": "pro", "age": 3}
        device = service.device(attributes=["plan", "age"])
        assert device.check(record).outside == ("y",)
        for plan in ("gold", None, 3):
            with pytest.raises(InvalidPoint, match="plan"):
                device.check(record | {"plan": plan})
        assert service.device(attributes=["age"]).check({"x": 1, "y": 2, "age": 3}).outside == ()
        assert service.sent == []

    def test_asks_for_features_while_no_round_is_open(self) -> None:
        with pytest.raises(InvalidSpec, match="pass `features`"):
            ScriptedService().device().check(RECORD)


PLAN = Categorical("plan", ["free", "pro"], use="cluster")


class TestDeclaredAttributes:
    def service(self) -> ScriptedService:
        encoding = PhaseEncoding(((900, 1),), 16, (PLAN,), ((1,),))
        return ScriptedService(open_round(spec=RoundSpec(FEATURES, encoding, mechanisms.design("window", 16, NANO))))

    def test_of_the_dataset_are_accepted(self) -> None:
        for declared in ("plan", PLAN, replace(PLAN, use="describe")):
            service = self.service()
            service.device(attributes=[declared]).report({"x": 1, "y": 2, "plan": "pro"})
            assert len(service.sent) == 1

    @pytest.mark.parametrize(
        "declared",
        [
            replace(PLAN, values=("free", "gold")),
            replace(PLAN, values=("pro", "free")),
            replace(PLAN, unknown="other"),
            replace(PLAN, missing="category"),
            Numeric("plan", [0, 1, 2]),
        ],
    )
    @pytest.mark.parametrize("plan", ["free", "pro", "gold", None])
    def test_refuse_another_declaration_for_each_value(self, declared: Any, plan: str | None) -> None:
        service = self.service()
        with pytest.raises(RoundRefused, match="declares plan with other values"):
            service.device(attributes=[declared]).report({"x": 1, "y": 2, "plan": plan})
        assert service.sent == []

    def test_are_names_or_attributes(self) -> None:
        for wrong in ("plan", [3]):
            with pytest.raises(InvalidSpec, match="a list of names and attributes"):
                ScriptedService().device(attributes=wrong)


class TestFeatures:
    def test_a_round_with_other_features_names_what_differs(self) -> None:
        first, second = FEATURES
        cases = {
            (second, first): "its order is x, y, not y, x",
            (first,): "it also has y",
            (first, replace(second, name="z")): "it lacks z and it also has y",
            (first, replace(second, upper=1e6)): "the bounds, the unit or the shape of y differ",
        }
        for features, difference in cases.items():
            with pytest.raises(RoundRefused, match=difference):
                ScriptedService(open_round()).device(features=features).report(RECORD)
