"""`Device.check` validates a record, sends nothing and reads no memory."""

from collections import namedtuple
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from sfumato import mechanisms
from sfumato.device.store import Memory, MemoryStore
from sfumato.errors import InvalidPoint, InvalidSpec, RoundRefused
from sfumato.privacy.accounting import NANO
from sfumato.specs import PhaseEncoding, RoundSpec
from sfumato.specs.attributes import Categorical, Numeric
from tests.sfumato.scripted import FEATURES, RECORD, ScriptedService, open_round, place_spec

PLAN = Categorical("plan", ["free", "pro"], use="cluster")
AGE = Numeric("age", [0, 18, 120])


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

    @pytest.mark.parametrize("features", [None, FEATURES])
    def test_reads_the_declared_attributes_without_a_round_about_them(self, features: Any) -> None:
        service, record = ScriptedService(open_round()), {"x": 1, "y": 9, "plan": "pro", "age": 3}
        device = service.device(features=features, attributes=[PLAN, AGE])
        assert device.check(record).outside == ("y",)
        for wrong in ({"plan": "gold"}, {"plan": None}, {"plan": 3}, {"age": "old"}, {"age": None}):
            with pytest.raises(InvalidPoint, match=next(iter(wrong))):
                device.check(record | wrong)
        with pytest.raises(InvalidPoint, match="values plan are missing"):
            device.check({"x": 1, "y": 9, "age": 3})
        with pytest.raises(InvalidPoint, match="must have names"):
            device.check([1, 9])
        assert service.sent == []

    def test_asks_for_features_while_no_round_is_open(self) -> None:
        with pytest.raises(InvalidSpec, match="pass `features`"):
            ScriptedService().device().check(RECORD)


class TestDeclaredAttributes:
    def service(self) -> ScriptedService:
        encoding = PhaseEncoding(((900, 1),), 16, (PLAN,), ((1,),))
        return ScriptedService(open_round(spec=RoundSpec(FEATURES, encoding, mechanisms.design("window", 16, NANO))))

    def test_of_the_dataset_are_accepted(self) -> None:
        for declared in (PLAN, replace(PLAN, use="describe"), replace(PLAN, weight=2)):
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
        with pytest.raises(RoundRefused, match="does not declare, or declares otherwise: plan"):
            service.device(attributes=[declared]).report({"x": 1, "y": 2, "plan": plan})
        assert service.sent == []

    @pytest.mark.parametrize("kind", [dict, namedtuple("Person", ["x", "y", "plan", "age"]), pd.Series])
    def test_are_left_out_of_rounds_without_them(self, kind: Any) -> None:
        record = {"x": 1, "y": 2, "plan": "pro", "age": 3}
        person = kind(record) if kind in {dict, pd.Series} else kind(**record)
        service = self.service()
        service.rounds.append(open_round("rnd_2"))
        outcomes = service.device(attributes=[PLAN, AGE]).report(person).rounds
        assert [str(each.outcome) for each in outcomes] == ["sent", "sent"]

    @pytest.mark.parametrize("plan", ["free", "pro", "gold", None])
    def test_are_compared_before_a_word_is_drawn(self, plan: str | None) -> None:
        service, store = self.service(), MemoryStore()
        with pytest.raises(RoundRefused):
            service.device(store=store, attributes=[replace(PLAN, unknown="other")]).report(
                {"x": 1, "y": 2, "plan": plan}
            )
        assert store.read("ds_1") == Memory()

    def test_are_not_names(self) -> None:
        for wrong in ("plan", ["plan"], [PLAN, "age"], [3], [{"kind": "categorical", "name": "plan"}]):
            with pytest.raises(InvalidSpec, match="attributes must be declared, not named: pass each as Categorical"):
                ScriptedService().device(attributes=wrong)

    def test_have_unique_names(self) -> None:
        with pytest.raises(InvalidSpec, match="'plan' occurs twice"):
            ScriptedService().device(attributes=[PLAN, replace(PLAN, values=("free", "gold"))])


class TestPlaces:
    @pytest.mark.parametrize("latitude", [60.0, 90.5, -1e300])
    @pytest.mark.parametrize("longitude", [10.0, 360.5])
    def test_that_the_app_does_not_declare_are_refused_for_each_record(self, latitude: float, longitude: float) -> None:
        service, store = ScriptedService(open_round(spec=place_spec())), MemoryStore()
        with pytest.raises(RoundRefused, match="Declare the features of the app: pass those of the dataset"):
            service.device(store=store).report({"latitude": latitude, "longitude": longitude})
        assert (service.sent, store.read("ds_1")) == ([], Memory())

    def test_of_the_app_are_answered_and_other_degrees_are_refused(self) -> None:
        service = ScriptedService(open_round(spec=place_spec()))
        device = service.device(features=place_spec().features)
        with pytest.raises(InvalidPoint, match="latitude must be from -90 to 90 degrees"):
            device.report({"latitude": 90.5, "longitude": 10})
        assert device.report({"latitude": 60, "longitude": 10}).outcome == "sent"

    def test_are_compared_with_features_of_the_app_that_are_no_place(self) -> None:
        plain = [replace(each, coordinate=None) for each in place_spec().features]
        for latitude in (60.0, 90.5):
            service = ScriptedService(open_round(spec=place_spec()))
            with pytest.raises(RoundRefused, match="the shape of latitude, longitude differ"):
                service.device(features=plain).report({"latitude": latitude, "longitude": 10})
            assert service.sent == []


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
