"""Tests of `sfumato audit`: its output and its exit status."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from audit import __main__ as command
from audit import catalogue
from audit.checks.check import Check, Finding, Leak, Setting

SOUND = Finding("dice", "spends 1", "exact", 6, 1.0, 0.5)
BROKEN = Finding("dice", "spends 1", "exact", 6, 1.0, 1.5, holds=False, why="it spends 1.5")


def read_lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def run_audit(monkeypatch: pytest.MonkeyPatch):
    """Return a function that runs the command over a catalogue of the test."""

    def run(*arguments: str, checks=(), leaks=()) -> int:
        monkeypatch.setattr(catalogue, "CHECKS", [Check("dice", lambda _, f=found: f) for found in checks])
        monkeypatch.setattr(catalogue, "LEAKS", [Leak(name, "dice", lambda _, f=found: f) for name, found in leaks])
        return command.main(["--processes", "1", "--seed", "7", *arguments])

    return run


class TestClaims:
    def test_valid_claims_have_a_row_each_and_status_0(self, run_audit, capsys: pytest.CaptureFixture[str]) -> None:
        assert run_audit("--quick", checks=[[SOUND, SOUND], [SOUND]]) == 0
        head, *rows, last = read_lines(capsys)
        assert head.split() == ["subject", "claim", "method", "trials", "charged", "measured", "verdict"]
        assert [row.split() for row in rows] == [["dice", "spends", "1", "exact", "6", "1", "0.5", "holds"]] * 3
        assert last.startswith("3 of 3 claims hold (")
        assert last.endswith("--seed 7)")

    def test_an_invalid_claim_is_printed_with_its_reason(self, run_audit, capsys: pytest.CaptureFixture[str]) -> None:
        assert run_audit(checks=[[SOUND, BROKEN], [SOUND]]) == 1
        lines = read_lines(capsys)
        assert lines[2].endswith("FAILS: it spends 1.5")
        assert lines[-1].startswith("2 of 3 claims hold (")

    def test_a_check_with_an_error_fails_the_audit(self, run_audit, capsys: pytest.CaptureFixture[str]) -> None:
        class Broken:
            def __iter__(self):
                raise ZeroDivisionError("no dice")

        assert run_audit(checks=[Broken(), [SOUND]]) == 1
        lines = read_lines(capsys)
        assert lines[1].endswith("ERROR: ZeroDivisionError: no dice")
        assert lines[-1].startswith("1 of 1 claims hold; 1 ended with an error (")

    @pytest.mark.parametrize(
        ("findings", "error"),
        [
            ([], "the check returned no finding"),
            ([SOUND, replace(SOUND, trials=0)], "the check made no trial"),
        ],
    )
    def test_a_check_that_checks_nothing_fails_the_audit(
        self, run_audit, findings: list[Finding], error: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run_audit(checks=[findings]) == 1
        assert error in "".join(read_lines(capsys))

    def test_a_finding_has_a_reason_if_the_claim_fails(self) -> None:
        for holds, why in ((True, "it spends 1.5"), (False, "")):
            with pytest.raises(ValueError, match="reason"):
                replace(SOUND, holds=holds, why=why)


class TestFast:
    def test_leaves_out_slow_subjects_only(self, run_audit, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
        assert run_audit("--quick", "--fast", checks=[[SOUND]]) == 0
        monkeypatch.setattr(catalogue, "SLOW", frozenset({"dice"}))
        assert run_audit("--quick", "--fast", checks=[[SOUND]]) == command.EXIT_USAGE
        assert run_audit("--quick", checks=[[SOUND]]) == 0
        assert "1 of 1 claims hold" in capsys.readouterr().out

    def test_slow_subjects_exist_and_are_few(self) -> None:
        subjects = [check.subject for check in catalogue.CHECKS]
        assert set(subjects) >= catalogue.SLOW
        assert len(catalogue.SLOW) < len(subjects) / 3
        assert catalogue.SLOW.isdisjoint({"device: participation", "device: spending cap"})


class TestPlantedLeaks:
    def test_detected_leaks_are_printed_by_name(self, run_audit, capsys: pytest.CaptureFixture[str]) -> None:
        assert run_audit("--planted", leaks=[("loaded", [SOUND, BROKEN]), ("twice thrown", [BROKEN])]) == 0
        lines = read_lines(capsys)
        assert [line.split("  ")[0] for line in lines[1:3]] == ["loaded", "twice thrown"]
        assert all(line.endswith("detected: it spends 1.5") for line in lines[1:3])
        assert lines[-1].startswith("2 of 2 planted leaks were detected (")

    def test_a_leak_ends_its_check_at_the_first_fault(self, run_audit) -> None:
        for option, is_whole in (([], True), (["--planted"], False)):
            ended: list[bool] = []

            def find(ended: list[bool] = ended) -> Iterator[Finding]:
                yield from (SOUND, BROKEN)
                ended.append(True)

            assert run_audit(*option, checks=[find()], leaks=[("loaded", find())]) == int(is_whole)
            assert bool(ended) is is_whole

    def test_a_missed_leak_is_printed(self, run_audit, capsys: pytest.CaptureFixture[str]) -> None:
        assert run_audit("--planted", leaks=[("loaded", [SOUND]), ("twice thrown", [BROKEN])]) == 1
        lines = read_lines(capsys)
        assert lines[1].endswith("MISSED")
        assert lines[-1].startswith("1 of 2 planted leaks were detected (")

    def test_a_leak_that_ends_its_check_with_an_error_is_not_detected(
        self, run_audit, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run_audit("--planted", leaks=[("loaded", None)]) == 1
        assert read_lines(capsys)[-1].startswith("0 of 1 planted leaks were detected; 1 ended with an error (")


class TestOptions:
    def test_json_has_one_line_per_check_and_a_summary(self, run_audit, capsys: pytest.CaptureFixture[str]) -> None:
        assert run_audit("--json", checks=[[SOUND], [BROKEN]]) == 1
        first, second, last = map(json.loads, read_lines(capsys))
        assert (first["passed"], second["passed"]) == (True, False)
        assert second["findings"][0]["why"] == "it spends 1.5"
        assert (last["passed"], last["checks"], last["failed"], last["claims"], last["faults"]) == (False, 2, 1, 2, 1)

    def test_only_selects_by_name(self, run_audit, capsys: pytest.CaptureFixture[str]) -> None:
        leaks = [("loaded", [BROKEN]), ("twice thrown", [BROKEN])]
        assert run_audit("--planted", "--only", "THROWN", leaks=leaks) == 0
        assert read_lines(capsys)[-1].startswith("1 of 1 ")
        assert run_audit("--planted", "--only", "nothing", leaks=leaks) == 2

    def test_effort_and_seed_reach_the_checks(self, run_audit, monkeypatch: pytest.MonkeyPatch) -> None:
        settings: list[Setting] = []
        monkeypatch.setattr(catalogue, "CHECKS", [Check("dice", lambda setting: settings.append(setting) or [SOUND])])
        for option in ("--quick", "--nightly"):
            assert command.main(["--processes", "1", "--seed", "3", option]) == 0
        assert [(setting.effort.value, setting.seed) for setting in settings] == [("quick", 3), ("nightly", 3)]
        assert settings[0].effort.trials(10) < settings[1].effort.trials(10)

    @pytest.mark.parametrize("wrong", [["--processes", "0"], ["--seed", "x"], ["--quick", "--nightly"], ["--what"]])
    def test_wrong_options_are_rejected(self, wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as error:
            command.main(wrong)
        assert error.value.code == 2
        message = capsys.readouterr().err
        assert "usage: sfumato audit" in message
        assert "_parse_count" not in message


class TestCatalogue:
    def test_names_are_unique(self) -> None:
        subjects = [check.subject for check in catalogue.CHECKS]
        names = [(leak.name, leak.subject) for leak in catalogue.LEAKS]
        assert len(set(subjects)) == len(subjects)
        assert len(set(names)) == len(names)

    def test_required_leaks_are_planted(self) -> None:
        required = {
            "noise at 70 %", "sensitivity of uncentred data", "raw SSE split", "raw initial centres",
            "bounds from raw min/max", "empty-cluster skip", "maxH + 1 draws at epsilon/maxH", "release after failure",
            "bounds from data", "report perturbed again on retry", "slot derived from data", "modulo bias",
            "float Laplace low bits", "participation interval ignored", "charge after the draw",
        }  # fmt: skip
        assert required <= {leak.name for leak in catalogue.LEAKS}
