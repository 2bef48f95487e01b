"""The exact rows: all of them are there, the sound ones hold, and every planted leak is caught by name."""

from dataclasses import replace
from typing import get_args

import pytest

from audit import exact_arrays, exact_mechanisms
from audit.check import Check, Effort, Leak, Setting
from audit.exact_mechanisms import CHECKS, EXAMPLES, by_device, channel_of, completeness, look, rows, specs
from audit.planted.mechanisms import LEAKS, SlotOfTheRecord
from sfumato import mechanisms
from sfumato.errors import InvalidSpec
from sfumato.specs import ENCODINGS, MECHANISMS, Encoding, Mechanism

QUICK = Setting(Effort.QUICK, 1)
FAST = [(kind, "shifted_grid") for kind in ("grr", "ss", "oue", "hr", "window")] + [
    ("grr", "centroid_sign"),
    ("ss", "phase"),
    ("hr", "projected_grid"),
    ("window", "nearest_centroid"),
]


class TestRows:
    def test_there_is_one_for_every_mechanism_over_every_encoding(self) -> None:
        kinds = {kind.type for kind in get_args(Mechanism)}
        encodings = {kind.type for kind in get_args(Encoding)}
        assert set(EXAMPLES) == encodings
        assert {kind for kind, _ in rows()} == kinds
        assert len(rows()) == (len(kinds) - 1) * (len(encodings) - 1) + 1 == 49
        assert len(CHECKS) == 50
        (found,) = completeness(QUICK)
        assert found.holds

    def test_an_encoding_without_an_example_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(exact_mechanisms, "ENCODINGS", {**ENCODINGS, "new": object})
        (found,) = completeness(QUICK)
        assert not found.holds
        assert found.why == "new: no row"

    def test_a_new_mechanism_gets_rows_that_cannot_pass_unseen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(exact_mechanisms, "MECHANISMS", {**MECHANISMS, "new": object})
        assert [encoding for kind, encoding in rows() if kind == "new"] == [e for e in EXAMPLES if e != "lattice"]
        with pytest.raises(InvalidSpec):
            look("new", EXAMPLES["grid"], QUICK)

    @pytest.mark.parametrize(("kind", "encoding"), FAST)
    def test_sound_ones_hold_to_the_nano(self, kind: str, encoding: str) -> None:
        (found,) = look(kind, EXAMPLES[encoding], QUICK)
        assert found.why == ""
        assert found.holds
        assert found.measured == pytest.approx(found.charged, abs=1e-9)
        assert found.trials > 10

    @pytest.mark.slow
    @pytest.mark.ci
    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.subject)
    def test_all_hold(self, check) -> None:
        assert [found.why for found in check.run(QUICK)] == [""]


class TestArrays:
    @pytest.mark.parametrize(
        "check",
        [
            pytest.param(check, marks=[pytest.mark.slow, pytest.mark.ci] if check.subject.startswith("olh") else [])
            for check in exact_arrays.CHECKS
        ],
        ids=lambda check: check.subject,
    )
    def test_devices_in_one_are_independent(self, check: Check) -> None:
        (found,) = check.run(QUICK)
        assert found.why == ""
        assert found.holds
        assert found.trials > 10

    def test_all_mechanisms_that_count_are_looked_at(self) -> None:
        assert {check.subject for check in exact_arrays.CHECKS} == {
            f"{kind} in arrays" for kind in MECHANISMS if kind != "discrete_laplace"
        }


class TestLeaks:
    @pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.name)
    def test_each_is_caught(self, leak: Leak) -> None:
        found = leak.run(QUICK)
        assert any(not finding.holds and finding.why for finding in found)
        assert {finding.subject for finding in found} == {leak.subject}

    def test_each_has_a_name_of_its_own(self) -> None:
        assert len({leak.name for leak in LEAKS}) == len(LEAKS) >= 10

    def test_a_single_threshold_more_than_published_is_enough(self) -> None:
        spec = specs(EXAMPLES["grid"], "ss", 1.0)
        mechanism = replace(spec.mechanism, hold_threshold=spec.mechanism.hold_threshold + 1)
        published = channel_of(by_device(), spec, [(0.0, 0.0), (1.0, 1.0)]).largest_ratio()
        realised = channel_of(by_device(), replace(spec, mechanism=mechanism), [(0.0, 0.0), (1.0, 1.0)]).largest_ratio()
        assert published == mechanisms.ratio(spec.mechanism)
        assert realised > published

    def test_a_charge_of_a_nano_too_little_or_too_much_is_found(self) -> None:
        for off in (-1, 1):
            (found,) = look(
                "oue", EXAMPLES["tree_grid"], QUICK, charge=lambda m, off=off: mechanisms.epsilon_nano(m) + off
            )
            assert "do not cover" in found.why

    def test_a_device_with_a_slot_of_its_own_has_another_law(self) -> None:
        channel = channel_of(by_device(SlotOfTheRecord), specs(EXAMPLES["shifted_grid"], "grr", 1.0), [(0.0,), (1.0,)])
        assert channel.largest_ratio() is None
