"""Exact checks of mechanisms: every mechanism and encoding has one, sound ones pass, planted leaks are detected."""

from dataclasses import replace
from typing import get_args

import pytest

from audit.checks.check import Effort, Setting
from audit.mechanisms import exact_channels
from audit.mechanisms.exact_channels import (
    CHECKS,
    EXAMPLES,
    check_channel,
    check_completeness,
    device_reports,
    enumerate_channel,
    example_round,
    list_category_rows,
    list_counting_rows,
    list_rows,
)
from audit.planted.mechanisms import LEAKS, ClampedSlotByRecord
from sfumato.errors import InvalidSpec
from sfumato.specs import ENCODINGS, MECHANISMS, Encoding

QUICK = Setting(Effort.QUICK, 1)
ARRAYS = [check for check in CHECKS if check.subject.endswith(" in arrays")]


class TestRows:
    def test_every_mechanism_and_encoding_has_a_row(self) -> None:
        kinds = set(MECHANISMS)
        encodings = {kind.type for kind in get_args(Encoding)}
        assert set(EXAMPLES) == encodings
        assert {kind for kind, _ in list_rows()} == kinds
        assert len(list_rows()) == (len(kinds) - 1) * (len(encodings) - 1) + 1 == 43
        rows = len(list_rows()) + len(list_counting_rows()) + len(list_category_rows())
        assert len(CHECKS) == 1 + rows + len(ARRAYS) == 70
        (finding,) = check_completeness(QUICK)
        assert finding.holds

    def test_an_encoding_without_an_example_is_detected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(exact_channels, "ENCODINGS", {**ENCODINGS, "new": object})
        (finding,) = check_completeness(QUICK)
        assert not finding.holds
        assert finding.why == "new: no check"

    def test_a_new_mechanism_gets_rows_that_fail(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(exact_channels, "MECHANISMS", {**MECHANISMS, "new": object})
        assert [encoding for kind, encoding in list_rows() if kind == "new"] == [e for e in EXAMPLES if e != "lattice"]
        with pytest.raises(InvalidSpec):
            check_channel("new", EXAMPLES["grid"], QUICK)


class TestArrays:
    def test_all_counting_mechanisms_are_checked(self) -> None:
        assert {check.subject for check in ARRAYS} == {
            f"{kind} in arrays" for kind in MECHANISMS if kind != "discrete_laplace"
        }


class TestLeaks:
    def test_names_are_unique(self) -> None:
        assert len({leak.name for leak in LEAKS}) == len(LEAKS) >= 10

    def test_a_threshold_one_above_the_published_one_changes_the_ratio(self) -> None:
        spec = example_round(EXAMPLES["grid"], "ss", 1.0)
        mechanism = replace(spec.mechanism, hold_threshold=spec.mechanism.hold_threshold + 1)
        published = enumerate_channel(device_reports(), spec, [(0.0, 0.0), (1.0, 1.0)]).largest_ratio()
        realised = enumerate_channel(
            device_reports(), replace(spec, mechanism=mechanism), [(0.0, 0.0), (1.0, 1.0)]
        ).largest_ratio()
        assert published == spec.mechanism.ratio()
        assert realised > published

    def test_a_charge_wrong_by_one_nano_is_detected(self) -> None:
        for off in (-1, 1):
            (finding,) = check_channel(
                "oue", EXAMPLES["tree_grid"], QUICK, charge=lambda m, off=off: m.epsilon_nano() + off
            )
            assert "not the least" in finding.why

    def test_a_slot_by_record_makes_reports_impossible(self) -> None:
        channel = enumerate_channel(
            device_reports(ClampedSlotByRecord), example_round(EXAMPLES["shifted_grid"], "grr", 1.0), [(0.0,), (1.0,)]
        )
        assert channel.largest_ratio() is None
