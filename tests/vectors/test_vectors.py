"""The committed vectors are what the Python device does, and they cover every mechanism and encoding."""

import contextlib
import copy
import json
from typing import Any

import httpx
import pytest

from sfumato.device.store import MemoryStore
from sfumato.errors import ApiProblem, SfumatoError
from sfumato.privacy.accounting import parse_epsilon
from sfumato.privacy.entropy import below
from sfumato.records.outside import encode
from sfumato.specs import Feature, round_spec_from_wire
from sfumato.specs.attributes import attributes_from_wire
from sfumato.specs.wire import ENCODINGS, MECHANISMS
from tests.sfumato.replay import ReplayEntropy
from tests.sfumato.scripted import ScriptedService
from tests.vectors.files import DIRECTORY, rendered
from tests.vectors.words import words_of


def committed(name: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((DIRECTORY / f"{name}.json").read_text())[name]
    return cases


def named(name: str) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in committed(name)]


def test_the_files_are_what_the_code_makes() -> None:
    """If this fails and the change is meant: `python -m tests.vectors`, and raise the spec's version."""
    on_disk = {path.name: path.read_text() for path in DIRECTORY.glob("*.json")}
    assert on_disk == rendered()


class TestCoverage:
    def test_there_are_enough(self) -> None:
        assert sum(len(case["reports"]) for case in committed("reports")) >= 200
        assert len(committed("refusals")) >= 30

    def test_every_mechanism_goes_over_every_encoding_it_can(self) -> None:
        seen = {(c["spec"]["mechanism"]["type"], c["spec"]["encoding"]["type"]) for c in committed("reports")}
        wanted = {(m, e) for m in MECHANISMS for e in ENCODINGS if (m == "discrete_laplace") == (e == "lattice")}
        assert seen == wanted

    def test_every_error_a_device_decides_on_is_refused_for(self) -> None:
        errors = {case["calls"][0]["error"] for case in committed("refusals")}
        assert errors == {"validation_failed", "point_invalid", "cap_exceeded", "round_refused"}

    def test_a_round_with_another_declaration_is_refused_before_a_word_is_drawn(self) -> None:
        calls = [
            case["calls"][0] for case in committed("refusals") if case["name"].startswith(("the app", "a round that"))
        ]
        assert len(calls) == 10
        assert {(call["error"], call["entropy"]) for call in calls} == {("round_refused", "")}

    def test_a_place_that_the_app_does_not_declare_is_refused_before_a_word_is_drawn(self) -> None:
        calls = [
            case["calls"][0]
            for case in committed("refusals")
            if " and no features, " in case["name"] or " and other features, " in case["name"]
        ]
        assert len(calls) == 12
        assert {(call["error"], call["entropy"]) for call in calls} == {("round_refused", "")}

    def test_words_are_drawn_again_somewhere(self) -> None:
        """A device that takes the remainder of a rejected word would pass without such cases."""
        turned_down = 0
        for case in committed("reports"):
            n_slots = round_spec_from_wire(case["spec"]).encoding.n_slots
            run = 2**64 // n_slots
            turned_down += sum(words_of(each["entropy"])[0] // run >= n_slots for each in case["reports"])
        assert turned_down >= 10


@pytest.mark.parametrize("case", named("reports"))
def test_reports(case: dict[str, Any]) -> None:
    spec = round_spec_from_wire(case["spec"])
    assert str(spec.mechanism.epsilon_nano()) == case["epsilon_nano"]
    assert spec.mechanism.value_bytes == case["value_bytes"]
    for each in case["reports"]:
        words = words_of(each["entropy"])
        entropy = ReplayEntropy(words)
        slot = below(entropy, spec.encoding.n_slots)
        own = encode(spec, each["record"], slot, entropy)
        assert (slot, list(own) if isinstance(own, tuple) else own) == (each["slot"], each["symbol"])
        value = spec.mechanism.perturb(own, entropy)
        assert value.hex() == each["value"]
        assert entropy.n_drawn == len(words)
        assert spec.mechanism.is_value(value)


def test_caps() -> None:
    for case in committed("caps"):
        assert str(parse_epsilon(case["epsilon"])) == case["epsilon_nano"]


@pytest.mark.parametrize("case", named("answers"))
def test_answers(case: dict[str, Any]) -> None:
    call = committed("devices")[0]["calls"][0]
    store, service = MemoryStore(), ScriptedService(*call["open"]["rounds"])
    headers = {"Content-Type": case["content_type"]}
    service.replies = [httpx.Response(case["status"], headers=headers, text=case["body"])]
    device = service.device(store=store, retry_seconds=0)
    with contextlib.nullcontext() if case["state"] in {"acknowledged", "closed"} else pytest.raises(ApiProblem):
        device.report(call["record"])
    assert store.read("ds_1").memos["rnd_1"].state == case["state"]
    assert device.report(call["record"]).outcome == ("sent" if case["state"] == "pending" else "already_answered")
    assert len(service.sent) == (2 if case["state"] == "pending" else 1)
    assert len(set(service.sent)) == 1
    assert device.spent == call["open"]["rounds"][0]["epsilon"]


@pytest.mark.parametrize("case", [*named("devices"), *named("refusals")])
def test_devices(case: dict[str, Any]) -> None:
    store, service = MemoryStore(), ScriptedService()
    for call in case["calls"]:
        service.rounds = copy.deepcopy(call["open"]["rounds"])
        service.sent.clear()
        words = words_of(call["entropy"])
        entropy = ReplayEntropy(words)
        limit, clock = case["cap_per_period"], float(call["clock"])
        device = service.device(
            cap=case["cap"],
            cap_per_period=None if limit is None else (limit["period"], limit["epsilon"]),
            store=store,
            entropy=entropy,
            accept_kept_reports=case["accept_kept_reports"],
            features=None if case["features"] is None else [Feature(**each) for each in case["features"]],
            attributes=attributes_from_wire(case["attributes"]),
            clock=lambda clock=clock: clock,
        )
        if call["error"]:
            with pytest.raises(SfumatoError) as caught:
                device.report(call["record"])
            assert caught.value.code == call["error"]
        else:
            receipt = device.report(call["record"])
            assert receipt.outcome == call["outcome"]
            told = [
                (each.round_id, str(each.outcome), each.error and each.error.code, list(each.outside))
                for each in receipt.rounds
            ]
            assert told == [(each["id"], each["outcome"], each["error"], each["outside"]) for each in call["rounds"]]
        assert [(each, json.loads(body)) for each, body in service.sent] == [
            (each["id"], json.loads(each["body"])) for each in call["sent"]
        ]
        assert entropy.n_drawn == len(words)
